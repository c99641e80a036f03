"""Instants as the broker's scheduler reads them, and where its calendar ends."""

import pytest

from worker.timers.writer import SCHEDULES_END_MS, rfc3339


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (999, "1970-01-01T00:00:00.999Z"),
        (1_795_973_735_564, "2026-11-29T17:35:35.564Z"),
        (1_709_164_799_999, "2024-02-28T23:59:59.999Z"),
        (4_102_444_800_000, "2100-01-01T00:00:00.000Z"),
        (SCHEDULES_END_MS - 1, "2262-04-11T23:47:15.999Z"),
    ],
)
def test_an_instant_keeps_every_millisecond(at_ms: int, text: str) -> None:
    assert rfc3339(at_ms) == text


def test_no_instant_is_rounded_to_an_earlier_one() -> None:
    """Read back it is the same millisecond, so no timer is set early."""
    for at_ms in range(1_795_973_735_000, 1_795_973_736_000):
        text = rfc3339(at_ms)
        assert int(text[-4:-1]) == at_ms % 1_000, text
