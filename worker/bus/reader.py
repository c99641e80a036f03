"""Reading a stream in its order, through a consumer that exists only as long as the reader.

Nothing is acknowledged: an acknowledged message whose effect was never committed is lost for good,
so the reader's owner alone remembers where to go on (DESIGN section 4).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Self

from worker.bus.errors import BusError, Denied, GapError
from worker.bus.headers import decode
from worker.bus.jetstream import JetStream
from worker.bus.messages import NS_PER_MS, StoredMessage
from worker.bus.octets import to_text
from worker.bus.pulling import PullLink

INACTIVE_MS: Final = 30_000
"""The broker forgets the consumer of a reader that is gone after so long."""

ASK_S: Final = 3.0
"""After so long in which nothing came the stream's leader is asked whether it holds more."""

ASK_AGAIN_S: Final = 1.0
"""How long what the leader holds may still be on its way."""

BATCH: Final = 2_048
MAX_BYTES: Final = 8 * 1024 * 1024
_Raw = tuple[bytes, bytes, bytes, bytes]


class StreamReader:
    """Messages of one stream in order, through an ephemeral consumer in the broker's memory.

    The consumer reads one server's copy of the stream. A copy that stands still gives nothing and
    goes on beating, and a delivery that was lost on its way is missed only when another one comes.
    So while nothing comes the stream's leader is asked whether it holds more.

    Attributes:
        expected: Messages before this sequence were taken.
        pending: Messages behind the last one taken, as the broker counted when it sent it; 0 once
            the stream's leader said that there is none.
    """

    def __init__(
        self, js: JetStream, stream: str, subject: str, start_seq: int = 1, *, batch: int = BATCH
    ) -> None:
        self._js = js
        self._stream = stream
        self._subject = subject
        self._batch = batch
        self._name = f"read-{secrets.token_hex(8)}"
        self._raw: deque[_Raw] = deque()
        self._link = PullLink(js.connection, stream, self._name, self._on_message)
        self._consumer_seq = 0
        self._made = False
        self._loop = asyncio.get_running_loop()
        self._ask_at = self._loop.time() + ASK_S
        self._asked: asyncio.Task[StoredMessage | None] | None = None
        self._asked_from = 0
        self._missed_from = 0
        self.expected = max(1, start_seq)
        self.pending = 0

    async def _start(self, config: Mapping[str, Any]) -> None:
        try:
            await self._link.open()
            info = await self._js.consumer_create(
                self._stream,
                {
                    "name": self._name,
                    "ack_policy": "none",
                    "replay_policy": "instant",
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": INACTIVE_MS * NS_PER_MS,
                    **config,
                },
            )
        except BaseException:
            await self._link.close()
            raise
        self._made = True
        self.pending = info.pending
        self._link.forget()
        self._link.pull(self._batch, max_bytes=MAX_BYTES)

    async def next_batch(self, max_n: int, wait_ms: int) -> list[StoredMessage]:
        """Up to ``max_n`` messages, as soon as there is one, or none after ``wait_ms``.

        Raises:
            GapError: Order was lost: close this reader, discard what was not committed, open again.
            Denied: The broker's permissions refuse reading.
        """
        link = self._link
        until = self._loop.time() + wait_ms / 1000
        while not self._raw:
            self._refill()
            self._check()
            self._ask()
            link.wake.clear()
            left = until - self._loop.time()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await link.wake.wait()
            except TimeoutError:
                continue
        raw = self._raw
        taken = [self._message(raw.popleft()) for _ in range(min(max_n, len(raw)))]
        self._ask_at = self._loop.time() + ASK_S
        self._refill()
        return taken

    async def close(self) -> None:
        """Stop reading and let the broker forget the consumer."""
        if self._asked is not None:
            self._asked.cancel()
        await self._link.close()
        self._raw.clear()
        if self._made:
            self._made = False
            try:
                subject = f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}"
                self._js.connection.send(subject, b"", b"")
            except BusError:
                # It is forgotten by itself after INACTIVE_MS.
                return

    def _refill(self) -> None:
        link = self._link
        if link.cut or link.trouble is not None:
            return
        if link.outstanding <= self._batch // 2 and len(self._raw) <= self._batch:
            try:
                link.pull(self._batch, max_bytes=MAX_BYTES)
            except BusError as error:
                link.trouble = error

    def _check(self) -> None:
        """Raise if nothing in order can come any more; called when nothing is left to take."""
        link = self._link
        if isinstance(link.trouble, Denied):
            raise link.trouble
        if link.cut:
            raise self._gap("the connection was lost")
        if link.trouble is not None:
            raise self._gap(link.trouble.message)
        if link.overdue:
            raise self._gap("the broker forgot the reader")

    def _ask(self) -> None:
        """Ask whether there is more, or take the answer; called when nothing is left to take.

        Raises:
            GapError: There is, was a second before, too, and none of it came.
        """
        if self._asked is None:
            if self._loop.time() >= self._ask_at:
                self._asked_from = self.expected
                asking = self._js.next_message(self._stream, self.expected, self._subject)
                self._asked = asyncio.create_task(asking, name=f"ask-{self._stream}")
                self._asked.add_done_callback(self._on_asked)
            return
        if not self._asked.done():
            return
        asked, self._asked = self._asked, None
        self._ask_at = self._loop.time() + ASK_S
        if self._asked_from != self.expected:
            return
        try:
            found = asked.result()
        except BusError:
            # A leader that does not answer is asked again.
            return
        if found is None:
            self.pending = 0
        elif self._missed_from != self.expected:
            self._missed_from = self.expected
            self._ask_at = self._loop.time() + ASK_AGAIN_S
        else:
            raise self._gap(f"{found.seq} is stored and does not come", found.seq)

    def _on_asked(self, asked: asyncio.Task[StoredMessage | None]) -> None:
        self._link.wake.set()
        if not asked.cancelled():
            # Who reads may be gone before it is looked at.
            asked.exception()

    def _gap(self, why: str, found: int = 0) -> GapError:
        return GapError(f"{self._stream}: {why}", expected=self.expected, found=found)

    def _on_message(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        self._raw.append((subject, reply, header, data))

    def _message(self, raw: _Raw) -> StoredMessage:
        subject, reply, header, data = raw
        parts = reply.split(b".")
        if len(parts) != 9:
            # The longer form has domain and account in front.
            parts = parts[2:]
        seq = int(parts[5])
        self._expect(seq, int(parts[6]))
        self.expected = seq + 1
        self.pending = int(parts[8])
        return StoredMessage(
            to_text(subject),
            seq,
            int(parts[7]),
            decode(header),
            data,
            self._stream,
        )

    def _expect(self, seq: int, consumer_seq: int) -> None:
        if consumer_seq != self._consumer_seq + 1:
            raise self._gap("a delivery is missing")
        self._consumer_seq = consumer_seq


class LogReader(StreamReader):
    """The whole of a log from one sequence on; every sequence is exactly the next."""

    @classmethod
    async def open(cls, js: JetStream, stream: str, start_seq: int, *, batch: int = BATCH) -> Self:
        """Begin to read at ``start_seq``, which need not exist yet.

        Raises:
            StreamMissing: There is no such stream.
            BusError: The broker cannot do it now.
        """
        reader = cls(js, stream, ">", start_seq, batch=batch)
        await reader._start({"deliver_policy": "by_start_sequence", "opt_start_seq": start_seq})
        return reader

    def _expect(self, seq: int, consumer_seq: int) -> None:
        if seq != self.expected:
            raise self._gap(f"{seq} came instead of {self.expected}", seq)
