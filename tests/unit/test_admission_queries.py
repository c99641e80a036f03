"""Queries: places in the queue, seats and debts, what an observer should look at, prompts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.admission import (
    Grant,
    LeaseLost,
    LeasesPage,
    PayloadPlace,
    PlaceView,
    PolicyView,
    QueueView,
    RecoverablePage,
    TurnOutcome,
    TurnView,
)
from schemas.codes import Code
from schemas.results import Refusal
from tests.support.adm import (
    CHILD_PROCESS,
    CONNECTOR_PROCESS,
    HOST,
    OPERATOR,
    T0,
    UID,
    UID2,
    Admission,
    process,
)
from worker.ledger.tx import Kind


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


ALL = (
    "admitted",
    "starting",
    "dispatch_intent",
    "active",
    "dispatch_ambiguous",
    "recovery_required",
    "completed",
)


@pytest.mark.parametrize("state", ALL)
def test_views_and_results_are_what_the_contract_says(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1")
    turn = adm.turn("r1")
    assert TurnView.from_object(turn).to_object() == turn
    LeasesPage.from_object(adm.answer("leases"))
    PolicyView.from_object(adm.answer("policy"))
    PlaceView.from_object(adm.answer("queue", request_id="r1"))
    QueueView.from_object(adm.answer("queue"))
    RecoverablePage.from_object(adm.answer("recoverable"))
    TurnOutcome.from_object(adm.send("cancel", "r1")["data"])


def test_grants_and_losses_are_what_the_contract_says(adm: Admission) -> None:
    adm.enqueue("r1")
    adm.tick(T0 + 60_000)
    grants = [Grant.from_bytes(row.body) for row in adm.said(Kind.GRANT)]
    assert [(grant.request_id, grant.generation) for grant in grants] == [("r1", 1), ("r1", 2)]
    assert grants[1].start_deadline_at_ms == T0 + 120_000
    (fact,), (message,) = adm.said(Kind.FACT), adm.said(Kind.MESSAGE)
    assert LeaseLost.from_bytes(fact.body) == LeaseLost.from_bytes(message.body)
    assert message.subject.startswith(f"tidegate.test.res.conn.{UID}.adm.lease_lost.1-")


def test_a_turn_that_does_not_exist_is_not_found(adm: Admission) -> None:
    for name in ("request", "queue"):
        refused = adm.query(name, request_id="nobody")
        assert isinstance(refused, Refusal)
        assert refused.code is Code.NOT_FOUND


@pytest.mark.parametrize(("ahead", "position"), [(0, 1), (998, 999), (999, 1000), (1000, "1000+")])
def test_a_position_is_exact_to_a_thousand(adm: Admission, ahead: int, position: Any) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    for n in range(ahead):
        # Half of them stand before it by priority, half by age.
        adm.enqueue(f"r{n:04d}", f"agent-{n % 7}", priority=n % 2)
    adm.enqueue("mine", at=T0 + 1)
    place = adm.answer("queue", request_id="mine")
    assert place["position"] == position
    assert place["eligible_position"] == position


def test_an_eligible_position_skips_what_is_blocked_however_much_that_is(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    for n in range(1_200):
        adm.enqueue(f"cool-{n:04d}", f"agent-{n % 5}", model="cold")
    for n in range(30):
        adm.enqueue(f"mute-{n}", uid=UID2)
    for n in range(3):
        adm.enqueue(f"pull-{n}", grant="pull")
    adm.enqueue("mine", at=T0 + 1)
    adm.enqueue("behind", at=T0 + 1, priority=-1)
    adm.enqueue("mute-too", at=T0 + 2, uid=UID2)
    adm.send("cooldown", by=OPERATOR, provider="acme", model="cold", not_before_ms=T0 + 99_000)
    adm.now_ms = T0 + 5_000
    adm.enqueue("heard", at=T0 + 5_000)
    adm.liveness("silent", T0 + 2, uid=UID2)
    adm.now_ms = T0 + 7_000
    adm.liveness("silent", T0 + 2, uid=UID2)
    place = adm.answer("queue", request_id="mine")
    assert (place["position"], place["eligible_position"]) == ("1000+", 4)
    assert place["waited_ms"] == 6_999
    assert adm.answer("queue", request_id="behind")["eligible_position"] == 6
    blocked = adm.answer("queue", request_id="cool-0000")
    assert (blocked["position"], blocked["cooldown_until_ms"]) == (1, T0 + 99_000)
    assert "eligible_position" not in blocked
    assert blocked["blocks"] == ["drain", "cooldown"]
    assert adm.answer("queue", request_id="mute-0")["blocks"] == ["drain", "silence"]


def test_the_queues_head_is_listed_in_plain_order(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    for request, priority in (("b", 0), ("a", 0), ("urgent", 7), ("pulled", 0)):
        adm.enqueue(request, priority=priority, grant="pull" if request == "pulled" else "push")
    listed = adm.answer("queue", limit=3)
    assert [(turn["request_id"], turn["position"]) for turn in listed["turns"]] == [
        ("urgent", 1),
        ("a", 2),
        ("b", 3),
    ]
    assert (listed["queued"], listed["blocks"]) == (4, ["drain"])
    assert adm.answer("queue", limit=1000)["turns"][3]["request_id"] == "pulled"


def test_an_empty_queue_says_so(adm: Admission) -> None:
    assert adm.answer("queue") == {"queued": 0, "blocks": ["empty"], "cooldowns": [], "turns": []}


def test_leases_come_in_pages(adm: Admission) -> None:
    for n in range(5):
        adm.bring_to("admitted", f"r{n}")
    page = adm.answer("leases", limit=2)
    seen = [lease["request_id"] for lease in page["leases"]]
    while "next_after_request_id" in page:
        page = adm.answer("leases", limit=2, after_request_id=page["next_after_request_id"])
        seen += [lease["request_id"] for lease in page["leases"]]
    assert seen == [f"r{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("state", "channel", "frees"),
    [
        ("admitted", "pty", ["owner", "start-timeout", "connector-gone"]),
        ("active", "pty", ["owner", "connector-gone", "child-gone", "group-empty"]),
        ("active", "http", ["owner", "connector-gone"]),
        (
            "dispatch_ambiguous",
            "pty",
            ["connector-gone", "child-gone", "group-empty", "operator"],
        ),
        ("recovery_required", "http", ["connector-gone", "operator"]),
    ],
)
def test_a_seat_says_what_would_free_it(
    adm: Admission, state: str, channel: str, frees: list[str]
) -> None:
    adm.bring_to(state, "r1", channel=channel)
    (lease,) = adm.answer("leases")["leases"]
    assert lease["frees"] == frees


def test_an_observer_sees_the_leases_of_its_host_with_their_full_fence(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    adm.enqueue("r2", "agent-2", identity=process(7, host="host-2"))
    adm.enqueue("r3", "agent-3")
    (turn,) = adm.answer("recoverable", host=HOST)["turns"]
    assert turn["identity"] == {"connector": CONNECTOR_PROCESS, "child": CHILD_PROCESS}
    assert turn["channel"] == "pty"
    assert turn["fence"] == {
        **adm.fence("r1"),
        "request_id": "r1",
        "owner": {"principal": "conn", "uid": UID},
    }
    (other,) = adm.answer("recoverable", host="host-2")["turns"]
    assert (other["request_id"], other["state"]) == ("r2", "admitted")
    assert len(adm.answer("recoverable")["turns"]) == 3
    assert adm.answer("recoverable", host="host-3")["turns"] == []


def test_an_observer_sees_one_queued_turn_of_each_silent_owner(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    for n in range(50):
        adm.enqueue(f"r{n:02d}", f"agent-{n % 3}", identity=CONNECTOR_PROCESS)
    adm.enqueue("other", uid=UID2, identity=process(8))
    assert adm.answer("recoverable", host=HOST)["turns"] == []
    adm.now_ms = T0 + 4_001
    adm.liveness("silent", T0)
    (turn,) = adm.answer("recoverable", host=HOST)["turns"]
    assert turn["state"] == "queued"
    assert turn["identity"] == {"connector": CONNECTOR_PROCESS}
    assert "fence" not in turn
    assert adm.evidence(turn["request_id"], connector="gone")["outcome"] == "marked"
    assert adm.answer("recoverable", host=HOST)["turns"] == []


def test_one_damaged_row_is_named_and_holds_up_no_other(adm: Admission) -> None:
    for n in (1, 2, 3):
        adm.bring_to("active", f"r{n}")
    for broken in ("not json", json.dumps({"host": HOST})):
        adm.driver.db.execute(
            "UPDATE adm_leases SET connector = ? WHERE request_id = 'r2'", (broken,)
        )
        page = adm.answer("recoverable", host=HOST)
        assert [turn["request_id"] for turn in page["turns"]] == ["r1", "r3"]
        assert page["quarantined"] == ["r2"]


def test_only_the_leases_owner_reads_the_prompt_and_only_before_active(adm: Admission) -> None:
    payload = {
        "key_version": 2,
        "content_fingerprint": "f" * 64,
        "expires_at_ms": T0 + 1_800_000,
        "revision": 5,
    }
    adm.enqueue("r1", payload=payload)
    fence = {"request_id": "r1", **adm.fence("r1")}
    expected = {
        "key": "conn.r1",
        "revision": 5,
        "key_version": 2,
        "content_fingerprint": "f" * 64,
    }
    for verb in (None, "start", "intent"):
        if verb == "intent":
            adm.intend("r1")
        elif verb is not None:
            adm.step(verb, "r1")
        place = adm.answer("payload", **fence)
        assert place == expected
        PayloadPlace.from_object(place)
        for who, body in (
            ({"uid": UID2}, fence),
            ({"by": "conn2"}, fence),
            ({}, {**fence, "generation": 2}),
            ({}, {**fence, "lease_id": "x"}),
            ({}, {**fence, "request_id": "r2"}),
        ):
            refused = adm.query("payload", **who, **body)
            assert isinstance(refused, Refusal)
            assert refused.code is Code.FENCED
    adm.step("active", "r1")
    refused = adm.query("payload", **fence)
    assert isinstance(refused, Refusal)
    assert refused.reason == "wrong-state"


def test_a_turn_without_a_prompt_has_none(adm: Admission) -> None:
    adm.enqueue("r1")
    refused = adm.query("payload", request_id="r1", **adm.fence("r1"))
    assert isinstance(refused, Refusal)
    assert refused.reason == "no-payload"
