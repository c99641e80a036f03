"""The query service: discovery, statuses, and replies that cannot be aimed at a stream."""

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest

from schemas import subjects
from schemas.codes import Code
from schemas.names import kv_stream
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Checkpoint, Speaker
from schemas.system import StatusView
from tests.support.ledger import until
from tests.support.process import command, data_of, environment
from tests.support.running import RunningWorker
from tests.support.space import Space, speaker
from worker.bus.connection import Connection
from worker.bus.jetstream import JetStream
from worker.client import Client, Failed, NobodyThere, Refused
from worker.queries import MAX_IN_FLIGHT, MAX_PER_ASKER, QueryService


async def test_status_tells_versions_readiness_and_planes(
    space: Space, worker: RunningWorker
) -> None:
    async with space.client() as client:
        status = await client.status()
        assert status["ready"] is True
        assert status["reasons"] == []
        assert status["space"] == space.names.space
        assert "checkpoints" in status["planes"]
        assert abs(status["at_ms"] - time.time() * 1000) < 5_000
        StatusView.from_object(status)
        with pytest.raises(Refused) as caught:
            await client.query("sys", "status", {"surprise": 1})
        assert caught.value.field == "surprise"


def test_the_command_status_shows_it(space: Space, process_worker: Any) -> None:
    env = environment(nats_url=space.server.url, spaces=space.names.space, data_dir=space.data_dir)
    nobody = command(["status", "--timeout", "1s"], env)
    assert nobody.returncode == 1
    worker = process_worker().wait_ready()
    shown = command(["status", "--json"], env)
    assert shown.returncode == 0
    assert data_of(shown.stdout)["worker"]["pid"] == worker.pid
    plain = command(["status"], env)
    words = [line.split()[0] for line in plain.stdout.splitlines()]
    assert words == ["space", "ready", "worker", "since", "broker"]
    every = command(["status", "--all"], env)
    told = [line.split() for line in every.stdout.splitlines()]
    assert told[:3] == [line.split() for line in plain.stdout.splitlines()[:3]]
    assert "ledger rulesets" in every.stdout


async def test_the_service_can_be_discovered(space: Space, worker: RunningWorker) -> None:
    conn = await space.connect()
    try:
        found = await conn.request("$SRV.PING.tidegate")
        ping = json.loads(found.data)
        assert (ping["type"], ping["name"]) == ("io.nats.micro.v1.ping_response", "tidegate")
        info = json.loads((await conn.request(f"$SRV.INFO.tidegate.{ping['id']}")).data)
        wanted = f"{space.names.prefix}.qry.*.*.cp.show"
        assert wanted in {one["subject"] for one in info["endpoints"]}
        async with space.client() as client:
            with pytest.raises(Refused):
                await client.cp.show("build", "none")
        stats = json.loads((await conn.request("$SRV.STATS.tidegate")).data)
        (show,) = [one for one in stats["endpoints"] if one["subject"] == wanted]
        assert (show["num_requests"], show["num_errors"]) == (1, 1)
        assert show["last_error"] == "unknown-checkpoint"
        assert show["processing_time"] > 0
    finally:
        await conn.close()


async def test_an_answer_never_goes_to_a_subject_of_the_askers_choice(
    space: Space, worker: RunningWorker
) -> None:
    by = speaker("alice")
    asked = subjects.query(space.names, by, "sys", "status")
    target = Checkpoint("build", "one")
    aims = (
        subjects.timer(space.names, subjects.own_timer(space.names, target), "armed"),
        subjects.settle_fact(space.names, target),
        f"$KV.{space.names.records_bucket}.{subjects.status_key(target)}",
    )
    inside = await space.connect()
    outside = await Connection.open(space.server.client_options(), name="outside")
    js = JetStream(inside)
    try:
        # Result and fact of the ruleset, which setup stored as the log's first command.
        while True:
            if (await js.stream_info(space.names.res_stream)).last_seq >= 2:
                break
            await asyncio.sleep(0.02)
        before = {name: (await js.stream_info(name)).last_seq for name in await _streams(js, space)}
        for conn in (inside, outside):
            for aim in aims:
                await conn.publish(asked, b"{}", reply=aim)
                await conn.publish("$SRV.PING", b"", reply=aim)
            await conn.flush()
        async with space.client(by) as client:
            await client.status()
        after = {name: (await js.stream_info(name)).last_seq for name in await _streams(js, space)}
        assert after == before
    finally:
        await inside.close()
        await outside.close()


async def _streams(js: JetStream, space: Space) -> list[str]:
    """Every stream of the space but the leases, which a worker renews all the time."""
    leases = kv_stream(space.names.leases_bucket)
    return [
        name
        for name in await js.stream_names()
        if name.endswith(f"_{space.names.space}") and name != leases
    ]


class Service:
    """A query service with handlers of the test's own."""

    def __init__(self, conn: Connection, space: Space) -> None:
        self.release = asyncio.Event()
        self.waiting: list[Speaker] = []
        self.service = QueryService(
            conn,
            service_id="test",
            version="0.0.1",
            started_at="2026-01-01T00:00:00Z",
            clock_ns=time.monotonic_ns,
        )
        self.service.add(
            space.names,
            {
                ("sys", "wait"): self._wait,
                ("sys", "raise"): self._raise,
                ("sys", "large"): self._large,
                ("sys", "refuse"): self._refuse,
            },
        )

    async def _wait(self, by: Speaker, _: bytes) -> Verdict:
        self.waiting.append(by)
        await self.release.wait()
        return Accepted("waited")

    async def _raise(self, _: Speaker, __: bytes) -> Verdict:
        raise RuntimeError("sentinel")

    async def _large(self, _: Speaker, __: bytes) -> Verdict:
        return Accepted("large", {"text": "x" * 2_000_000})

    async def _refuse(self, by: Speaker, raw: bytes) -> Verdict:
        return Refusal(Code.CONFLICT, "word", by.principal, data={"raw": raw.decode()})


