"""The one thread that owns a local file of the plane, and bears with a disk that is full.

What lies in these files helps and never decides. So a full disk must neither end the worker nor
hold up a settlement: what has to be written waits for room, the plane says that it is not ready and
it goes on by itself.
"""

import asyncio
import enum
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from worker import logs

log = logs.get()

T = TypeVar("T")

AGAIN_S: Final = 1.0
_NO_ROOM: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
    }
)


class NoRoom(enum.Enum):
    """What came of work for which the disk had no room: nothing."""

    NO_ROOM = enum.auto()


NO_ROOM: Final = NoRoom.NO_ROOM


class LocalThread:
    """Runs work on one local file, a piece at a time.

    Attributes:
        trouble: Why work waits now; empty if it does not.

    Args:
        name: Of the thread, and of the file in the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.trouble = ""

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something in the thread, again and again while the disk is full.

        Args:
            work: What; it must leave nothing half done when it raises.
            *arguments: What it is called with.
        """
        while True:
            done = await self.attempt(work, *arguments)
            if not isinstance(done, NoRoom):
                return done
            await asyncio.sleep(AGAIN_S)

    async def attempt(self, work: Callable[..., T], *arguments: Any) -> "T | NoRoom":
        """Do something in the thread, once; ``trouble`` says afterwards whether there was room."""
        try:
            done = await self.once(work, *arguments)
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            if not self.trouble:
                log.error("local_file_full", file=self._name, error=error)  # noqa: TRY400 - no traceback for an operator's doing
            self.trouble = "storage-full: there is no room in the data directory"
            return NO_ROOM
        if self.trouble:
            log.warning("local_file_has_room", file=self._name)
        self.trouble = ""
        return done

    async def once(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something in the thread, once."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(work, *arguments))

    def shutdown(self) -> None:
        """Let the thread end; what was given to it is still done."""
        self._thread.shutdown(wait=False)


@contextmanager
def closed_on_failure(db: sqlite3.Connection) -> Iterator[None]:
    """Close a file that could not be made ready, lest the next attempt find it in use."""
    try:
        yield
    except BaseException:
        db.close()
        raise


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN") -> Iterator[None]:
    """All of it or nothing, also where the commit itself finds the disk full."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # The failure may have ended the transaction by itself.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def is_full(error: sqlite3.Error) -> bool:
    """Whether an error means that the disk takes nothing more."""
    return getattr(error, "sqlite_errorcode", 0) in _NO_ROOM
