"""The timer writer: the only publisher of ``.armed`` (spec/checkpoints.md, The timer writer).

Arming is fenced: (a) the last sequence of ``.armed`` is read, (b) the status is proven at the
leader, (c) the schedule is published with the sequence of (a). Reading (a) before (b) is what makes
it a fence: whoever moved the timer after the proof has also moved the sequence, and this publish
loses. Afterwards the status is read again, so that a timer armed for a state that has just passed
is armed anew or cancelled.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from schemas import headers as h
from schemas import subjects
from schemas.codes import Code
from schemas.names import Names
from schemas.records import TimerBody
from schemas.subjects import Checkpoint, Timer
from worker import metrics
from worker.bus.errors import CasLost
from worker.bus.jetstream import JetStream
from worker.bus.window import GroupPublisher
from worker.errors import TidegateError

FIRE_TTL = "1h"
"""How long a fired message stays; the sweep expires what nobody heard of in that time."""

SCHEDULES_END_MS = 9_223_372_036_000
"""2262-04-11T23:47:16Z: a schedule behind it overflows in the broker and fires at once."""

CANCEL_TTL = "1s"
ATTEMPTS = 3
REMEMBERED = 50_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Proof:
    """What a leader said of a checkpoint's status.

    Attributes:
        waiting: Whether it waits.
        generation: Of the deadline in force.
        deadline_ms: The deadline in force.
    """

    waiting: bool
    generation: int
    deadline_ms: int


Prove = Callable[[Checkpoint], Awaitable[Proof | None]]
"""Reads a status at the leader; ``None`` if there is none."""


@dataclass(frozen=True, slots=True)
class Armed:
    """A timer stands.

    Attributes:
        seq: Sequence of its ``.armed`` message.
        generation: Generation it was armed for.
        deadline_ms: Deadline it was armed for.
    """

    seq: int
    generation: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """Nothing to arm: ``settled``, ``unknown``, ``stale`` or ``too-far``."""

    word: str


class ArmConflict(TidegateError):
    """Others kept moving the timer while it was being armed."""

    code = Code.CONFLICT
    reason = "arm-conflict"


class ArmTimeout(TidegateError):
    """The broker did not answer within the arm budget; arming is tried again."""

    code = Code.UNAVAILABLE
    reason = "arm-budget"


class TimerWriter:
    """Arms and cancels timers.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        ept: Publisher of the ``EPT`` stream.
        prove: Reads a status at the leader.
        budget_ms: Bound of the reads of one arming.
    """

    def __init__(
        self, js: JetStream, names: Names, ept: GroupPublisher, prove: Prove, *, budget_ms: int
    ) -> None:
        self._js = js
        self._names = names
        self._ept = ept
        self._prove = prove
        self._budget_ms = budget_ms
        # Keyed by hash, which takes a third of the memory of the names: whoever else has the same
        # hash only makes a cancel lose to the fence, and be tried again from what the leader says.
        self._standing: OrderedDict[int, int] = OrderedDict()

    async def armed_seq(self, owner: Timer) -> int:
        """Last sequence of ``.armed`` at the leader; 0 if it never stood or has fired."""
        subject = subjects.timer(self._names, owner, "armed")
        message = await self._js.last_message(self._names.ept_stream, subject)
        return 0 if message is None else message.seq

    async def arm(
        self, owner: Timer, body: TimerBody, *, known_seq: int | None = None, proven: bool = False
    ) -> Armed | Discarded:
        """Arm ``owner`` for a coordinate, under the fence.

        Args:
            owner: Whose timer; all subjects derive from it.
            body: The coordinate to arm.
            known_seq: The sequence of (a), read by the caller before its proof (b).
            proven: The caller's own compare-and-set, made after (a), proves the status.

        Returns:
            ``Armed``, or ``Discarded`` if the leader contradicts the coordinate.

        Raises:
            ArmConflict: If the fence was lost three times.
            ArmTimeout: If the reads took longer than the budget.
            BusError: If the broker refused or did not answer; the timer may or may not stand.

        A crash in between leaves either no timer or one that the sweep and the fire handler judge
        anew; neither can settle anything by itself.
        """
        target = Checkpoint(owner.endpoint, owner.token)
        if body.deadline >= SCHEDULES_END_MS:
            # Only a foreign record can say so; the sweep arms it once it is nearer.
            metrics.TIMER_ARMS.labels("too-far").inc()
            return Discarded("too-far")
        for attempt in range(ATTEMPTS):
            if attempt > 0 or known_seq is None:
                known_seq = await self._bounded(self.armed_seq(owner))
                proven = False
            if not proven:
                word = _contradiction(await self._bounded(self._prove(target)), body)
                if word is not None:
                    metrics.TIMER_ARMS.labels(word).inc()
                    return Discarded(word)
            try:
                armed = await self._publish(owner, body, known_seq)
            except CasLost:
                continue
            metrics.TIMER_ARMS.labels("armed").inc()
            return await self._settle_race(owner, target, body, armed)
        metrics.TIMER_ARMS.labels("conflict").inc()
        raise ArmConflict

    async def withdraw(self, owner: Timer) -> bool:
        """Cancel whatever timer of this owner stands; its checkpoint has settled.

        Returns:
            Whether one stood and was removed.
        """
        # What this worker armed itself it need not read again; if it moved, the cancel says so.
        known = self._standing.pop(hash(owner), None)
        if known is not None and await self.cancel(owner, known):
            return True
        seq = await self.armed_seq(owner)
        return seq > 0 and await self.cancel(owner, seq)

    def forget(self) -> None:
        """Forget which timers stand, because the broker's store may have been replaced."""
        self._standing.clear()

    async def cancel(self, owner: Timer, armed_seq: int) -> bool:
        """Remove an armed timer atomically, if it is still the one named.

        Returns:
            Whether it was removed; ``False`` if it had fired or moved.
        """
        armed = subjects.timer(self._names, owner, "armed")
        try:
            await self._ept.publish(
                subjects.timer(self._names, owner, "cancel"),
                b"",
                headers={h.SCHEDULER: armed, h.SCHEDULE_NEXT: "purge", h.TTL: CANCEL_TTL},
                expect_last_subject_seq=armed_seq,
                expect_subject=armed,
            )
        except CasLost:
            return False
        metrics.TIMER_ARMS.labels("cancelled").inc()
        return True

    async def _publish(self, owner: Timer, body: TimerBody, expected: int) -> Armed:
        seq = await self._ept.publish(
            subjects.timer(self._names, owner, "armed"),
            body.to_bytes(),
            headers={
                h.SCHEDULE: f"@at {rfc3339(body.deadline)}",
                h.SCHEDULE_TARGET: subjects.timer(self._names, owner, "fire"),
                h.SCHEDULE_TTL: FIRE_TTL,
            },
            expect_last_subject_seq=expected,
        )
        self._standing[hash(owner)] = seq
        if len(self._standing) > REMEMBERED:
            self._standing.popitem(last=False)
        return Armed(seq, body.generation, body.deadline)

    async def _settle_race(
        self, owner: Timer, target: Checkpoint, body: TimerBody, armed: Armed
    ) -> Armed | Discarded:
        """Look at the status once more, and undo or move a timer whose reason has passed."""
        proof = await self._bounded(self._prove(target))
        word = _contradiction(proof, body)
        if word is None:
            return armed
        if proof is None or not proof.waiting:
            await self.cancel(owner, armed.seq)
            return Discarded(word)
        live = TimerBody(
            v=1, timerId=body.timerId, generation=proof.generation, deadline=proof.deadline_ms
        )
        if live.deadline >= SCHEDULES_END_MS:
            await self.cancel(owner, armed.seq)
            return Discarded("too-far")
        try:
            return await self._publish(owner, live, armed.seq)
        except CasLost:
            return Discarded("stale")

    async def _bounded(self, read: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._budget_ms / 1000):
                return await read
        except TimeoutError as error:
            raise ArmTimeout from error


def _contradiction(proof: Proof | None, body: TimerBody) -> str | None:
    if proof is None:
        return "unknown"
    if not proof.waiting:
        return "settled"
    if (proof.generation, proof.deadline_ms) != (body.generation, body.deadline):
        return "stale"
    return None


def rfc3339(at_ms: int) -> str:
    """An instant as RFC 3339 in UTC with milliseconds, as the broker's scheduler reads it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
