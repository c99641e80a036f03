"""The broker's time, bounded from both sides (spec/checkpoints.md, "Time").

``STREAM.INFO`` answers with the broker's clock. The answer was made at some instant between asking
and hearing, so the broker's time now lies between two bounds, and the distance of the bounds is
what the two clocks could not agree on.

One look is never believed alone. What contradicts the looks before it widens the bounds until
another look agrees with either; and this machine's own clock, which decides nothing, may stop
everything: while it is more than a minute away from the broker's, one of the two is wrong.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from worker import logs
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream

REFRESH_MS: Final = 10_000
LIMIT_MS: Final = 1_000
"""Above this uncertainty nothing that depends on a deadline may be decided."""

APART_MS: Final = 60_000
"""How far the broker's clock and this machine's may be apart."""

FRESH_MS: Final = 60_000
"""Bounds older than this count for nothing: this machine may have been paused, its clocks too."""

CONFIRM_MS: Final = 1_000
"""How long after a look that contradicts those before it another one has to agree with it."""

DRIFT_PPM: Final = 200
"""How far two clocks are assumed to part per million, between refreshes."""


def seconds_since_boot() -> float:
    """Seconds that never go back, and that go on while the machine sleeps where it can tell."""
    boot_clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


_log = logs.get("tidegate.bus")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between what the broker's clock stood at an instant.

    Attributes:
        at_s: The instant, by the monotonic clock.
        low_ms: The least.
        high_ms: The most.
    """

    at_s: float
    low_ms: float
    high_ms: float

    def then(self, now_s: float) -> "Bounds":
        """What follows from these bounds for a later instant."""
        passed_ms = (now_s - self.at_s) * 1000
        drift_ms = passed_ms * DRIFT_PPM / 1e6
        return Bounds(
            now_s, self.low_ms + passed_ms - drift_ms, self.high_ms + passed_ms + drift_ms
        )

    def meets(self, other: "Bounds") -> bool:
        """Whether both can hold at the same instant."""
        return self.low_ms <= other.high_ms and other.low_ms <= self.high_ms

    def within(self, other: "Bounds") -> "Bounds":
        """Where the two overlap: if both hold the broker's now, it lies there."""
        return Bounds(self.at_s, max(self.low_ms, other.low_ms), min(self.high_ms, other.high_ms))


