"""Settling: compare-and-set the status, then the create-only fact, then cancel the timer.

The compare-and-set on the exact revision that was read is the only thing that decides. Everything
after it is derived from the status that won, so whoever comes later (a redelivery, another replica,
the sweep) can finish it and arrives at the same bytes.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from schemas import subjects
from schemas.names import Names
from schemas.records import Holder, SettleFact, StatusRecord
from schemas.subjects import Checkpoint
from schemas.views import CheckpointFact, CheckpointView
from worker import logs, metrics
from worker.bus.errors import CasLost, Unavailable, Unknown
from worker.bus.jetstream import JetStream
from worker.bus.window import GroupPublisher, Still
from worker.checkpoints.context import Telling
from worker.checkpoints.records import (
    Contradiction,
    Garbled,
    Records,
    SpecAt,
    StatusAt,
    written_by,
)
from worker.timers.wheel import Coordinate
from worker.timers.writer import TimerWriter

log = logs.get()

REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one attempt to settle.

    Attributes:
        won: Whether this attempt's own write settled it.
        status: The status as it stands now; still waiting only if a heartbeat moved it.
    """

    won: bool
    status: StatusAt


@dataclass(frozen=True, slots=True)
class Settled:
    """A settlement this worker has finished, for the wheel, the index and those who wait.

    Attributes:
        target: Which checkpoint.
        status: The settled status.
        won: Whether this worker's write settled it.
    """

    target: Checkpoint
    status: StatusAt
    won: bool


