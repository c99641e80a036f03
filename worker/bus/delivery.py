"""One message delivered by a consumer, and the answers it may be given."""

import contextlib
from collections.abc import Callable
from typing import Final

from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.headers import Headers, decode
from worker.bus.messages import NS_PER_MS, StoredMessage
from worker.bus.octets import to_text

ACK_PREFIX: Final = b"$JS.ACK."
"""How the reply subject of every stored message begins, and of nothing else a puller gets."""

_ACK: Final = b"+ACK"
_NAK: Final = b"-NAK"
PROGRESS: Final = b"+WPI"
"""Answer of a message that is still being worked on: the wait for an answer begins anew."""

_TERM: Final = b"+TERM"
_SHORT_FORM: Final = 9


class AckReply:
    """What the reply subject of a delivery says about it, as numbers.

    ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>``, or the
    longer form with domain and account behind ``ACK``.

    Attributes:
        stream: The stream's name.
        delivered: How often it was delivered, from 1.
        stream_seq: Its sequence in the stream.
        consumer_seq: Its sequence among the consumer's deliveries.
        time_ns: When it was stored.
        pending: How many more messages wait for the consumer.
    """

    __slots__ = ("consumer_seq", "delivered", "pending", "stream", "stream_seq", "time_ns")

    def __init__(self, reply: bytes) -> None:
        parts = reply.split(b".")
        at = 2 if len(parts) == _SHORT_FORM else 4
        self.stream = parts[at].decode()
        self.delivered = int(parts[at + 2])
        self.stream_seq = int(parts[at + 3])
        self.consumer_seq = int(parts[at + 4])
        self.time_ns = int(parts[at + 5])
        self.pending = int(parts[at + 6])


Lapses = Callable[[], int]
"""How often a delivery may have been given to somebody else as well since it came."""


def _none() -> int:
    return 0


class Delivery:
    """A stored message in somebody's hands until it is acknowledged.

    Acknowledgements never raise: one that is lost leads to another delivery, which every handler
    must expect anyway.

    Attributes:
        subject: Where it was published.
        data: Its body.
        headers: Its headers.
        stream: The stream it is in.
        stream_seq: Its sequence there.
        consumer_seq: Its sequence among the consumer's deliveries.
        delivered: How often it was delivered, from 1.
        time_ns: When the broker stored it.
        pending: How many more wait behind it.
        lapses: How often it may have been given to somebody else as well since it came.
        settled: Whether it was acknowledged, refused or terminated here.
        unsent: The answer that could not be sent, since there was no connection; see ``resend``.
    """

    __slots__ = (
        "_connection",
        "_reply",
        "consumer_seq",
        "data",
        "delivered",
        "headers",
        "lapses",
        "pending",
        "settled",
        "stream",
        "stream_seq",
        "subject",
        "time_ns",
        "unsent",
    )

    def __init__(
        self,
        connection: Connection,
        subject: bytes,
        reply: bytes,
        header: bytes,
        data: bytes,
        lapses: Lapses = _none,
    ) -> None:
        told = AckReply(reply)
        self._connection = connection
        self.lapses = lapses
        self._reply = to_text(reply)
        self.subject = to_text(subject)
        self.data = data
        self.headers: Headers = decode(header)
        self.stream = told.stream
        self.stream_seq = told.stream_seq
        self.consumer_seq = told.consumer_seq
        self.delivered = told.delivered
        self.time_ns = told.time_ns
        self.pending = told.pending
        self.settled = False
        self.unsent: bytes | None = None

    @property
    def time_ms(self) -> int:
        """When the broker stored it, rounded down to a millisecond."""
        return self.time_ns // NS_PER_MS

    @property
    def message(self) -> StoredMessage:
        """The message itself, as if it had been read."""
        return StoredMessage(
            self.subject, self.stream_seq, self.time_ns, self.headers, self.data, self.stream
        )

    async def ack(self) -> None:
        """Done: do not deliver it again."""
        self._answer(_ACK)

    async def ack_sync(self, timeout_ms: int = 2_000) -> bool:
        """Done, and wait until the broker knows; ``False`` if that is not certain."""
        self.settled = True
        try:
            await self._connection.begin(self._reply, b"", _ACK, timeout_ms)
        except BusError:
            return False
        return True

    async def nak(self, delay_ms: int = 0) -> None:
        """Not done: deliver it again, after ``delay_ms``."""
        body = b'%b {"delay": %d}' % (_NAK, delay_ms * NS_PER_MS) if delay_ms > 0 else _NAK
        self._answer(body)

    async def term(self) -> None:
        """Never deliver it again."""
        self._answer(_TERM)

    def resend(self) -> None:
        """Send the answer that could not be sent, so that the broker need not wait for it."""
        if self.unsent is not None:
            self._answer(self.unsent)

    def _answer(self, body: bytes) -> None:
        self.settled = True
        self.unsent = body
        with contextlib.suppress(BusError):
            self._connection.send(self._reply, b"", body)
            self.unsent = None
