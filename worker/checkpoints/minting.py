"""Mint: a checkpoint comes to exist, once, and its deadline is armed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from schemas.codes import BadInput, Code
from schemas.commands.cp import Mint
from schemas.limits import MAX_DEADLINE_AHEAD_MS
from schemas.names import Names
from schemas.records import (
    Goal,
    Holder,
    Obligation,
    PromptRecord,
    SpecRecord,
    StatusRecord,
    TimerBody,
    canonical,
)
from schemas.results import Accepted, Refusal, Verdict
from schemas.subjects import Checkpoint, own_timer
from schemas.views import CheckpointFact
from worker.bus.errors import CasLost, Unknown
from worker.bus.window import Still
from worker.checkpoints.context import Clock, Context
from worker.checkpoints.looking import Seen, Whole, closed, look, regressed, whole
from worker.checkpoints.records import Deleted, Records, SpecAt, StatusAt
from worker.checkpoints.settle import Settler, view
from worker.timers.wheel import Coordinate
from worker.timers.writer import Armed, TimerWriter

SPEC_REVISION = 1
"""``observedSpecRevision``: a spec is written once and in one batch with its status, so the status
observes the first and only revision of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a mint asks for, in the form in which two mints are compared."""

    holder: Holder
    deadline_ms: int
    goal: Goal | None
    obligations: list[Obligation] | None
    prompt: PromptRecord | None

    def same_as(self, spec: SpecRecord, prompt: PromptRecord | None) -> bool:
        """Whether a stored checkpoint is what was asked for, by canonical JSON."""
        return (
            self.holder == spec.holder
            and self.deadline_ms == spec.initialDeadline
            and _canonical(self.goal) == _canonical(spec.goal)
            and [canonical(o.to_object()) for o in self.obligations or []]
            == [canonical(o.to_object()) for o in spec.obligations or []]
            and _canonical(self.prompt) == _canonical(prompt)
        )


class Minter:
    """Serves the verb mint.

    Args:
        names: The space.
        clock: The broker's now.
        records: The records.
        settler: Finishes a settled checkpoint that is minted again, and tells observers.
        writer: Arms the deadline.
        offer: Told of each coordinate this worker armed.
    """

    def __init__(
        self,
        names: Names,
        clock: Clock,
        records: Records,
        settler: Settler,
        writer: TimerWriter,
        offer: Callable[[Coordinate], object],
    ) -> None:
        self._names = names
        self._clock = clock
        self._records = records
        self._settler = settler
        self._writer = writer
        self._offer = offer

    async def mint(self, ctx: Context, body: Mint) -> Verdict:
        """Create the records in one atomic write and arm the deadline.

        Raises:
            BadInput: If the deadline is not in the future or too far ahead, and nothing of this
                token exists yet.
            TidegateError: On a transient fault (deliver again) or a garbled record.
        """
        wanted = _wanted(ctx, body)
        still = await ctx.prove_open()
        bad_deadline = deadline_trouble(wanted.deadline_ms, ctx.now_ms(self._clock))
        fact = None
        if bad_deadline is None:
            created, fact = await asyncio.gather(
                self._create(ctx, wanted, still), self._records.fact(ctx.target)
            )
            if created is not None and fact is None:
                return await self._minted(ctx, created)
        seen = await look(self._records, ctx.target)
        if bad_deadline is not None and seen == Seen(None, None, None):
            raise bad_deadline
        return await self._replay(ctx, wanted, seen)

    async def _create(self, ctx: Context, wanted: Wanted, still: Still) -> Whole | None:
        spec = SpecRecord(
            v=1,
            token=ctx.target.token,
            holder=wanted.holder,
            mintedAt=ctx.at_ms,
            initialDeadline=wanted.deadline_ms,
            goal=wanted.goal,
            obligations=wanted.obligations,
        )
        status = _first_status(spec)
        try:
            spec_revision, status_at = await self._records.create(
                ctx.target, spec, status, wanted.prompt, ctx.cause, ctx.trace, still
            )
        except CasLost:
            return None
        except Unknown:
            if await self._records.status(ctx.target) is None:
                raise
            return None
        spec_at = SpecAt(spec, spec_revision, ctx.speaker.principal, ctx.trace)
        self._records.remember_spec(ctx.target, spec_at)
        return Whole(spec_at, status_at, None)

    async def _minted(self, ctx: Context, it: Whole) -> Verdict:
        self._records.remember_waiting(ctx.target, it.status)
        await self._arm(ctx.target, it.status, fresh=True)
        self._tell_waiting(ctx, it, again=False)
        return Accepted("minted", view(ctx.target, it.status, it.spec.record.holder).to_object())

    async def _replay(self, ctx: Context, wanted: Wanted, seen: Seen) -> Verdict:
        if isinstance(seen.spec, SpecAt) and seen.status is None:
            seen = await self._complete(ctx, wanted, seen.spec, seen)
        if isinstance(seen.spec, Deleted) or isinstance(seen.status, Deleted):
            return closed()
        it = whole(ctx.target, seen)
        if isinstance(it, Refusal):
            return closed() if it.code is Code.NOT_FOUND else it
        prompt = await self._records.prompt(ctx.target)
        shown = view(ctx.target, it.status, it.spec.record.holder).to_object()
        if not wanted.same_as(it.spec.record, prompt):
            return Refusal(
                Code.CONFLICT,
                "different-checkpoint",
                "this token was minted before with another holder, deadline, goal or prompt",
                data=shown,
            )
        refused = await regressed(self._settler, ctx.target, it, ctx.cause)
        if refused is not None:
            return refused
        if it.status.record.state != "waiting":
            await self._settler.finish(ctx.target, it.status, won=False, by="command")
            return Accepted("already_minted", shown)
        await self._arm(ctx.target, it.status, fresh=False)
        self._tell_waiting(ctx, it, again=True)
        own = it.status.cause == ctx.cause and it.status.record.deadlineGeneration == 1
        return Accepted("minted" if own else "already_minted", shown)

    async def _complete(self, ctx: Context, wanted: Wanted, spec: SpecAt, seen: Seen) -> Seen:
        """Write the status that a mint on a bucket without atomic batches did not get to."""
        if not wanted.same_as(spec.record, wanted.prompt):
            return seen
        status = _first_status(spec.record, spec.revision)
        try:
            revision = await self._records.put_status(ctx.target, status, 0, ctx.cause)
        except CasLost:
            return Seen(seen.spec, await self._records.status(ctx.target), seen.fact)
        return Seen(seen.spec, StatusAt(status, revision, ctx.cause), seen.fact)

    async def _arm(self, target: Checkpoint, status: StatusAt, *, fresh: bool) -> None:
        record = status.record
        armed = await self._writer.arm(
            own_timer(self._names, target),
            TimerBody(
                v=1,
                timerId=target.token,
                generation=record.deadlineGeneration,
                deadline=record.deadline,
            ),
            known_seq=0 if fresh else None,
            proven=fresh,
        )
        if isinstance(armed, Armed) and armed.generation == record.deadlineGeneration:
            self._offer(coordinate(target, status, armed.seq))

    def _tell_waiting(self, ctx: Context, it: Whole, *, again: bool) -> None:
        fact = CheckpointFact(
            v=1,
            generation=1,
            deadline_at_ms=it.spec.record.initialDeadline,
            holder=it.spec.record.holder,
            at_ms=it.spec.record.mintedAt,
        )
        ctx.telling.append(
            lambda: self._settler.tell(
                ctx.target, "waiting", fact, ctx.cause, ctx.trace, again=again
            )
        )


def coordinate(target: Checkpoint, status: StatusAt, armed_seq: int | None) -> Coordinate:
    """What the wheel needs of a waiting status."""
    return Coordinate(
        target,
        status.record.deadlineGeneration,
        status.record.deadline,
        status.revision,
        status.record.observedSpecRevision,
        armed_seq,
    )


def deadline_trouble(deadline_ms: int, now_ms: int) -> BadInput | None:
    """Why a deadline cannot be set now, if it cannot."""
    if deadline_ms <= now_ms:
        return BadInput(
            "deadline_at_ms", "deadline-not-future", "deadline_at_ms must lie in the future"
        )
    if deadline_ms > now_ms + MAX_DEADLINE_AHEAD_MS:
        return BadInput(
            "deadline_at_ms", "deadline-too-far", "deadline_at_ms is more than ten years away"
        )
    return None


def _wanted(ctx: Context, body: Mint) -> Wanted:
    if body.holder is None:
        holder = Holder(id=ctx.speaker.principal, lifecycleUid=ctx.speaker.uid)
    else:
        holder = Holder(id=body.holder.id, lifecycleUid=body.holder.lifecycleUid)
    return Wanted(holder, body.deadline_at_ms, body.goal, body.obligations or None, body.prompt)


def _first_status(spec: SpecRecord, revision: int = SPEC_REVISION) -> StatusRecord:
    return StatusRecord(
        state="waiting",
        deadlineGeneration=1,
        deadline=spec.initialDeadline,
        observedSpecRevision=revision,
    )


def _canonical(record: Goal | PromptRecord | None) -> bytes | None:
    return None if record is None else canonical(record.to_object())
