"""Asking a consumer for messages, on an inbox of our own.

What comes on the inbox is a message if its reply subject begins ``$JS.ACK.``, and otherwise says
how one of our requests ended. nats-py's ``fetch`` decides by a header instead, which any publisher
may write (DESIGN section 6).
"""

import asyncio
import json
from collections.abc import Callable
from typing import Final

from worker.bus.connection import Connection
from worker.bus.delivery import ACK_PREFIX
from worker.bus.errors import BusError, Denied, Unavailable
from worker.bus.headers import decode
from worker.bus.messages import NS_PER_MS
from worker.bus.subscription import Subscription

EXPIRES_MS: Final = 30_000
"""How long one request waits at the broker."""

BEAT_MS: Final = 3_000
"""How often the broker says that a waiting request still waits."""

_IDLE: Final = 100
_EMPTY: Final = (404, 408)
_ENDED: Final = 409
_Sink = Callable[[bytes, bytes, bytes, bytes], None]


class PullLink:
    """Requests for the messages of one consumer, and what became of them.

    Attributes:
        outstanding: Messages asked for and not yet come.
        trouble: Why the consumer should be looked at before asking again, ``None`` if all is well.
        early_ends: Requests in a row that the broker ended before their time (409), without a
            message in between. The next one tells whether the consumer still exists.
        wake: Set whenever something came.
    """

    def __init__(self, connection: Connection, stream: str, consumer: str, sink: _Sink) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = connection.new_inbox() + "."
        self._prefix_size = len(self._inbox.encode())
        self._sink = sink
        self._subscription: Subscription | None = None
        self._pulls: dict[int, int] = {}
        self._next = 0
        self._last_heard = 0.0
        self._connects = connection.reconnects
        self._loop = asyncio.get_running_loop()
        self.outstanding = 0
        self.trouble: BusError | None = None
        self.early_ends = 0
        self.wake = asyncio.Event()

    async def open(self) -> None:
        """Listen on the inbox.

        Raises:
            Denied: We may not.
        """
        self._connection.on_denied(self._subject, self._on_denied)
        self._subscription = await self._connection.attach(self._inbox + "*", self._on_message)

    async def close(self) -> None:
        """Stop listening, which also ends our requests at the broker."""
        self._connection.off_denied(self._subject, self._on_denied)
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None

    def pull(self, batch: int, *, max_bytes: int | None = None) -> None:
        """Ask for up to ``batch`` messages.

        Raises:
            Unavailable: There is no connection.
        """
        self._next += 1
        query = {
            "batch": batch,
            "expires": EXPIRES_MS * NS_PER_MS,
            "idle_heartbeat": BEAT_MS * NS_PER_MS,
        }
        if max_bytes is not None:
            query["max_bytes"] = max_bytes
        if not self._pulls:
            self._last_heard = self._loop.time()
        self._connection.send(
            self._subject, b"", json.dumps(query).encode(), f"{self._inbox}{self._next}"
        )
        self._pulls[self._next] = batch
        self.outstanding += batch

    def forget(self) -> None:
        """Drop all requests, as after a reconnect; messages that still come are taken."""
        self._pulls.clear()
        self.outstanding = 0
        self.trouble = None
        self._connects = self._connection.reconnects

    @property
    def cut(self) -> bool:
        """Whether the connection is gone, or was, since the requests were made."""
        connection = self._connection
        return not connection.connected or self._connects != connection.reconnects

    @property
    def silent_ms(self) -> int:
        """Since when neither a message nor a beat came, while requests wait."""
        return int((self._loop.time() - self._last_heard) * 1000) if self._pulls else 0

    @property
    def overdue(self) -> bool:
        """Whether our requests have been forgotten without a word."""
        return self.silent_ms > 2 * BEAT_MS + 1_000

    def _on_message(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        self._last_heard = self._loop.time()
        if reply.startswith(ACK_PREFIX):
            self.early_ends = 0
            self._come(1)
            self._sink(subject, reply, header, data)
        else:
            self._on_status(subject, header)
        self.wake.set()

    def _on_status(self, subject: bytes, header: bytes) -> None:
        told = decode(header)
        if told.status == _IDLE:
            return
        try:
            number = int(subject[self._prefix_size :])
        except ValueError:
            return
        asked = self._pulls.pop(number, None)
        if asked is None:
            return
        try:
            left = int(told.get("Nats-Pending-Messages", asked))
        except ValueError:
            left = asked
        self._come(left)
        if told.status == _ENDED:
            self.early_ends += 1
        elif told.status not in _EMPTY:
            self.trouble = Unavailable(f"a pull ended with {told.status} {told.description}")

    def _come(self, count: int) -> None:
        self.outstanding = max(0, self.outstanding - count) if self._pulls else 0
        if not self.outstanding:
            self._pulls.clear()

    def _on_denied(self, error: Denied) -> None:
        self.forget()
        self.trouble = error
        self.wake.set()
