"""What is stored and what is to be stored, as values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from schemas import headers as names
from worker.bus.headers import Headers, encode_lines

NS_PER_MS: Final = 1_000_000
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a stream.

    Attributes:
        subject: Where it was published, as ``octets.to_text`` reads it. Read at the leader, which
            answers in JSON, it has U+FFFD for each byte that is not UTF-8.
        seq: Its place in the stream, from 1.
        time_ns: When the broker stored it, in nanoseconds since 1970.
        headers: Its headers.
        data: Its body.
        stream: The stream it was read from.
    """

    subject: str
    seq: int
    time_ns: int
    headers: Headers
    data: bytes
    stream: str

    @property
    def time_ms(self) -> int:
        """When the broker stored it, rounded down to a millisecond."""
        return self.time_ns // NS_PER_MS


@dataclass(frozen=True, slots=True)
class PubAck:
    """The broker stored a message.

    Attributes:
        stream: Where.
        seq: Its sequence there; of a batch, the last message's.
        duplicate: Nothing was stored, since the message id was seen before.
    """

    stream: str
    seq: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to be stored.

    Attributes:
        subject: Where it goes.
        data: Its body.
        headers: Its own headers; expectations are added from the fields below.
        expect_last_subject_seq: Store it only if this is the last sequence of ``expect_subject``;
            0 means that nothing may be there, not even a deletion marker.
        expect_subject: Whose last sequence; ``None`` is the message's own subject.
    """

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] | None = None
    expect_last_subject_seq: int | None = None
    expect_subject: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Subjects whose order this message takes part in."""
        if self.expect_subject is None or self.expect_subject == self.subject:
            return (self.subject,)
        return (self.subject, self.expect_subject)

    def header_lines(self) -> bytes:
        """Its header lines, without version line and closing empty line."""
        lines = encode_lines(self.headers) if self.headers else b""
        if self.expect_last_subject_seq is None:
            return lines
        lines += b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % self.expect_last_subject_seq
        if self.expect_subject is not None:
            subject = {names.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: self.expect_subject}
            lines += encode_lines(subject)
        return lines

    def header(self) -> bytes:
        """Its whole header block, empty if it has none."""
        lines = self.header_lines()
        return b"NATS/1.0\r\n" + lines + b"\r\n" if lines else b""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as the broker describes it.

    Attributes:
        name: Its name.
        config: Its configuration, as read back.
        created: When it was created, as the broker writes it; another value is another stream.
        ts_ns: The broker's clock when it answered, in nanoseconds since 1970.
        messages: How many messages it holds.
        size_bytes: How much they take.
        first_seq: Sequence of its oldest message, or one past the last if it holds none.
        last_seq: Sequence of its newest message, ever.
        last_ns: When the newest was stored.
        subjects: Messages per subject, if a filter was given.
        deleted: Sequences inside the range that hold nothing, if they were asked for.
        num_deleted: How many there are.
        consumers: How many consumers it has.
    """

    name: str
    config: Mapping[str, Any]
    created: str
    ts_ns: int
    messages: int
    size_bytes: int
    first_seq: int
    last_seq: int
    last_ns: int
    subjects: Mapping[str, int]
    deleted: tuple[int, ...]
    num_deleted: int
    consumers: int

    @property
    def ts_ms(self) -> int:
        """The broker's clock when it answered, rounded down to a millisecond."""
        return self.ts_ns // NS_PER_MS

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "StreamInfo":
        """Read the answer of ``STREAM.INFO`` and its kin."""
        state = raw["state"]
        return cls(
            name=raw["config"]["name"],
            config=raw["config"],
            created=raw.get("created", ""),
            ts_ns=parse_instant_ns(raw["ts"]) if raw.get("ts") else 0,
            messages=state.get("messages", 0),
            size_bytes=state.get("bytes", 0),
            first_seq=state.get("first_seq", 0),
            last_seq=state.get("last_seq", 0),
            last_ns=_instant_or_zero(state.get("last_ts")),
            subjects=state.get("subjects") or {},
            deleted=tuple(state.get("deleted") or ()),
            num_deleted=state.get("num_deleted", 0),
            consumers=state.get("consumer_count", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as the broker describes it.

    Attributes:
        name: Its name.
        config: Its configuration, as read back.
        pending: Messages it has not delivered yet.
        ack_pending: Messages delivered and not acknowledged.
        redelivered: Messages delivered more than once and not acknowledged.
        waiting: Pull requests that wait for messages.
        delivered_seq: Stream sequence of the last message it delivered.
        ack_floor_seq: Stream sequence below which everything is acknowledged.
        paused: Whether it delivers nothing until an instant that somebody chose.
        created_ms: When it was created.
    """

    name: str
    config: Mapping[str, Any]
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    delivered_seq: int
    ack_floor_seq: int
    paused: bool
    created_ms: int

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "ConsumerInfo":
        """Read the answer of ``CONSUMER.INFO`` and its kin."""
        return cls(
            name=raw["name"],
            config=raw["config"],
            pending=raw.get("num_pending", 0),
            ack_pending=raw.get("num_ack_pending", 0),
            redelivered=raw.get("num_redelivered", 0),
            waiting=raw.get("num_waiting", 0),
            delivered_seq=raw.get("delivered", {}).get("stream_seq", 0),
            ack_floor_seq=raw.get("ack_floor", {}).get("stream_seq", 0),
            paused=bool(raw.get("paused")),
            created_ms=_instant_or_zero(raw.get("created")) // NS_PER_MS,
        )


def parse_instant_ns(text: str) -> int:
    """RFC 3339 with up to nine decimals, as nanoseconds since 1970.

    Raises:
        ValueError: It is not such an instant.
    """
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError("not an RFC 3339 instant")
    zone = "+00:00" if found[3] in "Zz" else found[3]
    whole = datetime.fromisoformat(found[1] + zone).astimezone(UTC)
    seconds = int((whole - _EPOCH).total_seconds())
    return seconds * 1_000_000_000 + int((found[2] or "0").ljust(9, "0"))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _instant_or_zero(text: str | None) -> int:
    return parse_instant_ns(text) if text and not text.startswith("0001-") else 0
