"""The client: lost acknowledgements, late results, refusals, and what it may not do.

Rows 2, 5, 11, 15 of field-reports.md, as far as they concern the client.
"""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas import headers as h
from schemas import subjects
from schemas.codes import BadInput, Code
from schemas.names import Names
from schemas.results import Result
from schemas.subjects import Checkpoint
from tests.support.process import WorkerProcess, command, space_environment
from tests.support.running import RunningWorker, running
from tests.support.server import WORKER_PASSWORD, Server, spaces_of
from tests.support.space import Space, speaker
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.errors import Denied
from worker.bus.options import ConnectOptions
from worker.client import (
    CallTimeout,
    Client,
    NobodyThere,
    QueryTimeout,
    Refused,
    connect,
    new_command_id,
)
from worker.client.pending import sequence_of

HOUR_MS = 3_600_000


def in_an_hour() -> int:
    return time.time_ns() // 1_000_000 + HOUR_MS


async def test_a_call_returns_its_own_result(space: Space, worker: RunningWorker) -> None:
    async with space.client() as client:
        deadline = in_an_hour()
        minted = await client.cp.mint("build", "one", deadline_at_ms=deadline)
        assert minted.word == "minted"
        assert minted.checkpoint.deadline_at_ms == deadline
        assert minted.checkpoint.holder is not None
        assert minted.checkpoint.holder.id == "alice"
        moved = await client.cp.heartbeat("build", "one", generation=1, deadline_at_ms=deadline + 1)
        assert (moved.word, moved.checkpoint.generation) == ("extended", 2)
        resumed = await client.cp.resume("build", "one", answer={"go": True})
        assert (resumed.word, resumed.checkpoint.state) == ("resumed", "resumed")
        repaired = await client.cp.repair("build", "one")
        assert repaired.repairs == ()
        assert repaired.checkpoint.state == "resumed"
        expired = await client.cp.expire("build", "one")
        assert expired.word == "already_settled"
        detail = await client.cp.show("build", "one")
        assert detail.answer is not None
        assert detail.answer["value"] == {"go": True}


