"""Keys with revisions, read where the decision is made and written by compare-and-set only.

A key-value bucket is a stream that keeps one message per key (ADR-8). Two things differ from
nats-py's: reads go to the leader, and a deletion marker is never absence. Even a read at the leader
is only a hint; the compare-and-set of the following write decides.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from schemas import headers as names
from schemas.names import kv_stream
from worker.bus.errors import MessageAbsent
from worker.bus.follow import FilteredReader, Follower
from worker.bus.headers import Headers
from worker.bus.jetstream import JetStream
from worker.bus.messages import NS_PER_MS, Outgoing, StoredMessage
from worker.bus.window import GroupPublisher, Still

SCAN_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest state of a key.

    Attributes:
        key: The key.
        value: Its value, empty for a deletion marker.
        revision: The stream sequence, which the next write must expect.
        headers: Headers of the write.
        time_ns: When the broker stored it.
        deleted: Whether this is a marker of deletion, purge or expiry. The key has existed.
    """

    key: str
    value: bytes
    revision: int
    headers: Headers
    time_ns: int
    deleted: bool

    @property
    def time_ms(self) -> int:
        """When the broker stored it, rounded down to a millisecond."""
        return self.time_ns // NS_PER_MS


Write = tuple[str, bytes, Mapping[str, str] | None, int]
"""Key, value, headers and expected revision of one write."""


class Bucket:
    """One key-value bucket.

    Args:
        js: Where.
        name: The bucket's name.
        group: Publishes to the bucket's stream, for everybody who writes to it.
    """

    def __init__(self, js: JetStream, name: str, group: GroupPublisher) -> None:
        self._js = js
        self._group = group
        self._prefix = f"$KV.{name}."
        self.name = name
        self.stream = kv_stream(name)

    def subject(self, key: str) -> str:
        """The subject under which a key is stored."""
        return self._prefix + key

    async def read(self, key: str) -> Entry | None:
        """The newest state of a key, at the leader.

        Returns:
            ``None`` only if the key has never existed as far as the stream knows; a deletion marker
            is an entry.

        Raises:
            StreamMissing: The bucket is gone.
            Unavailable: The broker cannot answer now.
        """
        found = await self._js.last_message(self.stream, self._prefix + key)
        return None if found is None else self.entry(found)

    async def put_if(
        self,
        key: str,
        value: bytes,
        revision: int,
        headers: Mapping[str, str] | None = None,
        still: Still | None = None,
    ) -> int:
        """Write if the key's newest revision is ``revision``; 0 is a key that never existed.

        ``still`` says, when the write leaves, whether it may.

        Returns:
            The new revision.

        Raises:
            CasLost: It is not; nothing was written.
            Unknown: It may have been written: read back and recognise your own write.
        """
        return await self._group.publish(
            self._prefix + key,
            value,
            headers=headers,
            expect_last_subject_seq=revision,
            still=still,
        )

    async def put_all(self, writes: Sequence[Write], still: Still | None = None) -> list[int]:
        """Write several keys together or not at all, each against its expected revision.

        ``still`` says, when they leave, whether they may.

        Returns:
            The new revisions.

        Raises:
            CasLost: At least one expectation does not hold; nothing was written.
            Unknown: All or none may have been written.
        """
        return await self._group.publish_all(
            [
                Outgoing(self._prefix + key, value, headers, expected)
                for key, value, headers, expected in writes
            ],
            still,
        )

    async def delete_if(
        self, key: str, revision: int, headers: Mapping[str, str] | None = None
    ) -> int:
        """Put a deletion marker in place of ``revision``; see ``put_if``."""
        marker = dict(headers or {}) | {names.KV_OPERATION: "DEL"}
        return await self.put_if(key, b"", revision, marker)

    async def scan(self, pattern: str = ">") -> AsyncIterator[Entry]:
        """Every key that matches, once, with its newest state when the scan reaches it.

        Entries come in the order of their revisions, markers included.

        Raises:
            GapError: The scan was interrupted; begin again.
            StreamMissing: The bucket is gone.
            BusError: The stream's leader does not say that this was all.
        """
        reader = await FilteredReader.open(
            self._js, self.stream, self._prefix + pattern, last_per_subject=True
        )
        try:
            async for messages in reader.to_the_end(512, SCAN_WAIT_MS):
                for message in messages:
                    yield self.entry(message)
        finally:
            await reader.close()

    async def watch(self, pattern: str = ">", *, after_revision: int = 0) -> AsyncIterator[Entry]:
        """Every change past a revision, for ever, in order; survives interruptions.

        Raises:
            StreamMissing: The bucket is gone.
        """
        follower = Follower(
            self._js, self.stream, self._prefix + pattern, start_seq=after_revision + 1
        )
        async for batch in follower.batches(512):
            for message in batch.messages:
                yield self.entry(message)

    def entry(self, message: StoredMessage) -> Entry:
        """Read a stored message as a key's state.

        Raises:
            MessageAbsent: The message is not of this bucket.
        """
        if not message.subject.startswith(self._prefix):
            raise MessageAbsent(f"not a key of {self.name}", subject=message.subject)
        headers = message.headers
        deleted = headers.get(names.KV_OPERATION) in ("DEL", "PURGE") or (
            names.MARKER_REASON in headers
        )
        return Entry(
            message.subject[len(self._prefix) :],
            message.data,
            message.seq,
            headers,
            message.time_ns,
            deleted,
        )
