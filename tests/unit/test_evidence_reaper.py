"""What a reaper says, how often, and what it makes of answers; the port is a script."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from schemas.commands.sys import Evidence
from tests.support.proctable import HOST, ProcTable, error, process, stat_line
from tests.unit.test_evidence_observe import row
from worker.errors import TidegateError
from worker.evidence.reaper import REPEAT_MS, Counts, Reaper, Rows
from worker.evidence.verdicts import Observer


@dataclass
class Script:
    """Rows to give, outcomes to answer, and what was sent."""

    rows: list[Any] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    outcome: str | TidegateError | Callable[[Evidence], str] = "retained"
    asked: list[str] = field(default_factory=list)
    sent: list[Evidence] = field(default_factory=list)

    async def recoverable(self, host: str) -> Rows:
        self.asked.append(host)
        return Rows(self.rows, self.quarantined)

    async def send(self, body: Evidence) -> str:
        self.sent.append(body)
        if isinstance(self.outcome, TidegateError):
            raise self.outcome
        return self.outcome(body) if callable(self.outcome) else self.outcome


@dataclass
class Setting:
    """A reaper over a table, with a clock set by hand."""

    script: Script
    table: ProcTable
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.reaper = Reaper(
            self.script,
            Observer.at(HOST, self.table),
            now_ms=lambda: 1_700_000_000_000,
            monotonic_ms=lambda: self.now_ms,
        )

    async def sent_in_a_pass(self) -> list[tuple[str, str, str, str]]:
        before = len(self.script.sent)
        await self.reaper.pass_once()
        return [
            (one.request_id, one.connector_state, one.child_state, one.group_state)
            for one in self.script.sent[before:]
        ]


async def test_it_asks_for_its_own_host_and_sends_nothing_about_those_who_live() -> None:
    set_ = Setting(Script([row("r1", process(100))]), ProcTable({100: stat_line(100)}))
    assert await set_.sent_in_a_pass() == []
    assert set_.script.asked == [HOST]
    assert set_.reaper.last == Counts(inspected=1, retained=1)


async def test_a_death_is_said_once_and_again_after_a_long_while() -> None:
    set_ = Setting(Script([row("r1", process(100), process(200))]), ProcTable())
    gone = [("r1", "gone", "gone", "empty")]
    assert await set_.sent_in_a_pass() == gone
    assert await set_.sent_in_a_pass() == []
    set_.now_ms = REPEAT_MS - 1
    assert await set_.sent_in_a_pass() == []
    set_.now_ms = REPEAT_MS
    assert await set_.sent_in_a_pass() == gone


async def test_whatever_changes_is_said() -> None:
    table = ProcTable({100: stat_line(100), 200: stat_line(200), 201: stat_line(201, pgrp=200)})
    set_ = Setting(Script([row("r1", process(100), process(200))]), table)
    assert await set_.sent_in_a_pass() == []
    del table.stats[100]
    assert await set_.sent_in_a_pass() == [("r1", "gone", "alive", "alive")]
    del table.stats[200]
    assert await set_.sent_in_a_pass() == [("r1", "gone", "gone", "alive")]
    del table.stats[201]
    assert await set_.sent_in_a_pass() == [("r1", "gone", "gone", "empty")]


async def test_a_connector_seen_again_after_it_could_not_be_read_is_cleared() -> None:
    table = ProcTable({100: error(errno.EACCES)})
    set_ = Setting(Script([row("r1", process(100))]), table)
    assert [one[1] for one in await set_.sent_in_a_pass()] == ["unverifiable"]
    table.stats[100] = stat_line(100)
    assert [one[1] for one in await set_.sent_in_a_pass()] == ["alive"]
    set_.now_ms = 10 * REPEAT_MS
    assert await set_.sent_in_a_pass() == []


async def test_a_child_beyond_proof_is_said_although_its_connector_lives() -> None:
    table = ProcTable({100: stat_line(100), 200: error(errno.EACCES)})
    set_ = Setting(Script([row("r1", process(100), process(200))]), table)
    assert [one[:3] for one in await set_.sent_in_a_pass()] == [("r1", "alive", "unverifiable")]
    assert await set_.sent_in_a_pass() == []
    table.stats[200] = stat_line(200)
    assert await set_.sent_in_a_pass() == [("r1", "alive", "alive", "alive")]


async def test_a_new_reaper_clears_a_suspicion_that_stands_in_the_log() -> None:
    suspected = row("r1", process(100), seat={"suspicion": "identity_unverifiable"})
    silent = row("r2", process(100), seat={"suspicion": "heartbeat_expired"})
    set_ = Setting(Script([suspected, silent]), ProcTable({100: stat_line(100)}))
    assert [one[0] for one in await set_.sent_in_a_pass()] == ["r1"]


async def test_another_generation_and_another_phase_are_said_anew() -> None:
    set_ = Setting(Script([row("r1", process(100))]), ProcTable())
    assert len(await set_.sent_in_a_pass()) == 1
    set_.script.rows = [row("r1", process(100), state="recovery_required")]
    assert len(await set_.sent_in_a_pass()) == 1
    assert await set_.sent_in_a_pass() == []
    (again,) = [row("r1", process(100), state="recovery_required")]
    again["fence"]["lease_id"] = "another"
    set_.script.rows = [again]
    assert len(await set_.sent_in_a_pass()) == 1


async def test_evidence_that_did_not_arrive_is_sent_by_the_next_pass() -> None:
    set_ = Setting(Script([row("r1", process(100))], outcome=TidegateError()), ProcTable())
    assert len(await set_.sent_in_a_pass()) == 1
    assert set_.reaper.last == Counts(inspected=1, failed=1)
    set_.script.outcome = "released"
    assert len(await set_.sent_in_a_pass()) == 1
    assert set_.reaper.last == Counts(inspected=1, released=1)


async def test_outcomes_are_counted() -> None:
    outcomes = {
        "r1": "released",
        "r2": "marked",
        "r3": "suspected",
        "r4": "retained",
        "r5": "fenced",
        "r6": "no-such-request",
        "r7": "other-process",
    }
    script = Script([row(name, process(100)) for name in outcomes])
    script.outcome = lambda body: outcomes[body.request_id]
    script.rows.append({"request_id": "bad"})
    script.quarantined = ["worse"]
    set_ = Setting(script, ProcTable())
    counts = await set_.reaper.pass_once()
    assert counts == Counts(
        inspected=7, released=1, marked=1, suspected=1, retained=2, settled=2, quarantined=2
    )
    assert set_.reaper.status()["totals"]["quarantined"] == 2


async def test_turns_that_are_gone_are_forgotten() -> None:
    set_ = Setting(Script([row("r1", process(100))]), ProcTable())
    await set_.reaper.pass_once()
    set_.script.rows = []
    await set_.reaper.pass_once()
    set_.script.rows = [row("r1", process(100))]
    assert len(await set_.sent_in_a_pass()) == 1


async def test_a_pass_that_cannot_list_is_no_end_of_the_reaper() -> None:
    class Fails(Script):
        async def recoverable(self, host: str) -> Rows:
            self.asked.append(host)
            if len(self.asked) < 3:
                raise TidegateError(reason="away")
            set_.reaper._stopping.set()
            return Rows([])

    set_ = Setting(Fails(), ProcTable())
    set_.reaper._period_ms = 1
    await set_.reaper.run()
    assert set_.reaper.passes == 1
    assert set_.reaper.status()["failures"] == 0


@pytest.mark.parametrize("count", [0, 1, 300])
async def test_any_number_of_deaths_is_said_in_one_pass(count: int) -> None:
    rows = [row(f"r{n}", process(1_000 + n)) for n in range(count)]
    set_ = Setting(Script(rows, outcome="marked"), ProcTable())
    assert len(await set_.sent_in_a_pass()) == count
    assert set_.reaper.last.marked == count
