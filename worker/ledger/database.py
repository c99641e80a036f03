"""The one connection, its thread, and the fold that lives in it.

Everything that touches the file is a function that runs in the connection's thread, one after the
other: one hop per batch, and no lock. A caller that is cancelled does not stop the function it
sent; the outcome is in the file (field-reports.md, house rule 2).
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import aiosqlite

from schemas.names import Names
from worker.ledger import store
from worker.ledger.copying import Copying
from worker.ledger.errors import LedgerError
from worker.ledger.fold import Fold, State
from worker.ledger.plane import Plane
from worker.ledger.rulesets import KNOWN

T = TypeVar("T")


class Database:
    """An open ledger file.

    Attributes:
        path: The file.
        names: The space.
        planes: Its planes.
        fold: The fold over it; only functions given to ``run`` may touch it.
    """

    def __init__(
        self,
        path: Path,
        names: Names,
        planes: Sequence[Plane],
        connection: aiosqlite.Connection,
        raw: sqlite3.Connection,
        fold: Fold,
    ) -> None:
        self.path = path
        self.names = names
        self.planes = tuple(planes)
        self.fold = fold
        self._connection = connection
        self._raw = raw
        self._copies: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        path: Path,
        names: Names,
        planes: Sequence[Plane],
        *,
        rulesets: frozenset[int] = KNOWN,
        busy_ms: int = 1_000,
    ) -> Self:
        """Open, prove and load the file, in a thread of its own.

        Raises:
            FileLocked: Another process holds it.
            FileRefused: It is not a ledger of this space that this version may write to.
        """
        opened: list[tuple[sqlite3.Connection, Fold]] = []
        refused: list[Exception] = []

        def connector() -> sqlite3.Connection:
            # If a connector raises, aiosqlite's thread may outlive the event loop; ours does not.
            try:
                raw = store.open_ledger(path, names, planes, busy_ms=busy_ms)
                opened.append((raw, Fold(raw, names, planes, rulesets=rulesets)))
            except Exception as error:
                refused.append(error)
                return sqlite3.connect(":memory:")
            return raw

        connection = await aiosqlite.Connection(connector, iter_chunk_size=64)
        if refused:
            await connection.close()
            raise refused[0]
        ((raw, fold),) = opened
        return cls(path, names, planes, connection, raw, fold)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in the connection's thread and return what it returns.

        A cancelled caller is told so at once; the function still runs to its end.
        """
        # The library has no public way to run one function of ours in its thread.
        hop: Callable[[Callable[[], T]], Any] = self._connection._execute
        inner = asyncio.ensure_future(hop(function))
        inner.add_done_callback(_retrieve)
        result: T = await asyncio.shield(inner)
        return result

    async def read(self, function: Callable[[sqlite3.Connection, State], T]) -> T:
        """Run a function that only reads, between two batches."""
        return await self.run(lambda: function(self._raw, self.fold.state))

    async def copy_into(self, path: Path) -> None:
        """Write the state after some whole batch to a new file, while batches go on.

        Raises:
            StorageFull: There is no room for it.
            LedgerError: The file was closed meanwhile.
        """
        copy = asyncio.create_task(Copying(self._raw, path).make(self.run), name="copy-ledger")
        self._copies.add(copy)
        copy.add_done_callback(self._copies.discard)
        try:
            await asyncio.wait({copy})
        finally:
            copy.cancel()
        if copy.cancelled():
            raise LedgerError("the ledger was closed")
        copy.result()

    async def close(self) -> None:
        """Finish what was handed in, abandon copies, and close the file."""
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)
        await self._connection.close()


def _retrieve(done: asyncio.Future[Any]) -> None:
    # A failure whose caller was cancelled is nobody's any more; the file is rolled back already.
    if not done.cancelled():
        done.exception()
