"""Counts what was said: every result once, by the replica that stored it."""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Final

from prometheus_client import Histogram

from schemas.commands import BODIES
from worker import metrics
from worker.ledger.tx import Kind, OutRow

_UNKNOWN: Final = ("unknown", "unknown")
_STATUS: Final = b'"status":"'
_OUTCOME: Final = b'"outcome":"'


def count_stored(rows: Sequence[OutRow], now_ms: int) -> None:
    """Count the results among rows that are stored now; a few microseconds each.

    Args:
        rows: As they were committed.
        now_ms: The broker's time, for how long the caller waited.
    """
    tally: Counter[tuple[str, str, str, str]] = Counter()
    for row in rows:
        if row.kind is not Kind.RESULT:
            continue
        plane, verb = spoken(row.subject)
        tally[plane, verb, status_of(row.body), outcome_of(row.body)] += 1
        waited_s = max(0, now_ms - row.at_ms) / 1000
        _waits(plane).observe(waited_s)
        if (plane, verb) == ("cap", "stop"):
            metrics.STOP_SECONDS.observe(waited_s)
    for labels, times in tally.items():
        metrics.COMMANDS.labels(*labels).inc(times)


@functools.cache
def _waits(plane: str) -> Histogram:
    return metrics.RESULT_SECONDS.labels(plane)


def spoken(subject: str) -> tuple[str, str]:
    """Plane and verb of ``<root>.<space>.res.<principal>.<uid>.<plane>.<verb>.<id>``."""
    parts = subject.split(".")
    found = (parts[5], parts[6]) if len(parts) == 8 else _UNKNOWN
    return found if found in BODIES else _UNKNOWN


def status_of(body: bytes) -> str:
    """The status in a result's bytes."""
    return _word(body, _STATUS)


def outcome_of(body: bytes) -> str:
    """The outcome in a result's bytes."""
    return _word(body, _OUTCOME)


def _word(body: bytes, key: bytes) -> str:
    """The value of the first field of this name: neither stands in anything a client chose."""
    start = body.index(key) + len(key)
    return body[start : body.index(b'"', start)].decode()
