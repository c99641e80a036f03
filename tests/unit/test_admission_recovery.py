"""Recovery: silence decides nothing, proof decides what it proves, and an operator the rest."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.commands.sys import witness_of
from tests.support.adm import (
    CHILD_PROCESS,
    CONNECTOR_PROCESS,
    HOST,
    OPERATOR,
    T0,
    UID,
    UID2,
    Admission,
    Json,
    process,
)
from tests.support.results import code_of
from worker.ledger.rulesets import FIRST
from worker.ledger.tx import Kind

AFTER_INTENT = ("dispatch_intent", "active", "dispatch_ambiguous", "recovery_required")
START_TIMEOUT = 60_000
ADOPTION_TIMEOUT = 60_000


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def seats(adm: Admission) -> int:
    return int(adm.policy()["seats"])


@pytest.mark.parametrize(("silent_ms", "outcome"), [(4_000, "fresh"), (4_001, "suspected")])
def test_silence_is_more_than_four_seconds(adm: Admission, silent_ms: int, outcome: str) -> None:
    adm.bring_to("active", "r1")
    adm.now_ms = T0 + silent_ms
    assert adm.liveness("silent", T0)["outcome"] == outcome
    (lease,) = adm.answer("leases")["leases"]
    if outcome == "suspected":
        assert lease["suspicion"] == "heartbeat_expired"
        assert lease["suspect_since_ms"] == adm.now_ms
    else:
        assert "suspicion" not in lease


def test_a_command_that_came_meanwhile_makes_reported_silence_stale(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    adm.enqueue("r2", at=T0 + 3_000)
    adm.now_ms = T0 + 4_001
    assert adm.liveness("silent", T0)["outcome"] == "fresh"


def test_suspicion_counts_from_the_first_time(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    adm.now_ms = T0 + 4_001
    adm.liveness("silent", T0)
    adm.now_ms += 5_000
    assert adm.liveness("silent", T0)["outcome"] == "retained"
    (lease,) = adm.answer("leases")["leases"]
    assert lease["suspect_since_ms"] == T0 + 4_001


@pytest.mark.parametrize("state", ["starting", *AFTER_INTENT])
def test_silence_alone_frees_nothing_and_a_beat_clears_it(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1")
    adm.now_ms = T0 + 10_000
    assert adm.liveness("silent", T0)["outcome"] == "suspected"
    assert adm.state("r1") == state
    assert seats(adm) == 1
    assert adm.liveness("alive", adm.now_ms)["outcome"] == "cleared"
    (lease,) = adm.answer("leases")["leases"]
    assert "suspicion" not in lease


def test_nobody_is_suspected_who_was_never_heard(adm: Admission) -> None:
    assert adm.liveness("silent", 0, uid=UID2)["outcome"] == "unknown"


@pytest.mark.parametrize("by", ["conn", "_op", "_witness-host-1"])
def test_liveness_comes_from_workers_only(adm: Admission, by: str) -> None:
    adm.bring_to("active", "r1")
    owner = {"principal": "conn", "uid": UID}
    body: Json = {"owner": owner, "state": "silent", "seen_at_ms": 0}
    result = adm.send("liveness", plane="sys", by=by, **body)
    assert code_of(result) == "permission-denied"


@pytest.mark.parametrize("state", ["admitted", "starting"])
@pytest.mark.parametrize("late_ms", [-1, 0])
def test_a_start_timeout_takes_the_seat_back(adm: Admission, state: str, late_ms: int) -> None:
    adm.bring_to(state, "r1")
    fence = adm.fence("r1")
    assert adm.driver.fold.due_at() == T0 + START_TIMEOUT
    result = adm.send("start", "r1", **fence, at=T0 + START_TIMEOUT + late_ms)
    if late_ms < 0:
        assert adm.turn("r1")["generation"] == 1
        assert result["outcome"] == ("starting" if state == "admitted" else "wrong-state")
        return
    assert result["outcome"] == "fenced"
    # It went back to its place and, there being room, got the next generation's seat at once.
    assert (adm.state("r1"), adm.turn("r1")["generation"]) == ("admitted", 2)
    assert adm.lost() == [
        {
            "v": 1,
            "at_ms": adm.now_ms,
            "request_id": "r1",
            "generation": 1,
            "lease_id": fence["lease_id"],
            "reason": "start-timeout",
            "state": "queued",
        }
    ]
    (fact,) = adm.said(Kind.FACT, ".lease_lost.r1.1.")
    assert json.loads(fact.body) == adm.lost()[0]


def test_after_an_intent_there_is_no_start_timeout(adm: Admission) -> None:
    adm.bring_to("dispatch_intent", "r1")
    adm.tick(T0 + 10 * START_TIMEOUT)
    assert adm.state("r1") == "dispatch_intent"


def test_the_third_start_timeout_fails_the_turn(adm: Admission) -> None:
    adm.bring_to("admitted", "r1")
    for generation in (1, 2, 3):
        assert (adm.state("r1"), adm.turn("r1")["generation"]) == ("admitted", generation)
        adm.tick(adm.now_ms + START_TIMEOUT)
    turn = adm.turn("r1")
    assert (turn["state"], turn["reason"]) == ("failed", "start-timeout")
    assert seats(adm) == 0
    assert adm.events()[-1] == ("request_released", "admitted", "failed")


def test_a_turn_whose_queue_deadline_passed_meanwhile_is_not_queued_again(adm: Admission) -> None:
    adm.enqueue("r1", timeout_ms=1_000)
    adm.tick(T0 + START_TIMEOUT)
    assert adm.state("r1") == "queue_timeout"
    assert [to for _, _, to in adm.events()][-2:] == ["queued", "queue_timeout"]
    assert (seats(adm), adm.policy()["queued"]) == (0, 0)


@pytest.mark.parametrize("state", ["admitted", "starting"])
def test_a_proven_end_before_an_intent_requeues(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1")
    fence = adm.fence("r1")
    result = adm.evidence("r1", connector="gone")
    assert result["outcome"] == "released"
    turn = adm.turn("r1")
    assert (turn["state"], turn["generation"]) == ("queued", 2)
    assert seats(adm) == 0
    assert adm.lost()[0]["reason"] == "owner-dead"
    assert adm.send("start", "r1", uid=UID2, **fence)["outcome"] == "fenced"


def test_one_proof_releases_everything_the_dead_owner_had_not_started(adm: Admission) -> None:
    adm.bring_to("admitted", "r1")
    adm.bring_to("starting", "r2")
    adm.bring_to("dispatch_intent", "r3")
    adm.evidence("r1", connector="gone")
    assert [adm.state(f"r{n}") for n in (1, 2, 3)] == ["queued", "queued", "dispatch_intent"]


@pytest.mark.parametrize("state", ["admitted", "starting", *AFTER_INTENT])
@pytest.mark.parametrize(
    ("seen", "outcome"), [("alive", "retained"), ("unverifiable", "suspected")]
)
def test_what_is_alive_or_unverifiable_is_kept(
    adm: Admission, state: str, seen: str, outcome: str
) -> None:
    adm.bring_to(state, "r1")
    assert adm.evidence("r1", connector=seen)["outcome"] == outcome
    assert (adm.state("r1"), seats(adm)) == (state, 1)
    (lease,) = adm.answer("leases")["leases"]
    if seen == "unverifiable":
        assert lease["suspicion"] == "identity_unverifiable"
        assert adm.evidence("r1", connector=seen)["outcome"] == "retained"
        adm.evidence("r1", connector="alive")
        (lease,) = adm.answer("leases")["leases"]
    assert "suspicion" not in lease


@pytest.mark.parametrize("state", AFTER_INTENT)
@pytest.mark.parametrize(
    ("child", "group"),
    [("unverifiable", "none"), ("gone", "unverifiable"), ("alive", "unverifiable")],
)
def test_under_a_living_connector_what_is_beyond_proof_is_suspect(
    adm: Admission, state: str, child: str, group: str
) -> None:
    adm.bring_to(state, "r1")
    for outcome in ("suspected", "retained"):
        result = adm.evidence("r1", connector="alive", child=child, group=group)
        assert result["outcome"] == outcome
    assert (adm.state("r1"), seats(adm)) == (state, 1)
    (lease,) = adm.answer("leases")["leases"]
    assert lease["suspicion"] == "identity_unverifiable"
    adm.evidence("r1", connector="alive", child="alive", group="alive")
    (lease,) = adm.answer("leases")["leases"]
    assert "suspicion" not in lease


def test_under_the_first_ruleset_a_living_connector_vouched_for_the_rest(tmp_path: Path) -> None:
    adm = Admission(tmp_path, ruleset=FIRST)
    adm.bring_to("active", "r1")
    seen = {"connector": "alive", "child": "unverifiable", "group": "unverifiable"}
    assert adm.evidence("r1", **seen)["outcome"] == "retained"
    assert "suspicion" not in adm.answer("leases")["leases"][0]
    adm.close()


@pytest.mark.parametrize("state", AFTER_INTENT)
def test_only_proof_of_connector_child_and_group_frees_the_seat(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1")
    result = adm.evidence("r1", connector="gone", child="gone", group="empty")
    assert result["outcome"] == "released"
    assert (adm.state("r1"), seats(adm)) == ("recovery_required", 0)
    assert adm.lost()[-1]["reason"] == "seat-released"
    assert adm.events()[-1] == (
        "request_recovery_seat_released",
        "recovery_required",
        "recovery_required",
    )
    assert adm.enqueue("r1", "agent-of-r1")["data"]["state"] == "recovery_required"


@pytest.mark.parametrize("state", AFTER_INTENT)
@pytest.mark.parametrize(
    ("child", "group"),
    [
        ("alive", "alive"),
        ("gone", "alive"),
        ("gone", "none"),
        ("gone", "unverifiable"),
        ("unverifiable", "empty"),
        ("alive", "empty"),
        (None, "empty"),
    ],
)
def test_anything_less_is_a_debt_that_keeps_its_seat(
    adm: Admission, state: str, child: str | None, group: str
) -> None:
    adm.bring_to(state, "r1")
    result = adm.evidence("r1", connector="gone", child=child, group=group)
    doubt = "unverifiable" in (child, group)
    known = state == "recovery_required"
    assert result["outcome"] == (("suspected" if doubt else "retained") if known else "marked")
    assert (adm.state("r1"), seats(adm)) == ("recovery_required", 1)
    (lease,) = adm.answer("leases")["leases"]
    assert lease["debt_since_ms"] == T0
    assert ("suspicion" in lease) is doubt
    later = adm.evidence("r1", connector="gone", child="gone", group="empty")
    assert (later["outcome"], seats(adm)) == ("released", 0)


@pytest.mark.parametrize("state", AFTER_INTENT)
def test_over_http_the_connectors_end_is_enough(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1", channel="http")
    assert adm.evidence("r1", connector="gone")["outcome"] == "released"
    assert (adm.state("r1"), seats(adm)) == ("recovery_required", 0)


@pytest.mark.parametrize("pgrp", [0, CONNECTOR_PROCESS["pgrp"]])
def test_a_child_without_a_group_of_its_own_gives_no_group_evidence(
    adm: Admission, pgrp: int
) -> None:
    adm.bring_to("starting", "r1")
    child = process(20, pgrp=pgrp)
    adm.step(
        "intent", "r1", channel="pty", identity={"connector": CONNECTOR_PROCESS, "child": child}
    )
    result = adm.evidence("r1", connector="gone", child="gone", group="empty")
    assert (result["outcome"], seats(adm)) == ("marked", 1)
    (lease,) = adm.answer("leases")["leases"]
    assert lease["frees"] == ["operator"]


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"by": "_witness-host-2"}, "permission-denied", "other-host"),
        ({"by": "_witness"}, "permission-denied", "other-host"),
        ({"by": "_op"}, "permission-denied", "wrong-role"),
        ({"by": "conn"}, "permission-denied", "wrong-role"),
        ({"host": "host-2"}, "permission-denied", "other-host"),
        ({"host": "host-2", "by": "_witness-host-2"}, "permission-denied", "other-host"),
        ({"connector": process(11)}, "conflict", "other-process"),
        ({"connector": process(10, start_ticks=1)}, "conflict", "other-process"),
        ({"connector": process(10, boot_id="boot-2")}, "conflict", "other-process"),
        ({"connector": process(10, pid_ns=1)}, "conflict", "other-process"),
        ({"connector": process(10, host="host-2"), "host": "host-2"}, "conflict", "other-process"),
        ({"child": process(21)}, "conflict", "other-process"),
    ],
)
def test_evidence_of_another_host_or_process_changes_nothing(
    adm: Admission, changes: dict[str, Any], code: str, reason: str
) -> None:
    adm.bring_to("active", "r1")
    by = changes.pop("by", "_worker")
    body: Json = {
        "request_id": "r1",
        "host": HOST,
        "connector": CONNECTOR_PROCESS,
        "connector_state": "gone",
        "child": CHILD_PROCESS,
        "child_state": "gone",
        "group_state": "empty",
        "observed_at_ms": T0,
        "fence": {
            **adm.fence("r1"),
            "request_id": "r1",
            "owner": {"principal": "conn", "uid": UID},
        },
    }
    result = adm.send("evidence", plane="sys", by=by, **{**body, **changes})
    assert (code_of(result), result["outcome"]) == (code, reason)
    assert (adm.state("r1"), seats(adm)) == ("active", 1)
    right = adm.send("evidence", plane="sys", by="_witness-host-1", **body)
    assert right["outcome"] == "released"


def test_hints_of_an_identity_may_differ(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    reparented = {**CONNECTOR_PROCESS, "ppid": 77, "session": 3}
    body: Json = {"connector_state": "gone", "child_state": "gone", "group_state": "empty"}
    result = adm.send(
        "evidence",
        plane="sys",
        by="_worker",
        request_id="r1",
        host=HOST,
        connector=reparented,
        child={**CHILD_PROCESS, "ppid": 1},
        observed_at_ms=T0,
        fence={**adm.fence("r1"), "request_id": "r1", "owner": {"principal": "conn", "uid": UID}},
        **body,
    )
    assert result["outcome"] == "released"


@pytest.mark.parametrize("wrong", ["lease_id", "generation", "owner", "request_id"])
def test_evidence_under_a_stale_fence_is_fenced(adm: Admission, wrong: str) -> None:
    adm.bring_to("active", "r1")
    fence: dict[str, Any] = {
        **adm.fence("r1"),
        "request_id": "r1",
        "owner": {"principal": "conn", "uid": UID},
    }
    fence[wrong] = {
        "lease_id": "1-1-99",
        "generation": 2,
        "owner": {"principal": "conn", "uid": UID2},
        "request_id": "r2",
    }[wrong]
    result = adm.evidence("r1", connector="gone", child="gone", group="empty", fence=fence)
    assert (result["outcome"], adm.state("r1")) == ("fenced", "active")


def test_evidence_needs_a_known_process(adm: Admission) -> None:
    adm.enqueue("r1")
    assert adm.evidence("r1", connector="gone")["outcome"] == "no-identity"
    assert adm.evidence("r1", connector="gone", request_id="r9")["outcome"] == "no-such-request"


def test_a_hosts_witness_has_a_name_of_its_own() -> None:
    assert witness_of("host-1") == "_witness-host-1"
    named = {witness_of(host) for host in ("rack 1", "rack.1", "é" * 200, "x" * 56)}
    assert len(named) == 4
    assert all(name.startswith("_witness-") and len(name) <= 64 for name in named)


def test_a_dead_owners_queued_turn_waits_for_adoption_and_is_then_cancelled(
    adm: Admission,
) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    adm.enqueue("r1", identity=CONNECTOR_PROCESS)
    adm.enqueue("r2", "agent-2", identity=CONNECTOR_PROCESS)
    adm.enqueue("r3", "agent-3", uid=UID2)
    assert adm.evidence("r1", connector="alive")["outcome"] == "retained"
    assert adm.evidence("r1", connector="gone")["outcome"] == "marked"
    assert adm.evidence("r2", connector="gone")["outcome"] == "retained"
    assert adm.driver.fold.due_at() == T0 + ADOPTION_TIMEOUT
    adm.send("drain", by=OPERATOR, to=8)
    assert adm.grants() == ["r3"]
    adm.tick(T0 + ADOPTION_TIMEOUT - 1)
    assert adm.state("r1") == "queued"
    adm.tick(T0 + ADOPTION_TIMEOUT)
    for request in ("r1", "r2"):
        assert (adm.state(request), adm.turn(request)["reason"]) == ("cancelled", "owner-dead")
    assert adm.events().count(("queued_owner_dead", "queued", "cancelled")) == 2
    # The owner's death has been dealt with; what is due next is the start of another's turn.
    assert adm.state("r3") == "admitted"
    assert adm.driver.fold.due_at() == adm.turn("r3")["lease"]["start_deadline_at_ms"]


def test_adoption_in_time_saves_a_dead_owners_turn(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    adm.enqueue("r1", identity=CONNECTOR_PROCESS)
    adm.evidence("r1", connector="gone")
    result = adm.enqueue("r1", uid=UID2, at=T0 + ADOPTION_TIMEOUT - 1)
    assert result["outcome"] == "adopted"
    adm.tick(T0 + ADOPTION_TIMEOUT)
    assert adm.state("r1") == "queued"
    adm.send("drain", by=OPERATOR, to=1)
    assert adm.turn("r1")["lease"]["owner"]["uid"] == UID2


def test_a_turn_released_by_its_owners_death_is_adopted_and_runs_elsewhere(
    adm: Admission,
) -> None:
    adm.bring_to("starting", "r1")
    adm.evidence("r1", connector="gone")
    assert adm.enqueue("r1", "agent-of-r1", uid=UID2)["outcome"] == "adopted"
    turn = adm.turn("r1")
    assert (turn["state"], turn["generation"]) == ("admitted", 2)
    assert turn["lease"]["owner"]["uid"] == UID2


def test_an_owner_thought_dead_that_speaks_is_alive(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    adm.enqueue("r1", identity=CONNECTOR_PROCESS)
    adm.evidence("r1", connector="gone")
    adm.enqueue("r2", "agent-2")
    adm.tick(T0 + ADOPTION_TIMEOUT)
    adm.send("drain", by=OPERATOR, to=2)
    assert sorted(adm.grants()) == ["r1", "r2"]


def test_a_turn_requeued_to_an_owner_long_dead_waits_for_adoption_anew(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    adm.evidence("r1", connector="gone", child="alive", group="alive")
    adm.tick(T0 + ADOPTION_TIMEOUT)
    adm.send("resolve", "r1", by=OPERATOR, resolution="confirmed_not_dispatched", evidence="log")
    assert adm.state("r1") == "queued"
    assert adm.driver.fold.due_at() == T0 + 2 * ADOPTION_TIMEOUT
    adm.tick(T0 + 2 * ADOPTION_TIMEOUT)
    assert (adm.state("r1"), adm.turn("r1")["reason"]) == ("cancelled", "owner-dead")


@pytest.mark.parametrize("state", ["dispatch_ambiguous", "recovery_required"])
@pytest.mark.parametrize(
    ("resolution", "outcome", "after", "held"),
    [
        ("confirmed_completed", "completed", "completed", 0),
        ("acknowledged_unknown", "recovery_required", "recovery_required", 0),
        ("confirmed_not_dispatched", "requeued", "admitted", 1),
    ],
)
def test_an_operator_settles_a_debt(
    adm: Admission, state: str, resolution: str, outcome: str, after: str, held: int
) -> None:
    adm.bring_to(state, "r1")
    fence = adm.fence("r1")
    result = adm.send("resolve", "r1", by=OPERATOR, resolution=resolution, evidence="looked")
    assert (result["status"], result["outcome"]) == ("ok", outcome)
    assert (adm.state("r1"), seats(adm)) == (after, held)
    assert adm.lost()[-1]["reason"] == resolution.replace("_", "-")
    assert "request_resolved" in [kind for kind, _, _ in adm.events()]
    assert adm.send("recover", "r1", **fence)["outcome"] == "fenced"
    again = adm.send("resolve", "r1", by=OPERATOR, resolution=resolution, evidence="looked")
    assert again["outcome"] == "wrong-state"
    if outcome == "requeued":
        assert adm.turn("r1")["generation"] == 2
        assert ("request_requeued", "recovery_required", "queued") in adm.events()


@pytest.mark.parametrize(
    "state", ["admitted", "starting", "dispatch_intent", "active", "completed"]
)
def test_what_is_no_debt_is_not_resolved(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1")
    result = adm.send(
        "resolve", "r1", by=OPERATOR, resolution="confirmed_completed", evidence="looked"
    )
    assert (result["outcome"], adm.state("r1")) == ("wrong-state", state)


@pytest.mark.parametrize("state", ["dispatch_intent", "active"])
@pytest.mark.parametrize("why", ["silent", "unverifiable"])
def test_a_dispatched_turn_of_a_suspect_owner_can_be_resolved(
    adm: Admission, state: str, why: str
) -> None:
    adm.bring_to(state, "r1")
    if why == "silent":
        adm.now_ms = T0 + 4_001
        adm.liveness("silent", T0)
    else:
        adm.evidence("r1", connector="unverifiable")
    result = adm.send(
        "resolve", "r1", by=OPERATOR, resolution="acknowledged_unknown", evidence="host is lost"
    )
    assert (result["outcome"], seats(adm)) == ("recovery_required", 0)


def test_resolve_is_an_operators_verb(adm: Admission) -> None:
    adm.bring_to("recovery_required", "r1")
    body: Json = {"resolution": "confirmed_completed", "evidence": "mine"}
    assert code_of(adm.send("resolve", "r1", **body)) == "permission-denied"


def test_a_turn_requeued_after_its_prompt_was_destroyed_waits_for_it_to_be_sealed_again(
    adm: Admission,
) -> None:
    payload = {
        "key_version": 1,
        "content_fingerprint": "f" * 64,
        "expires_at_ms": T0 + 3_600_000,
        "revision": 5,
    }
    adm.enqueue("r1", payload=payload)
    adm.step("start", "r1")
    adm.intend("r1")
    adm.step("recover", "r1")
    adm.send("resolve", "r1", by=OPERATOR, resolution="confirmed_not_dispatched", evidence="log")
    assert adm.state("r1") == "queued"
    assert adm.turn("r1")["awaits_payload"] is True
    assert adm.answer("queue", request_id="r1")["blocks"] == ["payload"]
    other = adm.enqueue("r1", payload={**payload, "content_fingerprint": "e" * 64, "revision": 9})
    assert other["outcome"] == "different-request"
    assert adm.enqueue("r1", payload={**payload, "revision": 9})["outcome"] == "payload_attached"
    assert (adm.state("r1"), adm.turn("r1")["generation"]) == ("admitted", 2)
    place = adm.answer("payload", request_id="r1", **adm.fence("r1"))
    assert place["key"] == "conn.r1.2"
    assert place["revision"] == 9
    adm.step("abandon", "r1", outcome="cancelled")
    deleted = [(row.subject.split(".", 1)[1], row.expect) for row in adm.said(Kind.DELETE)]
    assert deleted == [
        ("tidegate_payloads_test.conn.r1", 5),
        ("tidegate_payloads_test.conn.r1.2", 9),
    ]


def test_a_turn_that_never_gets_its_prompt_back_ends_at_its_deadline(adm: Admission) -> None:
    payload = {
        "key_version": 1,
        "content_fingerprint": "f" * 64,
        "expires_at_ms": T0 + 1_000,
        "revision": 5,
    }
    adm.enqueue("r1", payload=payload, timeout_ms=1_000)
    adm.step("start", "r1")
    adm.step("recover", "r1")
    adm.now_ms = T0 + 50_000
    adm.send("resolve", "r1", by=OPERATOR, resolution="confirmed_not_dispatched", evidence="log")
    assert adm.turn("r1")["deadline_at_ms"] == T0 + 51_000
    adm.tick(T0 + 51_000)
    assert adm.state("r1") == "queue_timeout"
