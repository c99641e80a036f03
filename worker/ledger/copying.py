"""A copy of the open file, made a slice at a time between batches.

The file has one connection, and whatever runs on it keeps the fold waiting. SQLite's online backup
copies some pages, lets the fold write (what it writes goes into the copy, too), and copies on; what
comes out is the state after some whole batch.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from worker.ledger.errors import StorageFull

PAGES: Final = 256
"""Pages of one slice: a megabyte."""

_STORAGE_ERRORS: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
Run = Callable[[Callable[[], bool]], Awaitable[bool]]


class _Abandoned(Exception):
    """Nobody waits for the copy any more."""


class Copying:
    """One copy on its way.

    SQLite makes a whole backup in one call, so it runs in a thread of its own that is let go on for
    one slice at a time, always while the connection's thread stands still for it.

    Args:
        source: The connection.
        path: Where the copy is made; it must not exist.
    """

    def __init__(self, source: sqlite3.Connection, path: Path) -> None:
        self._source = source
        self._path = path
        self._may_go = threading.Semaphore(0)
        self._has_gone = threading.Semaphore(0)
        self._abandoned = False
        self._done = False
        self._failed: Exception | None = None

    async def make(self, run: Run) -> None:
        """Make it.

        Args:
            run: Runs a function in the connection's thread.

        Raises:
            StorageFull: There is no room for it; what there was of it is removed.
        """
        # A thread of its own, for it must be there at once: the fold stands still for each slice,
        # and the threads that all share may be busy for as long as other copies are digested.
        thread = ThreadPoolExecutor(1, "copy-ledger")
        working = asyncio.get_running_loop().run_in_executor(thread, self._work)
        thread.shutdown(wait=False)
        try:
            # Whoever comes meanwhile stands before the next slice.
            while not await run(self._slice):
                continue
        finally:
            self._abandoned = True
            self._may_go.release()
            await asyncio.shield(working)
        if self._failed is not None:
            failed, self._failed = self._failed, None
            self._path.unlink(missing_ok=True)
            if getattr(failed, "sqlite_errorcode", 0) & 0xFF in _STORAGE_ERRORS:
                raise StorageFull("there is no room for a copy of the ledger") from failed
            raise failed

    def _slice(self) -> bool:
        """Let the copying thread do one slice; whether that was the last one."""
        if not self._done:
            self._may_go.release()
            self._has_gone.acquire()
        return self._done

    def _work(self) -> None:
        try:
            self._go_on()
            with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as target:
                target.execute("PRAGMA synchronous = OFF")
                self._source.backup(target, pages=PAGES, progress=self._progress, sleep=0)
                # It is read by whoever comes, also where no file may be written beside it.
                target.execute("PRAGMA journal_mode = DELETE")
        except Exception as error:
            self._failed = error
        finally:
            self._done = True
            self._has_gone.release()

    def _progress(self, status: int, _remaining: int, _total: int) -> None:
        self._done = status == sqlite3.SQLITE_DONE
        self._has_gone.release()
        if not self._done:
            self._go_on()

    def _go_on(self) -> None:
        self._may_go.acquire()
        if self._abandoned:
            raise _Abandoned
