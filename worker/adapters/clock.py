"""The broker's time as this process knows it, learned from results."""

import time
from collections.abc import Callable

from schemas.results import Result


class BrokerTime:
    """This machine's clock until a result has shown how far off it is.

    Args:
        wall_ms: This machine's clock.
    """

    def __init__(self, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch of Unix."""
        return self._wall_ms() + self._ahead_ms

    def learn(self, result: Result) -> None:
        """A result that was just received says what time it is there."""
        self._ahead_ms = result.at_ms - self._wall_ms()
