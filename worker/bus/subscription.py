"""Subscriptions that outlive a connection and whose callbacks cannot hurt it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from worker import logs
from worker.bus import headers
from worker.bus.headers import Headers
from worker.bus.octets import to_bytes, to_text
from worker.bus.wire import Sink

MAX_PENDING: Final = 65_536
"""Messages that may wait for a slow callback; more are dropped, as core NATS promises no more."""

_log = logs.get("tidegate.bus")


@dataclass(frozen=True, slots=True)
class Msg:
    """One message that was not read from a stream.

    Attributes:
        subject: Where it was published.
        reply: Where an answer may go, empty if none is wanted.
        headers: Its headers; ``status`` is set if the broker itself speaks.
        data: Its body.
    """

    subject: str
    reply: str
    headers: Headers
    data: bytes


Callback = Callable[[Msg], Awaitable[None]]


class Owner(Protocol):
    """What a subscription needs of its connection."""

    async def detach(self, subscription: "Subscription") -> None:
        """Stop receiving."""


class Subscription:
    """Interest in a subject, renewed at every new connection.

    Attributes:
        subject: What is listened to.
        queue: Queue group, empty for none.
        denied: Whether the broker's permissions refused it when it was last made.
    """

    def __init__(self, owner: Owner, sid: bytes, subject: str, queue: str, sink: Sink) -> None:
        self._owner = owner
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self.sink = sink
        self.denied = False
        self.task: asyncio.Task[None] | None = None

    @property
    def command(self) -> bytes:
        """The line that makes it."""
        return b"SUB %b %b %b\r\n" % (to_bytes(self.subject), to_bytes(self.queue), self.sid)

    async def unsubscribe(self) -> None:
        """Receive nothing more; what waits for the callback is dropped."""
        await self._owner.detach(self)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


class Mailbox:
    """Messages waiting for one asynchronous callback, in order, one at a time."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._waiting: deque[tuple[bytes, bytes, bytes, bytes]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._dropped = 0

    def put(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        """Take one message; it is the sink of the subscription."""
        if len(self._waiting) >= MAX_PENDING:
            if self._dropped == 0:
                _log.warning("messages_dropped", subject=to_text(subject))
            self._dropped += 1
            return
        self._waiting.append((subject, reply, header, data))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def run(self) -> None:
        """Call back for each message, for ever; what the callback raises is logged."""
        loop = asyncio.get_running_loop()
        while True:
            while self._waiting:
                subject, reply, header, data = self._waiting.popleft()
                msg = Msg(
                    to_text(subject),
                    to_text(reply),
                    headers.decode(header),
                    data,
                )
                try:
                    await self._callback(msg)
                except Exception:
                    _log.exception("callback_failed", subject=msg.subject)
            self._dropped = 0
            self._wake = loop.create_future()
            await self._wake
