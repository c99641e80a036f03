"""Streams: publishing with expectations, reading at the leader, and administration.

Every error is one of ``worker.bus.errors``, told apart by number. Nothing here retries: whether a
second attempt is safe is known only to the caller, who can recognise its own write.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from worker.bus import headers as header_block
from worker.bus.connection import DEFAULT_TIMEOUT_MS, Connection
from worker.bus.errors import MessageAbsent, Rejected, StreamMissing, from_api_error
from worker.bus.messages import (
    ConsumerInfo,
    Outgoing,
    PubAck,
    StoredMessage,
    StreamInfo,
    parse_instant_ns,
)
from worker.bus.requests import Answer

__all__ = [
    "MAX_BATCH",
    "ConsumerInfo",
    "JetStream",
    "Outgoing",
    "PubAck",
    "StoredMessage",
    "StreamInfo",
    "parse_ack",
    "parse_direct",
]

MAX_BATCH: Final = 1_000
"""Messages of one atomic batch (ADR-50)."""

_NOT_FOUND = 404


class JetStream:
    """JetStream of the account that a connection is in."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._batch_prefix = secrets.token_hex(6).encode()
        self._batches = 0

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        expect_last_subject_seq: int | None = None,
        expect_subject: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> PubAck:
        """Store one message and wait until the broker has it.

        Args:
            subject: Where it goes.
            data: Its body.
            headers: Its headers.
            expect_last_subject_seq: Compare-and-set: the last sequence that the subject must have.
            expect_subject: Another subject to compare the sequence of.
            timeout_ms: Longest wait for the acknowledgement.

        Raises:
            CasLost: The expectation does not hold; nothing was stored.
            Unavailable: No stream takes the subject, or there is no connection; nothing was stored.
            Unknown: No acknowledgement; it may have been stored.
            ScheduleRefused: The message schedule is not acceptable.
            Denied: The broker's permissions refuse the subject.
            TooLarge: It exceeds ``max_payload``; it was not sent.
            Rejected: The broker refused for another reason.
        """
        message = Outgoing(subject, data, headers, expect_last_subject_seq, expect_subject)
        _, body = await self.begin_publish(message, timeout_ms)
        return parse_ack(body, subject)

    def begin_publish(
        self, message: Outgoing, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> asyncio.Future[Answer]:
        """Send one message without waiting; ``parse_ack`` reads the answer."""
        return self.connection.begin(message.subject, message.header(), message.data, timeout_ms)

    async def publish_batch(
        self, messages: Sequence[Outgoing], timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> list[int]:
        """Store all messages of one stream, or none (ADR-50).

        Args:
            messages: One to 1,000, of one stream with ``allow_atomic``; no two of one subject.
            timeout_ms: Longest wait for the acknowledgement.

        Returns:
            The stream sequence of each message.

        Raises:
            CasLost: At least one expectation does not hold; nothing was stored.
            Unknown: No acknowledgement; all or none may have been stored.
            Rejected: The batch was refused, for example since the stream takes none.
        """
        _, body = await self.begin_batch(messages, timeout_ms)
        ack = parse_ack(body, messages[-1].subject)
        return list(range(ack.seq - len(messages) + 1, ack.seq + 1))

    def begin_batch(
        self,
        messages: Sequence[Outgoing],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        *,
        lines: Sequence[bytes] | None = None,
    ) -> asyncio.Future[Answer]:
        """Send a whole batch without waiting; ``parse_ack`` reads the answer.

        Args:
            messages: As ``publish_batch``; one alone leaves as a plain publish.
            timeout_ms: Longest wait for the acknowledgement.
            lines: What ``header_lines`` of each message gave, if that is known already.

        Raises:
            Unavailable: There is no connection; nothing was stored.
            TooLarge: One message exceeds ``max_payload``; nothing was stored.
        """
        last = len(messages)
        if not 1 <= last <= MAX_BATCH:
            raise ValueError(f"a batch has 1 to {MAX_BATCH} messages")
        # Encoded before the first is sent: a message that cannot be must not leave half a batch.
        if lines is None:
            lines = [message.header_lines() for message in messages]
        if last == 1:
            header = b"NATS/1.0\r\n%b\r\n" % lines[0] if lines[0] else b""
            only = messages[0]
            return self.connection.begin(only.subject, header, only.data, timeout_ms)
        self._batches += 1
        batch = b"Nats-Batch-Id: %b-%d\r\nNats-Batch-Sequence: " % (
            self._batch_prefix,
            self._batches,
        )
        commit = b"\r\nNats-Batch-Commit: 1\r\n\r\n"
        return self.connection.begin_many(
            [
                (
                    message.subject,
                    b"NATS/1.0\r\n%b%b%d%b"
                    % (line, batch, index, commit if index == last else b"\r\n\r\n"),
                    message.data,
                )
                for index, (message, line) in enumerate(zip(messages, lines, strict=True), 1)
            ],
            timeout_ms,
        )

    async def last_message(
        self, stream: str, subject: str, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> StoredMessage | None:
        """The newest message on ``subject``, read at the stream's leader.

        Returns:
            ``None`` only if the broker says that there is none (10037).

        Raises:
            StreamMissing: The stream is gone, which is never the same as absent.
            Unavailable: The broker cannot answer now.
        """
        return await self._message(stream, {"last_by_subj": subject}, timeout_ms)

    async def message(
        self, stream: str, seq: int, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> StoredMessage | None:
        """The message at ``seq``, read at the stream's leader; ``None`` if it holds nothing."""
        return await self._message(stream, {"seq": seq}, timeout_ms)

    async def next_message(
        self, stream: str, seq: int, subject: str, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> StoredMessage | None:
        """The first message at or after ``seq`` whose subject matches, read at the leader."""
        return await self._message(stream, {"seq": seq, "next_by_subj": subject}, timeout_ms)

    async def direct_last(
        self, stream: str, subject: str, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> StoredMessage | None:
        """The newest message on ``subject``, possibly from a follower that lags.

        Never use it for a decision. ``None`` if that replica holds none.
        """
        raw, body = await self.connection.begin(
            f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", b"", timeout_ms
        )
        return parse_direct(raw, body, subject)

    async def stream_info(
        self,
        stream: str,
        *,
        subjects_filter: str | None = None,
        deleted: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> StreamInfo:
        """Describe a stream; with a filter, all matching subjects are collected over pages.

        Raises:
            StreamMissing: There is no such stream.
        """
        query: dict[str, Any] = {}
        if deleted:
            query["deleted_details"] = True
        if subjects_filter is not None:
            query["subjects_filter"] = subjects_filter
        raw = await self.api(f"STREAM.INFO.{stream}", query or None, timeout_ms)
        if subjects_filter is not None:
            subjects = dict(raw["state"].get("subjects") or {})
            page = raw
            while query_next := _next_page(page):
                query["offset"] = query_next
                page = await self.api(f"STREAM.INFO.{stream}", query, timeout_ms)
                subjects.update(page["state"].get("subjects") or {})
            raw["state"]["subjects"] = subjects
        return StreamInfo.parse(raw)

    async def subject_pages(self, stream: str, subjects_filter: str) -> AsyncIterator[list[str]]:
        """Subjects that hold messages and match, a broker's page (100,000 at most) at a time.

        What comes and goes between two pages may be missed or told twice.

        Raises:
            StreamMissing: There is no such stream.
        """
        offset = 0
        while True:
            query = {"subjects_filter": subjects_filter, "offset": offset}
            page = await self.api(f"STREAM.INFO.{stream}", query, 30_000)
            if found := list(page["state"].get("subjects") or {}):
                yield found
            offset = _next_page(page)
            if not offset:
                return

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """Names of all streams, or of those that listen to ``subject``."""
        found: list[str] = []
        while True:
            query: dict[str, Any] = {"offset": len(found)}
            if subject is not None:
                query["subject"] = subject
            page = await self.api("STREAM.NAMES", query)
            names = page.get("streams") or []
            found += names
            if not names or len(found) >= int(page.get("total") or 0):
                return found

    async def stream_create(self, config: Mapping[str, Any]) -> StreamInfo:
        """Create a stream; one that exists with the same settings is left as it is.

        Raises:
            NameTaken: It exists with other settings.
        """
        return StreamInfo.parse(await self.api(f"STREAM.CREATE.{config['name']}", config, 10_000))

    async def stream_update(self, config: Mapping[str, Any]) -> StreamInfo:
        """Change a stream's settings."""
        return StreamInfo.parse(await self.api(f"STREAM.UPDATE.{config['name']}", config, 10_000))

    async def stream_delete(self, stream: str) -> None:
        """Delete a stream with all it holds."""
        await self.api(f"STREAM.DELETE.{stream}", None, 10_000)

    async def stream_purge(
        self,
        stream: str,
        *,
        subject: str | None = None,
        below_seq: int | None = None,
        keep: int | None = None,
    ) -> int:
        """Remove messages.

        Args:
            stream: Where.
            subject: Only those whose subject matches.
            below_seq: Only those with a smaller sequence.
            keep: All but the newest so many; not together with ``below_seq``.

        Returns:
            How many were removed.
        """
        query: dict[str, Any] = {}
        if subject is not None:
            query["filter"] = subject
        if below_seq is not None:
            query["seq"] = below_seq
        if keep is not None:
            query["keep"] = keep
        answer = await self.api(f"STREAM.PURGE.{stream}", query or None, 30_000)
        return int(answer.get("purged") or 0)

    async def message_delete(self, stream: str, seq: int) -> None:
        """Remove one message; its sequence stays empty.

        Raises:
            BusError: The stream does not allow it, or holds nothing there.
        """
        await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})

    async def consumer_create(self, stream: str, config: Mapping[str, Any]) -> ConsumerInfo:
        """Create a consumer, or bring one of that name to these settings.

        Raises:
            StreamMissing: There is no such stream.
        """
        name = config.get("durable_name") or config["name"]
        subject = f"CONSUMER.CREATE.{stream}.{name}"
        if config.get("filter_subject"):
            subject += f".{config['filter_subject']}"
        body = {"stream_name": stream, "config": dict(config) | {"name": name}}
        return ConsumerInfo.parse(await self.api(subject, body))

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """Describe a consumer.

        Raises:
            ConsumerMissing: There is no such consumer.
            StreamMissing: There is not even the stream.
        """
        return ConsumerInfo.parse(await self.api(f"CONSUMER.INFO.{stream}.{name}", None))

    async def consumer_delete(self, stream: str, name: str) -> None:
        """Delete a consumer."""
        await self.api(f"CONSUMER.DELETE.{stream}.{name}", None)

    async def consumer_step_down(self, stream: str, name: str) -> None:
        """Have another server lead a consumer.

        Raises:
            BusError: There is no other, or it cannot be done now.
        """
        await self.api(f"CONSUMER.LEADER.STEPDOWN.{stream}.{name}", None)

    async def api(
        self, name: str, body: Mapping[str, Any] | None, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> dict[str, Any]:
        """Ask ``$JS.API.<name>``.

        Raises:
            BusError: Of the class that its number says.
        """
        subject = f"$JS.API.{name}"
        data = b"" if body is None else json.dumps(body).encode()
        _, answer = await self.connection.begin(subject, b"", data, timeout_ms)
        return _parse_answer(answer, subject)

    async def _message(
        self, stream: str, query: Mapping[str, Any], timeout_ms: int
    ) -> StoredMessage | None:
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", query, timeout_ms)
        except MessageAbsent:
            return None
        found = answer["message"]
        return StoredMessage(
            subject=found["subject"],
            seq=found["seq"],
            time_ns=parse_instant_ns(found["time"]),
            headers=header_block.decode(base64.b64decode(found.get("hdrs") or "")),
            data=base64.b64decode(found.get("data") or ""),
            stream=stream,
        )


def _next_page(page: Mapping[str, Any]) -> int:
    """Where the page of subjects after this one begins; 0 if it was the last.

    By the broker's numbers: subjects that differ only in bytes that are not UTF-8 are one in JSON,
    so those that came are no count of those that were sent.
    """
    end = int(page.get("offset") or 0) + int(page.get("limit") or 0)
    return end if 0 < end < int(page.get("total") or 0) else 0


def parse_ack(body: bytes, subject: str) -> PubAck:
    """Read a publish acknowledgement.

    Raises:
        BusError: The broker refused, or answered something else.
    """
    answer = _parse_answer(body, subject)
    seq = answer.get("seq")
    if type(seq) is not int or seq < 1:
        raise Rejected("the answer is not a publish acknowledgement", subject=subject)
    return PubAck(answer.get("stream", ""), seq, answer.get("duplicate", False))


def parse_direct(raw: bytes, body: bytes, subject: str) -> StoredMessage | None:
    """Read the answer to a direct get, whose headers mix the broker's with the message's own.

    Raises:
        StreamMissing: The answer says that the request was not understood.
        Rejected: A header of the broker's occurs twice, so that it cannot be trusted.
    """
    found = header_block.decode(raw)
    if found.status == _NOT_FOUND:
        return None
    if found.status:
        raise StreamMissing(f"direct get answered {found.status}", subject=subject)
    values = [
        found.single(name)
        for name in ("Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Stream")
    ]
    if None in values:
        raise Rejected("the answer to a direct get is ambiguous", subject=subject)
    where, seq, instant, stream = (str(value) for value in values)
    for name in ("Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Stream"):
        del found[name]
    return StoredMessage(where, int(seq), parse_instant_ns(instant), found, body, stream)


def _parse_answer(body: bytes, subject: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(body)
        error = answer.get("error")
    except (ValueError, AttributeError):
        raise Rejected("the broker's answer is not JSON", subject=subject) from None
    if error is not None:
        raise from_api_error(error, subject=subject)
    return answer
