"""A drain stands until somebody says that it ends, and its words are true."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adm import OPERATOR, Admission, Json, fold_again
from worker.ledger.rulesets import FIRST


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def drain(adm: Admission, to: int) -> str:
    return str(adm.send("drain", by=OPERATOR, to=to)["outcome"])


def claim(adm: Admission, seats: int, **more: Any) -> Json:
    epoch = adm.policy()["epoch"] + 1
    return adm.send("policy", by=OPERATOR, epoch=epoch, max_active_turns=seats, **more)


def matches(adm: Admission, seats: int) -> bool:
    body: Json = {"assert": {"max_active_turns": seats}}
    return bool(adm.send("policy", by=OPERATOR, **body)["outcome"] == "match")


@pytest.mark.parametrize("claims", [1, 2, 3])
def test_a_pause_stands_whatever_policies_are_claimed(adm: Admission, claims: int) -> None:
    assert drain(adm, 0) == "drained"
    for n in range(claims):
        result = claim(adm, 5 + n)
        assert (result["outcome"], result["data"]["drained_to"]) == ("claimed", 0)
    adm.enqueue("r1")
    assert adm.state("r1") == "queued"
    assert adm.policy()["seat_limit"] == 0
    assert claim(adm, 2, resume=True)["data"]["seat_limit"] == 2
    assert adm.state("r1") == "admitted"
    assert "drained_to" not in adm.policy()


def test_a_claim_below_a_drain_binds_and_the_drain_stands(adm: Admission) -> None:
    claim(adm, 8)
    assert drain(adm, 3) == "drained"
    assert claim(adm, 2)["data"]["seat_limit"] == 2
    assert claim(adm, 9)["data"]["seat_limit"] == 3
    assert claim(adm, 9, resume=True, silence_ms=9)["data"]["seat_limit"] == 9


def test_a_drain_to_the_policys_own_limit_ends_the_drain(adm: Admission) -> None:
    drain(adm, 0)
    assert adm.policy()["drained_to"] == 0
    drain(adm, 8)
    assert "drained_to" not in adm.policy()
    assert claim(adm, 12)["data"]["seat_limit"] == 12


def test_a_claim_during_a_drain_leaves_it_under_way(adm: Admission) -> None:
    claim(adm, 4)
    for n in (1, 2):
        adm.bring_to("active", f"r{n}")
    assert drain(adm, 1) == "draining"
    assert claim(adm, 6)["outcome"] == "claimed"
    assert (adm.policy()["draining"], adm.policy()["seat_limit"]) == (True, 1)
    adm.step("complete", "r1", outcome="completed")
    assert (adm.policy()["draining"], adm.policy()["seat_limit"]) == (False, 1)


@pytest.mark.parametrize("first", [True, False])
def test_resuming_ends_a_drain_under_way(adm: Admission, first: bool) -> None:
    if not first:
        claim(adm, 4)
    for n in (1, 2):
        adm.bring_to("active", f"r{n}")
    assert drain(adm, 0) == "draining"
    assert claim(adm, 3, resume=True)["outcome"] == "claimed"
    adm.enqueue("r3")
    assert adm.state("r3") == "admitted"
    assert adm.policy()["draining"] is False


def test_a_claim_repeated_does_not_end_a_drain_that_came_after_it(adm: Admission) -> None:
    body: Json = {"epoch": 1, "max_active_turns": 3, "resume": True}
    adm.send("policy", by=OPERATOR, command_id="c" * 16, **body)
    drain(adm, 0)
    for command_id in ("c" * 16, "d" * 16):
        assert adm.send("policy", by=OPERATOR, command_id=command_id, **body)["status"] == "ok"
        assert adm.policy()["seat_limit"] == 0


@pytest.mark.parametrize("to", [1, 0, 5, 8])
def test_what_holds_is_what_an_assertion_matches(adm: Admission, to: int) -> None:
    claim(adm, 3)
    drain(adm, to)
    assert [seats for seats in range(10) if seats and matches(adm, seats)] == [to] * bool(to)


def test_a_limit_that_more_hold_than_it_allows_is_not_drained_yet(adm: Admission) -> None:
    for n in range(4):
        adm.bring_to("active", f"r{n}")
    claim(adm, 3)
    assert drain(adm, 3) == "draining"
    adm.step("complete", "r1", outcome="completed")
    assert drain(adm, 3) == "drained"


def test_a_first_claim_of_fewer_seats_than_are_held_drains(adm: Admission) -> None:
    for n in range(2):
        adm.bring_to("active", f"r{n}")
    assert claim(adm, 1)["data"]["draining"] is True
    assert not matches(adm, 2)
    adm.step("complete", "r1", outcome="completed")
    assert adm.policy()["draining"] is False
    assert adm.events()[-1][0] == "policy_drain_completed"


def test_a_drain_that_its_own_repetition_finds_done_is_done(adm: Admission) -> None:
    adm.enqueue("r1", timeout_ms=1_000)
    assert drain(adm, 0) == "draining"
    adm.now_ms += 60_000  # nobody started
    assert drain(adm, 0) == "drained"


def test_a_drain_delivered_again_is_not_begun_again(adm: Admission) -> None:
    claim(adm, 4)
    for claimed in (None, 1, 8):
        if claimed is not None:
            claim(adm, claimed)
        again = adm.send("drain", by=OPERATOR, to=1, command_id="d" * 16)
        assert (again["outcome"], again["data"]["drained_to"]) == ("drained", 1)
    assert adm.policy()["seat_limit"] == 1


def test_resume_goes_with_a_claim_only(adm: Admission) -> None:
    body: Json = {"resume": True, "assert": {"epoch": 0}}
    assert adm.send("policy", by=OPERATOR, **body)["error"]["field"] == "assert"


def test_under_the_first_ruleset_a_claim_ends_a_drain(tmp_path: Path) -> None:
    adm = Admission(tmp_path, ruleset=FIRST)
    drain(adm, 0)
    assert adm.send("policy", by=OPERATOR, epoch=1, resume=True)["outcome"] == "unknown-field"
    assert claim(adm, 3)["data"]["seat_limit"] == 3
    drain(adm, 1)
    assert matches(adm, 3)
    view = adm.send("drain", by=OPERATOR, to=1)["data"]
    assert "drained_to" not in view
    assert "max_priority" not in view["policy"]
    # The next ruleset finds the drain that stands.
    adm.send("ruleset", plane="sys", by="_worker", version=3)
    assert claim(adm, 5)["data"]["seat_limit"] == 1
    assert fold_again(adm.driver, tmp_path) == adm.driver.digest().whole
    adm.close()
