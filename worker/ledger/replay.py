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
from worker.bus.messages import StoredMessage, StreamInfo
from worker.bus.reader import LogReader
from worker.ledger import digest, epochs, regression
from worker.ledger.database import Database
from worker.ledger.digest import Digest
from worker.ledger.errors import BehindLog, LedgerError
from worker.ledger.fold import Batch
from worker.ledger.plane import Plane
from worker.ledger.regression import Beginning
from worker.ledger.snapshots import Snapshot, SnapshotDamaged, Snapshots

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

    A log that was rebased begins, for a replay, where its last epoch does: what was lost before is
    in the snapshot of that beginning alone.

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
    epoch = await _last_epoch(js, names, info, last)
    if from_snapshot or epoch is not None or info.first_seq > 1:
        begun = await _from_snapshot(
            js, names, planes, into, last, epoch, newest=from_snapshot or info.first_seq > 1
        )
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


async def _last_epoch(js: JetStream, names: Names, info: StreamInfo, last: int) -> Beginning | None:
    """What begins the last epoch up to a sequence; ``None`` if the log was never rebased."""
    found = None
    async for begun in regression.beginnings(js, names, info, 0):
        # Of two that begin the same epoch the first one did.
        if begun.seq <= last and (found is None or begun.rebase.epoch > found.rebase.epoch):
            found = begun
    return found


async def _from_snapshot(
    js: JetStream,
    names: Names,
    planes: Sequence[Plane],
    into: Path,
    last: int,
    epoch: Beginning | None,
    *,
    newest: bool,
) -> str:
    """Put a snapshot at ``into``; its name, or nothing if none fits and none is needed.

    Raises:
        ReplayStopped: The log was rebased, and no snapshot of its last epoch is left.
    """
    work_dir = into.parent / f".{into.name}.snapshots"
    snapshots = Snapshots(js, names, planes, work_dir, wall_ms=lambda: time.time_ns() // 1_000_000)
    try:
        for snapshot in _fitting(await snapshots.list(), last, epoch, newest=newest):
            try:
                await snapshots.fetch(snapshot, into)
            except SnapshotDamaged:
                continue
            if epoch is not None and snapshot.epoch < epoch.rebase.epoch:
                info = await js.stream_info(names.log_stream)
                await asyncio.to_thread(epochs.adjust, into, info, epoch)
            return snapshot.name
    finally:
        if work_dir.exists():
            work_dir.rmdir()
    if epoch is not None:
        raise ReplayStopped(
            f"the log was rebased into epoch {epoch.rebase.epoch}, and no snapshot of that epoch "
            "is there to begin at; store one: tidegate ledger snapshot"
        )
    return ""


def _fitting(
    snapshots: Sequence[Snapshot], last: int, epoch: Beginning | None, *, newest: bool
) -> list[Snapshot]:
    """Snapshots that a replay can begin at, the best first.

    That is the newest one, or else the one with most of the log after it.
    """
    if epoch is None:
        return [one for one in snapshots if one.watermark <= last]
    rebase = epoch.rebase
    own = [one for one in snapshots if one.epoch == rebase.epoch and one.watermark <= last]
    first = [one for one in snapshots if (one.name, one.digest) == (rebase.snapshot, rebase.digest)]
    return own + first if newest else first + own[::-1]


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
