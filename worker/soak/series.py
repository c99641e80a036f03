"""What is sampled, how much of it may grow, and what grows by design."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from schemas.names import Names, kv_stream, object_stream
from schemas.strict_json import JsonObject
from worker.soak import drift
from worker.soak.drift import Judgement, Point

STAYS: Final = 0.25
"""Of a stream that is emptied as it is filled, no more than this share of what comes in stays."""

BROKER_KB_PER_SUBJECT: Final = 3.0
"""What a subject of its own costs in the broker's memory at most: its collector lets garbage pile
up to as much as lives, and blocks that are written to are kept there."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A series that should stay where it is.

    Attributes:
        name: Of the series.
        unit: Of its values.
        allowance_per_min: How much it may grow a minute, whatever else happens.
        least_rise: A smaller rise is none.
        and_of: Further allowance: a share of the growth of other series.
    """

    name: str
    unit: str
    allowance_per_min: float
    least_rise: float
    and_of: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """A series with its judgement.

    Attributes:
        bound: What it was judged by.
        first: Its first value after the warm-up.
        last: Its last.
        judgement: What became of it.
    """

    bound: Bound
    first: float
    last: float
    judgement: Judgement

    def to_object(self) -> JsonObject:
        """As the report shows it."""
        found = self.judgement
        return {
            "series": self.bound.name,
            "unit": self.bound.unit,
            "verdict": found.verdict,
            "first": round(self.first, 2),
            "last": round(self.last, 2),
            "slope_per_min": round(found.slope_per_min, 3),
            "late_slope_per_min": round(found.late_slope_per_min, 3),
            "allowance_per_min": round(found.allowance_per_min, 3),
        }


def bounded_streams(names: Names) -> tuple[str, ...]:
    """Streams that are emptied as they are filled."""
    return (
        names.log_stream,
        names.res_stream,
        names.ept_req_stream,
        kv_stream(names.leases_bucket),
        kv_stream(names.keys_bucket),
        object_stream(names.snapshots_bucket),
    )


def growing_streams(names: Names) -> Mapping[str, str]:
    """Streams that grow by design, and why."""
    return {
        names.cmd_stream: "checkpoint commands stay for seven days",
        names.ept_stream: "a timer that has fired stays for an hour",
        names.epf_stream: "a settle fact proves for ever that a token was used",
        kv_stream(names.records_bucket): "a token is never used again, so its records stay",
        kv_stream(names.payloads_bucket): "a deletion's mark refuses a late put for seven days",
    }


GROWING_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "files.ledger": "journal, used request ids and used seconds stay; the rest is pruned",
        "files.journal": "settlements are kept for 30 days",
    }
)
"""Files that grow by design, and why."""


def bounds(names: Names) -> tuple[Bound, ...]:
    """Everything that should stay where it is."""
    kept = {
        f"stream.{name}.messages": BROKER_KB_PER_SUBJECT / 1024 for name in growing_streams(names)
    }
    found = [
        Bound("worker.memory", "MB", 0.6, 2.0),
        Bound("broker.memory", "MB", 0.6, 2.0, kept),
        Bound("client.memory", "MB", 0.6, 2.0),
        Bound("worker.tasks", "tasks", 0.5, 5),
        Bound("client.tasks", "tasks", 0.5, 5),
        Bound("worker.threads", "threads", 0.2, 2),
        Bound("broker.consumers", "consumers", 0.2, 3),
        Bound("timers.armed", "timers", 1.0, 20),
        Bound("files.wal", "MB", 0.5, 2.0),
        Bound("files.index", "MB", 0.25, 1.0),
        Bound("files.count", "files", 0.5, 5),
    ]
    found += [Bound(f"{who}.open_files", "files", 0.5, 5) for who in ("worker", "broker", "client")]
    found += [
        Bound(
            f"stream.{name}.messages",
            "messages",
            1.0,
            50,
            {f"stream.{name}.stored": STAYS},
        )
        for name in bounded_streams(names)
    ]
    return tuple(found)


def judge_all(
    series: Mapping[str, Sequence[Point]], wanted: Sequence[Bound], *, length_s: float
) -> list[Judged]:
    """Judge every series that was sampled."""
    skip_s = drift.warm_up_s(length_s)
    judged = []
    for bound in wanted:
        points = series.get(bound.name, ())
        kept = [point for point in points if point[0] >= skip_s] or points
        if not kept:
            continue
        allowance = bound.allowance_per_min + sum(
            share * max(0.0, _slope(series.get(name, ()), skip_s))
            for name, share in bound.and_of.items()
        )
        found = drift.judge(points, allowance, least_rise=bound.least_rise, skip_s=skip_s)
        judged.append(Judged(bound, kept[0][1], kept[-1][1], found))
    return judged


def _slope(points: Sequence[Point], skip_s: float) -> float:
    kept = [point for point in points if point[0] >= skip_s]
    return drift.slope_per_min(drift.thin(kept, drift.SPANS))
