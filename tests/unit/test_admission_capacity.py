"""Seats, concurrent starts, pacing, the durable policy and drains."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adm import OPERATOR, T0, UID2, Admission, Json
from tests.support.results import code_of
from worker.ledger.tx import Kind

DEFAULTS: dict[str, Any] = {
    "max_active_turns": 8,
    "max_concurrent_starts": 8,
    "min_start_interval_ms": 0,
    "queue_timeout_ms": 1_800_000,
    "capacity_cooldown_ms": 30_000,
    "start_timeout_ms": 60_000,
    "adoption_timeout_ms": 60_000,
    "silence_ms": 4_000,
    "max_retry_after_ms": 86_400_000,
    "max_priority": {},
}


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def with_policy(folder: Path, **policy: int) -> Admission:
    return Admission(folder, **policy)


def asserted(adm: Admission, believed: dict[str, int]) -> Json:
    body: Json = {"assert": believed}
    return adm.send("policy", by=OPERATOR, **body)


def policy_events(adm: Admission) -> list[str]:
    return [kind for kind, _, _ in adm.events() if kind.startswith("policy_")]


def test_a_seat_is_held_from_admission_to_the_end_debt_included(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, max_active_turns=6)
    for n, state in enumerate(
        (
            "admitted",
            "starting",
            "dispatch_intent",
            "active",
            "dispatch_ambiguous",
            "recovery_required",
        ),
        1,
    ):
        adm.bring_to(state, f"r-{state}")
        assert adm.policy()["seats"] == n
    adm.enqueue("next", "someone-else")
    assert adm.state("next") == "queued"
    assert adm.answer("queue", request_id="next")["blocks"] == ["seats"]
    adm.step("complete", "r-active", outcome="completed")
    assert adm.state("next") == "admitted"
    adm.close()


def test_starts_count_until_active_or_doubt(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, max_concurrent_starts=1)
    for state in ("active", "dispatch_ambiguous", "recovery_required"):
        adm.bring_to(state, f"r-{state}")
    for state in ("admitted", "starting", "dispatch_intent"):
        adm.bring_to(state, f"r-{state}")
        adm.enqueue(f"after-{state}")
        assert adm.answer("queue", request_id=f"after-{state}")["blocks"] == ["starts"]
        adm.step("abandon", f"r-{state}", outcome="cancelled")
        assert adm.state(f"after-{state}") == "admitted"
        adm.step("abandon", f"after-{state}", outcome="cancelled")
    adm.close()


@pytest.mark.parametrize(("after_ms", "state"), [(1_999, "queued"), (2_000, "admitted")])
def test_pacing_blocks_until_the_interval_is_over(
    tmp_path: Path, after_ms: int, state: str
) -> None:
    adm = with_policy(tmp_path, min_start_interval_ms=2_000)
    adm.enqueue("r1")
    adm.enqueue("r2", "agent-2")
    assert adm.state("r2") == "queued"
    assert adm.answer("queue", request_id="r2")["blocks"] == ["pacing"]
    assert adm.driver.fold.due_at() == T0 + 2_000
    adm.tick(T0 + after_ms)
    assert adm.state("r2") == state
    adm.close()


def test_a_slow_start_does_not_hold_up_its_neighbour(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, min_start_interval_ms=2_000)
    adm.enqueue("slow")
    adm.enqueue("next", "agent-2")
    adm.tick(T0 + 2_000)
    adm.send("start", "slow", **adm.fence("slow"), at=T0 + 3_000)
    assert adm.step("start", "next")["status"] == "ok"
    adm.close()


def test_an_admission_abandoned_before_start_gives_its_slot_back(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, min_start_interval_ms=2_000)
    adm.enqueue("r1")
    adm.enqueue("r2", "agent-2", at=T0 + 500)
    adm.step("abandon", "r1", outcome="cancelled")
    assert adm.turn("r2")["lease"]["admitted_at_ms"] == T0 + 500
    adm.enqueue("r3", "agent-3")
    adm.step("start", "r2")
    adm.step("abandon", "r2", outcome="cancelled")
    assert adm.state("r3") == "queued"
    adm.tick(T0 + 2_499)
    assert adm.state("r3") == "queued"
    adm.tick(T0 + 2_500)
    assert adm.state("r3") == "admitted"
    adm.close()


def test_a_slot_given_back_uncovers_the_one_before_it(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, min_start_interval_ms=2_000)
    adm.enqueue("first")
    adm.step("start", "first")
    adm.step("recover", "first")
    adm.enqueue("second", "agent-2", at=T0 + 2_000)
    adm.enqueue("third", "agent-3")
    adm.send("abandon", "second", **adm.fence("second"), outcome="failed", at=T0 + 2_500)
    assert adm.state("third") == "admitted"
    adm.close()


def test_pull_takes_the_choice_of_its_principal(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, max_active_turns=2)
    assert adm.send("admit")["data"] == {"blocks": ["empty"]}
    adm.enqueue("r1", grant="pull")
    adm.enqueue("r2", "agent-2", grant="pull", priority=1)
    adm.enqueue("theirs", "agent-3", by="conn2", grant="pull", priority=9)
    assert adm.grants() == []
    named = adm.send("admit", "r1")
    assert (named["outcome"], named["data"]) == ("none", {"blocks": ["order"]})
    got = adm.send("admit", uid=UID2)
    assert (got["outcome"], got["data"]["request_id"]) == ("admitted", "r2")
    assert adm.turn("r2")["lease"]["owner"] == {"principal": "conn", "uid": UID2}
    assert code_of(adm.send("admit", "theirs")) == "permission-denied"
    assert adm.send("admit", "r1")["data"]["request_id"] == "r1"
    assert adm.send("admit", "r1")["outcome"] == "idempotent"
    assert adm.send("admit", "r1", uid=UID2)["outcome"] == "wrong-state"
    assert adm.send("admit", by="conn2")["data"] == {"blocks": ["seats"]}
    assert code_of(adm.send("admit", "nobody")) == "not-found"
    adm.enqueue("pushed", "agent-4")
    assert adm.send("admit", "pushed")["outcome"] == "not-pull"
    assert not adm.said(Kind.GRANT)
    adm.close()


def test_two_owners_racing_one_admit_have_one_winner(adm: Admission) -> None:
    adm.enqueue("r1", grant="pull")
    first, second = adm.send("admit"), adm.send("admit", uid=UID2)
    assert (first["outcome"], second["outcome"]) == ("admitted", "none")
    assert second["data"] == {"blocks": ["empty"]}


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [
        ({"max_active_turns": 1}, ["seats"]),
        ({"max_concurrent_starts": 1}, ["starts"]),
        ({"min_start_interval_ms": 10}, ["pacing"]),
        ({"max_active_turns": 1, "max_concurrent_starts": 1}, ["seats", "starts"]),
    ],
)
def test_none_says_what_blocks(tmp_path: Path, policy: dict[str, int], blocks: list[str]) -> None:
    adm = with_policy(tmp_path, **policy)
    adm.enqueue("r1")
    adm.enqueue("r2", "agent-2", grant="pull")
    assert adm.send("admit")["data"] == {"blocks": blocks}
    assert adm.send("admit", "r2")["data"] == {"blocks": blocks}
    adm.close()


def test_none_names_cooldown_and_drain(adm: Admission) -> None:
    adm.enqueue("r1", grant="pull")
    adm.send("cooldown", by=OPERATOR, provider="acme", model="m1", not_before_ms=T0 + 9)
    assert adm.send("admit")["data"] == {"blocks": ["cooldown"]}
    assert adm.send("admit", "r1")["data"] == {"blocks": ["cooldown"]}
    adm.send("drain", by=OPERATOR, to=0)
    assert adm.send("admit")["data"] == {"blocks": ["drain"]}


def test_grants_are_keyed_by_request_and_generation(adm: Admission) -> None:
    adm.enqueue("r1")
    (grant,) = adm.said(Kind.GRANT)
    assert grant.subject == f"tidegate.test.grant.conn.{'a' * 26}.r1.1"
    adm.tick(T0 + 60_000)
    assert [row.subject.rsplit(".", 2)[1:] for row in adm.said(Kind.GRANT)] == [
        ["r1", "1"],
        ["r1", "2"],
    ]


def test_until_it_is_claimed_the_policy_is_the_defaults(adm: Admission) -> None:
    assert adm.policy()["epoch"] == 0
    assert adm.policy()["policy"] == DEFAULTS
    result = asserted(adm, {"epoch": 0, **DEFAULTS})
    assert (result["status"], result["outcome"]) == ("ok", "match")


def test_the_first_claim_is_in_force_at_once_and_repeating_it_is_fine(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    claim: dict[str, Any] = {"epoch": 1, "max_active_turns": 3, "silence_ms": 9_000}
    assert adm.send("policy", by=OPERATOR, **claim)["outcome"] == "claimed"
    assert adm.send("policy", by=OPERATOR, **claim)["outcome"] == "idempotent"
    assert adm.policy()["policy"] == {**DEFAULTS, "max_active_turns": 3, "silence_ms": 9_000}
    assert adm.policy()["seat_limit"] == 3
    assert policy_events(adm) == ["policy_claimed"]


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_claim_out_of_turn_is_a_conflict(tmp_path: Path, epoch: int) -> None:
    adm = with_policy(tmp_path, max_active_turns=3)
    result = adm.send("policy", by=OPERATOR, epoch=epoch, max_active_turns=4)
    assert (code_of(result), result["outcome"]) == ("conflict", "epoch-mismatch")
    assert result["data"]["epoch"] == 1
    adm.close()


def test_the_next_claim_comes_into_force_through_a_drain(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, max_active_turns=3)
    for n in (1, 2, 3):
        adm.bring_to("active", f"r{n}")
    adm.enqueue("r4", "agent-4")
    claim: dict[str, Any] = {"epoch": 2, "max_active_turns": 1, "start_timeout_ms": 5}
    assert adm.send("policy", by=OPERATOR, **claim)["outcome"] == "draining"
    assert adm.send("policy", by=OPERATOR, **claim)["outcome"] == "draining"
    other = adm.send("policy", by=OPERATOR, epoch=2, max_active_turns=2)
    assert (code_of(other), other["outcome"]) == ("conflict", "claim-pending")
    assert (adm.policy()["epoch"], adm.policy()["next_epoch"]) == (1, 2)
    assert adm.policy()["next_policy"]["start_timeout_ms"] == 5
    for n in (1, 2):
        adm.step("complete", f"r{n}", outcome="completed")
    assert adm.policy()["epoch"] == 2
    assert adm.policy()["draining"] is False
    assert adm.state("r4") == "queued"
    adm.step("complete", "r3", outcome="completed")
    assert adm.turn("r4")["lease"]["start_deadline_at_ms"] == adm.now_ms + 5
    assert policy_events(adm) == [
        "policy_claimed",
        "policy_drain_started",
        "policy_drain_completed",
        "policy_claimed",
    ]
    adm.close()


@pytest.mark.parametrize(
    ("believed", "differs"),
    [({}, None), ({"max_active_turns": 4}, "max_active_turns"), ({"epoch": 2}, "epoch")],
)
def test_an_assertion_answers_match_or_conflict(
    tmp_path: Path, believed: dict[str, int], differs: str | None
) -> None:
    adm = with_policy(tmp_path, max_active_turns=3)
    whole = {"epoch": 1, **DEFAULTS, "max_active_turns": 3}
    result = asserted(adm, {**whole, **believed})
    if differs is None:
        assert result["outcome"] == "match"
    else:
        assert (code_of(result), result["outcome"]) == ("conflict", "policy-differs")
        assert differs in result["error"]["message"]
    adm.close()


@pytest.mark.parametrize(
    "values",
    [
        {"max_active_turns": 0},
        {"max_concurrent_starts": 0},
        {"min_start_interval_ms": -1},
        {"queue_timeout_ms": 0},
        {"queue_timeout_ms": 1_800_001},
        {"capacity_cooldown_ms": -1},
        {"start_timeout_ms": 0},
        {"silence_ms": True},
        {"max_active_turns": 1.0},
    ],
)
def test_a_policy_out_of_bounds_is_refused(adm: Admission, values: dict[str, Any]) -> None:
    result = adm.send("policy", by=OPERATOR, epoch=1, **values)
    assert (code_of(result), result["error"]["field"]) == (
        "bad-request",
        next(iter(values)),
    )
    assert adm.policy()["epoch"] == 0


def test_a_policy_body_claims_or_asserts(adm: Admission) -> None:
    for body in ({}, {"max_active_turns": 1}, {"epoch": 1, "assert": {"epoch": 0}}):
        result = adm.send("policy", by=OPERATOR, **body)
        assert code_of(result) == "bad-request"


def test_operators_verbs_are_refused_to_others(adm: Admission) -> None:
    for verb, body in (
        ("policy", {"epoch": 1}),
        ("drain", {"to": 0}),
        ("cooldown", {"provider": "p", "model": "m", "not_before_ms": T0}),
    ):
        assert code_of(adm.send(verb, **body)) == "permission-denied"


@pytest.mark.parametrize("to", [0, 1, 2])
def test_a_drain_down_admits_nobody_until_its_limit_is_reached(tmp_path: Path, to: int) -> None:
    adm = with_policy(tmp_path, max_active_turns=3)
    adm.bring_to("active", "r1")
    adm.bring_to("dispatch_ambiguous", "debt")
    adm.bring_to("active", "r2")
    adm.enqueue("next", "agent-9")
    adm.enqueue("then", "agent-8")
    assert adm.send("drain", by=OPERATOR, to=to)["outcome"] == "draining"
    assert adm.answer("queue", request_id="next")["blocks"] == ["drain"]
    for request, held in (("r1", 2), ("r2", 1)):
        adm.step("complete", request, outcome="completed")
        admitted = held < to
        assert adm.state("next") == ("admitted" if admitted else "queued")
        assert adm.policy()["draining"] is (held > to)
    adm.send("resolve", "debt", by=OPERATOR, resolution="acknowledged_unknown", evidence="seen")
    assert adm.policy()["draining"] is False
    assert adm.policy()["seat_limit"] == to
    assert policy_events(adm)[1:] == ["policy_drain_started", "policy_drain_completed"]
    assert len(adm.grants()) == 3 + min(2, to)
    adm.close()


def test_a_drain_up_admits_at_once_and_zero_pauses(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, max_active_turns=1)
    assert adm.send("drain", by=OPERATOR, to=0)["outcome"] == "drained"
    for n in range(6):
        adm.enqueue(f"r{n}", f"agent-{n}")
    assert adm.grants() == []
    assert adm.answer("queue")["blocks"] == ["drain"]
    assert adm.send("drain", by=OPERATOR, to=4)["outcome"] == "drained"
    assert len(adm.grants()) == 4
    assert adm.send("drain", by=OPERATOR, to=4)["outcome"] == "drained"
    assert policy_events(adm)[1:] == ["policy_drain_started", "policy_drain_completed"] * 2
    adm.close()


def test_seats_over_the_limit_are_never_given(tmp_path: Path) -> None:
    adm = with_policy(tmp_path, max_active_turns=3)
    for n in range(10):
        adm.enqueue(f"r{n}", f"agent-{n}")
    assert adm.grants() == ["r0", "r1", "r2"]
    adm.close()
