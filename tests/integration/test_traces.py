"""A trace goes from a command to all that follows from it, through crashes and in every plane."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from schemas import headers, strict_json, subjects
from schemas.admission import LeaseLost
from tests.integration.test_ledger_kill import KILLED, Zygote
from tests.support.cp import a_target, desk_in, serving
from tests.support.ledger import UID, a_log, facts, folding, prove_clean, read_all, until
from tests.support.process import WorkerProcess, space_environment
from tests.support.running import RunningWorker, running
from tests.support.space import Space
from worker import tracing
from worker.bus.jetstream import JetStream, parse_ack
from worker.bus.messages import StoredMessage
from worker.checkpoints import sweep
from worker.client import Client, Refused, context_of, traceparent_of
from worker.client.pending import sequence_of
from worker.connector import Connector
from worker.ledger.replay import replay
from worker.ledger.testing import FoldDriver, Logged
from worker.ledger.tx import OutRow
from worker.planes import PLANES

T = TypeVar("T")

PROVIDER = TracerProvider()
TRACER = PROVIDER.get_tracer("test")
FAR_MS = 4_000_000_000_000
TURN: dict[str, Any] = {"session_id": "s", "fingerprint": "f", "provider": "acme", "model": "m"}


async def under(call: Callable[[], Awaitable[T]]) -> tuple[str, T]:
    """Make a call inside a span of its own; the span's context, and what the call returned."""
    with TRACER.start_as_current_span("caller"):
        context = tracing.current_traceparent()
        assert context is not None
        return context, await call()


@dataclass
class Told:
    """Everything that one space's results' stream and settle facts hold.

    Attributes:
        js: Where to look.
        space: Whose.
        found: Subject, without the space's prefix, to the message.
    """

    js: JetStream
    space: Space
    found: dict[str, StoredMessage] = field(default_factory=dict)

    async def look(self) -> None:
        names = self.space.names
        for stream in (names.res_stream, names.epf_stream):
            for message in await read_all(self.js, stream, f"{names.prefix}.>"):
                self.found[message.subject.removeprefix(f"{names.prefix}.")] = message

    async def carried(self, begin: str, **body: Any) -> str | None:
        """The context of the one message whose subject begins so and whose body holds this."""

        def fits(subject: str, message: StoredMessage) -> bool:
            said = json.loads(message.data)
            return subject.startswith(begin) and all(said.get(k) == v for k, v in body.items())

        async with asyncio.timeout(20):
            while True:
                await self.look()
                found = [m for s, m in self.found.items() if fits(s, m)]
                if found:
                    break
                await asyncio.sleep(0.02)
        assert len(found) == 1, (begin, body, [m.subject for m in found])
        return traceparent_of(found[0].headers)


@pytest.fixture
async def told(space: Space) -> AsyncIterator[Told]:
    conn = await space.connect("test-told")
    yield Told(JetStream(conn), space)
    await conn.close()


async def prove_replay(told: Told, path: Path, one: RunningWorker) -> None:
    """What the worker holds is what its log says, with traces and all."""
    verdict = await one.worker.planes[told.space.names.space][1].queries()["sys", "digest"](
        subjects.Speaker("_op", UID), b'{"v":1}'
    )
    again = await replay(
        told.js, told.space.names, PLANES, path, until=int(verdict.data["watermark"])
    )
    assert again.digest.to_object() == verdict.data


async def say(
    client: Client, plane: str, verb: str, *key: str, given: Mapping[str, str], **body: Any
) -> int:
    """Store a command with headers of the test's own; its sequence."""
    subject = subjects.command(client.names, client.speaker, plane, verb, *key)
    raw = strict_json.dumps({"v": 1, **body})
    return parse_ack((await client.conn.request(subject, raw, headers=given)).data, subject).seq


