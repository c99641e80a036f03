"""Digests of a running ledger: askers share one, and it is made of a copy, beside the fold."""

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from worker.ledger import digest
from worker.ledger.digest import Digest
from worker.ledger.plane import Plane
from worker.ledger.runner import Runner


class Digests:
    """Digests one space's ledger.

    Args:
        runner: The fold.
        planes: Its planes.
        work_dir: Where copies are made, on the ledger's disk.
    """

    def __init__(self, runner: Runner, planes: Sequence[Plane], work_dir: Path) -> None:
        self._runner = runner
        self._planes = tuple(planes)
        self._work_dir = work_dir
        self._last: Digest | None = None
        self._making: asyncio.Task[None] | None = None

    async def get(self) -> Digest:
        """A digest of the state as it is now, or a little later.

        Raises:
            LedgerError: No copy of the ledger could be made.
        """
        here = self._runner.position
        while True:
            last = self._last
            if last is not None and (last.epoch, last.watermark) >= (here.epoch, here.watermark):
                return last
            if self._making is None or self._making.done():
                self._making = asyncio.create_task(self._make(), name="digest")
            making = self._making
            await asyncio.wait({making})
            making.result()

    async def _make(self) -> None:
        await asyncio.to_thread(self._work_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
        path = self._work_dir / f"digest-{secrets.token_hex(8)}"
        try:
            await self._runner.database.copy_into(path)
            self._last = await asyncio.to_thread(_digest_of, path, self._planes)
        finally:
            path.unlink(missing_ok=True)


def _digest_of(path: Path, planes: Sequence[Plane]) -> Digest:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return digest.compute(db, planes)
