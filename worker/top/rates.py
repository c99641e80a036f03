"""Rates from counts that come now from one worker, now from another."""

from dataclasses import dataclass
from typing import Final

from schemas.strict_json import JsonObject
from worker.top.look import Rates

FRESH_MS: Final = 30_000
"""A worker that has not answered for so long is left out of the sums."""


@dataclass(frozen=True, slots=True)
class _Counts:
    at_ms: int
    handled: int | None
    published: int | None


class Meter:
    """Turns what the workers have counted since their start into rates.

    One worker answers each question, so each one's counts are compared with its own. The log is
    one, so the watermark may be compared whoever tells it.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._rates: dict[str, tuple[int, float | None, float | None]] = {}
        self._watermark: tuple[int, int, int] | None = None

    def take(self, status: JsonObject) -> Rates:
        """Take a worker's status and tell the rates as they are known now."""
        at_ms, worker = int(status["at_ms"]), str(status["worker"]["id"])
        planes = status["planes"]
        ledger = planes.get("ledger") or {}
        now = _Counts(
            at_ms,
            (planes.get("checkpoints") or {}).get("commands_handled"),
            ledger.get("published"),
        )
        before = self._counts.get(worker)
        self._counts[worker] = now
        if before is not None and at_ms > before.at_ms:
            passed_ms = at_ms - before.at_ms
            self._rates[worker] = (
                at_ms,
                _rate(before.handled, now.handled, passed_ms),
                _rate(before.published, now.published, passed_ms),
            )
        fresh = [rates for rates in self._rates.values() if rates[0] > at_ms - FRESH_MS]
        return Rates(
            _sum([handled for _, handled, _ in fresh]),
            self._folded(at_ms, ledger.get("epoch"), ledger.get("watermark")),
            _sum([published for _, _, published in fresh]),
        )

    def _folded(self, at_ms: int, epoch: int | None, watermark: int | None) -> float | None:
        before = self._watermark
        if epoch is None or watermark is None:
            return None
        self._watermark = at_ms, epoch, watermark
        if before is None or at_ms <= before[0] or epoch != before[1]:
            return None
        # Another worker may be behind the one that answered before.
        return max(0.0, (watermark - before[2]) * 1000 / (at_ms - before[0]))


def _rate(before: int | None, now: int | None, passed_ms: int) -> float | None:
    if before is None or now is None or now < before:
        return None
    return (now - before) * 1000 / passed_ms


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