async def test_caps(told: Told, worker: RunningWorker, tmp_path: Path) -> None:
    space = told.space
    async with space.client("_op-1") as operator, space.client() as client:
        await operator.cap.minting(True)
        keys = ("mintkey-00000001", "mintkey-00000002")
        reserved, minted = [], []
        for key in keys:
            reserve = partial(client.cap.reserve, "u1", key, latest_expires_at_ms=FAR_MS, cap=10)
            context, capped = await under(reserve)
            assert capped.cap is not None
            assert capped.result.traceparent == context
            reserved.append(context)
            minted.append(capped.cap.expires_at_ms)

        def confirm(n: int) -> Any:
            return client.cap.confirm("u1", keys[n], grant_expires_at_ms=minted[n])

        confirmed, _ = await under(lambda: confirm(0))
        second = await confirm(1)
        assert second.result.traceparent is None
        refused, judged = await under(
            lambda: client.cap.authorize("u1", amount=11, grant_expires_at_ms=minted[1])
        )
        assert judged.reason == "over-cap"
        stopped, _ = await under(lambda: client.cap.stop("u1"))

        for n in (0, 1):
            at = minted[n]
            assert await told.carried("fact.cap.reserved.u1.", expires_at_ms=at) == reserved[n]
        assert await told.carried("fact.cap.confirmed.u1.", expires_at_ms=minted[0]) == confirmed
        # A command without a context lends none, so these go on from where the caps came from.
        assert await told.carried("fact.cap.confirmed.u1.", expires_at_ms=minted[1]) == reserved[1]
        assert await told.carried("fact.cap.superseded.u1.") == reserved[0]
        assert await told.carried("fact.cap.refused.u1.") == refused
        assert await told.carried("fact.cap.stopped.u1.") == stopped
        stop = await told.carried(f"res.alice.{client.speaker.uid}.cap.stop.")
        assert stop == stopped
    await prove_replay(told, tmp_path / "again.db", worker)


async def test_turns(told: Told, worker: RunningWorker, tmp_path: Path) -> None:
    """Seats given at once, by another's end, by a tick; seats and places lost to time."""
    space = told.space
    lost: list[LeaseLost] = []
    async with space.client("_op-1") as operator, space.client() as client:
        await operator.adm.claim_policy(1, max_active_turns=1, max_concurrent_starts=1)
        await client.on_lease_lost(lost.append)
        owner = f"alice.{client.speaker.uid}"

        def enqueue(name: str, **more: Any) -> Awaitable[Any]:
            return client.adm.enqueue(name, agent_id=name, **TURN, **more)

        async def abandon(name: str) -> Any:
            granted = json.loads(told.found[f"grant.{owner}.{name}.1"].data)
            fence = {"lease_id": granted["lease_id"], "generation": 1}
            return await client.call("adm", "abandon", (name,), {**fence, "outcome": "cancelled"})

        first, _ = await under(lambda: enqueue("first"))
        second, _ = await under(lambda: enqueue("second"))
        hasty, _ = await under(lambda: enqueue("hasty", turn_timeout_ms=50))
        assert await told.carried(f"grant.{owner}.first.1") == first
        assert await told.carried("fact.adm.journal.request_queue_timed_out.") == hasty
        # The end of one turn gives another its seat, which is not the end's business.
        ended, _ = await under(lambda: abandon("first"))
        assert await told.carried(f"grant.{owner}.second.1") == second
        assert await told.carried("fact.adm.journal.request_abandoned.") == ended
        assert await told.carried(f"res.{owner}.adm.abandon.") == ended
        # Nobody starts the third turn: ticks take its seat back, give it again, and at last give
        # it to the fourth.
        await abandon("second")
        await operator.adm.claim_policy(
            2, max_active_turns=1, max_concurrent_starts=1, start_timeout_ms=200
        )
        third, _ = await under(lambda: enqueue("third"))
        fourth, _ = await under(lambda: enqueue("fourth"))
        for generation in (1, 2, 3):
            assert await told.carried(f"grant.{owner}.third.{generation}") == third
            assert await told.carried(f"fact.adm.lease_lost.third.{generation}.") == third
        assert await told.carried(f"grant.{owner}.fourth.1") == fourth
        message = f"res.{owner}.adm.lease_lost."
        assert await told.carried(message, request_id="third", generation=1) == third
        await until(lambda: bool(lost))
        assert lost[0].traceparent == third
    await prove_replay(told, tmp_path / "again.db", worker)
    pinned = "SELECT request_id, trace FROM adm_requests"
    fold = worker.worker.planes[space.names.space][1]
    rows = await fold._runner.database.read(  # type: ignore[attr-defined]  # rows as they lie
        lambda db, _: db.execute(pinned).fetchall()
    )
    assert dict(rows) == {
        "first": first,
        "second": second,
        "hasty": hasty,
        "third": third,
        "fourth": fourth,
    }


