"""Rights and durables that change under a running worker: named, and mended when they can be."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from tests.integration.bus_server import connected, eventually
from tests.support.ledger import until
from tests.support.running import RunningWorker, running
from tests.support.server import WORKER_PASSWORD, Server
from tests.support.space import Space
from worker.bus import conf
from worker.bus.jetstream import JetStream
from worker.bus.plan import durable_configs
from worker.bus.subscription import Msg
from worker.client import Client

PROVEN_S = 30.0
"""Longest that a right given back may stay unnoticed."""


class Doorkeeper:
    """Takes rights of the workers' user away, and gives them back, by reloads of the broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        text = (server.directory / "server.conf").read_text()
        self._text = text.replace("127.0.0.1:-1", f"127.0.0.1:{server.port}")

    async def deny(self, *, publish: Sequence[str] = (), subscribe: Sequence[str] = ()) -> None:
        login = f'{{ user: "{conf.WORKER_USER}", password: "{WORKER_PASSWORD}"'
        assert f"{login} }}" in self._text
        rights = ", ".join(
            f"{verb}: {{ deny: {list(denied)} }}".replace("'", '"')
            for verb, denied in (("publish", publish), ("subscribe", subscribe))
            if denied
        )
        limited = f"{login}, permissions: {{ {rights} }} }}" if rights else f"{login} }}"
        self._server.rewrite(self._text.replace(f"{login} }}", limited))
        await asyncio.to_thread(self._server.reload)

    async def allow(self) -> None:
        await self.deny()


@pytest.fixture
def keeper(own_space: Space) -> Doorkeeper:
    return Doorkeeper(own_space.server)


async def mint(client: Client, timeout_ms: int) -> None:
    deadline_at_ms = time.time_ns() // 1_000_000 + 600_000
    await client.cp.mint("runs", "t-1", deadline_at_ms=deadline_at_ms, timeout_ms=timeout_ms)


def reasons(worker: RunningWorker) -> str:
    return "; ".join(worker.worker.not_ready())


async def test_a_subscription_that_was_taken_away_comes_back_by_itself(
    own_space: Space, keeper: Doorkeeper
) -> None:
    prefix = own_space.names.prefix
    async with running(own_space.settings()) as worker, own_space.client() as client:
        await client.query("sys", "status", {"v": 1})
        named = f"listen to {prefix}.hb.*.*, {prefix}.qry."
        for _ in range(2):
            await keeper.deny(subscribe=[f"{prefix}.qry.>", f"{prefix}.hb.>"])
            await until(lambda: named in reasons(worker), PROVEN_S, lambda: reasons(worker))
            await keeper.allow()
            await until(lambda: reasons(worker) == "", PROVEN_S, lambda: reasons(worker))
            await client.query("sys", "status", {"v": 1})


async def test_every_subscription_of_a_connection_comes_back(
    own_space: Space, keeper: Doorkeeper
) -> None:
    heard: list[bytes] = []

    async def hear(msg: Msg) -> None:
        heard.append(msg.data)

    options = own_space.server.worker_options()
    async with connected(options, prove_interval_ms=200, watchdog_interval_ms=100) as c:
        await c.subscribe("mine.a", hear)
        await c.subscribe("mine.*", hear, queue="q")
        await keeper.deny(subscribe=["mine.>"])
        await until(lambda: "mine.*" in str(c.rights_lost))
        assert c.rights_lost == ["the broker refuses to let us listen to mine.a, mine.*"]
        denials = c.denials
        await until(lambda: c.denials > denials + 4)
        await keeper.allow()
        await until(lambda: c.rights_lost == [])
        for number in range(20):
            await c.publish("mine.a", b"%d" % number)
        await c.flush()
        # Asked for again and again, each is there once.
        await until(lambda: len(heard) >= 40)
        assert len(heard) == 40


@pytest.mark.parametrize("what", ["armed", "record", "result"])
async def test_a_right_that_was_lost_is_named_while_commands_wait_for_it(
    own_space: Space, keeper: Doorkeeper, what: str
) -> None:
    names = own_space.names
    lost = {
        "armed": f"{names.prefix}.ept.>",
        "record": f"$KV.{names.records_bucket}.>",
        "result": f"{names.prefix}.res.>",
    }[what]
    async with running(own_space.settings()) as worker, own_space.client() as client:
        await keeper.deny(publish=[lost])
        minting = asyncio.create_task(mint(client, 90_000))
        await until(
            lambda: lost.removesuffix(">") in reasons(worker), PROVEN_S, lambda: reasons(worker)
        )
        await keeper.allow()
        await asyncio.wait_for(minting, 60)
        await until(lambda: reasons(worker) == "", 70, lambda: reasons(worker))


@pytest.mark.parametrize(
    "edit",
    [
        {"filter_subject": "tidegate.main.cmd.nobody.>"},
        {"headers_only": True},
        {"max_deliver": 1},
    ],
    ids=lambda edit: next(iter(edit)),
)
async def test_a_durable_that_was_edited_to_serve_nothing_is_made_anew(
    own_space: Space, edit: dict[str, object]
) -> None:
    names = own_space.names
    config = durable_configs(names, ack_wait_ms=30_000)[names.cp_durable]
    async with running(own_space.settings()), own_space.client() as client:
        conn = await own_space.connect()
        js = JetStream(conn)
        await js.consumer_create(names.cmd_stream, config | edit)
        await mint(client, 40_000)
        info = await js.consumer_info(names.cmd_stream, names.cp_durable)
        assert info.config["filter_subject"] == config["filter_subject"]
        await conn.close()


async def test_a_durable_that_was_paused_is_named(own_space: Space) -> None:
    names = own_space.names
    async with running(own_space.settings()) as worker:
        conn = await own_space.connect()
        pause = f"CONSUMER.PAUSE.{names.cmd_stream}.{names.cp_durable}"
        js = JetStream(conn)
        await js.api(pause, {"pause_until": "2099-01-01T00:00:00Z"})
        await until(
            lambda: f"{names.cp_durable} is paused" in reasons(worker),
            PROVEN_S,
            lambda: reasons(worker),
        )
        await js.api(pause, None)
        await until(lambda: reasons(worker) == "", PROVEN_S, lambda: reasons(worker))
        await conn.close()


async def test_a_hook_that_was_taken_back_is_not_called(own_server: Callable[..., Server]) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    called: list[str] = []

    async def gone(_: object) -> None:
        called.append("gone")

    async def here(_: object) -> None:
        called.append("here")

    async with connected(server.worker_options()) as c:
        await c.on_connect(gone)
        await c.on_connect(here)
        c.off_connect(gone)
        called.clear()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await eventually(lambda: "here" in called)
        assert called == ["here"]
