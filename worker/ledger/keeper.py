"""Takes snapshots now and then, and trims the log below them if the settings say so."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.errors import StartRefused
from worker.ledger.errors import LedgerError
from worker.ledger.runner import Runner
from worker.ledger.snapshots import KEPT, Snapshot, Snapshots
from worker.ledger.watch import LogWatch

LOOK_S: Final = 5.0
_log = structlog.get_logger("tidegate.ledger")


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What trimming did.

    Attributes:
        snapshot: The proven snapshot below which it was allowed.
        first_seq: The log's first sequence now.
        removed: Messages removed.
    """

    snapshot: Snapshot
    first_seq: int
    removed: int


class Keeper:
    """Keeps one space's snapshots and the length of its log.

    Attributes:
        last: The newest snapshot, once it is known.
        settings: What it was told to do.

    Args:
        js: The workers' account.
        runner: The fold.
        watch: The log's state.
        snapshots: The space's snapshots.
        may: Whether this replica should do it now.
        every_commands: A snapshot at the latest after so many commands.
        every_ms: A snapshot at the latest after so long, if anything was folded.
        keep_log_ms: How long commands stay in the log below a snapshot; 0 keeps them all.
    """

    def __init__(
        self,
        js: JetStream,
        runner: Runner,
        watch: LogWatch,
        snapshots: Snapshots,
        *,
        may: Callable[[], bool],
        every_commands: int,
        every_ms: int,
        keep_log_ms: int,
    ) -> None:
        self._js = js
        self._runner = runner
        self._watch = watch
        self._snapshots = snapshots
        self._may = may
        self._every_commands = every_commands
        self._every_ms = every_ms
        self._keep_log_ms = keep_log_ms
        self._lock = asyncio.Lock()
        self._taken_at_s = asyncio.get_running_loop().time()
        self.settings = {
            "snapshot_commands": every_commands,
            "snapshot_interval_ms": every_ms,
            "log_keep_ms": keep_log_ms,
        }
        self.last: Snapshot | None = None

    async def run(self) -> None:
        """Look now and then whether one is due, until cancelled.

        A trouble that lasts is said once: a broker that is away for long must not fill the log.
        """
        said = ""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self._may() and await self._is_due():
                    await self.take()
                    if self._keep_log_ms:
                        await self.trim(older_than_ms=self._watch.now_ms() - self._keep_log_ms)
            except (BusError, LedgerError) as error:
                if error.reason != said:
                    _log.warning("snapshot_failed", reason=error.reason, error=error.message)
                said = error.reason
            else:
                said = ""

    async def take(self) -> Snapshot:
        """Take one now and remove the oldest.

        Raises:
            LedgerError: It could not be made or proven.
            BusError: It could not be stored.
        """
        async with self._lock:
            self.last = await self._snapshots.take(self._runner.database)
            self._taken_at_s = asyncio.get_running_loop().time()
            await self._snapshots.remove_old(KEPT)
            return self.last

    async def trim(self, *, older_than_ms: int | None = None) -> Trimmed:
        """Remove commands below the newest snapshot that verifies now.

        The snapshot's own last command stays, so that a ledger that starts there can recognise it.

        Args:
            older_than_ms: Only commands stored before this instant.

        Raises:
            StartRefused: There is no snapshot, or none verifies.
            BusError: The broker did not answer.
        """
        async with self._lock:
            snapshot = await self._newest_proven()
            info = await self._js.stream_info(self._watch.stream)
            below = min(snapshot.watermark, info.last_seq)
            if older_than_ms is not None:
                below = await self._first_after(info.first_seq, below, older_than_ms)
            removed = 0
            if below > info.first_seq:
                removed = await self._js.stream_purge(self._watch.stream, below_seq=below)
                _log.info("log_trimmed", first_seq=below, removed=removed, name=snapshot.name)
            return Trimmed(snapshot, max(below, info.first_seq), removed)

    async def _newest_proven(self) -> Snapshot:
        here = self._runner.position
        for snapshot in await self._snapshots.list():
            if snapshot.epoch == here.epoch and await self._snapshots.is_whole(snapshot):
                return snapshot
        raise StartRefused(
            "there is no snapshot of this epoch that verifies; make one: tidegate ledger snapshot"
        )

    async def _is_due(self) -> bool:
        here = self._runner.position
        if self.last is None:
            found = await self._snapshots.list()
            if found:
                self.last = found[0]
        last = self.last
        behind = here.watermark if last is None else here.watermark - last.watermark
        other_epoch = last is not None and last.epoch != here.epoch
        if behind >= self._every_commands or other_epoch:
            return True
        passed_ms = (asyncio.get_running_loop().time() - self._taken_at_s) * 1000
        return behind > 0 and passed_ms >= self._every_ms

    async def _first_after(self, low: int, high: int, instant_ms: int) -> int:
        """The first sequence in ``low..high`` stored at or after an instant, ``high`` if none."""
        while low < high:
            middle = (low + high) // 2
            message = await self._js.message(self._watch.stream, middle)
            if message is not None and message.time_ms >= instant_ms:
                high = middle
            else:
                low = middle + 1
        return low
