"""The page about soaking says what is judged, by how much, and what is not."""

import re
from pathlib import Path

from schemas.names import Names
from worker.soak import drift, series

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "soak.md").read_text().split())
NAMES = Names("tidegate", "bench")


def test_every_reason_for_growing_stands_on_the_page() -> None:
    for why in (*series.growing_streams(NAMES).values(), *series.GROWING_FILES.values()):
        assert f"| {why} |" in PAGE, why


def test_allowances_and_the_rule_are_those_in_force() -> None:
    bounds = {bound.name: bound for bound in series.bounds(NAMES)}
    for name in ("worker.memory", "client.memory", "broker.memory"):
        assert (bounds[name].allowance_per_min, bounds[name].least_rise) == (0.6, 2.0)
    assert "| memory of worker and client | 0.6 MB | 2 MB |" in PAGE
    assert f"{series.BROKER_KB_PER_SUBJECT:g} KB for each message" in PAGE
    assert f"{drift.SPANS} medians" in PAGE
    assert drift.LEAST_S == 7 * 60
    assert "less than seven minutes" in PAGE
    for bound in bounds.values():
        assert re.search(rf"\b{bound.allowance_per_min:g}\b", PAGE), bound.name


def test_what_is_watched_is_judged_or_grows_by_design() -> None:
    bounded = set(series.bounded_streams(NAMES))
    growing = set(series.growing_streams(NAMES))
    assert not bounded & growing
    judged = {bound.name for bound in series.bounds(NAMES)}
    assert {f"stream.{name}.messages" for name in bounded} <= judged
