"""The sweep: what is due, overdue or unproven is looked at again, and repaired.

It looks at what the index says is near or late, never at everything ever minted. At its start, and
then once an hour, it also compares the timers that stand with the checkpoints that wait.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from schemas import subjects
from schemas.names import Names
from schemas.subjects import Checkpoint
from worker import logs, metrics
from worker.bus.errors import BusError, Denied, StreamMissing, Unavailable
from worker.bus.jetstream import JetStream
from worker.checkpoints.context import Clock
from worker.checkpoints.feed import Feed, IndexBuilding
from worker.checkpoints.index import Filter, Pending
from worker.checkpoints.records import Records
from worker.checkpoints.repair import Repairer
from worker.checkpoints.settle import together
from worker.errors import TidegateError
from worker.timers.wheel import Coordinate, Wheel

log = logs.get()

T = TypeVar("T")

GRACE_MS = 5_000
"""Younger things are left to whoever is just doing them."""

PAGE = 1_000
IN_FLIGHT = 64
CHECKS_IN_FLIGHT = 4
"""How many timers are looked for at once. Few, since each look is two reads at the leader, which
would stand before those of whatever falls due just now; and nothing is late while they wait."""

AUDIT_EVERY = 60
STUCK = 100
INDEX_PAUSE_S = 0.05
LEARNED_GRACE_MS = 10
"""How long a learned deadline is left to the replica that armed it."""


class Sweep:
    """Looks after the checkpoints of one space.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
        feed: The index and what feeds it.
        records: The records.
        repairer: Repairs one checkpoint.
        wheel: Offered what is near; ``None`` if it is off.
        cause: On everything the sweep writes.
        interval_ms: Time between two passes.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        clock: Clock,
        feed: Feed,
        records: Records,
        repairer: Repairer,
        wheel: Wheel | None,
        *,
        cause: str,
        interval_ms: int,
    ) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._feed = feed
        self._records = records
        self._repairer = repairer
        self._wheel = wheel
        self._cause = cause
        self._interval_ms = interval_ms
        self._asked = asyncio.Event()
        self.stuck: list[Checkpoint] = []
        """What is due and can never settle, as the last pass found it; the first hundred."""

    def ask(self) -> None:
        """Make the next pass begin now, with an audit of the timers."""
        self._asked.set()

    async def run(self, ready: Callable[[], bool]) -> None:
        """Pass after pass, until cancelled.

        Args:
            ready: Whether the plane may act; a pass is put off while it may not.
        """
        passes, said = 0, ""
        loop = asyncio.get_running_loop()
        while True:
            next_s = loop.time() + self._interval_ms / 1000
            audit = passes % AUDIT_EVERY == 0 or self._asked.is_set()
            self._asked.clear()
            while not self._feed.is_usable:  # noqa: ASYNC110 - whole, or on a full disk
                await asyncio.sleep(INDEX_PAUSE_S)
            if ready():
                try:
                    await self.sweep(audit=audit)
                    passes, said = passes + 1, ""
                except (BusError, IndexBuilding) as error:
                    # A trouble that lasts is said once.
                    if error.reason != said:
                        log.warning("sweep_put_off", space=self._names.space, reason=error.reason)
                    said = error.reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._asked.wait()

    async def sweep(self, *, audit: bool) -> None:
        """One pass.

        Args:
            audit: Also compare all timers with all waiting checkpoints.
        """
        now_ms = int(self._clock.lower_ms())
        self.stuck = await self._feed.specless(now_ms - GRACE_MS, STUCK)
        await self._overdue(now_ms)
        await self._near(now_ms)
        await self._unproven(now_ms)
        if audit:
            await self._audit(now_ms)
        await self._timers(now_ms)
        metrics.PENDING.labels(self._names.space).set(await self._feed.count())

    async def _overdue(self, now_ms: int) -> None:
        """Expire what neither the wheel nor a fire has."""
        async for rows in self._pages(now_ms - GRACE_MS):
            await self._each(rows, self._repair)

    async def _near(self, now_ms: int) -> None:
        """Offer the wheel what is due before the next pass but one."""
        if self._wheel is None:
            return
        async for rows in self._pages(now_ms + 2 * self._interval_ms):
            for row in rows:
                self.offer(row)

    async def _timers(self, now_ms: int) -> None:
        """See that the timers of what is near stand, the nearest first.

        What takes longer than the time between two passes is left to the next one, lest the wheel
        hear too late of what is near then.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._interval_ms / 1000
        async for rows in self._pages(now_ms + 2 * self._interval_ms):
            if loop.time() >= end_s:
                return
            looked_ms = int(self._clock.lower_ms())
            unsure = [row for row in rows if self._unsure(row, looked_ms)]
            seen: list[Pending] = []
            await self._each(unsure, partial(self._check_timer, seen), lanes=CHECKS_IN_FLIGHT)
            if seen:
                await self._feed.note_timers(seen)

    def _unsure(self, row: Pending, now_ms: int) -> bool:
        """Whether nobody here knows that the timer stands, and it is not just being armed."""
        own = self._wheel is not None and self._wheel.owns(row.target, row.generation)
        return not (
            own
            or row.timer_known
            or row.deadline_ms <= now_ms
            or row.seen_at_ms > now_ms - GRACE_MS
        )

    async def _pages(self, before_ms: int) -> AsyncIterator[list[Pending]]:
        wanted = Filter(before_ms=before_ms)
        while True:
            rows = await self._feed.find(wanted, PAGE)
            if rows:
                yield rows
            if len(rows) < PAGE:
                return
            wanted = replace(wanted, after=rows[-1].position)

    def offer(self, row: Pending) -> None:
        """Offer the wheel a coordinate that was learned from the index."""
        if self._wheel is not None:
            self._wheel.offer(
                Coordinate(
                    row.target,
                    row.generation,
                    row.deadline_ms,
                    row.revision,
                    row.spec_revision,
                    grace_ms=LEARNED_GRACE_MS,
                )
            )

    async def _unproven(self, now_ms: int) -> None:
        await self._each(await self._feed.unproven(now_ms - GRACE_MS, PAGE), self._prove)

    async def _prove(self, target: Checkpoint) -> None:
        if await self._records.fact(target) is None:
            await self._repairer.repair(target, self._cause)
        await self._feed.prove(target)

    async def _audit(self, now_ms: int) -> None:
        armed = self._js.subject_pages(
            self._names.ept_stream, f"{self._names.prefix}.ept.*.*.*.*.armed"
        )
        # In a thread: a page can hold 100,000 subjects, and what falls due must not wait for them.
        targets = (await asyncio.to_thread(_targets, self._names, page) async for page in armed)
        missing, left = await self._feed.audit(targets, now_ms - GRACE_MS, PAGE)
        for kind, found in (("missing", missing), ("orphaned", left)):
            metrics.TIMERS_ASTRAY.labels(self._names.space, kind).set(len(found))
        await self._each([*missing, *left], self._repair_target)

    async def _check_timer(self, seen: list[Pending], row: Pending) -> None:
        if not await self._repairer.waits_in_order(row):
            await self._repairer.repair(row.target, self._cause)
        seen.append(row)

    async def _repair(self, row: Pending) -> None:
        await self._repairer.repair(row.target, self._cause)

    async def _repair_target(self, target: Checkpoint) -> None:
        await self._repairer.repair(target, self._cause)

    async def _each(
        self, items: Iterable[T], work: Callable[[T], Awaitable[None]], *, lanes: int = IN_FLIGHT
    ) -> None:
        waiting = iter(items)

        async def lane() -> None:
            for item in waiting:
                try:
                    await work(item)
                except (Unavailable, StreamMissing, Denied):
                    raise
                except Exception as error:
                    # One bad row is reported and never keeps the others from being repaired.
                    reason = error.reason if isinstance(error, TidegateError) else "internal"
                    log.exception("sweep_skipped", space=self._names.space, reason=reason)

        # Lanes, since a task for each row of a page would take megabytes.
        await together(*(lane() for _ in range(lanes)))


def _targets(names: Names, page: Iterable[str]) -> list[Checkpoint]:
    timers = (subjects.parse_timer(names, subject) for subject in page)
    return [Checkpoint(timer.endpoint, timer.token) for timer in timers if timer is not None]