class Settler:
    """Settles checkpoints and finishes what a settlement entails.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        records: The records.
        writer: The timer writer, to cancel.
        res: Publisher of facts.
        on_settled: Told of every settlement this worker has seen through.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        records: Records,
        writer: TimerWriter,
        res: GroupPublisher,
        on_settled: Callable[[Settled], None],
    ) -> None:
        self._js = js
        self._names = names
        self._records = records
        self._writer = writer
        self._res = res
        self._on_settled = on_settled
        self._lately: OrderedDict[Checkpoint, int] = OrderedDict()

    def settled_lately(self, target: Checkpoint, generation: int) -> bool:
        """Whether this worker saw that generation settled; a hint that saves reads."""
        return self._lately.get(target) == generation

    async def attempt(
        self,
        target: Checkpoint,
        at: StatusAt,
        settled: StatusRecord,
        cause: str,
        trace: str | None = None,
        answered: str | None = None,
        still: Still | None = None,
    ) -> Attempt:
        """Compare-and-set a waiting status to a settled one.

        Args:
            target: Which checkpoint.
            at: The waiting status that was read.
            settled: What it is to become.
            cause: Recognises our own write after a lost acknowledgement.
            trace: Trace context of the command that settles it, if one does.
            answered: Id of the answer, if the settled record does not name it.
            still: Says, when the write leaves, whether it may.

        Raises:
            Unknown: If the write neither is there nor can be ruled out; deliver again.
            Garbled: If what stands now does not parse.
        """
        try:
            revision = await self._records.put_status(
                target, settled, at.revision, cause, trace, answered, still
            )
        except CasLost:
            return await self._read_back(target, settled, cause)
        except Unknown:
            seen = await self._read_back(target, settled, cause)
            if seen.status.revision == at.revision:
                raise
            return seen
        return Attempt(True, StatusAt(settled, revision, cause, trace, answered))

    async def finish(
        self,
        target: Checkpoint,
        status: StatusAt,
        *,
        won: bool,
        by: str,
        telling: list[Telling] | None = None,
    ) -> None:
        """Make the fact exist, cancel the timer and tell observers; all of it idempotent.

        Args:
            target: Which checkpoint.
            status: Its settled status.
            won: Whether this worker's write settled it (for counting).
            by: What drove it: ``resume``, ``wheel``, ``fire``, ``sweep``, ``command``.
            telling: Where to leave what may happen together with the publishing of a result;
                done at once if absent.

        Raises:
            Contradiction: If another fact stands; nobody acts on it.
        """
        cause = status.cause or "_worker/unknown"
        # A settlement belongs to the trace of its command, and without one to that of the mint.
        trace = status.trace or await self._records.minted_in(target)
        told = won and by == "sweep"
        if told:
            # No timer or command brings anybody back, but a missing fact does.
            await self._tell(target, status.record, cause, trace, again=False)
        # The fact stands before the result says so; timer and observers may come with the result.
        await self._records.put_fact(target, fact_of(target, status.record), cause, trace)
        if won:
            self._count(status.record, by)
        self._on_settled(Settled(target, status, won))
        if telling is not None:
            # Its command is delivered again until all of that has been done.
            self._remember(target, status.record.deadlineGeneration)
            telling.append(lambda: self._tell(target, status.record, cause, trace, again=not won))
            telling.append(lambda: self._withdraw(target, by))
            return
        # The timer goes last: as long as it stands, its fire brings somebody back to finish; so
        # until then nobody may take that fire for one that comes after everything.
        if not told:
            await self._tell(target, status.record, cause, trace, again=not won)
        await self._withdraw(target, by)
        self._remember(target, status.record.deadlineGeneration)

    async def expire(
        self,
        target: Checkpoint,
        at: StatusAt,
        now_ms: int,
        cause: str,
        *,
        by: str,
        trace: str | None = None,
    ) -> Attempt:
        """Settle a due, waiting status as expired and finish what follows.

        Args:
            target: Which checkpoint.
            at: The waiting status that was read.
            now_ms: Lower bound of now; at or after the deadline.
            cause: Whose doing.
            by: ``wheel``, ``fire``, ``sweep`` or ``command``.
            trace: Trace context of the command, if it is one's doing.
        """
        outcome = await self.attempt(target, at, expired(at.record, now_ms), cause, trace)
        if outcome.status.record.state != "waiting":
            await self.finish(target, outcome.status, won=outcome.won, by=by)
        return outcome

    async def expire_coordinate(self, coordinate: Coordinate, now_ms: int, cause: str) -> None:
        """The wheel's way: settle from memory, without a read; the compare-and-set judges it."""
        waiting = StatusRecord(
            state="waiting",
            deadlineGeneration=coordinate.generation,
            deadline=coordinate.deadline_ms,
            observedSpecRevision=coordinate.spec_revision,
        )
        at = StatusAt(waiting, coordinate.revision, None)
        outcome = await self.attempt(coordinate.target, at, expired(waiting, now_ms), cause)
        if outcome.won:
            await self.finish(coordinate.target, outcome.status, won=True, by="wheel")

    async def restore_from_fact(
        self, target: Checkpoint, at: StatusAt, fact: SettleFact, cause: str
    ) -> StatusAt:
        """Repair a status that reads waiting although its settle fact exists.

        Returns:
            The settled status as it stands afterwards.

        Raises:
            Contradiction: If the fact speaks of a generation the status never had.
        """
        record = StatusRecord(
            state=fact.settle,
            deadlineGeneration=fact.generation,
            deadline=at.record.deadline,
            observedSpecRevision=at.record.observedSpecRevision,
            settledGeneration=fact.generation,
            settledTs=fact.ts,
            settledHolder=fact.holder,
            settledAnswerId=fact.answerId,
        )
        return await self.restore(target, at, record, cause)

    async def restore(
        self, target: Checkpoint, at: StatusAt, settled: StatusRecord, cause: str
    ) -> StatusAt:
        """Write a settlement that is known over a status that reads waiting.

        Returns:
            The settled status as it stands afterwards.

        Raises:
            Contradiction: If it is of a generation that the status has left behind.
        """
        if settled.deadlineGeneration < at.record.deadlineGeneration:
            raise Contradiction(target)
        log.error("status_regressed", space=self._names.space, token=target.token)
        metrics.REPAIRS.labels("status-restored").inc()
        return (await self.attempt(target, at, settled, cause)).status

    async def _read_back(self, target: Checkpoint, ours: StatusRecord, cause: str) -> Attempt:
        status = await self._records.status(target)
        if status is None:
            # Something was there a moment ago: one look does not prove that it is gone.
            raise Unavailable("the status cannot be seen now")
        if not isinstance(status, StatusAt):
            raise Garbled(target, "status")
        won = status.cause == cause and status.record.state == ours.state
        return Attempt(won, status)

    async def _withdraw(self, target: Checkpoint, by: str) -> None:
        stood = await self._writer.withdraw(subjects.own_timer(self._names, target))
        if by in ("wheel", "fire") or (stood and by != "sweep"):
            return
        # A foreign owner's instance and epoch only the stream knows.
        pattern = f"{self._names.prefix}.ept.{target.wire_endpoint}.*.*.{target.token}.armed"
        info = await self._js.stream_info(self._names.ept_stream, subjects_filter=pattern)
        for subject in info.subjects:
            owner = subjects.parse_timer(self._names, subject)
            if owner is not None:
                await self._writer.withdraw(owner)

    async def tell(
        self,
        target: Checkpoint,
        kind: str,
        fact: CheckpointFact,
        cause: str,
        trace: str | None,
        *,
        again: bool,
    ) -> None:
        """Publish a public fact, create-only per generation; one that exists is enough.

        Args:
            target: About which checkpoint.
            kind: ``waiting``, ``extended``, ``resumed`` or ``expired``.
            fact: What there is to say.
            cause: Whose doing.
            trace: Trace context of the command.
            again: Whether it may have been published before. Who listens hears even what the stream
                then refuses, so it is looked for first.
        """
        subject = subjects.checkpoint_fact(self._names, kind, target, fact.generation)
        if again and await self._js.last_message(self._names.res_stream, subject) is not None:
            return
        with contextlib.suppress(CasLost):
            await self._res.publish(
                subject,
                fact.to_bytes(),
                headers=written_by(cause, trace),
                expect_last_subject_seq=0,
            )

    async def _tell(
        self,
        target: Checkpoint,
        record: StatusRecord,
        cause: str,
        trace: str | None,
        *,
        again: bool,
    ) -> None:
        holder = record.settledHolder
        if holder is None:
            spec = await self._records.spec(target)
            if spec is None:
                raise Unavailable("the spec cannot be seen now")
            if not isinstance(spec, SpecAt):
                raise Garbled(target, "spec")
            holder = spec.record.holder
        fact = observer_fact(record, holder)
        await self.tell(target, record.state, fact, cause, trace, again=again)

    def _remember(self, target: Checkpoint, generation: int) -> None:
        self._lately[target] = generation
        if len(self._lately) > REMEMBERED:
            self._lately.popitem(last=False)

    def _count(self, record: StatusRecord, by: str) -> None:
        metrics.SETTLED.labels(record.state, by).inc()
        if record.state == "expired" and record.settledTs is not None:
            metrics.EXPIRY_LATENESS.observe((record.settledTs - record.deadline) / 1000)


