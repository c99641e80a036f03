"""What feeds the index: the records and the settle facts, followed from where it stopped.

Changes are applied in batches in the index's own thread. Settlements that this worker saw through
itself are proven already and cost no look later.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from schemas import subjects
from schemas.codes import BadInput, Code
from schemas.limits import MAX_RECORD_BYTES
from schemas.names import Names, kv_stream
from schemas.records import SpecRecord, StatusRecord
from schemas.subjects import Checkpoint
from worker import logs
from worker.bus.errors import BusError, Denied, StreamMissing
from worker.bus.follow import Follower
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.checkpoints.context import Clock
from worker.checkpoints.index import (
    Change,
    FactSeen,
    Filter,
    Index,
    Pending,
    SettledSeen,
    SpecSeen,
    WaitingSeen,
    throw_away,
)
from worker.checkpoints.local import NO_ROOM, LocalThread
from worker.errors import TidegateError

log = logs.get()

T = TypeVar("T")

BATCH = 512
EVERYTHING = 1_000_000
MISSING_PAUSE_S = 2.0
REBUILD_PAUSE_S = 1.0


class IndexBuilding(TidegateError):
    """The list of waiting checkpoints is being built and not answered in part; ask again soon."""

    code = Code.UNAVAILABLE
    reason = "index-building"


class Feed:
    """The index of one space, kept up with the broker.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
        path: The index file.
        on_change: Told of each change as it passes by, in the event loop.
        settled_lately: Whether this worker saw a settlement through itself.
        on_reset: Told what waited by the index, before it is thrown away for other streams.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        clock: Clock,
        path: Path,
        on_change: Callable[[Change], None],
        settled_lately: Callable[[Checkpoint, int], bool],
        on_reset: Callable[[list[Pending]], None] = lambda rows: None,
    ) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._path = path
        self._on_change = on_change
        self._settled_lately = settled_lately
        self._on_reset = on_reset
        self._thread = LocalThread(f"index-{names.space}")
        self._index: Index | None = None
        self._again = asyncio.Event()
        self._stale = False
        self._damaged = False
        self._built_at = -1
        self._key_prefix = f"$KV.{names.records_bucket}."
        self.caught_up = asyncio.Event()
        """Set while the index holds everything that was there when it began to follow."""
        self._trouble = ""
        self.last: dict[str, int] = {}
        """Highest sequence seen of each stream followed."""

    @property
    def trouble(self) -> str:
        """Why the index is not being fed; empty while it is."""
        return self._trouble or self._thread.trouble

    @property
    def is_whole(self) -> bool:
        """Whether the index is complete and kept up, so that a list of it leaves nothing out."""
        return self.is_built and not self.trouble

    @property
    def is_built(self) -> bool:
        """Whether it holds what was there at the start and when the broker came back."""
        return self.caught_up.is_set() and self._built_at == self._js.connection.reconnects

    @property
    def is_usable(self) -> bool:
        """Whether what it holds is worth looking at: whole, or all there is on a full disk."""
        return self.is_open and (self.caught_up.is_set() or bool(self._thread.trouble))

    async def open(self) -> None:
        """Open the file; one for which there is no room is opened as soon as there is.

        Raises:
            StartRefused: If another process holds the file.
        """
        index = await self._thread.attempt(Index, self._path)
        if index is not NO_ROOM:
            self._index = index

    async def _begin(self) -> None:
        """Begin anew unless the file is sound and belongs to these streams.

        Raises:
            IndexBuilding: The broker does not answer, or a stream is missing.
        """
        if self._index is None:
            self._index = await self._thread.run(Index, self._path)
        try:
            await self._compare()
        except BusError as error:
            await self._wait(error)
            raise IndexBuilding from error

    async def _compare(self) -> None:
        marks = {}
        for stream in self._streams():
            info = await self._js.stream_info(stream)
            marks[f"{stream}.created"] = _fingerprint(info.created)
            reached = await self._run(self._it.mark, stream)
            if reached is not None and reached > info.last_seq:
                marks[f"{stream}.created"] = -1
        known = {name: await self._run(self._it.mark, name) for name in marks}
        if self._stale or known != marks:
            self._on_reset(await self.find(Filter(), EVERYTHING))
            await self._reset()
            self._stale = False

    def rebuild(self) -> None:
        """Throw away what the index holds; it is read again from the streams."""
        self.caught_up.clear()
        self._stale = True
        self._again.set()

    async def run(self) -> None:
        """Follow records, then facts as well, until cancelled.

        What is damaged in the file is met by whoever reads it, and the file is built anew.
        """
        while True:
            self._again.clear()
            try:
                await self._begin()
                await self._follow_until_again()
            except IndexBuilding:
                await asyncio.sleep(REBUILD_PAUSE_S)
            if self._damaged:
                await self._replace()

    async def _follow_until_again(self) -> None:
        following = asyncio.create_task(self._follow_while_there())
        again = asyncio.create_task(self._again.wait())
        try:
            await asyncio.wait({following, again}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            following.cancel()
            again.cancel()
            await asyncio.gather(following, again, return_exceptions=True)

    async def _replace(self) -> None:
        """Throw the damaged file away."""
        index, self._index = self._index, None
        if index is not None:
            with contextlib.suppress(sqlite3.DatabaseError):
                await self._thread.once(index.close)
        await self._thread.once(throw_away, self._path)
        self._damaged = False

    async def _follow_while_there(self) -> None:
        """Follow; a stream that is missing is waited for, since that says nothing about records."""
        while True:
            try:
                await self._follow_all()
            except (StreamMissing, Denied) as error:
                await self._wait(error)

    async def _wait(self, error: BusError) -> None:
        if not self._trouble:
            log.error("feed_waits", space=self._names.space, error=error.message)
        missing = isinstance(error, StreamMissing)
        what = "a stream of the checkpoint plane is missing on the broker"
        self._trouble = what if missing else f"the index is not fed: {error.message}"
        await asyncio.sleep(MISSING_PAUSE_S)

    async def _reset(self) -> None:
        marks = {
            f"{stream}.created": _fingerprint((await self._js.stream_info(stream)).created)
            for stream in self._streams()
        }
        await self._run(self._it.reset, marks)

    async def _follow_all(self) -> None:
        records = asyncio.create_task(self._follow(self._streams()[0], self._record_changes))
        try:
            await self._wait_for_records(records)
            await self._follow(self._streams()[1], self._fact_changes, headers_only=True)
        finally:
            records.cancel()
            await asyncio.gather(records, return_exceptions=True)

    async def close(self) -> None:
        """Close the file; the thread ends."""
        if self._index is not None:
            await self._thread.once(self._index.close)
        self._thread.shutdown()

    async def find(self, wanted: Filter, limit: int) -> list[Pending]:
        """One page of waiting checkpoints, by deadline."""
        return await self._run(self._it.find, wanted, limit)

    async def count(self) -> int:
        """How many checkpoints wait."""
        return await self._run(self._it.count)

    async def unproven(self, before_ms: int, limit: int) -> list[Checkpoint]:
        """Settled checkpoints whose fact was not seen."""
        return await self._run(self._it.unproven, before_ms, limit)

    async def unknown(self, rows: Sequence[Pending]) -> list[Pending]:
        """Those of which the index has neither the same generation nor a later one."""
        found: list[Pending] = []
        for at in range(0, len(rows), BATCH):
            found += await self._run(self._it.unknown, rows[at : at + BATCH])
        return found

    async def specless(self, before_ms: int, limit: int) -> list[Checkpoint]:
        """What is due and can never settle, since it has no spec."""
        return await self._run(self._it.specless, before_ms, limit)

    async def prove(self, target: Checkpoint) -> None:
        """Remember that a settlement's fact exists."""
        await self._run(self._it.prove, target)

    async def note_timers(self, rows: Sequence[Pending]) -> None:
        """Remember that timers were seen armed."""
        await self._run(self._it.note_timers, rows)

    async def audit(
        self, armed: AsyncIterator[Sequence[Checkpoint]], seen_before_ms: int, limit: int
    ) -> tuple[list[Checkpoint], list[Checkpoint]]:
        """Waiting checkpoints without a timer, and timers of nothing that waits."""
        await self._run(self._it.audit_begin)
        async for page in armed:
            await self._run(self._it.audit_add, page)
        return await self._run(self._it.audit_end, seen_before_ms, limit)

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._index is not None

    @property
    def _it(self) -> Index:
        if self._index is None:
            raise IndexBuilding
        return self._index

    def _streams(self) -> tuple[str, str]:
        return kv_stream(self._names.records_bucket), self._names.epf_stream

    async def _wait_for_records(self, records: "asyncio.Task[None]") -> None:
        waiting = asyncio.create_task(self.caught_up.wait())
        await asyncio.wait({waiting, records}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if records.done():
            records.result()

    async def _follow(
        self,
        stream: str,
        changes_of: Callable[[StoredMessage], Sequence[Change]],
        *,
        headers_only: bool = False,
    ) -> None:
        reached = await self._run(self._it.mark, stream) or 0
        subject = (
            f"{self._names.prefix}.epf.*.cp.*" if headers_only else f"{self._key_prefix}cp.*.*.*"
        )
        follower = Follower(
            self._js, stream, subject, start_seq=reached + 1, headers_only=headers_only
        )
        async for batch in follower.batches(BATCH):
            changes = [change for message in batch.messages for change in changes_of(message)]
            self._trouble = ""
            if batch.messages:
                reached = batch.messages[-1].seq
                self.last[stream] = reached
                now_ms = int(self._clock.lower_ms())
                await self._run(self._it.apply, changes, {stream: reached}, now_ms)
                for change in changes:
                    self._on_change(change)
            if batch.caught_up and not headers_only:
                self._built_at = self._js.connection.reconnects
                self.caught_up.set()

    def _record_changes(self, message: StoredMessage) -> Sequence[Change]:
        _, wire, token, kind = message.subject[len(self._key_prefix) :].split(".")
        try:
            target = subjects.checkpoint_key((wire, token))
            if not message.data:
                return [SettledSeen(target, proven=True, deleted=True)]
            if kind == "spec":
                spec = SpecRecord.from_bytes(message.data, max_bytes=MAX_RECORD_BYTES)
                return [SpecSeen(target, spec.holder)]
            if kind != "status":
                return []
            status = StatusRecord.from_bytes(message.data, max_bytes=MAX_RECORD_BYTES)
        except BadInput as bad:
            log.warning(
                "record_garbled", space=self._names.space, seq=message.seq, reason=bad.reason
            )
            return []
        if status.state == "waiting":
            return [
                WaitingSeen(
                    target,
                    status.deadlineGeneration,
                    status.deadline,
                    message.seq,
                    status.observedSpecRevision,
                )
            ]
        return [SettledSeen(target, self._settled_lately(target, status.deadlineGeneration))]

    def _fact_changes(self, message: StoredMessage) -> Sequence[Change]:
        target = subjects.parse_settle_fact(self._names, message.subject)
        return [] if target is None else [FactSeen(target)]

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            return await self._thread.run(work, *arguments)
        except (sqlite3.DatabaseError, BadInput) as error:
            if not self._damaged:
                log.error("index_damaged", space=self._names.space, error=error)  # noqa: TRY400 - no traceback for what is mended
            self._damaged = True
            self.caught_up.clear()
            self._again.set()
            raise IndexBuilding from error


def _fingerprint(created: str) -> int:
    """A stream's created time as a number that fits a mark."""
    return int.from_bytes(created.encode()[-8:].rjust(8, b"\0")[1:], "big")
