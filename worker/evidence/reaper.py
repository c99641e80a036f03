"""The reaper: looks at the processes behind turns and puts what changed into the log.

The worker runs one for its own host, ``tidegate witness`` one for another; the fold decides what
the evidence does (spec/admission.md, Recovery).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol

from schemas.commands.sys import Evidence
from schemas.strict_json import JsonObject
from worker import logs
from worker.errors import TidegateError
from worker.evidence.observe import Quarantined, Seen, observe
from worker.evidence.verdicts import Observer

PERIOD_MS: Final = 2_000
REPEAT_MS: Final = 300_000
"""Evidence that stays the same is said again so often, in case it did nothing the first time."""

IN_FLIGHT: Final = 16
LOG_EVERY: Final = 30
"""Of many passes that fail alike, every so many is logged: about one a minute."""

_SETTLED: Final = frozenset({"fenced", "no-such-request", "wrong-state"})
"""Refusals that mean that the turn has moved on since it was listed."""

log = logs.get()


@dataclass(frozen=True, slots=True)
class Rows:
    """What there is to look at.

    Attributes:
        turns: As ``adm.recoverable`` lists them, not yet checked.
        quarantined: Turns whose row the worker itself could not read.
    """

    turns: Sequence[JsonObject]
    quarantined: Sequence[str] = ()


class Recoveries(Protocol):
    """How a reaper reaches the admission plane of one space."""

    async def recoverable(self, host: str) -> Rows:
        """Every turn whose connector lives on a host.

        Raises:
            TidegateError: They cannot be listed now.
        """
        ...

    async def send(self, body: Evidence) -> str:
        """Put evidence into the log; the outcome of its result, or the reason of its refusal.

        Raises:
            TidegateError: It is not, or not surely, in the log.
        """
        ...


@dataclass(slots=True)
class Counts:
    """What one pass came to.

    Attributes:
        inspected: Turns whose processes were looked at.
        released: Seats freed.
        retained: Turns about which there was nothing new.
        marked: Turns that became a debt, or whose owner is now known to be dead.
        suspected: Turns whose owner became suspect.
        settled: Turns that had moved on meanwhile.
        quarantined: Rows that could not be judged.
        failed: Evidence that could not be sent; the next pass sends it.
    """

    inspected: int = 0
    released: int = 0
    retained: int = 0
    marked: int = 0
    suspected: int = 0
    settled: int = 0
    quarantined: int = 0
    failed: int = 0

    def add(self, outcome: str) -> None:
        """Count one outcome of evidence."""
        name = "settled" if outcome in _SETTLED else outcome
        if name not in ("released", "marked", "suspected", "settled", "failed"):
            name = "retained"
        setattr(self, name, getattr(self, name) + 1)

    def to_object(self) -> dict[str, int]:
        """By name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


_Key = tuple[str, str, str | None]
_States = tuple[str, str, str]


@dataclass(slots=True)
class _Told:
    states: _States
    at_ms: int


