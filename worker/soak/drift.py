"""Whether something that should stay where it is grows; a pure function of what was sampled.

The rule. The warm-up is left out. What is left is thinned to medians of equal spans of time, and a
line is laid through it after Theil and Sen: its slope is the median of the slopes of all pairs, so
that no outlier, and no saw that comes back down, moves it. A series drifts if that slope exceeds
its allowance, if the slope of its later half exceeds half of it, since what has come to rest does
not leak, and if it has risen by at least a step that matters. A series that was watched for too
short a time is not judged.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

SPANS: Final = 240
"""Most points that the line is laid through."""

LEAST_POINTS: Final = 24
LEAST_S: Final = 420.0
"""Anything watched for less, after the warm-up, is not judged: noise would decide."""

LATE_SHARE: Final = 0.5
"""Of its allowance, what the later half, which knows less, must exceed to confirm a drift."""

WARM_UP_SHARE: Final = 0.25
WARM_UP_S: Final = (60.0, 600.0)
"""The warm-up is a quarter of the run, within these bounds."""

Point = tuple[float, float]
"""Seconds since the beginning, and the value then."""

Verdict = Literal["steady", "drifts", "too-short"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one series.

    Attributes:
        verdict: ``drifts`` if it grows more than it may.
        slope_per_min: How much it grows a minute; 0 if it was not judged.
        late_slope_per_min: The same over the later half.
        rise: Median of its last fifth less that of its first.
        allowance_per_min: How much it may grow a minute.
    """

    verdict: Verdict
    slope_per_min: float
    late_slope_per_min: float
    rise: float
    allowance_per_min: float


def warm_up_s(length_s: float) -> float:
    """How much of a run of this length is warm-up."""
    least, most = WARM_UP_S
    return min(most, max(least, length_s * WARM_UP_SHARE))


def judge(
    points: Sequence[Point],
    allowance_per_min: float,
    *,
    least_rise: float,
    skip_s: float,
    least_s: float = LEAST_S,
) -> Judgement:
    """Judge a series.

    Args:
        points: In order of time.
        allowance_per_min: How much it may grow a minute.
        least_rise: A smaller rise over all that was watched is none.
        skip_s: The warm-up.
        least_s: How long it must have been watched after it.
    """
    kept = [point for point in points if point[0] >= skip_s]
    if len(kept) < LEAST_POINTS or kept[-1][0] - kept[0][0] < least_s:
        return Judgement("too-short", 0.0, 0.0, 0.0, allowance_per_min)
    thinned = thin(kept, SPANS)
    whole, late = slope_per_min(thinned), slope_per_min(thinned[len(thinned) // 2 :])
    fifth = max(1, len(thinned) // 5)
    rise = _median(thinned[-fifth:]) - _median(thinned[:fifth])
    grows = whole > allowance_per_min and late > allowance_per_min * LATE_SHARE
    grows = grows and rise >= least_rise
    return Judgement("drifts" if grows else "steady", whole, late, rise, allowance_per_min)


def slope_per_min(points: Sequence[Point]) -> float:
    """Theil and Sen's slope, per minute; 0 of fewer than two instants."""
    slopes = [
        (later - earlier) / (then - now) * 60
        for number, (now, earlier) in enumerate(points)
        for then, later in points[number + 1 :]
        if then > now
    ]
    return statistics.median(slopes) if slopes else 0.0


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points: the medians of equal spans of time."""
    if len(points) <= most:
        return list(points)
    begin, end = points[0][0], points[-1][0]
    spans: dict[int, list[Point]] = {}
    for point in points:
        number = min(most - 1, int((point[0] - begin) / (end - begin) * most))
        spans.setdefault(number, []).append(point)
    return [
        (statistics.median(at for at, _ in span), _median(span))
        for _, span in sorted(spans.items())
    ]


def _median(points: Sequence[Point]) -> float:
    return statistics.median(value for _, value in points)
