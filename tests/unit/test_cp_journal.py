"""The journal: what this worker saw settle, kept against a store that goes back in time."""

import sqlite3
from pathlib import Path

import pytest

from schemas.records import Holder, StatusRecord
from schemas.subjects import Checkpoint
from worker.checkpoints.journal import KEEP_MS, Journal, Seen, Settlement
from worker.errors import StartRefused

HOLDER = Holder(id="alice", lifecycleUid="a" * 26)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settled.db"


def expired(token: str = "t", generation: int = 2) -> Settlement:
    status = StatusRecord(
        state="expired",
        deadlineGeneration=generation,
        deadline=100,
        observedSpecRevision=1,
        settledGeneration=generation,
        settledTs=105,
    )
    return Settlement(Checkpoint("ep", token), status)


def resumed(token: str = "t") -> Settlement:
    status = StatusRecord(
        state="resumed",
        deadlineGeneration=1,
        deadline=100,
        observedSpecRevision=1,
        settledGeneration=1,
        settledTs=99,
        settledHolder=HOLDER,
        settledAnswerId="answer",
    )
    return Settlement(Checkpoint("ep.two", token), status)


def test_settlements_and_positions_survive_a_restart(path: Path) -> None:
    journal = Journal(path)
    journal.note([expired(), resumed()], {"s": Seen("created", 7)}, 1_000)
    journal.close()
    journal = Journal(path)
    kept = {one.target: one for one in journal.settlements()}
    assert kept == {one.target: one for one in (expired(), resumed())}
    assert journal.seen()["s"] == Seen("created", 7)
    assert "other" not in journal.seen()
    journal.close()


def test_a_settlement_entails_its_fact(path: Path) -> None:
    fact = resumed().fact
    assert fact.to_object() == {
        "v": 1,
        "token": "t",
        "settle": "resumed",
        "generation": 1,
        "holder": HOLDER.to_object(),
        "answerId": "answer",
        "ts": 99,
    }
    waiting = StatusRecord(
        state="waiting", deadlineGeneration=1, deadline=1, observedSpecRevision=1
    )
    with pytest.raises(ValueError, match="no settlement"):
        _ = Settlement(Checkpoint("ep", "t"), waiting).fact


def test_a_settlement_noted_again_is_one_row_and_a_position_moves(path: Path) -> None:
    journal = Journal(path)
    journal.note([expired()], {"s": Seen("c", 1)}, 1_000)
    journal.note([expired()], {"s": Seen("d", 9)}, 2_000)
    assert list(journal.settlements()) == [expired()]
    assert journal.seen()["s"] == Seen("d", 9)
    journal.close()


def test_old_settlements_leave_after_thirty_days(path: Path) -> None:
    journal = Journal(path)
    journal.note([expired("old")], {}, 1_000)
    journal.note([expired("new")], {}, 1_000 + KEEP_MS)
    assert {one.target.token for one in journal.settlements()} == {"old", "new"}
    journal.note([], {}, 1_001 + KEEP_MS)
    assert {one.target.token for one in journal.settlements()} == {"new"}
    journal.close()


def test_what_fails_half_way_leaves_nothing(path: Path) -> None:
    journal = Journal(path)
    with pytest.raises(OverflowError):
        journal.note([expired()], {"s": Seen("c", 2**70)}, 1_000)
    assert list(journal.settlements()) == []
    journal.note([expired()], {}, 1_000)
    assert list(journal.settlements()) == [expired()]
    journal.close()


def test_a_damaged_journal_is_refused_and_never_replaced(path: Path) -> None:
    path.write_bytes(b"not a database at all " * 500)
    before = path.read_bytes()
    with pytest.raises(StartRefused, match="settlement journal"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_newer_journal_and_one_in_use_are_refused(path: Path) -> None:
    journal = Journal(path)
    with pytest.raises(StartRefused, match="in use"):
        Journal(path)
    journal.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    with pytest.raises(StartRefused, match="newer"):
        Journal(path)
