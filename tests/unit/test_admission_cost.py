"""What a decision costs, counted and not timed: instructions of SQLite's machine, and its plans."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.commands.adm import Enqueue
from schemas.subjects import Speaker
from tests.support.adm import CONNECTOR, CONNECTOR_PROCESS, OPERATOR, T0, UID, UID2, Admission
from worker.admission import requests
from worker.ledger.rulesets import NEWEST
from worker.ledger.tx import Outbox, Tx

SMALL, LARGE = 1_000, 100_000
MOST = 1.5

Spread = Callable[[int], tuple[Speaker, str, str, int]]
"""Number of a turn to its owner, agent, model and priority."""


def owner(n: int) -> Speaker:
    return Speaker(CONNECTOR, f"{n:026d}")


def crowded(n: int) -> tuple[Speaker, str, str, int]:
    """Few owners, agents, models and priorities: long lines."""
    return owner(n % 4), f"agent-{n % 5}", f"m{n % 3}", n % 7 % 3


def scattered(n: int) -> tuple[Speaker, str, str, int]:
    """Each turn another agent, each tenth another owner: every line has one turn."""
    return owner(n // 10), f"agent-{n}", f"m{n % 40}", n % 201 - 100


def fill(adm: Admission, count: int, spread: Spread) -> None:
    """Queue turns by the transition itself, without the fold around it."""
    db = adm.driver.db
    outbox = Outbox()
    outbox.muted = True
    db.execute("BEGIN")
    for n in range(count):
        speaker, agent, model, priority = spread(n)
        body = Enqueue(
            v=1,
            session_id="s",
            agent_id=agent,
            fingerprint="f",
            provider="acme",
            model=model,
            priority=priority,
        )
        tx = Tx(db, adm.driver.names, 1, 0, T0 + n // 100, speaker, "", NEWEST, outbox)
        requests.enqueue(tx, (f"r{n:06d}",), body)
    db.execute("COMMIT")


@contextmanager
def counted(db: sqlite3.Connection) -> Iterator[list[int]]:
    """Count the instructions that SQLite's machine carries out."""
    count = [0]

    def step() -> int:
        count[0] += 1
        return 0

    db.set_progress_handler(step, 1)
    try:
        yield count
    finally:
        db.set_progress_handler(None, 1)


def decisions(folder: Path, count: int, spread: Spread, *, late_ms: int = 0) -> list[int]:
    """Instructions of twelve admissions in a row, each after the end of another turn."""
    folder.mkdir()
    adm = Admission(folder, max_active_turns=3)
    adm.send("drain", by=OPERATOR, to=0)
    fill(adm, count, spread)
    adm.now_ms = T0 + 10_000 + late_ms
    for model in ("m0", "m7", "m9"):
        adm.send("cooldown", by=OPERATOR, provider="acme", model=model, not_before_ms=T0 + 10**9)
    for n in (0, 2):
        adm.driver.db.execute(
            "INSERT INTO adm_owners (principal, uid, seen_at_ms) VALUES ('conn', ?, 0) "
            "ON CONFLICT DO NOTHING",
            (owner(n).uid,),
        )
        assert adm.liveness("silent", 0, uid=owner(n).uid)["outcome"] == "suspected"
    adm.tick()
    adm.send("drain", by=OPERATOR, to=3)
    costs = []
    for _ in range(12):
        request = adm.grants()[-1]
        uid = adm.turn(request)["owner"]["uid"]
        before = len(adm.grants())
        with counted(adm.driver.db) as count_of:
            adm.send("abandon", request, uid=uid, **adm.fence(request), outcome="failed")
        assert len(adm.grants()) == before + 1
        costs.append(count_of[0])
    adm.close()
    return costs


@pytest.mark.timeout(600)
@pytest.mark.parametrize("spread", [crowded, scattered])
def test_a_decision_in_a_long_queue_costs_what_it_costs_in_a_short_one(
    tmp_path: Path, spread: Spread
) -> None:
    small = decisions(tmp_path / "small", SMALL, spread)
    large = decisions(tmp_path / "large", LARGE, spread)
    assert sum(large) <= MOST * sum(small), (small, large)
    assert max(large) <= 2 * max(small), (small, large)


