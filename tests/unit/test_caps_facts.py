"""What observers of caps are told, and when."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.caps.plane import PLANE
from worker.ledger.testing import FoldDriver

T0 = 1_800_000_000_000
X = T0 + 3_600_000
K1, K2 = "a" * 16, "b" * 16


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FoldDriver]:
    one = FoldDriver(tmp_path / "ledger.db", [PLANE])
    one.send("_op-otto", "cap", "minting", body={"enabled": True}, at_ms=T0)
    yield one
    one.close()


def send(driver: FoldDriver, verb: str, *key: str, at_ms: int = T0, **body: Any) -> dict[str, Any]:
    return driver.send("delia", "cap", verb, *key, body=body, at_ms=at_ms)


def told(driver: FoldDriver) -> list[tuple[str, dict[str, Any]]]:
    """Kind and body of every fact so far, which are then forgotten."""
    facts = [(row.subject.split(".", 3)[3], json.loads(row.body)) for row in driver.said]
    driver.said.clear()
    return facts


def active(driver: FoldDriver, key: str, second: int) -> None:
    send(driver, "reserve", "ann", key, latest_expires_at_ms=second, cap=10)
    send(driver, "confirm", "ann", key, grant_expires_at_ms=second)


def test_a_reservation_and_its_confirmation_are_facts(driver: FoldDriver) -> None:
    active(driver, K1, X)
    body = {"v": 1, "at_ms": T0, "expires_at_ms": X, "cap": 10, "generation": 0}
    assert told(driver) == [
        ("cap.reserved.ann.1-2-1", body),
        ("cap.confirmed.ann.1-3-1", body),
    ]


def test_a_fact_names_no_mint_key(driver: FoldDriver) -> None:
    active(driver, K1, X)
    assert not any(K1.encode() in row.body or K1 in row.subject for row in driver.said)


def test_superseding_is_told_before_the_confirmation_that_does_it(driver: FoldDriver) -> None:
    active(driver, K1, X)
    told(driver)
    active(driver, K2, X - 1000)
    kinds = [(kind, body["expires_at_ms"]) for kind, body in told(driver)]
    assert kinds == [
        ("cap.reserved.ann.1-4-1", X - 1000),
        ("cap.superseded.ann.1-5-1", X),
        ("cap.confirmed.ann.1-5-2", X - 1000),
    ]


def test_a_stop_is_one_fact_and_names_what_it_ended(driver: FoldDriver) -> None:
    active(driver, K1, X)
    send(driver, "authorize", "ann", amount=1, grant_expires_at_ms=X)
    told(driver)
    send(driver, "stop", "ann")
    send(driver, "stop", "ann", at_ms=T0 + 9_000)
    first = {"v": 1, "at_ms": T0, "generation": 1, "quiet_after_ms": T0 + 2_000}
    second = {"v": 1, "at_ms": T0 + 9_000, "generation": 2, "quiet_after_ms": T0 + 9_000}
    assert told(driver) == [
        ("cap.stopped.ann.1-5-1", {**first, "expires_at_ms": X}),
        ("cap.stopped.ann.1-6-1", second),
    ]


def test_a_revoke_is_told_if_it_ended_something(driver: FoldDriver) -> None:
    active(driver, K1, X)
    told(driver)
    send(driver, "revoke", "ann", expires_at_ms=X)
    send(driver, "revoke", "ann", expires_at_ms=X)
    assert [kind for kind, _ in told(driver)] == ["cap.revoked.ann.1-4-1"]


def test_a_refused_authorization_is_told_with_its_reason(driver: FoldDriver) -> None:
    send(driver, "authorize", "ann", amount=7, grant_expires_at_ms=X)
    body = {
        "v": 1,
        "at_ms": T0,
        "reason": "none-active",
        "amount": 7,
        "grant_expires_at_ms": X,
    }
    assert told(driver) == [("cap.refused.ann.1-2-1", body)]


def test_a_repeated_authorization_is_told_each_time_it_is_refused(driver: FoldDriver) -> None:
    for _ in range(2):
        body = {"amount": 7, "grant_expires_at_ms": X}
        driver.send("delia", "cap", "authorize", "ann", body=body, at_ms=T0, command_id="a" * 16)
    assert [kind for kind, _ in told(driver)] == ["cap.refused.ann.1-2-1", "cap.refused.ann.1-3-1"]


def test_an_expiry_is_told_by_whatever_observes_it_and_once(driver: FoldDriver) -> None:
    send(driver, "reserve", "ann", K1, latest_expires_at_ms=X, cap=10)
    send(driver, "reserve", "ann", K2, latest_expires_at_ms=X, cap=10)
    told(driver)
    send(driver, "confirm", "ann", K1, grant_expires_at_ms=X, at_ms=T0 + 600_001)
    driver.tick(at_ms=T0 + 600_002)
    driver.tick(at_ms=T0 + 600_003)
    send(driver, "reserve", "ann", K2, latest_expires_at_ms=X, cap=10, at_ms=T0 + 600_004)
    found = [(kind, body["expires_at_ms"], body["at_ms"]) for kind, body in told(driver)]
    assert found == [
        ("cap.expired.ann.1-4-1", X, T0 + 600_001),
        ("cap.expired.ann.1-5-1", X - 1000, T0 + 600_002),
    ]


def test_what_changes_nothing_is_not_told(driver: FoldDriver) -> None:
    active(driver, K1, X)
    told(driver)
    send(driver, "reserve", "ann", K1, latest_expires_at_ms=X, cap=10)
    send(driver, "reserve", "ann", K1, latest_expires_at_ms=X, cap=11)
    send(driver, "confirm", "ann", K1, grant_expires_at_ms=X)
    send(driver, "confirm", "ann", K1, grant_expires_at_ms=X + 1)
    send(driver, "authorize", "ann", amount=1, grant_expires_at_ms=X)
    assert told(driver) == []
