"""Counts what the traffic does, verb by verb and minute by minute, and what went wrong."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from schemas.strict_json import JsonObject
from worker.bench.ground import percentile

FAULTS_KEPT: Final = 20
"""Kinds of faults that are told apart; the rest is counted together."""


@dataclass(slots=True)
class Fault:
    """Something that must not happen.

    Attributes:
        what: Which step, and how it ended.
        count: How often.
    """

    what: str
    count: int = 0


@dataclass(slots=True)
class Tally:
    """What was done since the last ``turn_over``, and every fault ever.

    Attributes:
        faults: By what they are.
    """

    faults: dict[str, Fault] = field(default_factory=dict)
    _took_ms: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timed(self, verb: str) -> Iterator[None]:
        """Time a step; only one that ends well counts."""
        began = time.perf_counter()
        yield
        self.took(verb, time.perf_counter() - began)

    def took(self, verb: str, seconds: float) -> None:
        """Count a step that ended well after so long."""
        self._took_ms.setdefault(verb, []).append(seconds * 1000)

    def fault(self, what: str) -> None:
        """Note something that must not happen."""
        key = what if what in self.faults or len(self.faults) < FAULTS_KEPT else "other faults"
        self.faults.setdefault(key, Fault(key)).count += 1

    def turn_over(self, passed_s: float) -> Mapping[str, JsonObject]:
        """What was done by verb, and begin anew."""
        took, self._took_ms = self._took_ms, {}
        return {
            verb: {
                "count": len(each),
                "per_s": round(len(each) / passed_s, 2),
                "p50_ms": round(percentile(each, 50), 2),
                "p99_ms": round(percentile(each, 99), 2),
            }
            for verb, each in sorted(took.items())
        }

    def faults_object(self) -> list[JsonObject]:
        """Every kind of fault and how often it happened."""
        return [{"what": one.what, "count": one.count} for one in self.faults.values()]
