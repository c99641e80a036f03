"""Says what the fold has committed: results, grants and facts, each created exactly once.

Rows leave in order, in atomic batches, a few of them in flight at once. A create that is lost is
read back: the same bytes mean that another replica (or this one, before a crash) was first; other
bytes mean that two replicas no longer agree, and this one stops (DESIGN section 5).
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from schemas.names import Names
from worker.bus.errors import (
    BusError,
    CasLost,
    Denied,
    Rejected,
    TooLarge,
    Unavailable,
)
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing, StoredMessage
from worker.bus.window import GroupPublisher
from worker.errors import TidegateError
from worker.ledger import keyed
from worker.ledger.deletions import Deletions
from worker.ledger.errors import Diverged
from worker.ledger.lease import Lease, Progress
from worker.ledger.space_key import KeyDamaged
from worker.ledger.tx import Kind, OutRow

BATCH: Final = 500
IN_FLIGHT: Final = 3
MAX_BACKLOG: Final = 20_000
"""Rows that wait to be said; above it the fold waits too."""

_RETRY_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
_log = structlog.get_logger("tidegate.ledger")


class Publisher:
    """Publishes outbox rows of one space.

    Attributes:
        said: Ids of rows that need not be kept any more; the runner takes and drops them.
        published: Rows stored by this replica.
        trouble: Why nothing can be stored now; empty if all is well.

    Args:
        js: Where.
        names: The space.
        space_key: Reads the space's key; asked only if a keyed fact is to leave.
        oldest_ms: Gives the instant before which nobody can hear a row any more, ms.
        on_stored: Told of the rows that this replica has stored, to count them.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        *,
        space_key: Callable[[], Awaitable[bytes]],
        oldest_ms: Callable[[], int],
        on_stored: Callable[[Sequence[OutRow]], None],
    ) -> None:
        self._js = js
        self._names = names
        self._space_key = space_key
        self._oldest_ms = oldest_ms
        self._on_stored = on_stored
        self._single = GroupPublisher(js, names.res_stream, atomic=True)
        self._deletions = Deletions(js, names, self._on_deleted)
        self._waiting: deque[OutRow] = deque()
        self._leaving: deque[tuple[Sequence[OutRow], asyncio.Task[None]]] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._folded = 0
        self.said: list[int] = []
        self._epoch = 1
        self._earlier = 0
        self._last_result: OutRow | None = None
        self.published = 0
        self.trouble = ""

    def progress(self) -> Progress:
        """How far everything is stored."""
        first = self._leaving[0][0][0] if self._leaving else None
        if first is None and self._waiting:
            first = self._waiting[0]
        if first is None:
            through = self._folded
        elif first.id <= self._earlier:
            through = 0
        else:
            through = first.seq - 1
        last = self._last_result
        if last is None:
            return Progress(self._epoch, through, 0, "")
        return Progress(self._epoch, through, last.seq, chain_of(last.body))

    @property
    def backlog(self) -> int:
        """Rows that are not known to be stored."""
        return len(self._waiting) + sum(len(rows) for rows, _ in self._leaving)

    @property
    def undeleted(self) -> str:
        """Why payloads of settled turns cannot be deleted now; empty if they can."""
        return self._deletions.trouble

    @property
    def owes(self) -> bool:
        """Whether rows of the file are on their way, or said and not dropped yet."""
        return bool(self.said or self._waiting or self._leaving or self._deletions)

    def restart(self, epoch: int, watermark: int, rows: Sequence[OutRow]) -> None:
        """Begin with what a file still owes, as after an open or a rebase.

        Rows of an earlier epoch are said, too, and first; but their sequences may be those of other
        commands in this epoch.
        """
        for _, task in self._leaving:
            task.cancel()
        self._leaving.clear()
        self._waiting.clear()
        self._deletions.clear()
        # Their ids are those of other rows in a file that was newly loaded.
        self.said = []
        self._epoch = epoch
        said = (row for row in rows if row.kind not in (Kind.GRANT, Kind.DELETE))
        self._earlier = max((row.id for row in said if _epoch_of(row) < epoch), default=0)
        self._last_result = None
        self.offer(rows, watermark)

    def offer(self, rows: Sequence[OutRow], watermark: int) -> None:
        """Hand in what a committed batch says; ``watermark`` is the sequence it reached."""
        for row in rows:
            if row.kind is Kind.DELETE:
                self._deletions.offer(row)
            else:
                self._waiting.append(row)
                self._empty.clear()
        self._folded = watermark
        self._wake.set()
        if self.backlog >= MAX_BACKLOG:
            self._room.clear()

    async def wait_for_room(self) -> None:
        """Wait until the backlog is small enough to fold on."""
        await self._room.wait()

    async def run(self, lease: Lease) -> None:
        """Publish while the lease is held, follow its holder otherwise; until cancelled.

        Raises:
            Diverged: Another replica derived something else from the same log.
        """
        watching = asyncio.create_task(self._watch(lease), name="lease-changes")
        deleting = asyncio.create_task(self._deletions.run(), name="delete-payloads")
        try:
            while True:
                self._wake.clear()
                # First, since what has left makes room for what waits.
                self._settle()
                if lease.held:
                    self._dispatch()
                else:
                    self._follow(lease)
                self._settle()
                await self._wake.wait()
        finally:
            watching.cancel()
            deleting.cancel()
            for _, task in self._leaving:
                task.cancel()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything handed in is stored; whether that happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _watch(self, lease: Lease) -> None:
        while True:
            await lease.changed.wait()
            lease.changed.clear()
            self._wake.set()

    def _dispatch(self) -> None:
        self._drop_old()
        while self._waiting and len(self._leaving) < IN_FLIGHT:
            rows = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            task = asyncio.create_task(self._store(rows), name="publish-results")
            task.add_done_callback(lambda _: self._wake.set())
            self._leaving.append((rows, task))

    def _drop_old(self) -> None:
        oldest_ms = self._oldest_ms()
        while self._waiting and self._waiting[0].at_ms < oldest_ms:
            self._done((self._waiting.popleft(),))

    def _settle(self) -> None:
        """Take finished batches from the front, so that progress never skips one."""
        while self._leaving and self._leaving[0][1].done():
            rows, task = self._leaving.popleft()
            task.result()
            self.published += len(rows)
            self._on_stored(rows)
            self._done(rows)
        backlog = self.backlog
        if backlog < MAX_BACKLOG:
            self._room.set()
        if backlog == 0:
            self._empty.set()

    def _done(self, rows: Sequence[OutRow]) -> None:
        self.said.extend(row.id for row in rows)
        for row in reversed(rows):
            # A command's result is the last thing it says.
            if row.kind is Kind.RESULT and row.id > self._earlier:
                self._last_result = row
                break

    def _follow(self, lease: Lease) -> None:
        told = lease.told
        if told is None or told.epoch != self._epoch:
            return
        dropped: list[OutRow] = []
        while self._waiting and self._is_stored(self._waiting[0], told):
            row = self._waiting.popleft()
            dropped.append(row)
            is_result = row.kind is Kind.RESULT and row.id > self._earlier
            if is_result and row.seq == told.chain_seq and chain_of(row.body) != told.chain:
                raise Diverged(self._epoch, row.seq)
        self._done(dropped)

    def _is_stored(self, row: OutRow, told: Progress) -> bool:
        """Whether the publishing replica has stored a row."""
        return told.through > 0 if row.id <= self._earlier else row.seq <= told.through

    async def _store(self, rows: Sequence[OutRow]) -> None:
        """Store rows, however long it takes.

        Raises:
            Diverged: One of them is stored with other bytes.
        """
        attempt = 0
        while True:
            messages: list[Outgoing] = []
            try:
                messages = await self._outgoing(rows)
                await self._js.publish_batch(messages)
            except (Unavailable, Denied, KeyDamaged) as error:
                attempt = await self._pause(error, attempt)
            except BusError as error:
                if len(messages) != len(rows):
                    attempt = await self._pause(error, attempt)
                    continue
                # One of them was refused, so none is stored: each gets its own verdict.
                await self._store_each(messages, rows)
                break
            else:
                break
        self.trouble = ""

    async def _store_each(self, messages: Sequence[Outgoing], rows: Sequence[OutRow]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for message, row in zip(messages, rows, strict=True):
                    group.create_task(self._store_one(message, row))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def _store_one(self, message: Outgoing, row: OutRow) -> None:
        attempt = expected = 0
        while True:
            try:
                await self._single.publish(
                    message.subject,
                    message.data,
                    headers=message.headers,
                    expect_last_subject_seq=expected,
                )
            except CasLost:
                found = await self._find(message.subject)
                if found is not None:
                    if self._is_said(found, message, row):
                        return
                    expected = found.seq
                attempt = await self._pause(CasLost(subject=message.subject), attempt)
            except (TooLarge, Rejected) as error:
                _log.error("result_not_publishable", subject=message.subject, error=error.message)
                return
            except BusError as error:
                attempt = await self._pause(error, attempt)
            else:
                return

    async def _find(self, subject: str) -> StoredMessage | None:
        try:
            return await self._js.last_message(self._names.res_stream, subject)
        except BusError:
            return None

    def _is_said(self, found: StoredMessage, message: Outgoing, row: OutRow) -> bool:
        """Whether what is stored stands for a row; ``False`` if the row goes in its place.

        Raises:
            Diverged: Another replica derived other bytes in the same epoch.
        """
        if found.data == message.data:
            return True
        _log.error("result_differs", subject=message.subject, seq=row.seq)
        if row.id <= self._earlier:
            # Its epoch is over: what was heard of it stands, and the new one says what holds.
            return True
        if row.kind is Kind.GRANT and _epoch_of_grant(found.data) < self._epoch:
            # No subject of a grant names its epoch; the seat of the one that is over is gone.
            return False
        raise Diverged(self._epoch, row.seq)

    def _on_deleted(self, row_id: int) -> None:
        self.said.append(row_id)
        self._wake.set()

    async def _outgoing(self, rows: Sequence[OutRow]) -> list[Outgoing]:
        """Rows as they leave.

        Raises:
            BusError: The space's key is needed and cannot be read.
        """
        key = b""
        if any(row.kind is Kind.KEYED for row in rows):
            key = await self._space_key()
        return [
            Outgoing(
                row.subject,
                keyed.leave(key, row.body) if row.kind is Kind.KEYED else row.body,
                row.headers,
                0,
            )
            for row in rows
        ]

    async def _pause(self, error: TidegateError, attempt: int) -> int:
        # Not its message: that names a subject, and who asked for what is not for a health page.
        self.trouble = error.reason
        if attempt == 0:
            _log.warning("results_not_published", reason=error.reason, error=error.message)
        await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
        return attempt + 1


def _epoch_of(row: OutRow) -> int:
    """The epoch in a row's id, ``<epoch>-<seq>`` or ``<epoch>-<seq>-<n>``."""
    return int(row.subject.rpartition(".")[2].partition("-")[0])


def _epoch_of_grant(body: bytes) -> int:
    """The epoch in the id of the lease that a stored grant names; our own writes are trusted."""
    return int(str(json.loads(body)["lease_id"]).partition("-")[0])


def chain_of(body: bytes) -> str:
    """The chain value of a result as published."""
    return str(json.loads(body)["chain"])