async def test_the_front_door_needs_one_import_and_plain_values(
    space: Space, worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_NATS_URL", space.server.url)
    monkeypatch.setenv("TIDEGATE_SPACES", space.names.space)
    monkeypatch.setenv("TIDEGATE_DATA_DIR", str(tmp_path))
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with connect("maria") as maria, connect("deployer") as agent:
        holder = f"{maria.speaker.principal}.{maria.speaker.uid}"
        prompt = {"title": "Ship?", "choices": ["yes", "no"]}
        minted = await agent.cp.mint("runs", "t", deadline_at_ms=soon, holder=holder, prompt=prompt)
        assert minted.checkpoint.deadline_at_ms == int(soon.timestamp() * 1000)
        await maria.cp.resume("runs", "t", answer="no")
        settled = await agent.cp.wait_settled("runs", "t", timeout_ms=20_000)
        assert (settled.resumed, settled.value) == (True, "no")
        assert settled.answer is not None
        assert settled.answer["by"] == "maria"
        async with space.client("bystander") as other:
            unseen = await other.cp.wait_settled("runs", "t", timeout_ms=20_000)
        assert unseen.resumed
        assert unseen.answer is None
    async with connect("maria") as again:
        assert again.speaker == maria.speaker, "the life that is kept here"


async def test_a_refusal_carries_code_reason_and_result(
    space: Space, worker: RunningWorker
) -> None:
    async with space.client() as alice, space.client("bob") as bob:
        await alice.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        with pytest.raises(Refused) as caught:
            await bob.cp.resume("build", "one")
        assert caught.value.code is Code.PERMISSION_DENIED
        assert caught.value.reason == "not-the-holder"
        assert caught.value.result.status == "refused"
        assert not caught.value.retryable
        with pytest.raises(Refused) as caught:
            await alice.call("cp", "mint", ("build", "two"), {"deadline": 1})
        assert (caught.value.code, caught.value.field) == (Code.BAD_REQUEST, "deadline_at_ms")


async def test_the_same_command_id_again_is_carried_out_once(
    space: Space, worker: RunningWorker
) -> None:
    async with space.client() as client:
        await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        intent = new_command_id()
        deadline = in_an_hour()
        outcomes = [
            await client.cp.heartbeat(
                "build", "one", generation=1, deadline_at_ms=deadline, command_id=intent
            )
            for _ in range(3)
        ]
        assert {one.word for one in outcomes} == {"extended"}
        assert {one.checkpoint.generation for one in outcomes} == {2}
        assert len({one.result.id for one in outcomes}) == 3


async def test_a_hundred_calls_at_once_each_get_their_own(
    space: Space, worker: RunningWorker
) -> None:
    async with space.client() as client:
        deadline = in_an_hour()
        outcomes = await asyncio.gather(
            *(client.cp.mint("build", f"t{n}", deadline_at_ms=deadline) for n in range(100))
        )
        assert [one.checkpoint.token for one in outcomes] == [f"t{n}" for n in range(100)]
        listed = [item async for page in client.cp.pages(limit=33) for item in page.items]
    assert {item.token for item in listed} == {f"t{n}" for n in range(100)}


async def test_no_result_in_time_is_an_unknown_outcome_that_can_be_asked_for(space: Space) -> None:
    async with space.client() as client:
        began = time.monotonic()
        deadline = in_an_hour()
        with pytest.raises(CallTimeout) as caught:
            await client.cp.mint("build", "one", deadline_at_ms=deadline, timeout_ms=700)
        assert time.monotonic() - began < 1.5
        assert caught.value.stored
        async with running(space.settings()):
            again = await client.cp.mint(
                "build", "one", deadline_at_ms=deadline, command_id=caught.value.command_id
            )
        assert again.word == "minted"


async def test_a_result_that_was_missed_is_looked_up(space: Space, worker: RunningWorker) -> None:
    async with space.client() as client:
        await client.cp.mint("build", "first", deadline_at_ms=in_an_hour())
        assert client._results is not None
        await client._results.unsubscribe()
        minted = await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
    assert minted.word == "minted"


async def test_nobody_there_is_said_at_once(bare_space: Space) -> None:
    async with bare_space.client() as client:
        began = time.monotonic()
        with pytest.raises(NobodyThere):
            await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        with pytest.raises(NobodyThere):
            await client.cp.list()
        assert time.monotonic() - began < 5


async def test_a_query_nobody_answers_in_time_is_a_timeout(
    space: Space, worker: RunningWorker
) -> None:
    async with space.client() as client:
        await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        with pytest.raises(QueryTimeout):
            await client.cp.wait_settled("build", "one", timeout_ms=300)
        with pytest.raises(NobodyThere):
            await client.query("cp", "nonsense", {})


async def test_waiting_callers_hold_up_nobody(space: Space, worker: RunningWorker) -> None:
    async with space.client() as client:
        await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        waiting = [
            asyncio.create_task(client.cp.wait_settled("build", "one", timeout_ms=20_000))
            for _ in range(200)
        ]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        assert (await client.cp.show("build", "one")).checkpoint.state == "waiting"
        assert time.monotonic() - began < 1
        await client.cp.resume("build", "one")
        settled = await asyncio.gather(*waiting)
    assert {one.state for one in settled} == {"resumed"}


async def test_a_restarted_broker_costs_no_effect_and_doubles_none(
    own_space: Space, tmp_path: Path
) -> None:
    async with running(own_space.settings()), own_space.client(timeout_ms=20_000) as client:
        deadline = in_an_hour()
        ids = [new_command_id() for _ in range(200)]

        async def mint(number: int) -> str:
            await asyncio.sleep(number * 0.002)
            outcome = await client.cp.mint(
                "build", f"t{number}", deadline_at_ms=deadline, command_id=ids[number]
            )
            return outcome.word

        async def trouble() -> None:
            for _ in range(2):
                await asyncio.sleep(0.12)
                await asyncio.to_thread(own_space.server.kill)
                await asyncio.to_thread(own_space.server.start)

        words, _ = await asyncio.gather(
            asyncio.gather(*(mint(number) for number in range(200))), trouble()
        )
        assert set(words) == {"minted"}
        again = await asyncio.gather(
            *(
                client.cp.mint("build", f"t{n}", deadline_at_ms=deadline, command_id=ids[n])
                for n in range(200)
            )
        )
        assert {one.word for one in again} == {"minted"}
        details = await asyncio.gather(*(client.cp.show("build", f"t{n}") for n in range(200)))
    assert {one.checkpoint.generation for one in details} == {1}
    assert {one.checkpoint.state for one in details} == {"waiting"}


async def test_callers_that_give_up_at_random_leave_the_others_alone(
    space: Space, worker: RunningWorker
) -> None:
    async with space.client() as client:
        deadline = in_an_hour()
        calls = [
            asyncio.create_task(client.cp.mint("build", f"t{n}", deadline_at_ms=deadline))
            for n in range(300)
        ]
        for number, call in enumerate(calls):
            if number % 3 == 0:
                asyncio.get_running_loop().call_later(number * 0.0005, call.cancel)
        done = await asyncio.gather(*calls, return_exceptions=True)
        kept = [one for n, one in enumerate(done) if n % 3]
        assert all(not isinstance(one, BaseException) for one in kept)
        assert list(client._waiting) == []
        assert (await client.cp.mint("build", "last", deadline_at_ms=deadline)).word == "minted"


BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" " * 900_000,
    "not-json": b"{",
    "not-utf8": b'{"v":1,"deadline_at_ms":"\xff"}',
    "nan": b'{"v":1,"deadline_at_ms":NaN}',
    "infinite": b'{"v":1,"deadline_at_ms":1e999}',
    "2^63": b'{"v":1,"deadline_at_ms":9223372036854775808}',
    "duplicate": b'{"v":1,"deadline_at_ms":1,"deadline_at_ms":2}',
    "surrogate": b'{"v":1,"deadline_at_ms":"\\ud800"}',
    "brackets": b"[" * 60_000,
    "true": b'{"v":true,"deadline_at_ms":1}',
    "array": b"[]",
    "unknown": b'{"v":1,"deadline_at_ms":1,"surprise":1}',
    "version": b'{"v":2,"deadline_at_ms":1}',
}


