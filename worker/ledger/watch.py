"""What the broker says of the log from time to time: how long it is, and what time it is there."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.bus.messages import StreamInfo

INTERVAL_S: Final = 1.0
SAMPLES: Final = 64
_log = structlog.get_logger("tidegate.ledger")


class LogWatch:
    """Asks for the log's state every second.

    Attributes:
        stream: The log.
        info: The last answer.
        trouble: Why there is none newer; empty if all is well.
        news: Set after each answer.

    Args:
        js: Where to ask.
        stream: The log.
        monotonic: Seconds that never go back.
    """

    def __init__(self, js: JetStream, stream: str, monotonic: Callable[[], float]) -> None:
        self._js = js
        self.stream = stream
        self._monotonic = monotonic
        self._heard_s = 0.0
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._looking: asyncio.Task[StreamInfo] | None = None
        self._next: asyncio.Task[StreamInfo] | None = None
        self.info: StreamInfo | None = None
        self.trouble = "the log has not been asked for yet"
        self.news = asyncio.Event()

    async def refresh(self) -> StreamInfo:
        """Ask now.

        Raises:
            StreamMissing: The log is gone.
            BusError: The broker did not answer.
        """
        try:
            info = await self._js.stream_info(self.stream, timeout_ms=2_000)
        except BusError as error:
            self.trouble = error.message
            raise
        self._heard_s = self._monotonic()
        self.info = info
        self._samples.append((self._heard_s, info.last_seq))
        self.trouble = ""
        self.news.set()
        return info

    async def look(self) -> StreamInfo:
        """Ask, at the earliest now; callers share the answers.

        Raises:
            BusError: The broker did not answer.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._look_after(self._looking), name="look-at-log")
        return await asyncio.shield(self._next)

    async def _look_after(self, before: asyncio.Task[StreamInfo] | None) -> StreamInfo:
        if before is not None:
            await asyncio.wait({before})
        # Whoever comes from here on needs another one.
        self._looking, self._next = self._next, None
        return await self.refresh()

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            try:
                await self.refresh()
            except BusError as error:
                _log.debug("log_not_answered", error=error.message)
            await asyncio.sleep(INTERVAL_S)

    def now_ms(self) -> int:
        """The broker's time, about: late by the way its last answer took, never early."""
        if self.info is None:
            return 0
        return self.info.ts_ms + int((self._monotonic() - self._heard_s) * 1000)

    def last_seq_before(self, ms: int) -> int:
        """The log's last sequence as it was so long ago; 0 if that is not known."""
        limit_s = self._monotonic() - ms / 1000
        return max((seq for heard_s, seq in self._samples if heard_s <= limit_s), default=0)

    def behind_ms(self, seq: int) -> int:
        """For how long the log has been known to hold more than this sequence; 0 if it does not.

        Longer than the samples reach back, it is as long as they do.
        """
        now_s = self._monotonic()
        ages = (int((now_s - heard_s) * 1000) for heard_s, last in self._samples if last > seq)
        return max(ages, default=0)

    def last_seq(self) -> int:
        """The log's last sequence, as far as it is known."""
        return 0 if self.info is None else self.info.last_seq