@pytest.mark.usefixtures("worker")
async def test_a_connectors_turn_shows_what_to_continue(space: Space) -> None:
    async with space.client() as client, Connector(client) as connector:

        async def run() -> str | None:
            async with connector.turn("t", agent_id="a", **TURN) as turn:
                return turn.traceparent

        context, shown = await under(run)
        assert shown == context


@pytest.mark.usefixtures("worker")
async def test_a_trace_that_is_none_is_ignored_and_refuses_nothing(told: Told) -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bad = ["", "x", good.upper(), good[:-1], good + "-00", f"ff{good[2:]}"]
    bad += [good.replace(good[3:35], "0" * 32), good.replace(good[36:52], "0" * 16)]
    async with told.space.client() as client:
        for trace in bad:
            seq = await say(client, "cap", "bump", "u1", given={headers.TRACEPARENT: trace})
            subject = f"res.alice.{client.speaker.uid}.cap.bump.1-{seq}"
            assert await told.carried(subject, status="ok") is None
            assert await told.carried("fact.cap.bumped.u1.", generation=seq - 1) is None
        seq = await say(client, "cap", "bump", "u1", given={headers.TRACEPARENT: good})
        assert await told.carried("fact.cap.bumped.u1.", generation=seq - 1) == good
        # What cannot be understood is answered in its trace, too.
        seq = await say(client, "cap", "bump", "u1", given={headers.TRACEPARENT: good}, more=1)
        subject = f"res.alice.{client.speaker.uid}.cap.bump.1-{seq}"
        assert await told.carried(subject, status="refused") == good


async def test_checkpoints(told: Told, worker: RunningWorker) -> None:
    async with told.space.client() as client:

        async def mint(token: str, in_ms: int) -> str:
            at_ms = int(worker.worker.planes[told.space.names.space][0]._clock.upper_ms()) + in_ms  # type: ignore[attr-defined]  # the broker's clock
            context, out = await under(lambda: client.cp.mint("runs", token, deadline_at_ms=at_ms))
            assert out.result.traceparent == context
            return context

        minted = await mint("t-1", 60_000)
        resumed, _ = await under(lambda: client.cp.resume("runs", "t-1"))
        late, refusal = await under(lambda: _refused(client.cp.resume("runs", "t-1")))
        assert refusal.result.traceparent == late
        plain = await mint("t-2", 60_000)
        await client.cp.resume("runs", "t-2")
        short = await mint("t-3", 300)
        seen = await client.cp.wait_settled("runs", "t-3", timeout_ms=10_000)
        assert (seen.state, seen.traceparent) == ("expired", short)
        seen = await client.cp.wait_settled("runs", "t-1", timeout_ms=10_000)
        assert (seen.state, seen.traceparent) == ("resumed", resumed)

    assert await told.carried("fact.cp.waiting.runs.t-1.") == minted
    for token, kind, settled in (
        ("t-1", "resumed", resumed),
        ("t-2", "resumed", plain),
        ("t-3", "expired", short),
    ):
        assert await told.carried(f"fact.cp.{kind}.runs.{token}.") == settled
        assert await told.carried(f"epf.runs.cp.{token}") == settled


async def _refused(call: Awaitable[Any]) -> Refused:
    try:
        await call
    except Refused as refused:
        return refused
    raise AssertionError("it was not refused")


