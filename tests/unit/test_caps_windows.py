"""What time alone does to reservations, and what pruning leaves alone."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.subjects import Speaker
from worker.caps import ladder, transitions, windows
from worker.caps.authority import _STANDING
from worker.caps.plane import PLANE
from worker.caps.queries import show
from worker.ledger.plane import View
from worker.ledger.testing import NAMES, UID, FoldDriver

T0 = 1_800_000_000_000
X = T0 + 3_600_000


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FoldDriver]:
    one = FoldDriver(tmp_path / "ledger.db", [PLANE])
    one.send("_op-otto", "cap", "minting", body={"enabled": True}, at_ms=T0)
    yield one
    one.close()


def send(driver: FoldDriver, verb: str, *key: str, at_ms: int, **body: Any) -> dict[str, Any]:
    return driver.send("delia", "cap", verb, *key, body=body, at_ms=at_ms)


def reserve(driver: FoldDriver, number: int, at_ms: int) -> None:
    body = {"latest_expires_at_ms": X, "cap": 10}
    send(driver, "reserve", f"user-{number}", f"key-number-{number:06d}", at_ms=at_ms, **body)


def states(driver: FoldDriver) -> dict[str, int]:
    found = driver.db.execute("SELECT state, count(*) FROM reservations GROUP BY state")
    return dict(found.fetchall())


def test_the_first_window_that_ends_is_what_is_due(driver: FoldDriver) -> None:
    assert driver.fold.due_at() is None
    reserve(driver, 1, T0)
    reserve(driver, 2, T0 + 5)
    assert driver.fold.due_at() == T0 + 600_001
    body = {"grant_expires_at_ms": X}
    send(driver, "confirm", "user-1", "key-number-000001", at_ms=T0 + 6, **body)
    assert driver.fold.due_at() == T0 + 600_006


def test_a_tick_expires_what_is_over_and_nothing_else(driver: FoldDriver) -> None:
    reserve(driver, 1, T0)
    reserve(driver, 2, T0 + 1)
    driver.tick(at_ms=T0 + 600_000)
    assert states(driver) == {"reserved": 2}
    driver.tick(at_ms=T0 + 600_001)
    assert states(driver) == {"reserved": 1, "expired": 1}
    assert driver.fold.due_at() == T0 + 600_002
    driver.tick(at_ms=T0 + 600_002)
    assert states(driver) == {"expired": 2}
    assert driver.fold.due_at() is None


def test_one_tick_is_bounded_and_the_next_goes_on(driver: FoldDriver) -> None:
    many = windows.EXPIRED_PER_TICK + 3
    for number in range(many):
        reserve(driver, number, T0)
    driver.tick(at_ms=X)
    assert states(driver) == {"reserved": 3, "expired": windows.EXPIRED_PER_TICK}
    assert driver.fold.due_at() == T0 + 600_001
    driver.tick(at_ms=X)
    assert states(driver) == {"expired": many}


def test_a_query_never_writes_an_expiry(driver: FoldDriver) -> None:
    reserve(driver, 1, T0)
    before = driver.digest()
    view = View(driver.db, NAMES, X, 1, 2, 2, Speaker("delia", UID))
    answer = show(view, b'{"user":"user-1","mint_key":"key-number-000001"}')
    assert answer.data["reservation"]["state"] == "reserved"
    assert driver.digest() == before


def test_pruning_frees_no_key_and_no_second(driver: FoldDriver) -> None:
    reserve(driver, 1, T0)
    send(driver, "confirm", "user-1", "key-number-000001", at_ms=T0, grant_expires_at_ms=X)
    send(driver, "authorize", "user-1", at_ms=T0, amount=1, grant_expires_at_ms=X)
    stopped = send(driver, "stop", "user-1", at_ms=T0 + 1)
    assert stopped["data"]["quiet_after_ms"] == T0 + 2_000
    later = T0 + 60_000
    for before, permits in ((T0 + 2_000, 1), (T0 + 2_001, 0)):
        pruned = driver.send(
            "_worker-1", "sys", "prune", body={"before_at_ms": before}, at_ms=later
        )
        assert pruned["outcome"] == "pruned"
        assert driver.db.execute("SELECT count(*) FROM permits").fetchone() == (permits,)
    assert states(driver) == {"revoked": 1}
    body = {"latest_expires_at_ms": X, "cap": 10}
    again = send(driver, "reserve", "user-1", "key-number-000001", at_ms=later, **body)
    assert (again["outcome"], again["data"]["state"]) == ("already_reserved", "revoked")
    other = send(driver, "reserve", "user-1", "key-number-000002", at_ms=later, **body)
    assert other["data"]["expires_at_ms"] == X - 1_000
    assert other["data"]["generation"] == 1


def test_a_full_ladder_takes_no_more_statements_than_an_empty_one(driver: FoldDriver) -> None:
    def counted(number: int) -> int:
        seen: list[str] = []
        driver.db.set_trace_callback(seen.append)
        body = {"latest_expires_at_ms": X, "cap": 10}
        send(driver, "reserve", "ann", f"key-number-{number:06d}", at_ms=T0, **body)
        driver.db.set_trace_callback(None)
        return len(seen)

    counted(0)
    second = counted(1)
    for number in range(2, 299):
        counted(number)
    assert counted(299) == second
    assert counted(300) < second


def test_every_statement_of_a_busy_plane_uses_an_index(driver: FoldDriver) -> None:
    statements: dict[str, tuple[object, ...]] = {
        _STANDING: ("ann",),
        transitions._END_ACTIVE: (1, "ann"),
        ladder._TAKEN: ("ann", 1, 2),
        windows._FIRST: (),
        windows._OVERDUE: (1, 2),
    }
    for statement, values in statements.items():
        plan = driver.db.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        scans = [row[3] for row in plan if row[3].startswith("SCAN") and "INDEX" not in row[3]]
        assert scans in ([], ["SCAN CONSTANT ROW", "SCAN person"]), statement


@pytest.mark.parametrize(
    "change",
    [
        "state = 'banana'",
        "state = 'legacy'",
        "state = 'revoked'",
        "state = 'confirmed_active'",
        "confirmed_at_ms = 1",
        "ended_at_ms = 1",
        "cap = 0",
        "cap = 1000000001",
        "cap = 'ten'",
        "expires_at_ms = expires_at_ms + 1",
        "expires_at_ms = NULL",
        "expires_at_ms = -1000",
        "generation = -1",
        "generation = NULL",
        "mint_key = ''",
        "user = ''",
    ],
)
def test_the_tables_refuse_what_no_transition_writes(driver: FoldDriver, change: str) -> None:
    reserve(driver, 1, T0)
    with pytest.raises(sqlite3.IntegrityError):
        driver.db.execute(f"UPDATE reservations SET {change}")


def test_the_tables_allow_one_active_grant_and_one_holder_of_a_second(driver: FoldDriver) -> None:
    body = {"latest_expires_at_ms": X, "cap": 10}
    for number in (1, 2):
        send(driver, "reserve", "ann", f"key-number-{number:06d}", at_ms=T0, **body)
    send(driver, "confirm", "ann", "key-number-000001", at_ms=T0, grant_expires_at_ms=X)
    for change in ("state = 'confirmed_active', confirmed_at_ms = 1", f"expires_at_ms = {X}"):
        with pytest.raises(sqlite3.IntegrityError):
            driver.db.execute(
                f"UPDATE reservations SET {change} WHERE mint_key = 'key-number-000002'"
            )
    with pytest.raises(sqlite3.IntegrityError):
        driver.db.execute("UPDATE active_grants SET mint_key = 'nothing-like-it-0001'")
