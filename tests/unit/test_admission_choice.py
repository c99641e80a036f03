"""The choice: priority, idle agents first, ageing, and heads that block nobody."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adm import OPERATOR, T0, UID, UID2, Admission


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path, max_active_turns=1)
    admission.send("drain", by=OPERATOR, to=0)
    yield admission
    admission.close()


def serve(adm: Admission, turns: int, *, each_ms: int = 0) -> list[str]:
    """Open one seat and complete whatever gets it, so many times."""
    adm.send("drain", by=OPERATOR, to=1)
    for _ in range(turns - 1):
        finish(adm, each_ms)
    return adm.grants()


def finish(adm: Admission, each_ms: int = 0) -> None:
    """Complete the turn that was granted last, some time after its grant."""
    request = adm.grants()[-1]
    adm.now_ms += each_ms
    for verb in ("start", "intent", "active"):
        adm.intend(request, channel="http") if verb == "intent" else adm.step(verb, request)
    adm.step("complete", request, outcome="completed")


def test_plain_order_is_by_instant_and_then_by_request_id(adm: Admission) -> None:
    for request, at in (("r2", 0), ("r3", 0), ("r1", 0), ("r0", 5)):
        adm.enqueue(request, f"agent-of-{request}", at=T0 + at)
    assert serve(adm, 4) == ["r1", "r2", "r3", "r0"]


def test_higher_priorities_go_first_whoever_holds_seats(adm: Admission) -> None:
    adm.enqueue("low", "agent-1", priority=-100)
    adm.enqueue("normal", "agent-2")
    adm.enqueue("high", "agent-3", priority=100)
    assert serve(adm, 3) == ["high", "normal", "low"]


def test_an_agent_without_a_seat_goes_before_one_that_holds_one(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=2)
    adm.send("drain", by=OPERATOR, to=0)
    for request, agent in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")):
        adm.enqueue(request, agent)
    adm.send("drain", by=OPERATOR, to=2)
    assert adm.grants() == ["a1", "b1"]
    finish(adm)
    assert adm.grants() == ["a1", "b1", "a2"]
    adm.close()


def test_idleness_counts_over_models_owners_and_priorities(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=2)
    adm.enqueue("a1", "a")
    adm.send("drain", by=OPERATOR, to=1)
    adm.enqueue("a2", "a", model="m2", uid=UID2)
    adm.enqueue("b1", "b", at=T0 + 1)
    adm.send("drain", by=OPERATOR, to=2)
    assert adm.grants() == ["a1", "b1"]
    adm.close()


def test_a_flood_of_one_agent_costs_another_at_most_one_turns_length(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=3)
    for n in range(1_000):
        adm.enqueue(f"flood-{n:04d}", "flood")
    assert len(adm.grants()) == 3
    for n in range(20):
        adm.now_ms += 50
        adm.enqueue(f"other-{n}", "other")
        asked_at_ms = adm.now_ms
        finish(adm, each_ms=50)
        assert adm.grants()[-1] == f"other-{n}"
        assert adm.turn(f"other-{n}")["lease"]["admitted_at_ms"] - asked_at_ms <= 100
        finish(adm, each_ms=50)
        assert adm.grants()[-1].startswith("flood-")
    adm.close()


def test_an_aged_turn_is_taken_in_plain_order_every_second_time(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=2, queue_timeout_ms=10_000, start_timeout_ms=99_999)
    adm.bring_to("active", "keeps-a-seat")
    adm.send("drain", by=OPERATOR, to=1)
    flooder = "agent-of-keeps-a-seat"
    for n in range(4):
        adm.enqueue(f"old-{n}", flooder)
    for n in range(4):
        adm.enqueue(f"new-{n}", f"idle-{n}", at=T0 + 5_000)
    # Half of 10,000 ms old is not yet older than half.
    adm.send("drain", by=OPERATOR, to=2, at=T0 + 5_000)
    assert adm.grants()[1:] == ["new-0"]
    adm.now_ms = T0 + 5_001
    for _ in range(6):
        finish(adm)
    assert adm.grants()[1:] == ["new-0", "old-0", "new-1", "old-1", "new-2", "old-2", "new-3"]
    adm.close()


@pytest.mark.parametrize(
    "other", [{}, {"grant": "pull", "priority": 1}, {"grant": "pull", "by": "pool"}]
)
def test_what_ages_elsewhere_does_not_keep_an_aged_turn_waiting(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    adm = Admission(tmp_path, max_active_turns=3, queue_timeout_ms=10_000, start_timeout_ms=99_999)
    adm.bring_to("active", "busy")
    adm.enqueue("old", "agent-of-busy", grant="pull")
    for n in range(20):
        adm.enqueue(f"new-{n:02d}", f"idle-{n}", grant="pull", at=T0 + 4_000)
    adm.now_ms = T0 + 6_000
    got = []
    for n in range(4):
        adm.send("drain", by=OPERATOR, to=0)
        theirs, by = f"theirs-{n}", other.get("by", "conn")
        adm.enqueue(theirs, "agent-of-busy", timeout_ms=10, **other)
        adm.now_ms += 7  # it has aged
        adm.send("drain", by=OPERATOR, to=2)
        if other:
            assert adm.send("admit", by=by)["data"]["request_id"] == theirs
        adm.send("abandon", theirs, by=by, outcome="failed", **adm.fence(theirs))
        got.append(adm.send("admit")["data"]["request_id"])
        adm.step("abandon", got[-1], outcome="failed")
    assert "old" in got[:2]
    adm.close()


def test_each_turn_ages_by_its_own_timeout(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=2)
    adm.bring_to("active", "keeps-a-seat")
    adm.send("drain", by=OPERATOR, to=1)
    flooder = "agent-of-keeps-a-seat"
    adm.enqueue("patient", flooder)
    adm.enqueue("hurried", flooder, timeout_ms=1_000, at=T0 + 1)
    adm.enqueue("newcomer", "idle", at=T0 + 2)
    adm.send("drain", by=OPERATOR, to=2, at=T0 + 600)
    assert adm.grants()[1:] == ["hurried"]
    adm.close()


def test_an_aged_low_priority_still_waits_for_higher_ones(adm: Admission) -> None:
    adm.enqueue("low", "agent-1", priority=-1, timeout_ms=10_000)
    adm.enqueue("high", "agent-2", at=T0 + 9_000)
    assert serve(adm, 2) == ["high", "low"]


def test_a_cooling_model_blocks_only_itself(adm: Admission) -> None:
    adm.send("cooldown", by=OPERATOR, provider="acme", model="m1", not_before_ms=T0 + 1_000)
    adm.enqueue("cooling", "agent-1", priority=50)
    adm.enqueue("warm", "agent-2", model="m2")
    assert serve(adm, 1) == ["warm"]


@pytest.mark.parametrize(("at_ms", "state"), [(999, "queued"), (1_000, "admitted")])
def test_a_cooldown_end_equal_to_now_is_over(adm: Admission, at_ms: int, state: str) -> None:
    adm.send("cooldown", by=OPERATOR, provider="acme", model="m1", not_before_ms=T0 + 1_000)
    adm.enqueue("r1")
    adm.send("drain", by=OPERATOR, to=1)
    assert adm.driver.fold.due_at() == T0 + 1_000
    adm.tick(T0 + at_ms)
    assert adm.state("r1") == state


def test_a_cooldown_never_shortens(adm: Admission) -> None:
    for asked, stands in ((1_000, 1_000), (500, 1_000), (2_000, 2_000), (-5, 2_000)):
        result = adm.send(
            "cooldown", by=OPERATOR, provider="acme", model="m1", not_before_ms=T0 + asked
        )
        assert result["data"]["until_ms"] == T0 + stands
    adm.enqueue("r1")
    assert adm.answer("queue", request_id="r1")["cooldown_until_ms"] == T0 + 2_000


@pytest.mark.parametrize(
    ("retry_after_ms", "rests_ms"), [(None, 30_000), (10, 30_000), (45_000, 45_000)]
)
def test_a_capacity_failure_cools_its_model_down(
    adm: Admission, retry_after_ms: int | None, rests_ms: int
) -> None:
    adm.enqueue("r1")
    adm.enqueue("r2", "agent-2")
    adm.send("drain", by=OPERATOR, to=1)
    for verb in ("start", "intent", "active"):
        adm.intend("r1", channel="http") if verb == "intent" else adm.step(verb, "r1")
    more = {} if retry_after_ms is None else {"retry_after_ms": retry_after_ms}
    failure = {"category": "provider_capacity", "http_status": 529}
    adm.step("complete", "r1", outcome="failed", failure=failure, **more)
    assert adm.state("r2") == "queued"
    assert adm.answer("queue", request_id="r2")["cooldown_until_ms"] == T0 + rests_ms
    adm.tick(T0 + rests_ms)
    assert adm.state("r2") == "admitted"


def test_other_failures_cool_nothing_down(adm: Admission) -> None:
    adm.enqueue("r1")
    adm.enqueue("r2", "agent-2")
    adm.send("drain", by=OPERATOR, to=1)
    for verb in ("start", "intent", "active"):
        adm.intend("r1", channel="http") if verb == "intent" else adm.step(verb, "r1")
    adm.step(
        "complete", "r1", outcome="failed", failure={"category": "quota"}, retry_after_ms=9_000
    )
    assert adm.state("r2") == "admitted"


def test_a_silent_owners_turn_is_skipped_and_not_cancelled(adm: Admission) -> None:
    adm.enqueue("of-the-silent", "agent-1", uid=UID2)
    adm.enqueue("of-the-living", "agent-2", at=T0 + 1)
    adm.enqueue("later", "agent-3", at=T0 + 5_000)
    assert adm.liveness("silent", T0, uid=UID2)["outcome"] == "suspected"
    assert serve(adm, 2) == ["of-the-living", "later"]
    assert adm.state("of-the-silent") == "queued"
    assert adm.answer("queue", request_id="of-the-silent")["blocks"] == ["seats", "silence"]
    assert adm.liveness("alive", adm.now_ms, uid=UID2)["outcome"] == "cleared"
    finish(adm)
    assert adm.grants()[-1] == "of-the-silent"


@pytest.mark.parametrize("who", ["alive", "its own command"])
def test_a_suspect_owner_that_is_heard_is_eligible_again(adm: Admission, who: str) -> None:
    adm.enqueue("r1", uid=UID2)
    adm.now_ms = T0 + 4_001
    adm.liveness("silent", T0, uid=UID2)
    adm.send("drain", by=OPERATOR, to=1)
    assert adm.state("r1") == "queued"
    if who == "alive":
        adm.liveness("alive", adm.now_ms, uid=UID2)
    else:
        adm.enqueue("r1", uid=UID2)
    assert adm.state("r1") == "admitted"


def test_a_silent_owners_pull_turn_is_skipped_too(adm: Admission) -> None:
    adm.enqueue("r1", uid=UID2, grant="pull")
    adm.now_ms = T0 + 4_001
    adm.liveness("silent", T0, uid=UID2)
    adm.send("drain", by=OPERATOR, to=1)
    assert adm.send("admit", uid=UID)["data"] == {"blocks": ["silence"]}
    assert adm.send("admit", uid=UID2)["outcome"] == "admitted"


def test_an_expired_head_blocks_nobody(adm: Admission) -> None:
    for n in range(300):
        adm.enqueue(f"expired-{n:03d}", f"agent-{n}", timeout_ms=10, priority=5)
    adm.enqueue("alive", "agent-x")
    adm.send("drain", by=OPERATOR, to=1, at=T0 + 10)
    assert adm.grants() == ["alive"]
    assert adm.policy()["queued"] == 0


def test_a_requeued_turn_goes_back_to_its_old_place(adm: Admission) -> None:
    adm.enqueue("r1", "agent-1")
    adm.enqueue("r2", "agent-2", at=T0 + 1)
    adm.send("drain", by=OPERATOR, to=1)
    assert adm.grants() == ["r1"]
    adm.tick(T0 + 1 + 60_000)
    assert adm.grants() == ["r1", "r1"]
    assert adm.turn("r1")["generation"] == 2
