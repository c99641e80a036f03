"""Tells every replica that two of them differ, and keeps it said until an epoch ends it.

Whoever finds it cannot know which file is the damaged one; it may be the publisher's, or its own.
So the finding is a record that every replica watches, and a note in the finder's file: nobody
allows anything any more, after a restart neither, until an operator has said whose file is right
and the log goes on in another epoch.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from worker.bus.errors import BusError, CasLost, StreamMissing
from worker.bus.kv import Bucket
from worker.ledger.errors import Diverged, LedgerError

KEY: Final = "diverged"
NOTE: Final = "diverged"
"""Local note: the epoch and the sequence of a divergence that was found, ``<epoch> <seq>``."""

LOOK_S: Final = 1.0
_log = structlog.get_logger("tidegate.ledger")


class Divergence:
    """One replica's knowledge of a divergence.

    Attributes:
        error: What is known; ``None`` while the replicas agree.

    Args:
        bucket: The leases' bucket.
        epoch: The log's epoch here.
        on_known: Told of one, once.
        note: Keeps one in the file.
        alarm: Tells the replicas that are there, whatever became of the bucket.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        epoch: Callable[[], int],
        on_known: Callable[[Diverged], None],
        note: Callable[[str], Awaitable[None]],
        alarm: Callable[[], Awaitable[None]],
    ) -> None:
        self._bucket = bucket
        self._epoch = epoch
        self._on_known = on_known
        self._note = note
        self._alarm = alarm
        self._is_noted = False
        self._wake = asyncio.Event()
        self.error: Diverged | None = None

    def found(self, error: Diverged) -> None:
        """Take note of one: this replica, or another one, found it."""
        if error.epoch != self._epoch() or self.error is not None:
            return
        self.error, self._is_noted = error, False
        self._wake.set()
        self._on_known(error)

    async def run(self) -> None:
        """Say what was found here and look for what others found, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.look()
            except StreamMissing:
                # Without the bucket replicas hear of it from each other alone.
                _log.debug("no_leases_bucket")
            except (BusError, LedgerError) as error:
                _log.debug("divergence_not_looked_for", error=error.message)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Say what is known and look for what others know, once.

        Raises:
            BusError: The broker did not answer.
            LedgerError: The file takes no note.
        """
        if self.error is not None and self.error.epoch != self._epoch():
            self.error = None
        known = self.error
        if known is not None:
            await self._alarm()
            if not self._is_noted:
                await self._note(f"{known.epoch} {known.seq}")
                self._is_noted = True
        entry = await self._bucket.read(KEY)
        said = None if entry is None or entry.deleted else _read(entry.value)
        if said is not None and said[0] == self._epoch():
            self.found(Diverged(*said))
        elif known is not None:
            body = json.dumps({"epoch": known.epoch, "seq": known.seq}).encode()
            try:
                await self._bucket.put_if(KEY, body, 0 if entry is None else entry.revision)
            except CasLost:
                self._wake.set()


def _read(value: bytes) -> tuple[int, int] | None:
    try:
        record = json.loads(value)
        return int(record["epoch"]), int(record["seq"])
    except (ValueError, KeyError, TypeError):
        return None


def noted(note: str) -> tuple[int, int] | None:
    """The epoch and the sequence in a file's note; ``None`` if it holds none."""
    epoch, _, seq = note.partition(" ")
    return (int(epoch), int(seq)) if epoch.isdecimal() and seq.isdecimal() else None
