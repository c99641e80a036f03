"""Where a run's state is kept between its pauses."""

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Protocol

from worker import files


class RunStore(Protocol):
    """Keeps one snapshot a run; whoever implements it decides where.

    Snapshots hold the whole conversation, tool arguments and tool results included.
    """

    async def load(self, run_id: str) -> bytes | None:
        """The snapshot that was saved last, ``None`` if there is none."""
        ...

    async def save(self, run_id: str, snapshot: bytes) -> None:
        """Replace the snapshot; once this returns it must survive a crash, whole."""
        ...


class FileRunStore:
    """A folder with one file a run, readable by its owner only.

    A crash leaves the old snapshot or the new one; what ``save`` returned from is on the disk.

    Args:
        directory: The folder; made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def load(self, run_id: str) -> bytes | None:
        """The snapshot that was saved last, ``None`` if there is none."""
        return await asyncio.to_thread(self._read, run_id)

    async def save(self, run_id: str, snapshot: bytes) -> None:
        """Replace the snapshot."""
        await asyncio.to_thread(self._write, run_id, snapshot)

    def _path(self, run_id: str) -> Path:
        return self._directory / f"{hashlib.sha256(run_id.encode()).hexdigest()}.json"

    def _read(self, run_id: str) -> bytes | None:
        try:
            return self._path(run_id).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, run_id: str, snapshot: bytes) -> None:
        files.replace_private(self._path(run_id), snapshot)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