async def test_every_bad_body_gets_one_refusal_and_the_queue_flows(
    space: Space, worker: RunningWorker
) -> None:
    by = speaker("alice")
    names = space.names
    results: asyncio.Queue[Result] = asyncio.Queue()
    async with space.client(by) as client:
        conn = await Connection.open(space.server.client_options(), name="raw")

        async def keep(msg: Any) -> None:
            results.put_nowait(Result.parse(msg.data))

        await conn.subscribe(subjects.results_of(names, by), keep)
        sent = {}
        for n, (name, body) in enumerate(BAD_BODIES.items()):
            subject = subjects.checkpoint_command(names, by, "mint", Checkpoint("build", f"t{n}"))
            reply = await conn.request(
                subject, body, headers={h.COMMAND: f"command-{n:010d}"}, timeout_ms=3_000
            )
            sent[name] = json.loads(reply.data)["seq"]
        good = await client.cp.mint("build", "good", deadline_at_ms=in_an_hour())
        assert good.word == "minted"
        async with asyncio.timeout(5):
            by_seq = {
                sequence_of(one.id): one
                for one in [await results.get() for _ in range(len(sent) + 1)]
            }
        await asyncio.sleep(0.2)
        assert results.empty()
        await conn.close()
        page = await client.cp.list()
    assert len(by_seq) == len(sent) + 1
    for name, seq in sent.items():
        refused = by_seq[seq]
        assert refused.status == "refused", name
        assert refused.error is not None
        assert refused.error.code == (
            "unsupported-version" if name == "version" else "bad-request"
        ), name
        assert refused.error.field, name
    assert [item.token for item in page.items] == ["good"]


