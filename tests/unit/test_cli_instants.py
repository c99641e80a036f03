"""Instants and durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.showing.instants import parse_duration, parse_instant, show_duration, show_instant

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+15m", NOW + 900_000),
        ("+1h30m", NOW + 5_400_000),
        ("+500ms", NOW + 500),
        ("+2d", NOW + 172_800_000),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14t22:13:20.250z", NOW + 250),
        ("2023-11-15 00:13:20+02:00", NOW),
        ("2023-11-14T22:13:20.2509Z", NOW + 250),
    ],
)
def test_an_instant_is_read(text: str, expected: int) -> None:
    assert parse_instant(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "15m",
        "+15",
        "+m",
        "+-5m",
        "900",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-02-30T00:00:00Z",
        "2023-11-14T25:00:00Z",
        "soon",
        "+15m ",
        "1e12",
        "\u0661" * 13,
    ],
)
def test_what_is_not_an_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_instant(text, NOW)


@given(st.integers(min_value=0, max_value=4_000_000_000_000))
def test_what_is_shown_can_be_read_back(at_ms: int) -> None:
    assert parse_instant(show_instant(at_ms), NOW) == at_ms


def test_an_instant_no_calendar_knows_is_still_shown() -> None:
    assert show_instant(2**53 - 1) == "9007199254740991 ms"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_250, "1.25s"),
        (60_000, "1m"),
        (5_400_000, "1h30m"),
        (90_061_000, "1d1h"),
        (9 * 3_600_000 + 11_000, "9h0m"),
        (9 * 3_600_000, "9h"),
        (2 * 86_400_000 + 60_000, "2d0h"),
        (-1_000, "-1s"),
    ],
)
def test_a_duration_is_shown_with_two_units(ms: int, text: str) -> None:
    assert show_duration(ms) == text


def test_a_duration_is_read() -> None:
    assert parse_duration("1w2d3h4m5s6ms") == 788_645_006
