"""How fast something went, what it took of the machine, and so what bounds it."""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.bench import ground
from worker.bench.ground import Ground, Rate, pipeline

BUSY: Final = 0.8
"""Share of a core, or of all cores, from which on it is what bounds a figure."""

DISTURBED: Final = 0.25
"""Share of all cores taken by other work from which on it is said beside a figure."""


@dataclass(frozen=True, slots=True)
class Load:
    """A rate, and what it took.

    Attributes:
        rate: How fast.
        cores: Processor seconds a second, by process.
        others: Processor seconds a second that the machine spent on other work.
    """

    rate: Rate
    cores: Mapping[str, float]
    others: float = 0.0

    @property
    def per_s(self) -> float:
        """How many a second, as it is told."""
        return round(self.rate.per_s, 1)

    def bound(self) -> str:
        """What kept it from being faster."""
        busiest = max(self.cores, key=lambda name: self.cores[name])
        total, machine = sum(self.cores.values()), os.cpu_count() or 1
        if self.others >= DISTURBED * machine:
            return f"other work, which took {self.others:.2f} of {machine} cores ({self._shares()})"
        if total >= BUSY * machine:
            return f"the machine's {machine} cores ({self._shares()})"
        if self.cores[busiest] >= BUSY:
            return f"one core of the {busiest} ({self._shares()})"
        return f"waiting for synced writes and for answers ({self._shares()} of {machine} cores)"

    def _shares(self) -> str:
        return ", ".join(f"{name} {used:.2f}" for name, used in self.cores.items())


async def measured(
    place: Ground,
    count: int,
    work: Callable[[int], Awaitable[object]],
    *,
    in_flight: int = ground.IN_FLIGHT,
) -> Load:
    """Run ``work(0)`` to ``work(count - 1)``, so many at a time, and see what it takes."""
    before, all_before = place.processor_s(), machine_s()
    rate = await pipeline(count, work, in_flight=in_flight)
    took_s = rate.count / rate.per_s
    used = cores(before, place.processor_s(), took_s)
    everybody = (machine_s() - all_before) / took_s
    return Load(rate, used, max(0.0, everybody - sum(used.values())))


def machine_s() -> float:
    """Processor seconds that all cores have spent on anything but idling and waiting for a disk."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def cores(
    before: Mapping[str, float], after: Mapping[str, float], took_s: float
) -> dict[str, float]:
    """Processor seconds a second, by process, between two looks."""
    return {name: (used - before.get(name, 0.0)) / took_s for name, used in after.items()}
