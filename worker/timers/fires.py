"""Fired timers: each is a hint, judged before anything follows from it.

A fired message carries no id and no due time, and whoever may publish there can forge one. It acts
only if it parses, names its sibling ``.armed`` as its one scheduler, is of the generation in force
and its deadline has passed by the broker's own clock.
"""

from collections.abc import Awaitable, Callable

from schemas import headers as h
from schemas import subjects
from schemas.codes import BadInput, Code
from schemas.names import Names
from schemas.records import TimerBody
from schemas.subjects import Checkpoint, Timer
from worker import logs, metrics
from worker.bus.errors import BusError
from worker.bus.pull import Delivery
from worker.errors import TidegateError
from worker.timers.hands import Hands
from worker.timers.wheel import LowerClock
from worker.timers.writer import Proof, Prove, TimerWriter

log = logs.get()

MAX_EARLY_WAIT_MS = 60_000

Expire = Callable[[Checkpoint, int], Awaitable[str]]
"""Settles one generation as expired, or finishes what another settled; answers ``settled``,
``not-waiting`` or ``stale``."""


class FireHandler:
    """Judges fired messages.

    Args:
        names: The space.
        clock: Lower bound of the broker's now.
        prove: Reads a status at the leader.
        writer: Arms anew what the broker lost.
        expire: Settles a due checkpoint by compare-and-set.
        settled_lately: Whether this worker has just settled that generation, which saves a read.
        hands: Which checkpoints this worker is settling just now.
    """

    def __init__(
        self,
        names: Names,
        clock: LowerClock,
        prove: Prove,
        writer: TimerWriter,
        expire: Expire,
        settled_lately: Callable[[Checkpoint, int], bool],
        hands: Hands,
    ) -> None:
        self._names = names
        self._clock = clock
        self._prove = prove
        self._writer = writer
        self._expire = expire
        self._settled_lately = settled_lately
        self._hands = hands

    async def handle(self, delivery: Delivery) -> None:
        """Judge one fired message and settle what is due.

        Raises:
            TidegateError: On a transient fault; the puller asks for it again later.
        """
        try:
            verdict, wait_ms = await self._judge(delivery)
        except TidegateError as error:
            if error.code is not Code.INTERNAL or isinstance(error, BusError):
                raise
            # Nobody acts on a record that is inconsistent, however often it fires.
            log.exception(
                "timer_fire_refused",
                space=self._names.space,
                subject=delivery.subject,
                reason=error.reason,
            )
            await delivery.term()
            return
        metrics.TIMER_FIRES.labels(verdict).inc()
        if verdict == "early":
            await delivery.nak(min(wait_ms, MAX_EARLY_WAIT_MS))
            return
        if verdict == "forged":
            log.warning("timer_fire_forged", space=self._names.space, seq=delivery.stream_seq)
            await delivery.term()
            return
        await delivery.ack()

    async def _judge(self, delivery: Delivery) -> tuple[str, int]:
        timer = subjects.parse_timer(self._names, delivery.subject)
        if timer is None or timer.kind != "fire":
            return "forged", 0
        if h.SCHEDULER in delivery.headers.repeated or delivery.headers.get(
            h.SCHEDULER
        ) != subjects.timer(self._names, timer, "armed"):
            return "forged", 0
        try:
            body = TimerBody.from_bytes(delivery.data)
        except BadInput:
            return "forged", 0
        if body.timerId != timer.token:
            return "forged", 0
        target = Checkpoint(timer.endpoint, timer.token)
        async with self._hands.hold(target):
            return await self._judge_target(timer, target, body)

    async def _judge_target(
        self, timer: Timer, target: Checkpoint, body: TimerBody
    ) -> tuple[str, int]:
        if self._settled_lately(target, body.generation):
            return "not-waiting", 0
        proof = await self._prove(target)
        if proof is None:
            return "not-waiting", 0
        if not proof.waiting:
            # Looked at all the same: a settlement that was cut off is finished then.
            return await self._expire(target, body.generation), 0
        wait_ms = proof.deadline_ms - self._clock.lower_ms()
        if proof.generation != body.generation:
            if proof.generation > body.generation and wait_ms > 0:
                await self._arm_what_was_lost(timer, proof)
            return "stale", 0
        if wait_ms > 0:
            return "early", int(wait_ms) + 1
        return await self._expire(target, body.generation), 0

    async def _arm_what_was_lost(self, timer: Timer, live: Proof) -> None:
        """Arm the deadline in force, if no timer of this owner stands.

        The broker removes ``.armed`` a moment after it has read it to fire it. A timer that was
        armed anew in between, and acknowledged, goes with it (measured with 2.15: one in 180 of
        those armed within 260 ms of the old deadline), and the fire of the old one is its only
        trace.
        """
        if await self._writer.armed_seq(timer) == 0:
            body = TimerBody(
                v=1,
                timerId=timer.token,
                generation=live.generation,
                deadline=live.deadline_ms,
            )
            await self._writer.arm(timer, body, known_seq=0)