async def test_handlers_that_fail_or_say_too_much_are_answered(bare_space: Space) -> None:
    conn = await bare_space.connect()
    one = Service(conn, bare_space)
    await one.service.start()
    try:
        async with bare_space.client() as client:
            with pytest.raises(Failed) as failed:
                await client.query("sys", "raise", {})
            assert failed.value.code is Code.INTERNAL
            assert "sentinel" not in failed.value.message
            with pytest.raises(Refused) as large:
                await client.query("sys", "large", {})
            assert large.value.reason == "answer-too-large"
            with pytest.raises(Refused) as refused:
                await client.query("sys", "refuse", {"a": 1})
            assert refused.value.message == "alice"
            assert json.loads(refused.value.result.data["raw"]) == {"v": 1, "a": 1}
    finally:
        await one.service.stop()
        await conn.close()


async def test_one_asker_never_takes_the_place_of_others(bare_space: Space) -> None:
    """Under many uids it is the same asker; its own place comes back with its own answers."""
    conn = await bare_space.connect()
    one = Service(conn, bare_space)
    await one.service.start()
    lives = [Speaker("greedy", f"{life}" * 26) for life in "ab"]
    try:
        async with (
            bare_space.client(lives[0], timeout_ms=30_000) as greedy,
            bare_space.client(lives[1], timeout_ms=30_000) as again,
            bare_space.client(speaker("modest"), timeout_ms=30_000) as modest,
        ):
            waiting = [
                asyncio.create_task(client.query("sys", "wait", {}))
                for client in (greedy, again)
                for _ in range(MAX_PER_ASKER // 2)
            ]
            await until(lambda: len(one.waiting) == MAX_PER_ASKER)
            for client in (greedy, again):
                with pytest.raises(Refused) as refused:
                    await client.query("sys", "refuse", {})
                assert refused.value.reason == "too-many-queries"
                assert refused.value.code is Code.UNAVAILABLE
                assert "greedy" in refused.value.message
            with pytest.raises(Refused) as served:
                await modest.query("sys", "refuse", {})
            assert served.value.reason == "word"
            one.release.set()
            assert {answer.outcome for answer in await asyncio.gather(*waiting)} == {"waited"}
            with pytest.raises(Refused) as served:
                await greedy.query("sys", "refuse", {})
            assert served.value.reason == "word"
    finally:
        await one.service.stop()
        await conn.close()


async def test_too_many_waiting_queries_are_refused_at_once(bare_space: Space) -> None:
    conn = await bare_space.connect()
    one = Service(conn, bare_space)
    await one.service.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    bare_space.client(speaker(f"asker-{n}"), timeout_ms=30_000)
                )
                for n in range(MAX_IN_FLIGHT // MAX_PER_ASKER + 1)
            ]
            waiting = [
                asyncio.create_task(client.query("sys", "wait", {}))
                for client in clients[:-1]
                for _ in range(MAX_PER_ASKER)
            ]
            await until(lambda: len(one.waiting) == MAX_IN_FLIGHT)
            with pytest.raises(Refused) as refused:
                await clients[-1].query("sys", "wait", {})
            assert refused.value.reason == "too-many-queries"
            assert refused.value.code is Code.UNAVAILABLE
            one.release.set()
            answers = await asyncio.gather(*waiting)
        assert {answer.outcome for answer in answers} == {"waited"}
    finally:
        await one.service.stop()
        await conn.close()


async def test_stopping_cuts_waiting_queries_off_and_takes_no_more(bare_space: Space) -> None:
    conn = await bare_space.connect()
    one = Service(conn, bare_space)
    await one.service.start()
    try:
        async with bare_space.client() as client:
            waiting = asyncio.create_task(client.query("sys", "wait", {}, timeout_ms=3_000))
            await asyncio.wait({waiting}, timeout=0.2)
            began = time.monotonic()
            await one.service.stop()
            assert time.monotonic() - began < 2
            with pytest.raises(NobodyThere):
                await client.query("sys", "refuse", {})
            waiting.cancel()
    finally:
        await conn.close()


@pytest.mark.parametrize("who", ["alice.short", "alice.UPPERCASEUPPERCASEUPPERCASE"])
async def test_a_speaker_outside_the_grammar_is_refused(
    space: Space, worker: RunningWorker, who: str
) -> None:
    conn = await Connection.open(space.server.client_options(), name="raw")
    try:
        subject = f"{space.names.prefix}.qry.{who}.sys.status"
        answer = json.loads((await conn.request(subject, b"{}", timeout_ms=2_000)).data)
        assert answer["status"] == "refused"
        assert answer["error"]["reason"] == "bad-speaker"
    finally:
        await conn.close()


async def test_a_client_that_is_not_open_says_so(bare_space: Space) -> None:
    client = Client(bare_space.server.url, speaker("alice"))
    with pytest.raises(NobodyThere, match="not open"):
        await client.status()
