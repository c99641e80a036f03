"""Repairing one checkpoint: the sweep does it to each, the verb ``repair`` to the one named."""

import asyncio
from collections.abc import Callable, Iterable

from schemas import headers as h
from schemas import subjects
from schemas.codes import BadInput
from schemas.names import Names
from schemas.records import TimerBody
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Checkpoint, own_timer
from schemas.views import RepairedFact
from worker import logs, metrics
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.bus.window import GroupPublisher
from worker.checkpoints.context import Clock, Context
from worker.checkpoints.index import Pending
from worker.checkpoints.looking import Whole, look, whole
from worker.checkpoints.minting import coordinate
from worker.checkpoints.records import Records, StatusAt, written_by
from worker.checkpoints.settle import Settler, view
from worker.timers.wheel import Coordinate
from worker.timers.writer import Armed, TimerWriter

log = logs.get()


class Repairer:
    """Brings one checkpoint into the shape its status says it should have.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
        records: The records.
        settler: Settles and finishes.
        writer: Arms and cancels.
        res: Publisher of facts.
        offer: Told of each coordinate that was armed.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        clock: Clock,
        records: Records,
        settler: Settler,
        writer: TimerWriter,
        res: GroupPublisher,
        offer: Callable[[Coordinate], object],
    ) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._records = records
        self._settler = settler
        self._writer = writer
        self._res = res
        self._offer = offer

    async def serve(self, ctx: Context) -> Verdict:
        """Serve the verb repair: run the sweep for one token and say what it did."""
        it = whole(ctx.target, await look(self._records, ctx.target))
        if isinstance(it, Refusal):
            return it
        repairs, status = await self._repair(ctx.target, it, ctx.cause)
        data = view(ctx.target, status, it.spec.record.holder).to_object()
        return Accepted(
            "repaired" if repairs else "nothing_to_repair", {**data, "repairs": repairs}
        )

    async def repair(self, target: Checkpoint, cause: str) -> list[str]:
        """Repair one checkpoint and tell observers what was done.

        Returns:
            What was done: ``status-restored``, ``expired``, ``rearmed``, ``fact-published``,
            ``timer-cancelled``; empty if nothing had to be, or there is no such checkpoint.

        Raises:
            TidegateError: On a transient fault, or a record that nobody may act on.
        """
        it = whole(target, await look(self._records, target))
        if isinstance(it, Refusal):
            return []
        repairs, _ = await self._repair(target, it, cause)
        return repairs

    async def _repair(
        self, target: Checkpoint, it: Whole, cause: str
    ) -> tuple[list[str], StatusAt]:
        repairs: list[str] = []
        status = it.status
        if status.record.state == "waiting" and it.fact is not None:
            status = await self._settler.restore_from_fact(target, status, it.fact, cause)
            repairs.append("status-restored")
        if status.record.state == "waiting":
            status = await self._repair_waiting(target, status, cause, repairs)
        else:
            await self._repair_settled(target, Whole(it.spec, status, it.fact), repairs)
        if repairs:
            await self._tell(target, status, repairs, cause, it.spec.trace)
        return repairs, status

    async def _repair_waiting(
        self, target: Checkpoint, status: StatusAt, cause: str, repairs: list[str]
    ) -> StatusAt:
        record = status.record
        now_ms = int(self._clock.lower_ms())
        if now_ms >= record.deadline:
            outcome = await self._settler.expire(target, status, now_ms, cause, by="sweep")
            if outcome.won:
                repairs.append("expired")
            return outcome.status
        if await self._timer_stands(target, record.deadlineGeneration, record.deadline):
            return status
        armed = await self._writer.arm(
            own_timer(self._names, target),
            TimerBody(
                v=1,
                timerId=target.token,
                generation=record.deadlineGeneration,
                deadline=record.deadline,
            ),
        )
        if isinstance(armed, Armed):
            repairs.append("rearmed")
            if armed.generation == record.deadlineGeneration:
                self._offer(coordinate(target, status, armed.seq))
        return status

    async def _repair_settled(self, target: Checkpoint, it: Whole, repairs: list[str]) -> None:
        left = await self._all_armed(target)
        if it.fact is None:
            repairs.append("fact-published")
        if left:
            repairs.append("timer-cancelled")
        # Also where both are in order: a fact that contradicts the status must not pass unseen.
        await self._settler.finish(target, it.status, won=False, by="sweep")

    async def waits_in_order(self, row: Pending) -> bool:
        """Whether a checkpoint's timer stands and no settle fact exists: nothing to repair.

        Two reads. Should its status say something else than the index, the index will hear of it.
        """
        stands, fact = await asyncio.gather(
            self._timer_stands(row.target, row.generation, row.deadline_ms),
            self._records.fact(row.target),
        )
        return stands and fact is None

    async def _timer_stands(self, target: Checkpoint, generation: int, deadline_ms: int) -> bool:
        """Whether a timer of this coordinate is armed, by us or by a foreign owner."""
        own = subjects.timer(self._names, own_timer(self._names, target), "armed")
        message = await self._js.last_message(self._names.ept_stream, own)
        if message is not None:
            return _is_timer_of(message, generation, deadline_ms)
        for subject in await self._all_armed(target):
            message = await self._js.last_message(self._names.ept_stream, subject)
            if message is not None and _is_timer_of(message, generation, deadline_ms):
                return True
        return False

    async def _all_armed(self, target: Checkpoint) -> Iterable[str]:
        pattern = f"{self._names.prefix}.ept.{target.wire_endpoint}.*.*.{target.token}.armed"
        info = await self._js.stream_info(self._names.ept_stream, subjects_filter=pattern)
        return info.subjects

    async def _tell(
        self,
        target: Checkpoint,
        status: StatusAt,
        repairs: list[str],
        cause: str,
        trace: str | None,
    ) -> None:
        for repair in repairs:
            metrics.REPAIRS.labels(repair).inc()
        generation = status.record.deadlineGeneration
        log.info(
            "checkpoint_repaired",
            space=self._names.space,
            endpoint=target.endpoint,
            token=target.token,
            generation=generation,
            repairs=repairs,
        )
        fact = RepairedFact(
            v=1, generation=generation, repairs=repairs, at_ms=int(self._clock.lower_ms())
        )
        # Not create-only: one generation may need more than one repair.
        await self._res.publish(
            subjects.checkpoint_fact(self._names, "repaired", target, generation),
            fact.to_bytes(),
            headers=written_by(cause, trace),
        )


def _is_timer_of(message: StoredMessage, generation: int, deadline_ms: int) -> bool:
    try:
        body = TimerBody.from_bytes(message.data)
    except BadInput:
        return False
    scheduled = message.headers.get(h.SCHEDULE) is not None
    return scheduled and (body.generation, body.deadline) == (generation, deadline_ms)
