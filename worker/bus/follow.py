"""Following part of a stream for ever, across everything that may interrupt it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from worker import logs
from worker.bus.errors import BusError, Denied, GapError, StreamMissing
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.bus.reader import BATCH, StreamReader

WAIT_MS: Final = 1_000
CONFIRM_MS: Final = 2_000
BACKOFF_MS: Final = (100, 250, 500, 1_000, 2_000)
_log = logs.get("tidegate.bus")


@dataclass(frozen=True, slots=True)
class Batch:
    """What came next.

    Attributes:
        messages: In stream order; empty when the follower has just caught up with nothing new.
        caught_up: Whether nothing more was stored when the broker sent the last of them.
    """

    messages: tuple[StoredMessage, ...]
    caught_up: bool


class FilteredReader(StreamReader):
    """Messages of a stream whose subject matches, from one sequence on, each exactly once.

    Attributes:
        held: The last sequence that the stream's leader held when reading began.
    """

    held = 0

    @classmethod
    async def open(
        cls,
        js: JetStream,
        stream: str,
        subject: str,
        *,
        start_seq: int = 1,
        headers_only: bool = False,
        last_per_subject: bool = False,
        batch: int = BATCH,
    ) -> "FilteredReader":
        """Begin to read.

        Args:
            js: Where.
            stream: The stream.
            subject: Filter, with wildcards.
            start_seq: First sequence wanted.
            headers_only: Leave the bodies out.
            last_per_subject: Only the newest of each subject; ``start_seq`` is ignored then.
            batch: Messages asked for at once.

        Raises:
            StreamMissing: There is no such stream.
            BusError: The broker cannot do it now.
        """
        reader = cls(js, stream, subject, 1 if last_per_subject else start_seq, batch=batch)
        config: dict[str, Any] = {"filter_subject": subject}
        if last_per_subject:
            config["deliver_policy"] = "last_per_subject"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start_seq)}
        if headers_only:
            config["headers_only"] = True
        reader.held = (await js.stream_info(stream)).last_seq
        await reader._start(config)
        return reader

    async def to_the_end(self, max_n: int, wait_ms: int) -> AsyncIterator[list[StoredMessage]]:
        """What the stream held when reading began, in batches of up to ``max_n``.

        Raises:
            GapError: The reading was interrupted, or does not go on; begin again.
            BusError: The stream's leader does not say that this was all.
        """
        while self.pending or not await self.has_all():
            if messages := await self.next_batch(max_n, wait_ms):
                yield messages

    async def has_all(self) -> bool:
        """Whether everything up to ``held`` came; the consumer's own copy of the stream may lag.

        Raises:
            BusError: The stream's leader does not say.
        """
        if self.expected > self.held:
            return True
        # One that was stored since may stand in place of one that did not come.
        more = await self._js.next_message(self._stream, self.expected, self._subject, CONFIRM_MS)
        return more is None


class Follower:
    """Follows the messages of a stream whose subject matches, reopening by itself.

    Args:
        js: Where.
        stream: The stream.
        subject: Filter, with wildcards.
        start_seq: First sequence wanted.
        headers_only: Leave the bodies out.

    Attributes:
        next_seq: Where it goes on; messages before it were handed out.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        subject: str,
        *,
        start_seq: int = 1,
        headers_only: bool = False,
    ) -> None:
        self._js = js
        self._stream = stream
        self._subject = subject
        self._headers_only = headers_only
        self.next_seq = max(1, start_seq)

    async def batches(self, max_n: int) -> AsyncIterator[Batch]:
        """Batches of up to ``max_n`` messages, for ever; close the iterator to stop.

        The first batch with ``caught_up`` ends what was there at the start, by the word of the
        stream's leader. A connection lost, a consumer that vanished and one that stands still are
        survived; nothing is skipped and nothing comes twice.

        Raises:
            StreamMissing: The stream is gone.
            Denied: The broker's permissions refuse reading.
        """
        failures = 0
        while True:
            try:
                reader = await FilteredReader.open(
                    self._js,
                    self._stream,
                    self._subject,
                    start_seq=self.next_seq,
                    headers_only=self._headers_only,
                )
            except (StreamMissing, Denied):
                raise
            except BusError as error:
                if failures == 0:
                    _log.warning("follow_failed", stream=self._stream, error=error.message)
                await self._pause(failures)
                failures += 1
                continue
            try:
                whole = caught_up = False
                messages: list[StoredMessage] = []
                while True:
                    if reader.pending == 0 and not whole:
                        with contextlib.suppress(BusError):
                            whole = await reader.has_all()
                    told, caught_up = caught_up, whole and reader.pending == 0
                    if messages or (caught_up and not told):
                        yield Batch(tuple(messages), caught_up)
                    messages = await reader.next_batch(max_n, WAIT_MS)
                    if messages:
                        failures = 0
                        self.next_seq = messages[-1].seq + 1
            except GapError as gap:
                _log.info("follow_reopened", stream=self._stream, why=gap.message)
            finally:
                await reader.close()
            await self._pause(failures)
            failures += 1

    async def _pause(self, failures: int) -> None:
        connection = self._js.connection
        if not connection.connected:
            await connection.wait_connected(BACKOFF_MS[-1])
        else:
            await asyncio.sleep(BACKOFF_MS[min(failures, len(BACKOFF_MS) - 1)] / 1000)
