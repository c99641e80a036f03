"""Folding a log again, into a file of its own: what determinism is proven by.

A replay speaks to nobody: what its commands would say is folded into the chain and not written.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.names import Names
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.bus.reader import LogReader
from worker.ledger import digest
from worker.ledger.database import Database
from worker.ledger.digest import Digest
from worker.ledger.errors import BehindLog, LedgerError
from worker.ledger.fold import Batch
from worker.ledger.plane import Plane
from worker.ledger.snapshots import SnapshotDamaged, Snapshots

BATCH: Final = 1_000
NEVER_MS: Final = 2**62
"""Every command is older than this, so that none of them says anything."""

READ_MS: Final = 5_000
Say = Callable[[int, int], None]


class ReplayStopped(LedgerError):
    """The log cannot be replayed to its end like this."""

    reason = "replay-stopped"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to.

    Attributes:
        digest: Of the state reached.
        folded: Commands folded.
        took_ms: How long folding them took.
        snapshot: The snapshot it began at, empty if at the log's first command.
    """

    digest: Digest
    folded: int
    took_ms: int
    snapshot: str


async def replay(
    js: JetStream,
    names: Names,
    planes: Sequence[Plane],
    into: Path,
    *,
    until: int | None = None,
    from_snapshot: bool = False,
    progress: Say = lambda _done, _all: None,
) -> Replayed:
    """Fold a space's log into a file that does not exist yet.

    Args:
        js: The workers' account.
        names: The space.
        planes: Its planes.
        into: Where the file is made; it is left there, also after a failure.
        until: Last sequence to fold; the log's last one as it is now if absent.
        from_snapshot: Begin at the newest snapshot that verifies; a trimmed log always does.
        progress: Told how many commands are folded, of how many.

    Raises:
        ReplayStopped: The file exists, or a command cannot be folded by this version.
        BehindLog: The log was trimmed and no snapshot reaches into it.
        BusError: The broker did not answer.
    """
    if await asyncio.to_thread(into.exists):
        raise ReplayStopped(f"{into} exists; name a file that does not")
    info = await js.stream_info(names.log_stream)
    last = info.last_seq if until is None else min(until, info.last_seq)
    begun = ""
    if from_snapshot or info.first_seq > 1:
        begun = await _from_snapshot(js, names, planes, into, last)
    database = await Database.open(into, names, planes)
    try:
        start = await database.read(lambda _, state: state.watermark)
        if info.messages and info.first_seq > start + 1:
            raise BehindLog(start, info.first_seq)
        started = time.monotonic()
        if last > start:
            await _fold(js, names, database, start, last, progress)
        took_ms = int((time.monotonic() - started) * 1000)
        reached = await database.read(lambda db, _: digest.compute(db, planes))
    finally:
        await database.close()
    return Replayed(reached, last - start if last > start else 0, took_ms, begun)


async def digest_of_file(path: Path, names: Names, planes: Sequence[Plane]) -> Digest:
    """The digest of a stopped worker's file.

    Raises:
        FileLocked: A worker holds it; ask the worker instead.
        FileRefused: It is no ledger of this space and version.
    """
    if not await asyncio.to_thread(path.is_file):
        raise ReplayStopped(f"{path} does not exist")
    database = await Database.open(path, names, planes)
    try:
        return await database.read(lambda db, _: digest.compute(db, planes))
    finally:
        await database.close()


async def _from_snapshot(
    js: JetStream, names: Names, planes: Sequence[Plane], into: Path, last: int
) -> str:
    work_dir = into.parent / f".{into.name}.snapshots"
    snapshots = Snapshots(js, names, planes, work_dir, wall_ms=lambda: time.time_ns() // 1_000_000)
    try:
        for snapshot in await snapshots.list():
            if snapshot.watermark > last:
                continue
            try:
                await snapshots.fetch(snapshot, into)
            except SnapshotDamaged:
                continue
            return snapshot.name
    finally:
        if work_dir.exists():
            work_dir.rmdir()
    return ""


async def _fold(
    js: JetStream, names: Names, database: Database, start: int, last: int, progress: Say
) -> None:
    reader = await LogReader.open(js, names.log_stream, start + 1)
    try:
        applying: asyncio.Task[Batch] | None = None
        while reader.expected <= last:
            messages = await reader.next_batch(BATCH, READ_MS)
            wanted = [message for message in messages if message.seq <= last]
            if applying is not None:
                _check(await applying)
            if wanted:
                # The next batch is read while this one is folded.
                applying = asyncio.create_task(database.run(_applies(database, wanted)))
                progress(wanted[-1].seq - start, last - start)
        if applying is not None:
            _check(await applying)
    finally:
        await reader.close()


def _applies(database: Database, messages: Sequence[StoredMessage]) -> Callable[[], Batch]:
    return lambda: database.fold.apply_batch(messages, say_from_ms=NEVER_MS)


def _check(batch: Batch) -> None:
    if batch.stop is not None:
        raise ReplayStopped(
            f"the command at {batch.stop.seq} ({batch.stop.reason}) cannot be replayed across; "
            "begin at a snapshot taken after it"
        )
