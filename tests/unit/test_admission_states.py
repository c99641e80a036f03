"""The state table: every verb in every state, under every kind of wrong fence, and repeated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adm import (
    CHILD_PROCESS,
    CONNECTOR_PROCESS,
    OPERATOR,
    UID,
    UID2,
    Admission,
    Json,
    process,
)
from tests.support.results import code_of
from worker.ledger.tx import Kind


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


SEATED = (
    "admitted",
    "starting",
    "dispatch_intent",
    "active",
    "dispatch_ambiguous",
    "recovery_required",
)

INTENT = {
    "channel": "pty",
    "identity": {"connector": CONNECTOR_PROCESS, "child": CHILD_PROCESS},
}
BODIES: dict[str, dict[str, Any]] = {
    "start": {},
    "intent": INTENT,
    "active": {},
    "ambiguous": {},
    "complete": {"outcome": "completed"},
    "abandon": {"outcome": "failed"},
    "recover": {},
}

ALLOWED = {
    ("start", "admitted"): "starting",
    ("intent", "starting"): "dispatch_intent",
    ("active", "dispatch_intent"): "active",
    ("ambiguous", "dispatch_intent"): "dispatch_ambiguous",
    ("complete", "active"): "completed",
    ("abandon", "admitted"): "failed",
    ("abandon", "starting"): "failed",
    ("abandon", "dispatch_intent"): "failed",
    ("recover", "starting"): "recovery_required",
    ("recover", "dispatch_intent"): "recovery_required",
    ("recover", "dispatch_ambiguous"): "recovery_required",
    ("recover", "active"): "recovery_required",
    # Repeats that are fine: nothing happens a second time.
    ("intent", "dispatch_intent"): "dispatch_intent",
    ("recover", "recovery_required"): "recovery_required",
}
"""The table of the spec, written down a second time."""


@pytest.mark.parametrize("state", SEATED)
@pytest.mark.parametrize("verb", BODIES)
def test_a_fenced_verb_moves_a_turn_only_as_the_table_says(
    adm: Admission, verb: str, state: str
) -> None:
    adm.bring_to(state, "r1")
    result = adm.step(verb, "r1", **BODIES[verb])
    expected = ALLOWED.get((verb, state))
    if expected is None:
        assert (result["status"], result["outcome"]) == ("refused", "wrong-state")
        assert result["data"]["state"] == state
        assert adm.state("r1") == state
    else:
        assert result["status"] == "ok"
        assert result["data"]["state"] == expected == adm.state("r1")


@pytest.mark.parametrize("state", SEATED)
def test_one_wrong_part_of_the_fence_is_fenced_in_every_verb_and_state(
    adm: Admission, state: str
) -> None:
    adm.bring_to(state, "r1")
    adm.bring_to("admitted", "other")
    fence = adm.fence("r1")
    right: Json = {"by": "conn", "uid": UID}
    other_lease = adm.fence("other")["lease_id"]
    before = adm.turn("r1"), adm.turn("other")
    for verb, body in BODIES.items():
        for request, who, wrong in (
            ("r1", right, {**fence, "lease_id": other_lease}),
            ("r1", right, {**fence, "generation": fence["generation"] + 1}),
            ("r1", {**right, "uid": UID2}, fence),
            ("r1", {**right, "by": "conn2"}, fence),
            ("other", right, fence),
        ):
            result = adm.send(verb, request, **who, **wrong, **body)
            assert (result["status"], code_of(result)) == ("refused", "fenced")
    assert (adm.turn("r1"), adm.turn("other")) == before


@pytest.mark.parametrize("verb", BODIES)
def test_a_missing_lease_is_fenced_in_every_verb(adm: Admission, verb: str) -> None:
    adm.bring_to("admitted", "r1")
    fence = adm.fence("r1")
    assert adm.step("abandon", "r1", outcome="cancelled")["status"] == "ok"
    for request in ("r1", "never-heard-of"):
        result = adm.send(verb, request, **fence, **BODIES[verb])
        assert code_of(result) == "fenced"


def test_every_verb_repeated_with_its_command_id_is_carried_out_once(adm: Admission) -> None:
    verbs: tuple[tuple[str, Json], ...] = (
        ("enqueue", {}),
        ("start", {}),
        ("intent", INTENT),
        ("active", {}),
        ("complete", {"outcome": "completed"}),
    )
    fence: dict[str, Any] = {}
    for n, (verb, body) in enumerate(verbs):
        command_id = f"command-{n:020d}"
        if verb == "enqueue":
            first = adm.enqueue("r1", command_id=command_id)
            again = adm.enqueue("r1", command_id=command_id)
            fence = adm.fence("r1")
        else:
            first = adm.send(verb, "r1", command_id=command_id, **fence, **body)
            again = adm.send(verb, "r1", command_id=command_id, **fence, **body)
        assert first["status"] == "ok"
        assert (again["outcome"], again["data"]) == (first["outcome"], first["data"])
    assert [kind for kind, _, _ in adm.events()] == [
        "request_enqueued",
        "request_admitted",
        "request_starting",
        "request_dispatch_intent",
        "request_active",
        "request_provider_terminal",
    ]


@pytest.mark.parametrize(
    ("verb", "state", "after"),
    [
        ("start", "admitted", "wrong-state"),
        ("active", "dispatch_intent", "wrong-state"),
        ("ambiguous", "dispatch_intent", "wrong-state"),
        ("complete", "active", "fenced"),
        ("abandon", "starting", "fenced"),
    ],
)
def test_a_verb_repeated_with_another_command_id_does_nothing(
    adm: Admission, verb: str, state: str, after: str
) -> None:
    adm.bring_to(state, "r1")
    fence = adm.fence("r1")
    assert adm.send(verb, "r1", **fence, **BODIES[verb])["status"] == "ok"
    settled = adm.turn("r1")
    assert adm.send(verb, "r1", **fence, **BODIES[verb])["outcome"] == after
    assert adm.turn("r1") == settled


def test_an_intent_that_differs_from_the_first_is_a_conflict(adm: Admission) -> None:
    adm.bring_to("dispatch_intent", "r1")
    same = adm.step("intent", "r1", **INTENT)
    assert (same["status"], same["outcome"]) == ("ok", "idempotent")
    other_child = {"connector": CONNECTOR_PROCESS, "child": process(21)}
    for change in ({"channel": "stdin"}, {"identity": other_child}):
        result = adm.step("intent", "r1", **{**INTENT, **change})
        assert (code_of(result), result["outcome"]) == ("conflict", "different-intent")
    assert adm.state("r1") == "dispatch_intent"


def test_an_intent_names_its_connector(adm: Admission) -> None:
    adm.bring_to("starting", "r1")
    result = adm.step("intent", "r1", channel="http", identity={})
    assert (result["outcome"], result["error"]["field"]) == ("missing-field", "identity.connector")
    assert adm.state("r1") == "starting"


@pytest.mark.parametrize(
    ("outcome", "failure", "state"),
    [
        ("completed", None, "completed"),
        ("cancelled", None, "cancelled"),
        ("failed", None, "failed"),
        ("failed", {"category": "auth", "http_status": 401, "code": "E1"}, "failed"),
    ],
)
def test_completion_ends_as_told(
    adm: Admission, outcome: str, failure: dict[str, Any] | None, state: str
) -> None:
    adm.bring_to("active", "r1")
    more = {} if failure is None else {"failure": failure}
    result = adm.step("complete", "r1", outcome=outcome, **more)
    assert (result["status"], result["outcome"]) == ("ok", state)
    turn = adm.turn("r1")
    assert (turn["state"], turn.get("failure")) == (state, failure)
    assert "lease" not in turn
    assert adm.policy()["seats"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"outcome": "completed", "failure": {"category": "auth"}},
        {"outcome": "failed", "failure": {"category": "weather"}},
        {"outcome": "failed", "failure": {"category": "auth", "http_status": 99}},
        {"outcome": "failed", "failure": {"category": "auth", "http_status": 600}},
        {"outcome": "lost"},
    ],
)
def test_a_completion_that_makes_no_sense_is_refused(adm: Admission, body: dict[str, Any]) -> None:
    adm.bring_to("active", "r1")
    result = adm.step("complete", "r1", **body)
    assert (result["status"], code_of(result)) == ("refused", "bad-request")
    assert adm.state("r1") == "active"


def test_complete_that_races_recover_loses_to_whoever_came_first(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    adm.bring_to("active", "r2")
    first, second = adm.fence("r1"), adm.fence("r2")
    assert adm.send("recover", "r1", **first)["status"] == "ok"
    assert adm.send("complete", "r1", **first, outcome="completed")["outcome"] == "wrong-state"
    assert adm.state("r1") == "recovery_required"
    assert adm.send("complete", "r2", **second, outcome="completed")["status"] == "ok"
    assert adm.send("recover", "r2", **second)["outcome"] == "fenced"
    assert adm.state("r2") == "completed"


@pytest.mark.parametrize("state", SEATED)
def test_cancel_of_what_is_not_queued_is_refused_with_its_state(adm: Admission, state: str) -> None:
    adm.bring_to(state, "r1")
    result = adm.send("cancel", "r1")
    assert (result["outcome"], result["data"]["state"]) == ("wrong-state", state)


def test_cancel_belongs_to_the_owners_principal_and_to_operators(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    for request in ("r1", "r2", "r3"):
        adm.enqueue(request)
    assert code_of(adm.send("cancel", "r1", by="conn2")) == "permission-denied"
    assert adm.state("r1") == "queued"
    assert adm.send("cancel", "r1", uid=UID2)["outcome"] == "cancelled"
    assert adm.send("cancel", "r2", by=OPERATOR)["outcome"] == "cancelled"
    repeated = adm.send("cancel", "r1")
    assert (repeated["outcome"], repeated["data"]["state"]) == ("wrong-state", "cancelled")
    assert code_of(adm.send("cancel", "nobody")) == "not-found"
    assert adm.send("drain", by=OPERATOR, to=1)["status"] == "ok"
    assert adm.grants() == ["r3"]


@pytest.mark.parametrize("verb", ["enqueue", "cancel", "start", "resolve"])
@pytest.mark.parametrize("key", [None, "a.b", "x" * 65, "é"])
def test_a_key_that_is_no_request_id_is_refused_and_writes_nothing(
    adm: Admission, verb: str, key: str | None
) -> None:
    bodies: dict[str, Json] = {
        "enqueue": {
            "session_id": "s",
            "agent_id": "a",
            "fingerprint": "f",
            "provider": "p",
            "model": "m",
        },
        "cancel": {},
        "start": {"lease_id": "l", "generation": 1},
        "resolve": {"resolution": "confirmed_completed", "evidence": "seen"},
    }
    by = OPERATOR if verb == "resolve" else "conn"
    parts = () if key is None else tuple(key.split("."))
    result = adm.driver.send(by, "adm", verb, *parts, body=bodies[verb], at_ms=adm.now_ms)
    assert (code_of(result), result["outcome"]) == ("bad-request", "bad-key")
    assert adm.events() == []
    assert adm.policy()["queued"] == 0


@pytest.mark.parametrize("field", ["session_id", "agent_id", "fingerprint", "provider", "model"])
@pytest.mark.parametrize("value", ["", " a", "a ", "a\n", "a\x7f", "a" * 257, 3, None])
def test_one_validator_for_every_identifier_of_an_enqueue(
    adm: Admission, field: str, value: Any
) -> None:
    body = {
        "session_id": "s",
        "agent_id": "a",
        "fingerprint": "f",
        "provider": "p",
        "model": "m",
        field: value,
    }
    result = adm.send("enqueue", "r1", **body)
    assert (code_of(result), result["error"]["field"]) == ("bad-request", field)


def test_a_payload_is_deleted_at_the_revision_that_was_enqueued_and_only_once(
    adm: Admission,
) -> None:
    payload = {
        "key_version": 1,
        "content_fingerprint": "f" * 64,
        "expires_at_ms": adm.now_ms + 1_800_000,
        "revision": 7,
    }
    ends: dict[str, list[tuple[str, Json]]] = {
        "active": [("start", {}), ("intent", INTENT), ("active", {})],
        "ambiguous": [("start", {}), ("intent", INTENT), ("ambiguous", {})],
        "recovery": [("start", {}), ("recover", {})],
        "abandoned": [("abandon", {"outcome": "failed"})],
    }
    for request, steps in ends.items():
        adm.enqueue(request, payload={**payload})
        for verb, body in steps:
            assert not adm.said(Kind.DELETE, f".{request}")
            assert adm.step(verb, request, **body)["status"] == "ok"
        (deleted,) = adm.said(Kind.DELETE, f".{request}")
        assert deleted.subject == f"$KV.tidegate_payloads_test.conn.{request}"
        assert deleted.expect == 7
    adm.step("complete", "active", outcome="completed")
    assert len(adm.said(Kind.DELETE)) == len(ends)
    adm.send("drain", by=OPERATOR, to=0)
    adm.enqueue("cancelled", payload=payload)
    adm.enqueue("timed-out", payload=payload, timeout_ms=1)
    adm.send("cancel", "cancelled")
    adm.tick(adm.now_ms + 1)
    assert [row.subject.rsplit(".", 1)[1] for row in adm.said(Kind.DELETE)[-2:]] == [
        "cancelled",
        "timed-out",
    ]