class Reaper:
    """Looks every ``period_ms``; a component of the worker, and all there is to a witness.

    Attributes:
        last: Counts of the last pass.
        totals: Counts of all passes.
        passes: Passes so far that could list the turns.

    Args:
        recoveries: The admission plane.
        observer: Who looks, for which host.
        now_ms: This machine's clock, for people only.
        monotonic_ms: A clock that never goes back.
        period_ms: Time between the beginnings of two passes.
        repeat_ms: When unchanged evidence is said again.
        label: Fields that tell this reaper's log lines apart, such as the space.
    """

    name = "reaper"

    def __init__(
        self,
        recoveries: Recoveries,
        observer: Observer,
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        period_ms: int = PERIOD_MS,
        repeat_ms: int = REPEAT_MS,
        label: dict[str, str] | None = None,
    ) -> None:
        self._recoveries = recoveries
        self._observer = observer
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._period_ms = period_ms
        self._repeat_ms = repeat_ms
        self._log = log.bind(host=observer.host, **(label or {}))
        self._told: dict[_Key, _Told] = {}
        self._reported_bad: set[tuple[str | None, str]] = set()
        self._failures = 0
        self._stopping = asyncio.Event()
        self.last = Counts()
        self.totals: Counter[str] = Counter()
        self.passes = 0

    async def start(self) -> None:
        """Say where we stand."""
        if self._observer.here.blind:
            self._log.warning("reaper_blind", reason=self._observer.here.blind)

    async def run(self) -> None:
        """Look until stopped; an outage only delays what is seen."""
        while not self._stopping.is_set():
            began_ms = self._monotonic_ms()
            try:
                await self.pass_once()
            except TidegateError as error:
                if self._failures % LOG_EVERY == 0:
                    self._log.warning("reaper_pass_failed", error=error, failures=self._failures)
                self._failures += 1
            left_ms = self._period_ms - (self._monotonic_ms() - began_ms)
            try:
                async with asyncio.timeout(max(0, left_ms) / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Begin no other pass."""
        self._stopping.set()

    def not_ready(self) -> list[str]:
        """Without evidence seats come back later, and nothing is endangered."""
        return []

    def status(self) -> JsonObject:
        """What ``sys.status`` shows of it."""
        return {
            "host": self._observer.host,
            "blind": self._observer.here.blind or None,
            "passes": self.passes,
            "failures": self._failures,
            "last": self.last.to_object(),
            "totals": dict(self.totals),
        }

    async def pass_once(self) -> Counts:
        """One pass: list, look, and say what is new.

        Raises:
            TidegateError: The turns cannot be listed now.
        """
        rows = await self._recoveries.recoverable(self._observer.host)
        found = await asyncio.to_thread(observe, rows.turns, self._observer, now_ms=self._now_ms())
        bad = [*found.quarantined, *(Quarantined(id_, "unreadable") for id_ in rows.quarantined)]
        counts = Counts(inspected=found.inspected, quarantined=len(bad))
        self._report_bad(bad)
        news = [seen for seen in found.seen if self._is_news(seen)]
        counts.retained = found.inspected - len(news)
        gate = asyncio.Semaphore(IN_FLIGHT)
        await asyncio.gather(*(self._tell(seen, counts, gate) for seen in news))
        current = {_key(seen) for seen in found.seen}
        self._told = {key: told for key, told in self._told.items() if key in current}
        self.passes += 1
        self._failures = 0
        self.last = counts
        self.totals.update(counts.to_object())
        quiet = counts.inspected == counts.retained
        (self._log.debug if quiet else self._log.info)("reaper_pass", **counts.to_object())
        return counts

    def _is_news(self, seen: Seen) -> bool:
        """Whether the log should hear of it.

        That all is well is what the log assumes, unless it was told otherwise.
        """
        told = self._told.get(_key(seen))
        if told is None:
            return not seen.is_well or seen.is_suspected
        if told.states != _states(seen):
            return True
        return not seen.is_well and self._monotonic_ms() - told.at_ms >= self._repeat_ms

    async def _tell(self, seen: Seen, counts: Counts, gate: asyncio.Semaphore) -> None:
        async with gate:
            evidence = seen.evidence
            try:
                outcome = await self._recoveries.send(evidence)
            except TidegateError as error:
                counts.failed += 1
                self._log.info("evidence_not_sent", request_id=evidence.request_id, error=error)
                return
        counts.add(outcome)
        self._told[_key(seen)] = _Told(_states(seen), self._monotonic_ms())
        self._log.info(
            "evidence_sent",
            request_id=evidence.request_id,
            phase=seen.turn.state,
            connector=f"{evidence.connector_state}/{seen.reasons[0]}",
            child=f"{evidence.child_state}/{seen.reasons[1]}",
            group=f"{evidence.group_state}/{seen.reasons[2]}",
            outcome=outcome,
        )

    def _report_bad(self, quarantined: list[Quarantined]) -> None:
        now_bad = {(row.request_id, row.reason) for row in quarantined}
        for row in quarantined:
            if (row.request_id, row.reason) not in self._reported_bad:
                self._log.warning(
                    "row_quarantined",
                    request_id=row.request_id,
                    reason=row.reason,
                    at_field=row.at_field,
                )
        self._reported_bad = now_bad


def _key(seen: Seen) -> _Key:
    fence = seen.turn.fence
    return seen.turn.request_id, seen.turn.state, None if fence is None else fence.lease_id


def _states(seen: Seen) -> _States:
    evidence = seen.evidence
    return evidence.connector_state, evidence.child_state, evidence.group_state
