"""What people hear is stored: the stream repeats what it has, and nothing is said past it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas import headers as h
from schemas import results, strict_json, subjects
from schemas.admission import Grant
from schemas.codes import Code
from schemas.names import Names
from schemas.results import Refusal, Result
from schemas.strict_json import JsonObject
from tests.integration.bus_server import connected, eventually, free_port, freeze
from tests.support.running import RunningWorker
from tests.support.server import WORKER_PASSWORD, Server
from tests.support.space import Space, speaker
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.errors import BusError, Unavailable, Unknown
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing
from worker.bus.subscription import Msg
from worker.bus.topology import SpaceTopology, TopologySettings
from worker.client import Client
from worker.client.errors import Failed
from worker.connector import Connector
from worker.spaces import check_space

NAMES = Names("tidegate", "main")


class Ears:
    """What somebody in the clients' account hears of a space."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.heard: list[Msg] = []

    async def listen(self, conn: Connection) -> None:
        for family in ("res", "grant", "fact"):
            await conn.subscribe(f"{self._names.prefix}.{family}.>", self._on_message)
        await conn.flush()

    async def _on_message(self, msg: Msg) -> None:
        self.heard.append(msg)

    def subjects(self) -> list[str]:
        return [msg.subject for msg in self.heard]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[list[Server]]:
    """Three servers with the two accounts."""
    routes = [free_port() for _ in range(3)]
    others = ", ".join(json.dumps(f"nats://127.0.0.1:{port}") for port in routes)
    users = (
        conf.User(conf.WORKER_USER, WORKER_PASSWORD, conf.WORKER_ACCOUNT),
        conf.User(conf.CLIENT_USER, None, conf.CLIENT_ACCOUNT),
    )
    servers = []
    for n, port in enumerate(routes):
        directory = tmp_path / f"n{n}"
        directory.mkdir()
        text = conf.render(
            [conf.Space(NAMES.root, NAMES.space)],
            users,
            store_dir=directory / "store",
            listen="127.0.0.1:-1",
            no_auth_user=conf.CLIENT_USER,
            extra=f"server_name: n{n}\n"
            f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{others}] }}',
        )
        servers.append(await asyncio.to_thread(Server(directory, text).start))
    yield servers
    for server in servers:
        await asyncio.to_thread(server.kill)


async def test_a_leader_without_a_majority_lets_nobody_hear_what_it_cannot_store(
    cluster: list[Server],
) -> None:
    async with connected(cluster[0].worker_options()) as anywhere:
        js = JetStream(anywhere)
        topology = SpaceTopology(js, NAMES, TopologySettings(replicas=3))

        async def set_up() -> bool:
            try:
                await topology.create("id")
            except (Unavailable, Unknown):
                return False
            return True

        await eventually(set_up, 60)
        leader = (await js.api(f"STREAM.INFO.{NAMES.res_stream}", None))["cluster"]["leader"]
    alone = cluster[int(leader[1:])]
    fact = f"{NAMES.prefix}.fact.cp.resumed.review.tok-{{}}.1"
    async with (
        connected(alone.worker_options()) as w,
        connected(alone.client_options()) as c,
    ):
        ears = Ears(NAMES)
        await ears.listen(c)
        await JetStream(w).publish(fact.format("before"), b"{}", expect_last_subject_seq=0)
        await eventually(lambda: ears.subjects() == [fact.format("before")])
        ears.heard.clear()
        for server in cluster:
            if server is not alone:
                await freeze(server.pid)
        # Every way in which a worker says something: one by one, and as a batch.
        with pytest.raises(BusError):
            await JetStream(w).publish(
                fact.format("lonely"), b"{}", expect_last_subject_seq=0, timeout_ms=1_000
            )
        with pytest.raises(BusError):
            await JetStream(w).publish_batch(
                [Outgoing(fact.format(f"batch-{n}"), b"{}", {}, 0) for n in range(3)]
            )
        # Whatever the leader handed on, it did before this answer.
        await w.flush()
        await c.flush()
        assert ears.subjects() == []


async def test_each_message_of_a_batch_is_heard_once_where_it_is_stored(space: Space) -> None:
    names = space.names
    w = await space.connect()
    c = await Connection.open(space.server.client_options(), name="ears")
    try:
        ears = Ears(names)
        await ears.listen(c)
        said = [
            f"{names.prefix}.{tail}"
            for tail in (
                "fact.cp.waiting.e.t.1",
                "grant.a.u.r.1",
                "res.a.u.cp.mint.1",
                "fact.x.y.z",
            )
        ]
        js = JetStream(w)
        await js.publish_batch([Outgoing(one, b"%d" % n, {}, 0) for n, one in enumerate(said)])
        with pytest.raises(BusError):
            await js.publish_batch(
                [Outgoing(f"{names.prefix}.fact.never", b"", {}, 0), Outgoing(said[0], b"", {}, 0)]
            )
        await js.publish(f"{names.prefix}.fact.last", b"", expect_last_subject_seq=0)
        last = f"{names.prefix}.fact.last"
        await eventually(lambda: last in ears.subjects())
        assert sorted(ears.subjects()) == sorted([*said, last])
        for msg in ears.heard:
            assert msg.headers.single(h.STORED_IN) == names.res_stream
            assert msg.headers.single(h.STORED_ON) == msg.subject
    finally:
        await w.close()
        await c.close()


