"""``sys.prune`` goes part by part: what waits behind it, a Stop above all, waits for one part."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from worker.admission.plane import PLANE as ADM
from worker.caps.plane import PLANE as CAP
from worker.ledger.rulesets import FIRST, NEWEST
from worker.ledger.testing import FoldDriver

T0 = 1_800_000_000_000
BEFORE = T0 + 1_000_000
NOW = T0 + 2_000_000
KINDS = ("turns", "lines", "connectors", "permits", "command_ids")
MOST_ROWS = 500
"""What a Stop may have to wait for, said here again on purpose."""

TURN = """
INSERT INTO adm_requests (request_id, state, generation, principal, uid, session_id, agent_id,
fingerprint, provider, model, handing, priority, enqueued_at_ms, deadline_at_ms, aged_at_ms, aged,
releases, settled_at_ms) VALUES (?, 'cancelled', 1, 'conn', 'u', 's', 'a', 'f', 'p', 'm', 'push', 0,
?, ?, ?, 0, 0, ?)
"""
HEAD = (
    "INSERT INTO adm_heads (node, parent, level, key, priority, parked) VALUES (?, ?, ?, ?, 0, 0)"
)
OWNER = "INSERT INTO adm_owners (principal, uid, seen_at_ms) VALUES ('conn', ?, ?)"
PERMIT = "INSERT INTO permits VALUES (?, ?)"
COMMAND = "INSERT INTO commands VALUES (?, ?, ?, ?, ?)"


def filled(file: Path, count: int, *, ruleset: int = NEWEST) -> FoldDriver:
    """A ledger with so many old rows of every kind, and a tenth of that which is young."""
    driver = FoldDriver(file, [ADM, CAP], ruleset=ruleset)
    db = driver.db
    db.execute("BEGIN")
    for n in range(count + count // 10):
        # Seven rows in one millisecond; what is young stands among what is old.
        at_ms = NOW - 1 if n % 11 == 10 else T0 + n // 7
        db.execute(TURN, (f"r{n * 7919 % 1_000_003:07d}", T0, T0, T0, at_ms))
        db.execute(OWNER, (f"{n:026d}", at_ms))
        db.execute(PERMIT, (f"user-{n}", at_ms))
        # Commands are remembered in their order.
        at_ms = NOW - 1 if n >= count else T0 + n
        db.execute(COMMAND, (n + 1, at_ms, n.to_bytes(16), b"d" * 16, b'"status":"ok"'))
    # Empty places: tiers, each with models, owners and lines below it.
    parents = {0: [0]}
    node = 0
    for level, each in ((1, count // 8 or 1), (2, 2), (3, 2), (4, 1)):
        parents[level] = []
        for parent in parents[level - 1]:
            for n in range(each):
                node += 1
                db.execute(HEAD, (node, parent, level, f"k{n}"))
                parents[level].append(node)
    db.execute("UPDATE fold SET ordinal = ?", (count + count // 10 + 1,))
    db.execute("COMMIT")
    driver.reopen()
    return driver


def prune(driver: FoldDriver, **more: Any) -> dict[str, Any]:
    return driver.send("_worker", "sys", "prune", body={"before_at_ms": BEFORE, **more}, at_ms=NOW)


def pruned(driver: FoldDriver) -> Iterator[dict[str, Any]]:
    """Prune until nothing is left."""
    more: dict[str, Any] = {}
    while True:
        result = prune(driver, **more)
        yield result
        if "next" not in result["data"]:
            return
        more = {"after": result["data"]["next"]}


def counts(db: sqlite3.Connection) -> dict[str, int]:
    tables = ("adm_requests", "adm_used", "adm_heads", "adm_owners", "permits", "commands")
    return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


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


def dearest(file: Path, count: int) -> int:
    """Instructions of the dearest part."""
    driver = filled(file, count)
    costs: list[int] = []
    parts = pruned(driver)
    while True:
        with counted(driver.db) as steps:
            said = next(parts, None)
        if said is None:
            return max(costs)
        costs.append(steps[0])
        assert sum(said["data"][kind] for kind in KINDS) <= MOST_ROWS


def test_a_part_costs_the_same_however_much_there_is(tmp_path: Path) -> None:
    small, large = dearest(tmp_path / "small.db", 2_000), dearest(tmp_path / "large.db", 20_000)
    assert large <= 1.5 * small


def test_the_parts_remove_together_what_one_command_removed_before(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole.db", 3_000, ruleset=FIRST)
    parts = filled(tmp_path / "parts.db", 3_000)
    before = counts(parts.db)
    (at_once,) = pruned(whole)
    told = list(pruned(parts))
    assert (at_once["outcome"], at_once["data"]) == ("pruned", {"command_ids": 3_000})
    assert [one["outcome"] for one in told[:-1]] == ["pruned_in_part"] * (len(told) - 1)
    assert told[-1]["outcome"] == "pruned"
    assert {kind: sum(one["data"][kind] for one in told) for kind in KINDS} == {
        "turns": 3_000,
        "lines": before["adm_heads"],
        "connectors": 3_000,
        "permits": 3_000,
        "command_ids": 3_000,
    }
    for table in (*ADM.tables, *CAP.tables):
        rows = [set(one.db.execute(f"SELECT * FROM {table}")) for one in (whole, parts)]
        assert rows[0] == rows[1], table
    assert counts(parts.db)["adm_used"] == 3_000


def test_what_comes_between_two_parts_is_folded_between_them(tmp_path: Path) -> None:
    driver = filled(tmp_path / "ledger.db", 3_000)
    generations = []
    for part in pruned(driver):
        if "next" in part["data"]:
            stopped = driver.send("carol", "cap", "stop", "user-1", at_ms=NOW)
            generations.append(stopped["data"]["generation"])
    assert len(generations) > 10
    assert generations == list(range(1, len(generations) + 1))


def test_replicas_agree_whatever_their_files_and_batches_are_like(tmp_path: Path) -> None:
    """One has folded part by part, the other all in one batch over a file that was rebuilt."""
    one, other = filled(tmp_path / "one.db", 1_200), filled(tmp_path / "other.db", 1_200)
    other.db.execute(
        "CREATE TEMP TABLE kept AS SELECT * FROM adm_requests ORDER BY model, uid DESC"
    )
    other.db.execute("DELETE FROM adm_requests")
    other.db.execute("INSERT INTO adm_requests SELECT * FROM kept ORDER BY request_id DESC")
    other.db.execute("DROP TABLE kept")
    other.reopen()
    assert one.digest() == other.digest()
    parts = list(pruned(one))
    halves = len(parts) // 2
    told = [*other.feed(one.log[:halves]), *other.feed(one.log[halves:])]
    assert [one["data"] for one in told] == [one["data"] for one in parts]
    assert one.digest() == other.digest()


@pytest.mark.parametrize("after", ["", "nothing:", "turns", "lines:x", "lines:-1", "lines:²", ":"])
def test_a_cursor_that_no_prune_answered_stops_nothing(tmp_path: Path, after: str) -> None:
    driver = filled(tmp_path / "ledger.db", 20)
    said = prune(driver, after=after)
    assert said["status"] == "ok" or said["outcome"] == "bad-cursor"
    assert prune(driver)["outcome"] == "pruned"


def test_before_ruleset_3_there_is_no_cursor(tmp_path: Path) -> None:
    driver = filled(tmp_path / "ledger.db", 10, ruleset=FIRST)
    assert prune(driver, after="turns:")["error"]["field"] == "after"