@pytest.mark.parametrize("by", ["timer", "sweep"])
async def test_a_checkpoint_that_only_time_settles(
    told: Told, space: Space, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that never saw the mint: all it has is what is stored."""
    # What the sweep may take at once, and never before the timer's fire has done it.
    monkeypatch.setattr(sweep, "GRACE_MS", -1 if by == "sweep" else 3_600_000)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    target = a_target()
    async with desk_in(space) as desk:
        async with serving(space, "r1", wheel=False):
            due_ms = await desk.now_ms() + 1_200
            given: dict[str, Any] = {"headers": {headers.TRACEPARENT: trace}}
            await desk.result(await desk.say("mint", target, {"deadline_at_ms": due_ms}, **given))
            if by == "sweep":
                await desk.disarm(target)
        while await desk.now_ms() <= due_ms:  # noqa: ASYNC110 - the broker's clock
            await asyncio.sleep(0.05)
        async with serving(space, "r2", wheel=False):
            assert (await desk.agree(target))["state"] == "expired"
            await desk.was_told(target, ("waiting", 1), ("expired", 1))
        (expired,) = [fact for fact in await desk.facts(target) if fact.kind == "expired"]
        settled = await desk.fact_at(target)
        assert settled is not None
        assert expired.headers["traceparent"] == trace
        assert settled.headers["traceparent"] == trace
        assert settled.headers[headers.CAUSE].endswith(f"-{'fire' if by == 'timer' else 'sweep'}")


def test_a_reservation_that_a_tick_expires_and_a_log_folded_twice(tmp_path: Path) -> None:
    at_ms = 1_700_000_000_000
    traces = [f"00-{n:032x}-{n:016x}-01" for n in (1, 2)]
    one = FoldDriver(tmp_path / "one.db", PLANES)
    one.send("_op-1", "cap", "minting", body={"enabled": True}, at_ms=at_ms)
    for n, trace in enumerate((*traces, None)):
        key, body = f"mintkey-0000000{n}", {"latest_expires_at_ms": FAR_MS, "cap": 10}
        made = one.message("alice", "cap", "reserve", "u1", key, body=body, at_ms=at_ms)
        one.feed([traced(made, trace)])
    tick = one.message("_worker", "sys", "tick", at_ms=at_ms + 600_001)
    # Not even a tick's own context reaches what it ends.
    one.feed([traced(tick, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
    expired = [row for row in one.said if ".expired." in row.subject]
    assert [row.trace for row in expired] == [*traces, None]
    assert one.fold.unsaid() == unsaid_of(one)
    again = FoldDriver(tmp_path / "again.db", PLANES)
    for message in one.log:
        again.feed([message])
    assert again.digest() == one.digest()
    assert again.fold.unsaid() == one.fold.unsaid()
    without = FoldDriver(tmp_path / "without.db", PLANES)
    for message in one.log:
        without.feed([traced(message, None)])
    assert [row[:-1] for row in without.fold.unsaid()] == [row[:-1] for row in one.fold.unsaid()]
    assert without.fold.state == one.fold.state
    for driver in (one, again, without):
        driver.close()


def traced(message: Logged, trace: str | None) -> Logged:
    """A message with this context and no other."""
    return replace(message, headers={headers.TRACEPARENT: trace} if trace else {})


def unsaid_of(driver: FoldDriver) -> list[OutRow]:
    """What a worker that starts over finds in the file."""
    driver.reopen()
    return driver.fold.unsaid()


@contextlib.contextmanager
def a_zygote(space: Space) -> Iterator[Zygote]:
    one = Zygote(space)
    try:
        yield one
    finally:
        one.end()


async def test_a_kill_between_commit_and_publish_loses_no_trace(
    space: Space, tmp_path: Path
) -> None:
    async with a_log(space) as log:
        traces = {}
        for n in range(1, 7):
            command = log.command("reserve" if n % 2 else "stop", f"user-{n}")
            assert command.headers is not None
            trace = f"00-{n:032x}-{n:016x}-01" if n != 4 else None
            carried = {headers.TRACEPARENT: trace} if trace else {}
            (seq,) = await log.publish(replace(command, headers={**command.headers, **carried}))
            traces[seq] = trace
        with a_zygote(space) as zygote:
            assert await zygote.run("after-commit", 1, through=seq) == KILLED
        assert await read_all(log.js, log.names.res_stream, f"{log.names.prefix}.>") == []
        async with folding(space) as one:
            await one.said(seq)
            await prove_clean(log, await one.digest(), tmp_path / "clean.db")
        said = [
            message
            for message in await read_all(log.js, log.names.res_stream, f"{log.names.prefix}.>")
            if ".sys.ruleset." not in message.subject
        ]
        assert len(said) == len(traces) + len(await facts(log))
        for message in said:
            number = message.subject.rsplit(".", 1)[1].split("-")[1]
            assert traceparent_of(message.headers) == traces[int(number)]


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans that a worker in this process makes."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing.use(provider)
    yield memory
    tracing.use(None)


def context_in(span: ReadableSpan) -> str | None:
    """The context that a span is the child of."""
    if span.parent is None:
        return None
    ids = (format_trace_id(span.parent.trace_id), format_span_id(span.parent.span_id))
    return "00-{}-{}-{:02x}".format(*ids, span.parent.trace_flags)


async def test_the_worker_makes_one_span_per_command(
    spans: InMemorySpanExporter, space: Space
) -> None:
    async with running(space.settings()) as one, space.client() as client:
        wanted = {}
        wanted["cap.stop"], _ = await under(lambda: client.cap.stop("u1"))
        wanted["cp.resume"], refusal = await under(
            lambda: _refused(client.cp.resume("runs", "t-1"))
        )
        plain = await client.cap.bump("u1")
        await until(lambda: len(spans.get_finished_spans()) >= 4)
        # A tick, and a second look, make none.
        assert await one.stop() == 0
        made = {span.name: span for span in spans.get_finished_spans()}
        assert len(spans.get_finished_spans()) == len(made) == 4
        del made["sys.ruleset"]  # the first command of a log, made by setup
    for name, context in wanted.items():
        assert context_in(made[name]) == context
    assert context_in(made["cap.bump"]) is None
    assert plain.generation == 2
    assert dict(made["cap.stop"].attributes or {}) == {
        "tidegate.space": space.names.space,
        "tidegate.plane": "cap",
        "tidegate.verb": "stop",
        "tidegate.status": "ok",
        "tidegate.outcome": "stopped",
        "tidegate.sequence": 2,
    }
    resumed = made["cp.resume"]
    assert dict(resumed.attributes or {})["tidegate.outcome"] == refusal.reason
    assert dict(resumed.attributes or {})["tidegate.sequence"] == sequence_of(refusal.result.id)
    for span in made.values():
        assert span.kind is SpanKind.CONSUMER
        assert span.status.status_code is StatusCode.UNSET
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


async def test_the_collector_gets_what_the_users_variables_ask_for(
    space: Space, tmp_path: Path
) -> None:
    got: list[bytes] = []

    async def collect(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    env = {
        **space_environment(space),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
    worker = WorkerProcess(env, tmp_path / "worker.log")
    try:
        await asyncio.to_thread(worker.wait_ready)
        async with space.client("very-secret-name") as client:
            context, _ = await under(lambda: client.cap.stop("secret-user"))
            assert await asyncio.to_thread(worker.terminate) == 0
    finally:
        worker.kill()
        await runner.cleanup()
    resources = [r for raw in got for r in ExportTraceServiceRequest.FromString(raw).resource_spans]
    named = {a.key: a.value.string_value for r in resources for a in r.resource.attributes}
    assert named["service.name"] == "tidegate"
    made = [span for r in resources for s in r.scope_spans for span in s.spans]
    (span,) = [span for span in made if span.name == "cap.stop"]
    assert {span.name for span in made} == {"cap.stop", "sys.ruleset"}
    assert context.startswith(f"00-{span.trace_id.hex()}-{span.parent_span_id.hex()}-")
    assert b"secret" not in b"".join(got)
    assert '"traces_on"' in (tmp_path / "worker.log").read_text()


@pytest.mark.usefixtures("worker")
async def test_a_consumer_continues_the_trace(space: Space) -> None:
    async with space.client() as client:
        context, result = await under(lambda: client.call("cap", "stop", ("u1",), {}))
        alone = await client.call("cap", "stop", ("u1",), {})
    child = TRACER.start_span("consumer", context=context_of(result.traceparent))
    assert isinstance(child, ReadableSpan)
    assert context_in(child) == context
    root = TRACER.start_span("consumer", context=context_of(alone.traceparent))
    assert isinstance(root, ReadableSpan)
    assert root.parent is None


IMPORTS = """
import sys
import worker.client, worker.connector, worker.daemon, worker.wiring
from worker import tracing
tracing.start({})
assert tracing.current_traceparent() is None and tracing.spans() is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None  # as where it is not installed
tracing.start({"OTEL_TRACES_EXPORTER": "otlp"})
assert tracing.current_traceparent() is None and tracing.spans() is None
tracing.stop()
"""


def test_without_the_extra_nothing_is_imported_and_nothing_breaks() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTS],
        env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "traces_off" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, ()),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ()),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, ()),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp_proto_http")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ("otlp_proto_http",)),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ("otlp_proto_grpc",),
        ),
    ],
)
def test_which_exporters_the_variables_name(env: dict[str, str], wanted: tuple[str, ...]) -> None:
    assert tracing.exporters(env) == wanted


def test_an_exporter_that_does_not_exist_stops_nobody() -> None:
    tracing.start({"OTEL_TRACES_EXPORTER": "no-such-exporter"})
    assert tracing.spans() is None
