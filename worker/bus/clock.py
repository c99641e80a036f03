"""The broker's time, bounded from both sides (spec/checkpoints.md, "Time").

``STREAM.INFO`` answers with the broker's clock. The answer was made at some instant between asking
and hearing, so the broker's time now lies between two bounds, and the distance of the bounds is
what the two clocks could not agree on. No wall clock of this machine takes part.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from worker import logs
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream

REFRESH_MS: Final = 10_000
LIMIT_MS: Final = 1_000
"""Above this uncertainty nothing that depends on a deadline may be decided."""

DRIFT_PPM: Final = 200
"""How far two clocks are assumed to part per million, between refreshes."""


def seconds_since_boot() -> float:
    """Seconds that never go back, and that go on while the machine sleeps where it can tell."""
    boot_clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


_log = logs.get("tidegate.bus")


class BrokerClock:
    """The broker's now.

    Args:
        js: Where to ask.
        stream: Whose info to ask for.
        monotonic: Seconds that never go back; best a clock that also counts while the machine
            sleeps (``CLOCK_BOOTTIME``).
    """

    def __init__(self, js: JetStream, stream: str, monotonic: Callable[[], float]) -> None:
        self._js = js
        self._stream = stream
        self._monotonic = monotonic
        self._asked_s = 0.0
        self._low_ms = 0.0
        self._high_ms = 0.0
        self._set = False

    async def refresh(self, timeout_ms: int = 2_000) -> None:
        """Ask once.

        The new bounds narrow the old ones; if the two contradict each other, the broker's clock was
        set and the new ones stand alone.

        Raises:
            BusError: The broker did not answer; the bounds go on drifting apart.
        """
        sent_s = self._monotonic()
        info = await self._js.stream_info(self._stream, timeout_ms=timeout_ms)
        heard_s = self._monotonic()
        told_ms = info.ts_ns / 1e6
        # At the instant heard, at least ``told`` had come, and at most the whole round trip more.
        least, most = told_ms, told_ms + (heard_s - sent_s) * 1000
        if self._set:
            low, high = self._bounds(heard_s)
            if low <= most and least <= high:
                # Both intervals hold the broker's now, so it lies where they overlap.
                least, most = max(low, least), min(high, most)
            else:
                _log.warning("broker_clock_jumped", by_ms=round(least - (low + high) / 2))
        self._asked_s = heard_s
        self._low_ms = least
        self._high_ms = most
        self._set = True

    async def run(self, interval_ms: int = REFRESH_MS) -> None:
        """Refresh for ever; an outage shows in ``uncertainty_ms``."""
        while True:
            try:
                await self.refresh()
            except BusError as error:
                _log.debug("broker_clock_unanswered", error=error.message)
            await asyncio.sleep(interval_ms / 1000 if self.ready else 1.0)

    @property
    def ready(self) -> bool:
        """Whether the bounds are known, and close enough to decide by."""
        return self._set and self.uncertainty_ms <= LIMIT_MS

    @property
    def uncertainty_ms(self) -> int:
        """Distance of the bounds now, rounded up; unbounded until the first answer."""
        if not self._set:
            return 1 << 62
        low, high = self._bounds(self._monotonic())
        return int(high - low) + 1

    def lower_ms(self) -> float:
        """The least the broker's clock can show now; decides that a deadline has passed."""
        return self._bounds(self._monotonic())[0]

    def upper_ms(self) -> float:
        """The most the broker's clock can show now; decides that a deadline has not passed."""
        return self._bounds(self._monotonic())[1]

    def _bounds(self, now_s: float) -> tuple[float, float]:
        passed_ms = (now_s - self._asked_s) * 1000
        drift_ms = passed_ms * DRIFT_PPM / 1e6
        return self._low_ms + passed_ms - drift_ms, self._high_ms + passed_ms + drift_ms
