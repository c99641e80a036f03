"""One space's checkpoints as tests drive and see them: bytes in, results out, records as stored.

Nothing in here goes through the worker's own client or its views of records: commands are published
as bytes from the clients' account, results are taken as they come, and what is stored is read at
the leader.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from schemas import headers as h
from schemas import subjects
from schemas.names import Names, kv_stream
from schemas.subjects import Checkpoint, Speaker, Timer
from tests.support.results import code_of as code_of
from tests.support.space import Space, speaker
from worker import metrics
from worker.bus.connection import Connection
from worker.bus.delivery import Delivery
from worker.bus.errors import Unavailable
from worker.bus.follow import FilteredReader
from worker.bus.jetstream import JetStream, parse_ack
from worker.bus.messages import StoredMessage, parse_instant_ns
from worker.bus.subscription import Msg
from worker.checkpoints.plane import CheckpointPlane
from worker.settings import Settings

Json = dict[str, Any]

MINUTE_MS = 60_000
LIMIT_S = 40.0
"""Longest a condition is waited for: it bounds a broken run, no test depends on it."""

ENDPOINT = "review.eu"

QUICK_ACK_WAIT_MS = 1_000
_tokens = itertools.count(1)


def a_target(endpoint: str = ENDPOINT) -> Checkpoint:
    """A checkpoint that no other test of this process names."""
    return Checkpoint(endpoint, f"tok-{next(_tokens)}")


def new_id() -> str:
    return secrets.token_urlsafe(16)


async def until(
    condition: Callable[[], Awaitable[Any]], *, what: str = "", limit_s: float = LIMIT_S
) -> Any:
    """Wait until a condition answers something true, and return that."""
    end = time.monotonic() + limit_s
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"it did not come to be in time: {what or condition}")
        await asyncio.sleep(0.01)


class Skew:
    """A monotonic clock that a test can set, as a machine's sleep or a broken clock would.

    Attributes:
        offset_s: Added to the machine's own.
    """

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


def counted(name: str, **labels: str) -> float:
    """What a counter of this process has counted."""
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


@dataclass(frozen=True)
class Fact:
    """One public fact as observers see it."""

    kind: str
    generation: int
    body: Json
    headers: Mapping[str, str]


class QuickSpace(Space):
    """A space whose broker hands out again after a second what nobody answered."""

    def settings(self, **changes: Any) -> Settings:
        return super().settings(**{"ack_wait_ms": QUICK_ACK_WAIT_MS, **changes})


class Desk:
    """Speaks and looks in one space.

    Attributes:
        names: The space's names.
        js: JetStream of the workers' account.
        heard: Every result that a client heard, by the sequence of its command.
        facts_heard: How often an observer heard a fact, by ``<kind>.<endpoint>.<token>.<gen>``.
        alice: A speaker, the holder of what it mints.
        bob: Another one.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.names: Names = space.names
        self.alice = speaker("alice")
        self.bob = speaker("bob")
        self.heard: dict[int, list[Json]] = defaultdict(list)
        self.heard_invalid: dict[int, list[Json]] = defaultdict(list)
        self.facts_heard: Counter[str] = Counter()
        self._news = asyncio.Event()

    async def open(self) -> Self:
        self.conn = await Connection.open(self.space.server.worker_options(), name="test-desk")
        self.js = JetStream(self.conn)
        self.voice = await Connection.open(self.space.server.client_options(), name="test-voice")
        await self.voice.subscribe(f"{self.names.prefix}.res.>", self._on_result)
        await self.voice.subscribe(f"{self.names.prefix}.fact.>", self._on_fact)
        return self

    async def close(self) -> None:
        await self.voice.close()
        await self.conn.close()

    async def _on_result(self, msg: Msg) -> None:
        if ".sys." in msg.subject:
            return  # the first command of the log, made by setup
        seq = int(msg.subject.rpartition("-")[2])
        heard = self.heard_invalid if ".res._.invalid." in msg.subject else self.heard
        heard[seq].append(json.loads(msg.data))
        self._news.set()

    async def _on_fact(self, msg: Msg) -> None:
        self.facts_heard[msg.subject.removeprefix(f"{self.names.prefix}.fact.cp.")] += 1

    # Speaking.

    async def now_ms(self) -> int:
        """The broker's now."""
        return (await self.js.stream_info(self.names.ept_stream)).ts_ms

    async def say(
        self,
        verb: str,
        target: Checkpoint,
        body: Json | bytes,
        *,
        by: Speaker | None = None,
        command_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish a command; the sequence under which the broker stored it."""
        subject = subjects.checkpoint_command(self.names, by or self.alice, verb, target)
        data = body if isinstance(body, bytes) else json.dumps({"v": 1, **body}).encode()
        given = {h.COMMAND: command_id or new_id(), **(headers or {})}
        reply = await self.voice.request(subject, data, headers=given)
        return parse_ack(reply.data, subject).seq

    async def result(self, seq: int, *, limit_s: float = LIMIT_S) -> Json:
        """The result of the command stored under ``seq``."""
        end = time.monotonic() + limit_s
        while not (heard := self.heard.get(seq) or self.heard_invalid.get(seq)):
            self._news.clear()
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"no result for command {seq}")
            try:
                await asyncio.wait_for(self._news.wait(), min(left_s, 1))
            except TimeoutError:
                # Should the broker have been away when it was told, it is read back.
                with contextlib.suppress(Unavailable):
                    if (stored := await self.stored_results(seq)) and not self.heard.get(seq):
                        return stored[0]
        return heard[0]

    async def insist(
        self,
        verb: str,
        target: Checkpoint,
        body: Json | bytes,
        *,
        by: Speaker | None = None,
        command_id: str | None = None,
    ) -> int:
        """As ``say``, with the same command id until the broker has it, whatever happens to it."""
        given = command_id or new_id()

        async def said() -> int | None:
            try:
                return await self.say(verb, target, body, by=by, command_id=given)
            except Unavailable:
                return None

        return int(await until(said, what=f"the broker takes {verb}", limit_s=60))

    async def ask(self, verb: str, target: Checkpoint, body: Json | bytes, **how: Any) -> Json:
        """Publish a command and wait for its result."""
        return await self.result(await self.say(verb, target, body, **how))

    async def mint(
        self, target: Checkpoint, *, in_ms: int = MINUTE_MS, by: Speaker | None = None, **body: Any
    ) -> Json:
        """Mint with a deadline so far ahead, and require that it was minted.

        A machine that is too slow for a near deadline gets one twice as far away.
        """
        if "deadline_at_ms" in body:
            told = await self.ask("mint", target, body, by=by)
        else:
            told = await self._ahead(in_ms, lambda at_ms: ("mint", target, at_ms, body), by=by)
        assert told["outcome"] == "minted", told
        return told

    async def heartbeat(
        self, target: Checkpoint, generation: int, *, in_ms: int = MINUTE_MS, **how: Any
    ) -> Json:
        body = {"generation": generation}
        return await self._ahead(in_ms, lambda at_ms: ("heartbeat", target, at_ms, body), **how)

    async def _ahead(
        self, in_ms: int, command: Callable[[int], tuple[str, Checkpoint, int, Json]], **how: Any
    ) -> Json:
        while True:
            verb, target, at_ms, body = command(await self.now_ms() + in_ms)
            told = await self.ask(verb, target, {**body, "deadline_at_ms": at_ms}, **how)
            if told["outcome"] != "deadline-not-future":
                return told
            in_ms *= 2

    async def resume(self, target: Checkpoint, body: Json | None = None, **how: Any) -> Json:
        return await self.ask("resume", target, body or {}, **how)

    # Looking.

    async def result_id(self, seq: int) -> str:
        """The id of a command's result: when its stream was made, and its sequence."""
        made = (await self.js.stream_info(self.names.cmd_stream)).created
        return f"{parse_instant_ns(made) // 1_000_000}-{seq}"

    async def entry(self, key: str) -> StoredMessage | None:
        """What is stored under a records key."""
        return await self.js.last_message(
            kv_stream(self.names.records_bucket), f"$KV.{self.names.records_bucket}.{key}"
        )

    async def _record(self, key: str) -> Json | None:
        found = await self.entry(key)
        return None if found is None or not found.data else dict(json.loads(found.data))

    async def spec(self, target: Checkpoint) -> Json | None:
        return await self._record(subjects.spec_key(target))

    async def status(self, target: Checkpoint) -> Json | None:
        return await self._record(subjects.status_key(target))

    async def status_at(self, target: Checkpoint) -> StoredMessage:
        found = await self.entry(subjects.status_key(target))
        assert found is not None
        return found

    async def spec_revision(self, target: Checkpoint) -> int:
        found = await self.entry(subjects.spec_key(target))
        assert found is not None
        return found.seq

    async def prompt(self, target: Checkpoint) -> Json | None:
        return await self._record(subjects.prompt_key(target))

    async def answer(self, target: Checkpoint, answer_id: str) -> Json | None:
        return await self._record(subjects.answer_key(target, answer_id))

    async def fact(self, target: Checkpoint) -> Json | None:
        """The settle fact."""
        found = await self.fact_at(target)
        return None if found is None else dict(json.loads(found.data))

    async def fact_at(self, target: Checkpoint) -> StoredMessage | None:
        return await self.js.last_message(
            self.names.epf_stream, subjects.settle_fact(self.names, target)
        )

    def own_timer(self, target: Checkpoint) -> Timer:
        return subjects.own_timer(self.names, target)

    def timer_subject(self, target: Checkpoint, kind: str) -> str:
        return subjects.timer(self.names, self.own_timer(target), kind)

    async def armed(self, target: Checkpoint) -> StoredMessage | None:
        """Our own armed timer."""
        return await self.js.last_message(
            self.names.ept_stream, self.timer_subject(target, "armed")
        )

    async def all_armed(self, target: Checkpoint | None = None) -> list[str]:
        """Subjects of every armed timer, ours and foreign, of one checkpoint or of all."""
        return await self.timers(target, "armed")

    async def timers(self, target: Checkpoint | None = None, kind: str = "*") -> list[str]:
        """Subjects of the timer stream that hold something."""
        wire, token = ("*", "*") if target is None else (target.wire_endpoint, target.token)
        pattern = f"{self.names.prefix}.ept.{wire}.*.*.{token}.{kind}"
        info = await self.js.stream_info(self.names.ept_stream, subjects_filter=pattern)
        return sorted(info.subjects)

    async def stored(self, stream: str, subject: str = ">") -> list[StoredMessage]:
        """Every message of a stream that matches."""
        info = await self.js.stream_info(stream)
        reader = await FilteredReader.open(self.js, stream, subject)
        found: list[StoredMessage] = []
        try:
            while reader.pending and not (found and found[-1].seq >= info.last_seq):
                batch = await reader.next_batch(2_000, 1_000)
                if not batch:
                    break  # what was pending has left the stream meanwhile
                found += batch
        finally:
            await reader.close()
        return found

    async def stored_results(self, seq: int) -> list[Json]:
        """Every result stored for one command, whoever it was addressed to."""
        prefix, result_id = self.names.prefix, await self.result_id(seq)
        found = []
        for pattern in (
            f"{prefix}.res.*.*.cp.*.{result_id}",
            f"{prefix}.res._.invalid.{result_id}",
        ):
            found += await self.stored(self.names.res_stream, pattern)
        return [json.loads(message.data) for message in found]

    async def facts(self, target: Checkpoint) -> list[Fact]:
        """Every public fact about a checkpoint, in the order of the stream."""
        pattern = f"{self.names.prefix}.fact.cp.*.{target.wire_endpoint}.{target.token}.*"
        return [
            Fact(
                message.subject.split(".")[4],
                int(message.subject.rpartition(".")[2]),
                json.loads(message.data),
                message.headers,
            )
            for message in await self.stored(self.names.res_stream, pattern)
        ]

    async def answered_once(self, seq: int) -> None:
        """Require that one result is stored for a command.

        Who listens hears a result before the stream has stored it, so it is waited for.
        """

        async def stored() -> bool:
            return bool(await self.stored_results(seq))

        await until(stored, what=f"the result of {seq} is stored")
        assert len(await self.stored_results(seq)) == 1

    async def was_told(self, target: Checkpoint, *kinds: tuple[str, int]) -> None:
        """Wait until observers were told exactly this of a checkpoint, repairs aside."""

        async def told() -> bool:
            return len(await self.kinds(target)) >= len(kinds)

        await until(told, what=f"observers are told of {target}: {kinds}")
        assert await self.kinds(target) == sorted(kinds)

    async def unarmed(self, target: Checkpoint | None = None) -> None:
        """Wait until no timer of a checkpoint, or of any, is left."""

        async def gone() -> bool:
            return await self.all_armed(target) == []

        await until(gone, what=f"no timer of {target} is left")

    async def kinds(self, target: Checkpoint) -> list[tuple[str, int]]:
        """Kind and generation of every public fact but repairs, sorted."""
        return sorted(
            (fact.kind, fact.generation)
            for fact in await self.facts(target)
            if fact.kind != "repaired"
        )

    # Meddling, as an operator with the broker's tools or a broken writer could.

    async def put(self, key: str, value: Json | bytes, **headers: str) -> int:
        """Write a record past everything."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        subject = f"$KV.{self.names.records_bucket}.{key}"
        return (await self.js.publish(subject, data, headers=headers or None)).seq

    async def plant(
        self, target: Checkpoint, *, in_ms: int, generation: int = 1, **status: Any
    ) -> Json:
        """Write spec and waiting status as a foreign owner does, without a timer; the status."""
        deadline = await self.now_ms() + in_ms
        spec = {
            "v": 1,
            "token": target.token,
            "holder": {"id": self.alice.principal, "lifecycleUid": self.alice.uid},
            "mintedAt": deadline - MINUTE_MS,
            "initialDeadline": deadline,
        }
        record = {
            "state": "waiting",
            "deadlineGeneration": generation,
            "deadline": deadline,
            "observedSpecRevision": 1,
            **status,
        }
        await self.put(subjects.spec_key(target), spec)
        await self.put(subjects.status_key(target), record)
        return record

    async def delete(self, key: str) -> int:
        """Put a deletion marker."""
        subject = f"$KV.{self.names.records_bucket}.{key}"
        return (await self.js.publish(subject, b"", headers={h.KV_OPERATION: "DEL"})).seq

    async def put_fact(self, target: Checkpoint, value: Json) -> int:
        """Publish a settle fact past everything."""
        subject = subjects.settle_fact(self.names, target)
        return (await self.js.publish(subject, json.dumps(value).encode())).seq

    async def disarm(self, target: Checkpoint) -> None:
        """Lose a timer, as a store that was full does."""
        await self.js.stream_purge(
            self.names.ept_stream, subject=self.timer_subject(target, "armed")
        )

    async def handled(self, durable: str, seq: int) -> None:
        """Wait until a durable has delivered ``seq`` and nothing it delivered is unanswered."""
        stream = {
            self.names.cp_durable: self.names.cmd_stream,
            self.names.timers_durable: self.names.ept_req_stream,
            self.names.fires_durable: self.names.ept_stream,
        }[durable]

        async def idle() -> bool:
            info = await self.js.consumer_info(stream, durable)
            return info.delivered_seq >= seq and info.ack_pending == 0

        await until(idle, what=f"{durable} has handled everything")

    async def deliver(
        self,
        message: StoredMessage,
        *,
        delivered: int = 1,
        durable: str = "x",
        lapses: Callable[[], int] = lambda: 0,
    ) -> Delivery:
        """A delivery of a stored message as a consumer would make it; its answers go nowhere."""
        raw = b"NATS/1.0\r\n" + b"".join(
            f"{name}: {value}\r\n".encode() for name, value in message.headers.items()
        )
        ack = f"$JS.ACK.{message.stream}.{durable}.{delivered}.{message.seq}.1.{message.time_ns}.0"
        header = raw + b"\r\n" if message.headers else b""
        subject = message.subject.encode()
        return Delivery(self.conn, subject, ack.encode(), header, message.data, lapses)

    # Judging.

    async def settled(self, target: Checkpoint, *, limit_s: float = LIMIT_S) -> Json:
        """Wait until a checkpoint has settled, its fact stands and no timer is left."""

        async def whole() -> Json | None:
            status = await self.status(target)
            if status is None or status["state"] == "waiting":
                return None
            done = await self.fact(target) is not None and not await self.all_armed(target)
            return status if done else None

        found: Json = await until(whole, what=f"{target} settles", limit_s=limit_s)
        return found

    async def agree(self, target: Checkpoint) -> Json:
        """Require that everything that can be seen of a settled checkpoint says the same.

        Returns:
            Its status.
        """
        status = await self.settled(target)
        stored = await self.status_at(target)
        fact = await self.fact(target)
        assert fact is not None
        expected: Json = {
            "v": 1,
            "token": target.token,
            "settle": status["state"],
            "generation": status["settledGeneration"],
            "ts": status["settledTs"],
        }
        if status["state"] == "resumed":
            expected["holder"] = status["settledHolder"]
            if "settledAnswerId" in status:
                expected["answerId"] = status["settledAnswerId"]
        assert fact == expected
        assert len(await self.stored(self.names.epf_stream, self._fact_subject(target))) == 1
        assert status["settledGeneration"] == status["deadlineGeneration"]
        if status["state"] == "expired":
            assert status["settledTs"] >= status["deadline"], "it expired early"
            assert stored.time_ms >= status["deadline"], "it was stored as expired early"
        else:
            assert status["settledTs"] < status["deadline"], "it was resumed late"

        async def told() -> list[Fact]:
            return [f for f in await self.facts(target) if f.kind in ("resumed", "expired")]

        settlements: list[Fact] = await until(told, what=f"observers are told of {target}")
        assert [(f.kind, f.generation) for f in settlements] == [
            (status["state"], status["deadlineGeneration"])
        ]
        assert settlements[0].body["at_ms"] == status["settledTs"]
        await self._results_agree(target, status)
        return status

    async def _results_agree(self, target: Checkpoint, status: Json) -> None:
        about = [
            (seq, answers)
            for seq, answers in self.heard.items()
            if any(one["data"].get("token") == target.token for one in answers)
        ]
        for seq, answers in about:
            if len(answers) > 1:
                # Two that served one delivery at once are both heard; the stream keeps one.
                answers = await self.stored_results(seq)
                assert len(answers) == 1
            told = answers[0]["data"]
            if not told or told["state"] == "waiting":
                continue
            assert told["state"] == status["state"], answers
            assert told["settled_at_ms"] == status["settledTs"], answers
            assert told["generation"] == status["settledGeneration"], answers
            assert told.get("settled_holder") == status.get("settledHolder")
            stored = (await self.status_at(target)).headers.get("Tidegate-Answer")
            assert told.get("answer_id") == status.get("settledAnswerId", stored)

    def _fact_subject(self, target: Checkpoint) -> str:
        return subjects.settle_fact(self.names, target)


@asynccontextmanager
async def desk_in(space: Space) -> AsyncIterator[Desk]:
    """A desk in a space."""
    desk = await Desk(space).open()
    try:
        yield desk
    finally:
        await desk.close()


class Replica:
    """A checkpoint plane in this process, with a connection and a data directory of its own.

    Attributes:
        plane: It.
        task: Its run; it ends only if a part of it failed.
    """

    def __init__(
        self,
        space: Space,
        name: str = "r1",
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        **settings: Any,
    ) -> None:
        self._space = space
        self.name = name
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self.settings: Settings = space.settings(
            **{"data_dir": space.data_dir / name, "sweep_interval_ms": 3_600_000, **settings}
        )
        self.task: asyncio.Task[None] | None = None
        self.passes = 0

    async def start(self) -> Self:
        self.conn = await Connection.open(
            self._space.server.worker_options(), name=f"replica-{self.name}"
        )
        self.plane = CheckpointPlane(
            self.conn,
            self._space.names,
            self.settings,
            f"{self.name:0<26}"[:26],
            monotonic=self._monotonic,
            wall_ns=self._wall_ns,
        )
        self._sweep_alone()
        await self.plane.start()
        self.task = asyncio.create_task(self.plane.run(), name=f"plane-{self.name}")
        await until(self._ready, what="the plane is ready")
        return self

    def _sweep_alone(self) -> None:
        """Let a test's passes and the plane's own wait for each other: it makes one at a time."""
        sweep, lock = self.plane._sweep.sweep, asyncio.Lock()

        async def alone(*, audit: bool) -> None:
            async with lock:
                await sweep(audit=audit)
                self.passes += 1

        setattr(self.plane._sweep, "sweep", alone)  # noqa: B010 - a method is replaced

    async def _ready(self) -> bool:
        assert self.task is not None
        if self.task.done():
            await self.task
        # The first pass of the sweep belongs to the start: what comes later is a test's own.
        return self.passes > 0 and not self.plane.not_ready()

    async def stop(self) -> None:
        await self.plane.stop()
        await self.conn.close()
        if self.task is not None:
            await self.task

    async def swept(self, *, audit: bool = True) -> None:
        """One pass of the sweep, now, over everything that has been stored."""
        await self.followed()
        await self.plane._sweep.sweep(audit=audit)

    async def followed(self) -> None:
        """Wait until the index has seen everything that has been stored."""
        names, js = self._space.names, JetStream(self.conn)
        records = kv_stream(names.records_bucket)
        newest = {
            records: await js.last_message(records, f"$KV.{names.records_bucket}.cp.*.*.*"),
            names.epf_stream: await js.last_message(names.epf_stream, f"{names.prefix}.epf.>"),
        }

        feed = self.plane._feed

        async def seen() -> bool:
            marks = {stream: await feed._run(feed._it.mark, stream) for stream in newest}
            return feed.caught_up.is_set() and all(
                message is None or (marks[stream] or 0) >= message.seq
                for stream, message in newest.items()
            )

        await until(seen, what="the index has caught up")

    async def query(self, name: str, by: Speaker, **body: Any) -> Any:
        """Ask one of the plane's queries; its verdict."""
        return await self.plane.queries()["cp", name](by, json.dumps(body).encode())


@asynccontextmanager
async def serving(space: Space, name: str = "r1", **how: Any) -> AsyncIterator[Replica]:
    """A replica that serves a space until the block ends."""
    replica = Replica(space, name, **how)
    try:
        yield await replica.start()
    finally:
        await replica.stop()
