"""``cap.list``: whose caps are in force, and which ended last, a page at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.caps import CapsPage
from schemas.subjects import Speaker
from worker.caps import queries
from worker.caps.plane import PLANE
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


def send(driver: FoldDriver, verb: str, *key: str, at_ms: int = T0, **body: Any) -> str:
    return str(driver.send("delia", "cap", verb, *key, body=body, at_ms=at_ms)["outcome"])


def grant(driver: FoldDriver, user: str) -> None:
    send(driver, "reserve", user, "key-number-000001", latest_expires_at_ms=X, cap=10)
    assert send(driver, "confirm", user, "key-number-000001", grant_expires_at_ms=X) == "confirmed"


def listed(driver: FoldDriver, **body: Any) -> CapsPage:
    view = View(driver.db, NAMES, T0, 1, 1, 2, Speaker("_op", UID))
    verdict = queries.listing(view, json.dumps({"v": 1, **body}).encode())
    return CapsPage.from_object(verdict.data)


def test_the_active_come_by_person_and_page_by_page(driver: FoldDriver) -> None:
    for user in ("cleo", "ann", "bob"):
        grant(driver, user)
    first = listed(driver, limit=2)
    assert [one.cap.user for one in first.caps] == ["ann", "bob"]
    assert first.next_after_user == "bob"
    rest = listed(driver, limit=2, after_user="bob")
    assert [one.cap.user for one in rest.caps] == ["cleo"]
    assert rest.next_after_user is None
    assert not any(one.stopped for one in (*first.caps, *rest.caps))


def test_the_ended_come_with_the_latest_first_and_a_stop_shows(driver: FoldDriver) -> None:
    for user in ("ann", "bob", "cleo"):
        grant(driver, user)
    assert send(driver, "revoke", "ann", at_ms=T0 + 1, expires_at_ms=X) == "revoked"
    assert send(driver, "stop", "bob", at_ms=T0 + 2) == "stopped"
    ended = listed(driver, which="ended")
    assert [(one.cap.user, one.stopped) for one in ended.caps] == [("bob", True), ("ann", False)]
    assert [one.cap.user for one in listed(driver).caps] == ["cleo"]
    assert [one.cap.user for one in listed(driver, which="ended", limit=1).caps] == ["bob"]


def test_a_bumped_grant_is_in_the_list_and_said_to_authorise_nothing(driver: FoldDriver) -> None:
    grant(driver, "ann")
    assert send(driver, "bump", "ann") == "bumped"
    assert [(one.cap.user, one.stopped) for one in listed(driver).caps] == [("ann", True)]


def test_a_damaged_row_is_counted_and_holds_up_no_other(driver: FoldDriver) -> None:
    for user in ("ann", "bob"):
        grant(driver, user)
    driver.db.execute("PRAGMA ignore_check_constraints = ON")
    driver.db.execute("UPDATE reservations SET cap = -5 WHERE user = 'ann'")
    page = listed(driver)
    assert [one.cap.user for one in page.caps] == ["bob"]
    assert page.damaged == 1


@pytest.mark.parametrize(
    ("statement", "index"),
    [(queries._ACTIVE, "reservations_active"), (queries._ENDED, "reservations_ended")],
)
def test_no_page_reads_more_than_itself(driver: FoldDriver, statement: str, index: str) -> None:
    arguments = ("", 10)[-statement.count("?") :]
    plan = driver.db.execute(f"EXPLAIN QUERY PLAN {statement}", arguments).fetchall()
    steps = [row[3] for row in plan]
    assert any(f"USING INDEX {index}" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