def expired(waiting: StatusRecord, now_ms: int) -> StatusRecord:
    """The expired form of a waiting status."""
    return StatusRecord(
        state="expired",
        deadlineGeneration=waiting.deadlineGeneration,
        deadline=waiting.deadline,
        observedSpecRevision=waiting.observedSpecRevision,
        settledGeneration=waiting.deadlineGeneration,
        settledTs=now_ms,
    )


def resumed(
    waiting: StatusRecord,
    spec_revision: int,
    now_ms: int,
    holder: Holder,
    answer_id: str | None,
) -> StatusRecord:
    """The resumed form of a waiting status; ``now_ms`` is before its deadline."""
    return StatusRecord(
        state="resumed",
        deadlineGeneration=waiting.deadlineGeneration,
        deadline=waiting.deadline,
        observedSpecRevision=spec_revision,
        settledGeneration=waiting.deadlineGeneration,
        settledTs=now_ms,
        settledHolder=holder,
        settledAnswerId=answer_id,
    )


def fact_of(target: Checkpoint, record: StatusRecord) -> SettleFact:
    """The settle fact a settled status entails; a pure function of it."""
    if record.state == "waiting" or record.settledTs is None:
        raise Garbled(target, "status")
    return SettleFact(
        v=1,
        token=target.token,
        settle=record.state,
        generation=record.deadlineGeneration,
        ts=record.settledTs,
        holder=record.settledHolder,
        answerId=record.settledAnswerId,
    )


def observer_fact(record: StatusRecord, holder: Holder) -> CheckpointFact:
    """The public fact of a settlement; a pure function of the status and its spec."""
    at_ms = record.settledTs or 0
    return CheckpointFact(
        v=1,
        generation=record.deadlineGeneration,
        deadline_at_ms=record.deadline,
        holder=holder,
        at_ms=at_ms,
        # A foreign writer's expiry may be stamped before its deadline; ours never is.
        lateness_ms=max(0, at_ms - record.deadline) if record.state == "expired" else None,
    )


def view(target: Checkpoint, status: StatusAt, holder: Holder | None = None) -> CheckpointView:
    """A checkpoint as results and queries show it."""
    record = status.record
    return CheckpointView(
        endpoint=target.endpoint,
        token=target.token,
        state=record.state,
        generation=record.deadlineGeneration,
        deadline_at_ms=record.deadline,
        holder=holder,
        settled_at_ms=record.settledTs,
        settled_holder=record.settledHolder,
        answer_id=status.answer_id,
    )


async def together(*steps: Awaitable[object]) -> None:
    """Run steps side by side to their ends, then raise the first failure, if any.

    Unlike a task group it cancels nothing: a step that has begun to write is always read back.
    """
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