def answer(result_id: str, command_id: str, code: Code | None) -> bytes:
    """A result as a worker would say it."""
    verdict = Refusal(code, "made-up", "made up") if code else results.Accepted("minted")
    body = results.build(verdict, command_id=command_id, result_id=result_id, at_ms=1)
    return strict_json.dumps(body)


@pytest.mark.parametrize("code", [None, Code.CONFLICT, Code.INTERNAL, Code.EXPIRED])
async def test_a_result_that_no_stream_holds_is_believed_only_if_it_says_unavailable(
    space: Space, code: Code | None
) -> None:
    names, by = space.names, speaker("alice")
    w = await space.connect()
    try:
        async with space.client(by) as client:
            command_id = "c" * 22
            before = (await JetStream(w).stream_info(names.log_stream)).last_seq
            call = asyncio.create_task(
                client.call(
                    "cap", "authorize", ("alice", "a"), {}, command_id=command_id, timeout_ms=4_000
                )
            )
            stored = 0

            async def is_stored() -> bool:
                nonlocal stored
                stored = (await JetStream(w).stream_info(names.log_stream)).last_seq
                return stored > before

            await eventually(is_stored)
            result_id = f"1-{stored}"
            subject = subjects.result(names, by, "cap", "authorize", result_id)
            heard = subjects.let_out(names, subject)
            await w.publish(heard, answer(result_id, command_id, code))
            done, _ = await asyncio.wait({call}, timeout=0.3)
            assert not done
            await w.publish(heard, answer(result_id, command_id, Code.UNAVAILABLE))
            with pytest.raises(Failed) as caught:
                await call
            assert caught.value.code is Code.UNAVAILABLE
    finally:
        await w.close()


async def test_another_turns_grant_that_was_replayed_gives_no_seat(space: Space) -> None:
    """Whoever may read a grant can have it sent on; it is believed only where it is stored."""
    names = space.names
    owner, other = speaker("connector"), speaker("connector")
    w = await space.connect()
    attacker = await Connection.open(space.server.client_options(), name="attacker")
    try:
        body = strict_json.dumps(grant_of("r-1", "l-stale", 1))
        theirs = subjects.grant(names, other, "r-1", 1)
        await JetStream(w).publish(theirs, body, expect_last_subject_seq=0)
        heard: list[str] = []
        async with space.client(owner) as client, Connector(client, host="h") as connector:
            turn = connector.turn(
                "r-1", session_id="s", agent_id="a", fingerprint="f", provider="p", model="m"
            )
            connector.admit_turn(turn)
            turn._seat = seat = asyncio.get_running_loop().create_future()
            aim = subjects.grant(names, owner, "r-1", 1)

            async def spy(msg: Msg) -> None:
                heard.append(msg.subject)

            await attacker.subscribe(subjects.grants_of(names, owner), spy)
            await attacker.publish(f"$JS.API.DIRECT.GET.{names.res_stream}.{theirs}", reply=aim)
            await eventually(lambda: heard == [aim])
            await client.conn.flush()
            assert not seat.done()
            await JetStream(w).publish(
                aim, strict_json.dumps(grant_of("r-1", "l-true", 1)), expect_last_subject_seq=0
            )
            assert (await asyncio.wait_for(seat, 5)).lease_id == "l-true"
            connector.forget_turn(turn)
    finally:
        await w.close()
        await attacker.close()


def grant_of(request_id: str, lease_id: str, generation: int) -> JsonObject:
    """A grant's body."""
    return Grant(
        v=1,
        at_ms=1,
        request_id=request_id,
        generation=generation,
        lease_id=lease_id,
        session_id="s",
        agent_id="a",
        provider="p",
        model="m",
        start_deadline_at_ms=2,
        payload=False,
    ).to_object()


async def test_a_space_of_an_earlier_version_answers_and_is_brought_up_to_date(
    space: Space, worker_of: Any
) -> None:
    """Its stream repeats nothing: results are found by looking, until it does."""
    w = await space.connect()
    js = JetStream(w)
    try:
        config = dict((await js.stream_info(space.names.res_stream)).config)
        republish = config.pop("republish")
        await js.stream_update(config)
        await asyncio.to_thread(worker_of(space).wait_ready)
        async with space.client() as client:
            assert (await mint(client, "first")).outcome == "minted"
        await check_space(w, space.names, space.settings())
        assert "republish" not in (await js.stream_info(space.names.res_stream)).config
        # A broker of the worker's own.
        await check_space(w, space.names, space.settings(), may_create=True)
        assert (await js.stream_info(space.names.res_stream)).config["republish"] == republish
        async with space.client() as client:
            assert (await mint(client, "second")).outcome == "minted"
    finally:
        await w.close()


async def test_in_the_account_of_the_streams_what_is_said_is_looked_for_at_once(
    space: Space, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There results are heard before they are stored, and only then."""
    monkeypatch.setattr("worker.client.core.LOOK_FIRST_MS", 3_600_000)
    names = space.names
    async with Client(
        space.server.worker_options(), speaker("alice"), names.space, root=names.root
    ) as client:
        for n in range(5):
            assert (await mint(client, f"tok-{n}")).outcome == "minted"


async def mint(client: Client, token: str) -> Result:
    return await client.call("cp", "mint", ("e", token), {"deadline_at_ms": 2_000_000_000_000})