def test_no_statement_of_the_fold_reads_the_whole_queue(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=4, min_start_interval_ms=1, queue_timeout_ms=9_000)
    seen: set[str] = set()
    adm.driver.db.set_trace_callback(seen.add)
    every_verb(adm)
    adm.driver.db.set_trace_callback(None)
    plans = {}
    for statement in seen:
        if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE)", statement):
            plan = adm.driver.db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            plans[statement] = [row[3] for row in plan]
    adm.close()
    assert len(plans) > 60
    tables = "adm_requests|adm_heads|adm_leases|adm_journal|adm_owners|adm_agents|adm_cooldowns"
    whole = re.compile(rf"SCAN ({tables}|r|l|q|c|line|owner|model|tier)\b|TEMP B-TREE FOR (O|R)")
    reading_all = {
        statement: plan
        for statement, plan in plans.items()
        if any(whole.search(step) for step in plan)
    }
    assert not reading_all


def test_lives_that_are_over_cost_nothing(tmp_path: Path) -> None:
    few, many = costs_after(tmp_path / "few", 20), costs_after(tmp_path / "many", 2_000)
    for what, cost in few.items():
        assert many[what] <= MOST * cost + 50, (what, few, many)


def costs_after(folder: Path, lives: int) -> dict[str, int]:
    """Instructions of a few questions and commands after lives that queued and fell silent."""
    folder.mkdir()
    adm = Admission(folder, max_active_turns=1)
    adm.bring_to("active", "busy")
    for n in range(lives):
        uid = owner(n).uid
        adm.enqueue(f"r{n}", f"agent-{n}", uid=uid, grant="pull", identity=CONNECTOR_PROCESS)
        adm.send("cancel", f"r{n}", uid=uid)
        adm.now_ms += 5_000
        assert adm.liveness("silent", 0, uid=uid)["outcome"] == "suspected"
    adm.step("complete", "busy", outcome="completed")
    adm.enqueue("waits", timeout_ms=1_000_000)
    asked: dict[str, Callable[[], object]] = {
        "recoverable": lambda: adm.answer("recoverable"),
        "an empty admit": lambda: adm.send("admit"),
        "a place": lambda: adm.answer("queue", request_id="waits"),
        "a new life": lambda: adm.enqueue("new", "agent-new", uid="z" * 26, grant="pull"),
    }
    costs = {}
    for what, ask in asked.items():
        with counted(adm.driver.db) as count:
            ask()
        costs[what] = count[0]
    adm.close()
    return costs


def test_lives_that_are_over_are_forgotten(tmp_path: Path) -> None:
    adm = Admission(tmp_path)
    for n in range(40):
        uid = owner(n).uid
        adm.enqueue(f"r{n}", uid=uid)
        adm.step("abandon", f"r{n}", uid=uid, outcome="failed")
        adm.now_ms += 3_600_000
        adm.liveness("silent", 0, uid=uid)
    (known,) = adm.driver.db.execute("SELECT count(*) FROM adm_owners").fetchone()
    assert 20 < known < 30
    (nodes,) = adm.driver.db.execute("SELECT count(*) FROM adm_heads WHERE level > 2").fetchone()
    assert nodes == 0
    adm.close()


def every_verb(adm: Admission) -> None:
    """Each verb and each thing that time does; not pruning, which is no decision."""
    for n in range(12):
        adm.now_ms += 1
        adm.enqueue(f"r{n:02d}", f"agent-{n % 3}", uid=(UID, UID2)[n % 2], priority=n % 2)
        adm.enqueue(f"p{n:02d}", f"agent-{n % 3}", grant="pull")
    adm.enqueue("r00", "agent-0", uid=UID2)
    adm.send("cancel", "r11")
    adm.send("admit")
    adm.send("admit", "p03")
    for request in list(adm.grants()):
        uid = adm.turn(request)["owner"]["uid"]
        adm.step("start", request, uid=uid)
        adm.intend(request, uid=uid)
        adm.step("active", request, uid=uid)
    first, second, *_ = adm.grants()
    uid = adm.turn(first)["owner"]["uid"]
    failure = {"category": "provider_capacity"}
    adm.step("complete", first, uid=uid, outcome="failed", failure=failure)
    adm.step("recover", second, uid=adm.turn(second)["owner"]["uid"])
    adm.evidence(second, connector="gone", child="alive")
    adm.send("resolve", second, by=OPERATOR, resolution="confirmed_not_dispatched", evidence="e")
    adm.now_ms += 4_001
    adm.liveness("silent", 0)
    adm.liveness("silent", 0, uid=UID2)
    adm.tick(adm.now_ms + 2_000)
    adm.liveness("alive", adm.now_ms)
    adm.send("drain", by=OPERATOR, to=1)
    adm.tick(adm.now_ms + 60_000)
    adm.enqueue("late", identity=CONNECTOR_PROCESS)
    adm.send("drain", by=OPERATOR, to=9)
    adm.tick(adm.now_ms + 200_000)
