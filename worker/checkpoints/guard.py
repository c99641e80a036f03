"""The guard against a broker whose store went back in time.

It remembers how far each stream of the plane had come and what settled. Where a stream was created
anew or ends before that, the plane stops until every settlement of the journal stands again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from schemas.names import Names, kv_stream
from schemas.subjects import Checkpoint
from worker import logs
from worker.bus.errors import BusError, StreamMissing
from worker.bus.jetstream import JetStream
from worker.checkpoints.context import Clock
from worker.checkpoints.journal import Journal, Seen, Settlement
from worker.checkpoints.local import NO_ROOM, LocalThread
from worker.checkpoints.records import Contradiction, Garbled, Records, StatusAt
from worker.checkpoints.settle import Settled, Settler, together

log = logs.get()

FLUSH_EVERY_S = 0.5
IN_FLIGHT = 64
MAX_PENDING = 100_000
"""Settlements that wait for room on the local disk; beyond, the oldest are not noted."""


class Guard:
    """Watches the streams of one space for regressions and mends them from the journal.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
        records: The records.
        path: The journal file.
        cause: On everything the guard writes.
        highest: Highest sequence this worker knows of each stream, from what it wrote and read.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        clock: Clock,
        records: Records,
        path: Path,
        cause: str,
        highest: Callable[[], Mapping[str, int]],
    ) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._records = records
        self._path = path
        self._cause = cause
        self._thread = LocalThread(f"journal-{names.space}")
        self._journal: Journal | None = None
        self._highest = highest
        self._closed = False
        self._pending: dict[Checkpoint, Settlement] = {}
        self._seen: dict[str, Seen] = {}
        self._noted: dict[str, Seen] = {}
        self._discounted: dict[str, int] = {}
        self._checking = asyncio.Lock()
        self._missing = ""
        self.regressed: tuple[str, ...] = ()
        """Streams that have gone back and are not mended yet; the plane must not act."""

    @property
    def missing(self) -> str:
        """What was gone when it was last needed, a stream or the room on the local disk.

        The plane is not ready then.
        """
        return self._missing or self._thread.trouble

    async def open(self) -> None:
        """Open the journal; one for which there is no room is opened as soon as there is.

        Raises:
            StartRefused: If it is damaged, newer or in use.
        """
        journal = await self._thread.attempt(Journal, self._path)
        if journal is NO_ROOM:
            return
        self._journal = journal
        self._noted = await self._thread.once(journal.seen)
        self._seen |= self._noted

    async def close(self) -> None:
        """Write what is pending, if there is room for it, and close the file."""
        async with self._checking:
            self._closed = True
            await self.flush()
            if self._pending:
                # It is protection against another failure; waiting would put off the end.
                log.warning(
                    "settlements_not_noted", space=self._names.space, count=len(self._pending)
                )
            if self._journal is not None:
                await self._thread.once(self._journal.close)
                self._journal = None
        self._thread.shutdown()

    def note(self, settled: Settled) -> None:
        """Remember a settlement; it is written within half a second, if there is room for it."""
        self._pending[settled.target] = Settlement(settled.target, settled.status.record)
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    async def check(self, settler: Settler, on_regression: Callable[[], Awaitable[None]]) -> None:
        """Look at the streams, mend a regression, remember how far they are.

        Args:
            settler: Restores a status that reads waiting.
            on_regression: Called before anything is mended, to forget what was remembered.

        Raises:
            BusError: If the broker cannot be asked; nothing is remembered then.
        """
        async with self._checking:
            if self._closed:
                return
            try:
                await self._check(settler, on_regression)
            except StreamMissing:
                self._missing = "a stream of the checkpoint plane is missing on the broker"
                raise
            self._missing = ""

    async def _check(self, settler: Settler, on_regression: Callable[[], Awaitable[None]]) -> None:
        self._advance()
        back: list[str] = []
        now: dict[str, Seen] = {}
        for stream in self._streams():
            # In this order: what is noted meanwhile is newer than the look, and would look lost.
            before = self._seen.get(stream)
            seen = now[stream] = await self._look(stream)
            if before is not None and (before.created != seen.created or seen.last < before.last):
                back.append(stream)
        if back:
            self.regressed = tuple(back)
            log.error("streams_regressed", space=self._names.space, streams=back)
            await on_regression()
            await self._reapply(settler)
            now = {stream: await self._look(stream) for stream in self._streams()}
            # What was written before the streams went back says nothing about them now.
            self._discounted = dict(self._highest())
        self._seen = now
        await self.flush()
        if self.regressed:
            # Also what was not mended, if it has come back: a deposed leader may have told of it.
            log.warning("streams_mended", space=self._names.space, streams=list(self.regressed))
            self.regressed = ()

    def _advance(self) -> None:
        """Remember how far the streams have come by what was written and read since."""
        for stream, last in self._highest().items():
            before = self._seen.get(stream)
            if before is not None and last > before.last and last != self._discounted.get(stream):
                self._seen[stream] = Seen(before.created, last)

    async def flush(self) -> None:
        """Write what is pending, if there is room for it; else it stays pending."""
        if self._journal is None:
            if not self._closed:
                await self.open()
            if self._journal is None:
                return
        if not self.regressed:
            self._advance()
        pending, seen = dict(self._pending), dict(self._seen)
        if not pending and seen == self._noted:
            return
        done = await self._thread.attempt(
            self._journal.note, list(pending.values()), seen, int(self._clock.lower_ms())
        )
        if done is NO_ROOM:
            return
        self._noted = seen
        for target, settlement in pending.items():
            if self._pending.get(target) is settlement:
                del self._pending[target]

    async def run(self, owed: Callable[[], bool], check: Callable[[], Awaitable[None]]) -> None:
        """Flush twice a second and look at the streams every ten seconds, until cancelled.

        Args:
            owed: Whether a look is owed at once, because an earlier one failed.
            check: Looks.
        """
        rounds, said = 0, ""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self.flush()
            rounds += 1
            if rounds % 20 == 0 or owed():
                try:
                    await check()
                except BusError as error:
                    # A trouble that lasts is said once.
                    if error.reason != said:
                        log.warning("guard_put_off", space=self._names.space, reason=error.reason)
                    said = error.reason
                else:
                    said = ""

    async def _reapply(self, settler: Settler) -> None:
        known: dict[Checkpoint, Settlement] = {}
        if (journal := self._journal) is not None:
            kept = await self._thread.once(lambda: list(journal.settlements()))
            known = {settlement.target: settlement for settlement in kept}
        known |= self._pending
        settlements = iter(list(known.values()))

        async def lane() -> None:
            for settlement in settlements:
                await self._restore(settler, settlement)

        # Lanes, since a month of settlements may be a million of them.
        await together(*(lane() for _ in range(IN_FLIGHT)))
        log.warning("settlements_reapplied", space=self._names.space, settlements=len(known))

    async def _restore(self, settler: Settler, settlement: Settlement) -> None:
        target = settlement.target
        try:
            await self._records.put_fact(target, settlement.fact, self._cause)
            status = await self._records.status(target)
            if isinstance(status, StatusAt) and status.record.state == "waiting":
                await settler.restore(target, status, settlement.status, self._cause)
        except (Contradiction, Garbled) as error:
            log.exception(
                "settlement_not_restored",
                space=self._names.space,
                token=target.token,
                reason=error.reason,
            )

    async def _look(self, stream: str) -> Seen:
        info = await self._js.stream_info(stream)
        return Seen(info.created, info.last_seq)

    def _streams(self) -> tuple[str, ...]:
        names = self._names
        return kv_stream(names.records_bucket), names.epf_stream, names.ept_stream
