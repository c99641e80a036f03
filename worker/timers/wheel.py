"""The wheel: an in-process timer for deadlines that are near.

It makes an expiry milliseconds late instead of up to 250; the broker's schedule stays the durable
path, and both go through the same compare-and-set, so the wheel may forget anything at any time.
"""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from schemas.subjects import Checkpoint

SPARE = 256
"""Entries of deadlines that have moved which the heap may hold besides as many as are pending."""


class LowerClock(Protocol):
    """A clock that never runs ahead of the broker's."""

    def lower_ms(self) -> float:
        """The earliest instant that now can be."""
        ...


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A waiting checkpoint at one generation, as last seen.

    Attributes:
        target: Which checkpoint.
        generation: Of the deadline.
        deadline_ms: The deadline.
        revision: Revision of the status that says so; the compare-and-set's expectation.
        spec_revision: ``observedSpecRevision`` of that status.
        armed_seq: Sequence of its own ``.armed`` message, if this worker armed it.
        grace_ms: How long to leave it to the replica that armed it.
    """

    target: Checkpoint
    generation: int
    deadline_ms: int
    revision: int
    spec_revision: int
    armed_seq: int | None = None
    grace_ms: int = 0

    @property
    def own(self) -> bool:
        """Whether this worker armed it."""
        return self.armed_seq is not None


class Wheel:
    """Runs ``settle`` for each coordinate once its deadline has passed by the lower clock.

    Args:
        clock: Lower bound of the broker's now.
        settle: Called once per due coordinate; its errors are its own affair (it must not raise).
        horizon_ms: Coordinates further ahead are not taken; the sweep offers them again.
        max_in_flight: How many settlements run at once, so that a burst stays bounded.
    """

    def __init__(
        self,
        clock: LowerClock,
        settle: Callable[[Coordinate], Awaitable[None]],
        *,
        horizon_ms: int,
        max_in_flight: int = 256,
    ) -> None:
        self._clock = clock
        self._settle = settle
        self._horizon_ms = horizon_ms
        self._slots = asyncio.Semaphore(max_in_flight)
        self._heap: list[tuple[int, int, Coordinate]] = []
        self._latest: dict[Checkpoint, Coordinate] = {}
        self._count = itertools.count()
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._latest)

    @property
    def horizon_ms(self) -> int:
        """How far ahead coordinates are taken."""
        return self._horizon_ms

    def offer(self, coordinate: Coordinate) -> bool:
        """Take a coordinate, unless it is beyond the horizon or older than what is known.

        Returns:
            Whether the wheel will settle it (or something newer of the same checkpoint).
        """
        if coordinate.deadline_ms > self._clock.lower_ms() + self._horizon_ms:
            self.discard(coordinate.target, coordinate.generation)
            return False
        known = self._latest.get(coordinate.target)
        if known is not None and not _supersedes(coordinate, known):
            return True
        self._latest[coordinate.target] = coordinate
        if len(self._heap) > SPARE + 2 * len(self._latest):
            # Deadlines that moved lie in the heap until they pass; they must not pile up.
            self._heap = [
                entry for entry in self._heap if self._latest.get(entry[2].target) is entry[2]
            ]
            heapq.heapify(self._heap)
        due_ms = coordinate.deadline_ms + coordinate.grace_ms
        heapq.heappush(self._heap, (due_ms, next(self._count), coordinate))
        if self._heap[0][2] is coordinate:
            self._changed.set()
        return True

    def owns(self, target: Checkpoint, generation: int) -> bool:
        """Whether this worker armed that generation itself and still knows it."""
        known = self._latest.get(target)
        return known is not None and known.own and known.generation == generation

    def clear(self) -> None:
        """Forget everything; the index offers it again."""
        self._latest.clear()
        self._heap.clear()

    def discard(self, target: Checkpoint, generation: int) -> Coordinate | None:
        """Forget a checkpoint up to a generation, because it settled or moved."""
        known = self._latest.get(target)
        if known is None or known.generation > generation:
            return None
        return self._latest.pop(target)

    async def run(self) -> None:
        """Settle what becomes due, until cancelled."""
        while True:
            self._changed.clear()
            wait_ms = self._wait_ms()
            if wait_ms is None or wait_ms > 0:
                await self._sleep(wait_ms)
                continue
            _, _, coordinate = heapq.heappop(self._heap)
            if self._latest.get(coordinate.target) is not coordinate:
                continue
            await self._slots.acquire()
            task = asyncio.create_task(self._run_one(coordinate))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def drain(self) -> None:
        """Wait for the settlements that are running; call after ``run`` was cancelled."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def _run_one(self, coordinate: Coordinate) -> None:
        try:
            if self._latest.get(coordinate.target) is coordinate:
                del self._latest[coordinate.target]
                await self._settle(coordinate)
        finally:
            self._slots.release()

    def _wait_ms(self) -> float | None:
        while self._heap:
            due_ms, _, coordinate = self._heap[0]
            if self._latest.get(coordinate.target) is coordinate:
                return due_ms - self._clock.lower_ms()
            heapq.heappop(self._heap)
        return None

    async def _sleep(self, wait_ms: float | None) -> None:
        # A long sleep is cut short so that a step of the broker's clock is noticed within a second.
        timeout_s = 1.0 if wait_ms is None else min(wait_ms / 1000, 1.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()


def _supersedes(new: Coordinate, known: Coordinate) -> bool:
    if (new.generation, new.revision) == (known.generation, known.revision):
        return new.own and not known.own
    return (new.generation, new.revision) > (known.generation, known.revision)
