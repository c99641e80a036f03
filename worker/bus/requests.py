"""Questions that wait for an answer: one inbox, one table, one timer for all of them."""

import asyncio
from collections import deque
from typing import Final

from worker.bus.errors import BusError, Unavailable, Unknown

Answer = tuple[bytes, bytes]
"""Header block and data of an answer."""

_NO_RESPONDERS: Final = b"NATS/1.0 503"


class Requests:
    """The requests in flight on one connection.

    A future per request and no task, no timer and no subscription of its own. Requests with the
    same timeout expire in the order in which they began, so each distinct timeout has a queue and
    only the queues' heads are watched.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[bytes, tuple[asyncio.Future[Answer], str]] = {}
        self._lanes: dict[int, deque[tuple[float, bytes]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._next = 0

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, subject: str, timeout_ms: int) -> tuple[bytes, asyncio.Future[Answer]]:
        """Register a request.

        Returns:
            The token that ends its reply subject, and the future of its answer, which fails with
            ``Unknown`` after ``timeout_ms``.
        """
        self._next += 1
        token = b"%d" % self._next
        future = self._loop.create_future()
        self._pending[token] = (future, subject)
        due = self._loop.time() + timeout_ms / 1000
        lane = self._lanes.get(timeout_ms)
        if lane is None:
            lane = self._lanes[timeout_ms] = deque()
        pending = self._pending
        while lane and lane[0][1] not in pending:
            lane.popleft()
        lane.append((due, token))
        if self._timer is None or due < self._timer_at - 0.001:
            self._arm(due)
        return token, future

    def answer(self, token: bytes, header: bytes, data: bytes) -> str | None:
        """Deliver an answer; one that nobody waits for any more is dropped.

        Returns:
            The subject that was asked; ``None`` if nobody waited for it.
        """
        entry = self._pending.pop(token, None)
        if entry is None:
            return None
        future, subject = entry
        if future.done():
            return subject
        if not data and header.startswith(_NO_RESPONDERS):
            future.set_exception(Unavailable(f"nobody serves {subject}", subject=subject))
        else:
            future.set_result((header, data))
        return subject

    def fail_subject(self, subject: str, error: BusError) -> int:
        """Fail every request on ``subject``; returns how many there were."""
        tokens = [token for token, (_, asked) in self._pending.items() if asked == subject]
        for token in tokens:
            self.fail(token, error)
        return len(tokens)

    def fail(self, token: bytes, error: BusError) -> None:
        """Fail one request."""
        entry = self._pending.pop(token, None)
        if entry is not None and not entry[0].done():
            entry[0].set_exception(error)

    def fail_all(self, reason: str) -> None:
        """The connection is gone: the outcome of everything in flight is unknown."""
        pending, self._pending = self._pending, {}
        self._lanes.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future, subject in pending.values():
            if not future.done():
                future.set_exception(Unknown(f"{subject}: {reason}", subject=subject))

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # Timers of an event loop may run a clock tick early.
        now = self._loop.time() + 0.002
        heads = []
        for timeout_ms, lane in list(self._lanes.items()):
            while lane and (lane[0][0] <= now or lane[0][1] not in self._pending):
                _, token = lane.popleft()
                entry = self._pending.pop(token, None)
                if entry is not None and not entry[0].done():
                    text = f"{entry[1]}: no answer within {timeout_ms} ms"
                    entry[0].set_exception(Unknown(text, subject=entry[1]))
            if lane:
                heads.append(lane[0][0])
            else:
                del self._lanes[timeout_ms]
        if heads:
            self._arm(min(heads))
