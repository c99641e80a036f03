"""Deletes sealed payloads whose turns are settled, a few at once, each exactly the revision meant.

Every replica does so, whoever publishes: a revision that is gone or newer is left alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from schemas.names import Names
from worker.bus.errors import BusError, CasLost
from worker.bus.jetstream import JetStream
from worker.bus.window import GroupPublisher
from worker.ledger.tx import OutRow

AT_ONCE: Final = 16
_RETRY_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
_log = structlog.get_logger("tidegate.ledger")


class Deletions:
    """The deletions that one space's fold owes.

    Attributes:
        trouble: Why none can be made now, a stable word; empty if all is well.

    Args:
        js: Where.
        names: The space.
        on_done: Told the id of each row that need not be kept any more.
    """

    def __init__(self, js: JetStream, names: Names, on_done: Callable[[int], None]) -> None:
        self._group = GroupPublisher(js, names.payloads_bucket, atomic=False)
        self._on_done = on_done
        self._waiting: deque[OutRow] = deque()
        self._leaving: dict[int, OutRow] = {}
        self._wake = asyncio.Event()
        self.trouble = ""

    def __len__(self) -> int:
        """How many are owed."""
        return len(self._waiting) + len(self._leaving)

    def offer(self, row: OutRow) -> None:
        """Hand one in."""
        self._waiting.append(row)
        self._wake.set()

    def clear(self) -> None:
        """Owe nothing: another file was loaded, in which rows have other ids."""
        self._waiting.clear()
        self._leaving.clear()

    async def run(self) -> None:
        """Delete until cancelled; what was under way then is owed again."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self._work(), name="delete-payload")
        finally:
            self._waiting.extendleft(self._leaving.values())
            self._leaving.clear()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            row = self._waiting.popleft()
            self._leaving[row.id] = row
            await self._delete(row)
            if self._leaving.get(row.id) is row:
                del self._leaving[row.id]
                self._on_done(row.id)

    async def _delete(self, row: OutRow) -> None:
        attempt = 0
        while self._leaving.get(row.id) is row:
            try:
                await self._group.publish(
                    row.subject, row.body, headers=row.headers, expect_last_subject_seq=row.expect
                )
            except CasLost:
                break
            except BusError as error:
                if not self.trouble:
                    _log.warning("payloads_not_deleted", reason=error.reason, owed=len(self))
                self.trouble = error.reason
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
                attempt += 1
            else:
                break
        self.trouble = ""
