"""Log time that was ahead is set back by a command, in every replica alike."""

from pathlib import Path

import pytest

from tests.ledgers import HOLDS
from tests.support.adm import OPERATOR, T0, Admission, Json, fold_again
from worker.caps.plane import PLANE as CAPS
from worker.ledger.testing import FoldDriver

AHEAD = T0 + 7_200_000
"""Two hours later, as a wrong clock had it."""


def clock(driver: FoldDriver, at_ms: int) -> tuple[str, int]:
    result = driver.send("_worker", "sys", "clock", at_ms=at_ms)
    return result["outcome"], result["at_ms"]


def test_log_time_is_set_back_and_goes_on_from_there(tmp_path: Path) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [HOLDS])
    driver.send("alice", "cap", "stop", "u1", at_ms=AHEAD)
    assert driver.send("alice", "cap", "stop", "u1", at_ms=T0)["at_ms"] == AHEAD
    assert clock(driver, T0 + 1) == ("set_back", T0 + 1)
    assert driver.said[-1].subject.split(".")[2:5] == ["fact", "sys", "clock_set_back"]
    assert driver.send("alice", "cap", "stop", "u1", at_ms=T0 + 2)["at_ms"] == T0 + 2
    assert clock(driver, T0 + 3) == ("in_step", T0 + 3)
    again = FoldDriver(tmp_path / "again.db", [HOLDS])
    again.feed(driver.log)
    assert again.digest() == driver.digest()


def test_a_client_and_an_older_ruleset_set_no_clock_back(tmp_path: Path) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [HOLDS])
    assert driver.send("alice", "sys", "clock", at_ms=T0)["outcome"] == "wrong-role"
    older = FoldDriver(tmp_path / "older.db", [HOLDS], ruleset=2)
    older.send("alice", "cap", "stop", "u1", at_ms=AHEAD)
    assert clock(older, T0) == ("unknown-verb", AHEAD)
    assert older.fold.state.now_ms == AHEAD


def test_pacing_silence_and_the_queue_go_on_at_the_right_time(tmp_path: Path) -> None:
    adm = Admission(tmp_path, min_start_interval_ms=2_000, queue_timeout_ms=60_000)
    driver = adm.driver
    adm.enqueue("early")
    adm.enqueue("first", "agent-2", at=AHEAD)
    adm.enqueue("second", "agent-3", at=AHEAD + 1)
    assert adm.state("first") == "admitted"
    assert adm.state("second") == "queued"
    now = T0 + 60_000
    driver.tick(at_ms=now)
    assert adm.state("second") == "queued", "pacing waits for the wrong time"
    assert clock(driver, now) == ("set_back", now)
    due = driver.fold.due_at()
    assert due is not None
    assert due <= now + 2_000
    driver.tick(at_ms=now + 2_000)
    assert adm.state("second") == "admitted"
    adm.close()


def test_turns_queued_in_the_wrong_time_keep_their_turn(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=1)
    adm.enqueue("holds", at=AHEAD)
    adm.enqueue("wrong", "agent-2", at=AHEAD)
    now = T0 + 60_000
    clock(adm.driver, now)
    adm.now_ms = now + 1
    adm.enqueue("later", "agent-3")
    adm.step("abandon", "holds", outcome="cancelled")
    assert adm.state("wrong") == "admitted", "it came before"
    assert adm.state("later") == "queued"
    adm.close()


@pytest.mark.parametrize("enqueued_at_ms", [T0, AHEAD])
def test_a_turn_that_is_queued_again_after_the_wrong_time_waits_no_longer_than_any(
    tmp_path: Path, enqueued_at_ms: int
) -> None:
    adm = Admission(tmp_path, max_active_turns=1, queue_timeout_ms=60_000, start_timeout_ms=5_000)
    if enqueued_at_ms == T0:
        # It began before, and an operator gave it back in the wrong time.
        adm.bring_to("active", "wrong")
        adm.tick(AHEAD)
        adm.evidence("wrong", child="alive", group="alive")
        word: Json = {"resolution": "confirmed_not_dispatched", "evidence": "looked"}
        assert adm.send("resolve", "wrong", by=OPERATOR, **word)["outcome"] == "requeued"
    else:
        adm.enqueue("wrong", at=AHEAD)
        assert adm.state("wrong") == "admitted"
    now = T0 + 10_000
    clock(adm.driver, now)
    adm.now_ms = now
    if enqueued_at_ms == AHEAD:
        adm.step("start", "wrong")
        adm.enqueue("later", "agent-2", at=now + 1)
        adm.driver.tick(at_ms=now + 5_000)
        adm.now_ms = now + 5_000
        assert (adm.state("wrong"), adm.state("later")) == ("admitted", "queued")
    assert adm.turn("wrong")["deadline_at_ms"] <= now + 1_800_000
    assert adm.turn("wrong")["enqueued_at_ms"] <= now
    again = fold_again(adm.driver, tmp_path)
    assert again == adm.driver.digest().whole
    adm.close()


@pytest.mark.parametrize("reserved_at_ms", [T0, AHEAD])
def test_a_reservation_waits_its_window_and_a_second_stays_used(
    tmp_path: Path, reserved_at_ms: int
) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [CAPS])

    def send(verb: str, *key: str, at_ms: int, **body: int) -> str:
        result = driver.send("delia", "cap", verb, "ann", *key, body=body, at_ms=at_ms)
        return str(result["outcome"])

    driver.send("_op", "cap", "minting", body={"enabled": True}, at_ms=T0)
    expiry = AHEAD + 3_600_000
    key = "a" * 16
    send("reserve", key, at_ms=reserved_at_ms, latest_expires_at_ms=expiry, cap=10)
    send("stop", at_ms=AHEAD)
    generation = driver.send("delia", "cap", "bump", "ann", at_ms=AHEAD)["data"]["generation"]
    now = T0 + 1_000
    clock(driver, now)
    due = driver.fold.due_at()
    assert due is None or due <= now + 600_001
    other = driver.send(
        "delia",
        "cap",
        "reserve",
        "ann",
        "b" * 16,
        body={"latest_expires_at_ms": expiry, "cap": 10},
        at_ms=now,
    )["data"]
    assert other["expires_at_ms"] == expiry - 1_000, "the second is used for ever"
    assert other["generation"] == generation, "no generation comes again"
    assert send("confirm", key, at_ms=now, grant_expires_at_ms=expiry) == "stopped"