@pytest.mark.parametrize(
    "token", ["a.b", "a*", "a>", "é", "a b", "", "x" * 300, "a\n", "a\r\nPUB x 1\r\n1"]
)
async def test_an_id_outside_the_grammar_never_leaves_the_client(
    bare_space: Space, token: str
) -> None:
    async with bare_space.client() as client:
        with pytest.raises(BadInput):
            await client.cp.mint("build", token, deadline_at_ms=in_an_hour())


@pytest.fixture
async def guarded(own_server: Callable[..., Server], tmp_path: Path) -> tuple[Space, str]:
    """A space on a server with a user that may only ask queries, and its password."""
    server = own_server("main")
    server.rewrite(guarded_conf(server, may_mint=False))
    await asyncio.to_thread(server.start)
    space = Space(server, Names("tidegate", "main"), tmp_path / "data")
    await space.set_up()
    return space, "limited-password"


def guarded_conf(server: Server, *, may_mint: bool, hears_results: bool = True) -> str:
    publish = ["tidegate.main.qry.limited.>"]
    if may_mint:
        publish.append("tidegate.main.cmd.limited.*.cp.mint.>")
    subscribe = ["_INBOX_limited.>"]
    if hears_results:
        subscribe.append("tidegate.main.res.limited.>")
    users = (
        conf.User(conf.WORKER_USER, WORKER_PASSWORD, "W"),
        conf.User(
            "limited",
            "limited-password",
            "C",
            publish=tuple(publish),
            subscribe=tuple(subscribe),
        ),
    )
    return conf.render(
        spaces_of("tidegate", ["main"]),
        users,
        store_dir=server.directory / "store",
        listen=f"127.0.0.1:{server.port or -1}",
    )


def limited(space: Space, password: str, as_: str = "limited") -> Client:
    options = ConnectOptions(
        (space.server.url,), user="limited", password=password, inbox_prefix="_INBOX_limited"
    )
    return Client(options, speaker(as_), "main")


async def test_a_missing_permission_is_said_at_once(guarded: tuple[Space, str]) -> None:
    space, password = guarded
    async with running(space.settings()), limited(space, password) as client:
        began = time.monotonic()
        with pytest.raises(Denied) as caught:
            await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        assert time.monotonic() - began < 1
        assert caught.value.code is Code.PERMISSION_DENIED
        async with limited(space, password, as_="alice") as other:
            with pytest.raises(Denied):
                await other.cp.mint("build", "one", deadline_at_ms=in_an_hour())
            with pytest.raises(Denied):
                await other.cp.list()
        assert (await client.cp.list()).items == ()


async def test_who_may_only_look_needs_no_right_to_results(guarded: tuple[Space, str]) -> None:
    space, _ = guarded
    space.server.rewrite(guarded_conf(space.server, may_mint=False, hears_results=False))
    space.server.reload()
    async with running(space.settings()), limited(space, "limited-password") as client:
        assert (await client.cp.list()).items == ()
        with pytest.raises(Denied):
            await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())


async def test_a_permission_taken_away_is_said_at_once(guarded: tuple[Space, str]) -> None:
    space, password = guarded
    server = space.server
    server.rewrite(guarded_conf(server, may_mint=True))
    server.reload()
    async with running(space.settings()), limited(space, password) as client:
        await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
        server.rewrite(guarded_conf(server, may_mint=False))
        server.reload()
        async with asyncio.timeout(5):
            while True:
                try:
                    await client.cp.mint("build", "two", deadline_at_ms=in_an_hour())
                except Denied:
                    break


def test_the_command_line_says_permission_denied(
    guarded: tuple[Space, str], tmp_path: Path
) -> None:
    space, password = guarded
    env = space_environment(
        space, nats_user="limited", nats_password=password, data_dir=tmp_path / "cli"
    )
    done = command(["cp", "mint", "build", "-d", "+1h", "--as", "limited", "--json"], env)
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "permission-denied"
    assert "tidegate doctor says which rights" in done.stderr


def test_a_process_worker_is_reached_across_the_accounts(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    process_worker().wait_ready()

    async def play() -> str:
        async with space.client() as client:
            await client.cp.mint("build", "one", deadline_at_ms=in_an_hour())
            return (await client.cp.resume("build", "one")).word

    assert asyncio.run(play()) == "resumed"
