"""Fingerprints of the log: dense for what is recent, sparse before, and cut at a regression."""

import dataclasses
from pathlib import Path

import pytest

from tests.ledgers import HOLDS
from worker.ledger import marks
from worker.ledger.marks import Remembered, fingerprint, forget_after
from worker.ledger.testing import FoldDriver, Logged

T0 = 1_700_000_000_000
MESSAGE = Logged("tidegate.test.cmd.a.b.cap.stop.u1", 7, T0, {"X": "1"}, b'{"v":1}')


@pytest.fixture
def driver(tmp_path: Path) -> FoldDriver:
    return FoldDriver(tmp_path / "ledger.db", [HOLDS])


def feed(driver: FoldDriver, count: int, size: int) -> None:
    for _ in range(count // size):
        first = driver.message("_worker", "sys", "tick", at_ms=T0)
        driver.feed([dataclasses.replace(first, seq=first.seq + n) for n in range(size)])


@pytest.mark.parametrize(
    "change",
    [
        {"subject": "tidegate.test.cmd.a.b.cap.stop.u2"},
        {"time_ms": T0 + 1},
        {"headers": {"X": "2"}},
        {"headers": {}},
        {"data": b'{"v":2}'},
    ],
)
def test_a_fingerprint_covers_subject_time_headers_and_body(change: dict[str, object]) -> None:
    assert fingerprint(MESSAGE) != fingerprint(dataclasses.replace(MESSAGE, **change))  # type: ignore[arg-type]  # a field each


def test_a_fingerprint_does_not_depend_on_where_the_message_is() -> None:
    assert fingerprint(MESSAGE) == fingerprint(dataclasses.replace(MESSAGE, seq=8))


def test_every_recent_message_is_remembered(driver: FoldDriver) -> None:
    feed(driver, 30, 3)
    remembered = Remembered.read(driver.db)
    assert remembered.sequences(1, 100) == list(range(1, 31))
    assert remembered.sequences(4, 8) == [4, 5, 6, 7, 8]
    for message in driver.log:
        assert remembered.print_of(message.seq) == fingerprint(message)
    assert remembered.print_of(31) is None


def test_older_messages_are_remembered_sparsely(
    driver: FoldDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "DENSE", 1_000)
    monkeypatch.setattr(marks, "SPARSE", 100)
    monkeypatch.setattr(marks, "_THIN_EVERY", 50)
    feed(driver, 3_000, 10)
    remembered = Remembered.read(driver.db)
    assert set(remembered.sequences(2_001, 3_000)) == set(range(2_001, 3_001))
    old = remembered.sequences(1, 1_900)
    assert 15 <= len(old) <= 25
    for seq in old:
        assert remembered.print_of(seq) == fingerprint(driver.log[seq - 1])


def test_what_the_log_no_longer_holds_is_forgotten(driver: FoldDriver) -> None:
    feed(driver, 30, 10)
    forget_after(driver.db, 14)
    remembered = Remembered.read(driver.db)
    assert remembered.sequences(1, 100) == list(range(1, 15))
    assert remembered.print_of(14) == fingerprint(driver.log[13])
    forget_after(driver.db, 0)
    assert Remembered.read(driver.db).rows == []


def test_fingerprints_are_not_logical_state(driver: FoldDriver) -> None:
    feed(driver, 10, 5)
    before = driver.digest()
    forget_after(driver.db, 2)
    assert driver.digest() == before