class BrokerClock:
    """The broker's now.

    Args:
        js: Where to ask.
        stream: Whose info to ask for.
        monotonic: Seconds that never go back; best a clock that also counts while the machine
            sleeps (``CLOCK_BOOTTIME``).
        wall_ns: This machine's time of day, to compare with; ``None`` compares nothing.

    Attributes:
        jumps: How often a look contradicted those before it.
        last_jump_ms: By how much the last such look did; positive if the broker's clock was ahead.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        monotonic: Callable[[], float],
        wall_ns: Callable[[], int] | None = None,
    ) -> None:
        self._js = js
        self._stream = stream
        self._monotonic = monotonic
        self._wall_ns = wall_ns
        self._believed: Bounds | None = None
        self._doubted: Bounds | None = None
        self._heard_s = 0.0
        self._wake = asyncio.Event()
        self.jumps = 0
        self.last_jump_ms = 0

    async def refresh(self, timeout_ms: int = 2_000) -> None:
        """Ask once.

        Bounds that agree with the old ones narrow them. Those that contradict them stand beside
        them, so that ``lower_ms`` and ``upper_ms`` hold for either, until a later look agrees with
        one of the two: the broker's clock was set, or it had jumped for a moment.

        Raises:
            BusError: The broker did not answer; the bounds go on drifting apart.
        """
        sent_s = self._monotonic()
        info = await self._js.stream_info(self._stream, timeout_ms=timeout_ms)
        heard_s = self._monotonic()
        told_ms = info.ts_ns / 1e6
        # At the instant heard, at least ``told`` had come, and at most the whole round trip more.
        self._take(Bounds(heard_s, told_ms, told_ms + (heard_s - sent_s) * 1000))

    def _take(self, look: Bounds) -> None:
        before, self._heard_s = self._believed, look.at_s
        if before is None:
            self._believed = look
            return
        known = before.then(look.at_s)
        if known.meets(look):
            self._believed, self._doubted = look.within(known), None
            return
        doubted = self._doubted
        if doubted is None or not doubted.then(look.at_s).meets(look):
            self._contradicted(look.low_ms - (known.low_ms + known.high_ms) / 2)
            self._doubted = look
        elif (look.at_s - doubted.at_s) * 1000 >= CONFIRM_MS:
            self._believed, self._doubted = look.within(doubted.then(look.at_s)), None

    def _contradicted(self, by_ms: float) -> None:
        self.jumps += 1
        self.last_jump_ms = round(by_ms)
        _log.warning("broker_clock_jumped", by_ms=self.last_jump_ms)
        self._wake.set()

    async def look_at_stamp(self, stamp_ms: int) -> None:
        """See whether a message can have been stored at the time that its stamp says.

        A stamp of the future means that these bounds are behind, as after a pause of this machine,
        or that the broker's clock was ahead for a moment. Another look at the broker tells which:
        should the stamp still be ahead of ``upper_ms`` while the clock is ready, it is wrong.

        By less than ``LIMIT_MS`` a stamp may always be ahead, where the servers that lead two
        streams differ; it is believed, and no look would change that.

        Raises:
            BusError: The broker did not answer.
        """
        if stamp_ms <= self.upper_ms() + LIMIT_MS:
            return
        await self.refresh()
        ahead_ms = stamp_ms - self.upper_ms()
        if self.ready and ahead_ms > LIMIT_MS:
            self._contradicted(ahead_ms)

    async def run(self, interval_ms: int = REFRESH_MS) -> None:
        """Refresh for ever; an outage shows in ``uncertainty_ms``."""
        while True:
            try:
                await self.refresh()
            except BusError as error:
                _log.debug("broker_clock_unanswered", error=error.message)
            calm = self.ready and self._doubted is None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((interval_ms if calm else CONFIRM_MS) / 1000):
                    await self._wake.wait()
            self._wake.clear()

    @property
    def ready(self) -> bool:
        """Whether the bounds are known, and close enough to decide by."""
        return not self.trouble

    @property
    def trouble(self) -> str:
        """Why nothing may be decided by this clock now, in a sentence; empty while it may."""
        low_ms, high_ms = self._looks(self._monotonic())
        if self._believed is None or high_ms - low_ms > LIMIT_MS:
            return "the broker's clock is not known to within a second"
        if abs(self.apart_ms) > APART_MS:
            side = "ahead of" if self.apart_ms > 0 else "behind"
            return (
                f"the broker's clock is {abs(self.apart_ms) // 1000} s {side} this machine's, and"
                " nobody can tell which is right: nothing expires and nothing is resumed here"
            )
        if (self._monotonic() - self._heard_s) * 1000 > FRESH_MS:
            return "the broker's clock was not looked at for a minute"
        return ""

    @property
    def apart_ms(self) -> int:
        """How far the broker's clock is ahead of this machine's, at least; negative if behind."""
        if self._wall_ns is None or self._believed is None:
            return 0
        wall_ms = self._wall_ns() / 1e6
        broker = self._believed.then(self._monotonic())
        return int(max(broker.low_ms - wall_ms, 0) + min(broker.high_ms - wall_ms, 0))

    @property
    def uncertainty_ms(self) -> int:
        """Distance of the bounds now, rounded up; unbounded until the first answer."""
        if self._believed is None:
            return 1 << 62
        low, high = self._bounds()
        return int(high - low) + 1

    def lower_ms(self) -> float:
        """The least the broker's clock can show now; decides that a deadline has passed."""
        return self._bounds()[0]

    def upper_ms(self) -> float:
        """The most the broker's clock can show now; decides that a deadline has not passed."""
        return self._bounds()[1]

    def believable_ms(self, stamp_ms: int) -> int:
        """When a message was stored by its stamp, or now if the stamp lies in the future."""
        upper_ms = self.upper_ms()
        return stamp_ms if stamp_ms <= upper_ms + LIMIT_MS else int(upper_ms)

    def _bounds(self) -> tuple[float, float]:
        """Bounds of now that hold for whatever may be right, this machine's clock included."""
        low_ms, high_ms = self._looks(self._monotonic())
        if self._wall_ns is not None and self._believed is not None:
            wall_ms = self._wall_ns() / 1e6
            if not low_ms - APART_MS <= wall_ms <= high_ms + APART_MS:
                return min(low_ms, wall_ms), max(high_ms, wall_ms)
        return low_ms, high_ms

    def _looks(self, now_s: float) -> tuple[float, float]:
        """What the looks at the broker say of an instant."""
        if self._believed is None:
            return 0.0, 0.0
        believed = self._believed.then(now_s)
        if self._doubted is None:
            return believed.low_ms, believed.high_ms
        doubted = self._doubted.then(now_s)
        return min(believed.low_ms, doubted.low_ms), max(believed.high_ms, doubted.high_ms)
