"""The rule that decides whether a series drifts: it catches leaks and forgives noise."""

import random

import pytest

from worker.soak import drift
from worker.soak.drift import Point

ALLOWANCE = 0.6
"""MB a minute, as for the memory of a process."""

STEP_S = 5.0


def series(
    minutes: float,
    *,
    start: float = 80.0,
    leak: float = 0.0,
    noise: float = 0.0,
    saw: float = 0.0,
    saw_min: float = 1.0,
    settles: float = 0.0,
    settles_min: float = 1.0,
    step: float = 0.0,
    seed: int = 1,
) -> list[Point]:
    """Memory as it is sampled: a level, a leak, noise, a saw, a cache that fills, a step."""
    chance = random.Random(seed)
    points = []
    for number in range(int(minutes * 60 / STEP_S)):
        at_s = number * STEP_S
        at_min = at_s / 60
        value = start + leak * at_min
        value += chance.gauss(0, noise) if noise else 0.0
        value += saw * (at_min % saw_min) / saw_min
        value += settles * (1 - 2 ** (-at_min / settles_min))
        value += step if at_min > minutes * 0.6 else 0.0
        points.append((at_s, value))
    return points


def judged(points: list[Point]) -> drift.Judgement:
    length_s = points[-1][0] + STEP_S
    return drift.judge(points, ALLOWANCE, least_rise=2.0, skip_s=drift.warm_up_s(length_s))


@pytest.mark.parametrize("minutes", [10, 30, 120])
@pytest.mark.parametrize("leak", [1.0, 2.0, 20.0])
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_a_leak_is_found_through_noise(minutes: float, leak: float, noise: float) -> None:
    found = judged(series(minutes, leak=leak, noise=noise))
    assert found.verdict == "drifts"
    assert found.slope_per_min == pytest.approx(leak, abs=0.3)


def test_a_leak_is_found_under_a_saw_that_is_far_higher() -> None:
    found = judged(series(20, leak=1.0, saw=12.0, saw_min=0.7, noise=1.0))
    assert found.verdict == "drifts"


def test_a_leak_that_comes_in_steps_is_found() -> None:
    points = [(at_s, 80 + 4 * (at_s // 240)) for at_s, _ in series(20)]
    assert judged(points).verdict == "drifts"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("minutes", [10, 60])
def test_noise_is_no_drift(minutes: float, seed: int) -> None:
    assert judged(series(minutes, noise=2.0, seed=seed)).verdict == "steady"


@pytest.mark.parametrize("seed", range(10))
def test_a_walk_that_comes_back_is_no_drift(seed: int) -> None:
    """A collector's heap: each value depends on the one before, and is drawn to its level."""
    chance, value, points = random.Random(seed), 0.0, []
    for number in range(120):
        value = 0.7 * value + chance.gauss(0, 0.7)
        points.append((number * STEP_S, 80 + value))
    assert judged(points).verdict == "steady"


def test_a_saw_is_no_drift() -> None:
    for saw_min in (0.5, 0.9, 1.3):
        assert judged(series(10, saw=20.0, saw_min=saw_min)).verdict == "steady", saw_min


def test_a_cache_that_fills_and_comes_to_rest_is_no_drift() -> None:
    assert judged(series(20, settles=30.0, settles_min=1.5)).verdict == "steady"


def test_one_step_is_no_drift_and_outliers_are_none() -> None:
    assert judged(series(10, step=15.0, noise=0.3)).verdict == "steady"
    spiked = [
        (at_s, value + (500 if n % 17 == 0 else 0)) for n, (at_s, value) in enumerate(series(10))
    ]
    assert judged(spiked).verdict == "steady"


def test_what_shrinks_or_grows_within_its_allowance_is_no_drift() -> None:
    assert judged(series(10, leak=-3.0)).verdict == "steady"
    assert judged(series(60, leak=ALLOWANCE * 0.8, noise=0.2)).verdict == "steady"


def test_a_rise_that_is_too_small_to_matter_is_no_drift() -> None:
    points = [(at_s, value) for at_s, value in series(10, leak=0.7)]
    skip_s = drift.warm_up_s(600)
    assert drift.judge(points, 0.1, least_rise=10.0, skip_s=skip_s).verdict == "steady"
    assert drift.judge(points, 0.1, least_rise=1.0, skip_s=skip_s).verdict == "drifts"


def test_the_warm_up_does_not_count() -> None:
    points = [(at_s, min(200.0, 20 * at_s / 60)) for at_s, _ in series(12)]
    assert drift.judge(points, ALLOWANCE, least_rise=1.0, skip_s=0.0).verdict == "drifts"
    late = [(at_s, min(60.0, value)) for at_s, value in points]
    assert judged(late).verdict == "steady"


def test_a_short_run_is_not_judged() -> None:
    found = judged(series(8, leak=100.0))
    assert (found.verdict, found.slope_per_min) == ("too-short", 0.0)
    few = [(0.0, 1.0), (900.0, 900.0)]
    assert drift.judge(few, ALLOWANCE, least_rise=1.0, skip_s=0.0).verdict == "too-short"
    assert drift.judge([], ALLOWANCE, least_rise=1.0, skip_s=0.0).verdict == "too-short"


def test_a_long_run_is_thinned_and_judged_the_same() -> None:
    points = series(24 * 60, leak=1.0, noise=2.0)
    assert len(drift.thin(points, drift.SPANS)) <= drift.SPANS
    assert judged(points).slope_per_min == pytest.approx(1.0, abs=0.05)
    assert drift.thin(points[:10], drift.SPANS) == points[:10]


def test_the_slope_of_a_line_is_its_slope() -> None:
    assert drift.slope_per_min([(0.0, 1.0), (60.0, 3.0), (120.0, 5.0)]) == 2.0
    assert drift.slope_per_min([(0.0, 1.0)]) == 0.0
    assert drift.slope_per_min([(0.0, 1.0), (0.0, 3.0)]) == 0.0
