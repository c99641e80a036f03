"""The queue: idempotency, rebinding, deadlines, and what an enqueue may say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.adm import OPERATOR, T0, UID, UID2, Admission, process
from tests.support.results import code_of

HALF_HOUR = 1_800_000


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


@pytest.fixture
def paused(adm: Admission) -> Admission:
    assert adm.send("drain", by=OPERATOR, to=0)["outcome"] == "drained"
    return adm


def a_payload(
    fingerprint: str = "f", expires_at_ms: int = T0 + HALF_HOUR, revision: int = 1
) -> Any:
    return {
        "key_version": 1,
        "content_fingerprint": fingerprint * 64,
        "expires_at_ms": expires_at_ms,
        "revision": revision,
    }


def test_an_enqueue_shows_its_deadline(paused: Admission) -> None:
    result = paused.enqueue("r1")
    assert (result["status"], result["outcome"]) == ("ok", "queued")
    assert result["data"] == {
        "request_id": "r1",
        "state": "queued",
        "generation": 1,
        "deadline_at_ms": T0 + HALF_HOUR,
    }


def test_the_same_enqueue_again_is_answered_with_what_became_of_it(adm: Admission) -> None:
    adm.enqueue("r1", priority=3, timeout_ms=5_000)
    for state, verb in (
        ("admitted", None),
        ("starting", "start"),
        ("recovery_required", "recover"),
    ):
        if verb is not None:
            adm.step(verb, "r1")
        again = adm.enqueue("r1", priority=3, timeout_ms=5_000)
        assert (again["status"], again["outcome"]) == ("ok", "idempotent")
        assert again["data"] == adm.turn("r1")
        assert again["data"]["state"] == state
    assert [kind for kind, _, _ in adm.events()].count("request_enqueued") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_id", "other"),
        ("agent_id", "other"),
        ("fingerprint", "other"),
        ("provider", "other"),
        ("model", "other"),
        ("grant", "pull"),
        ("priority", 1),
        ("timeout_ms", 9),
        ("payload", a_payload()),
    ],
)
@pytest.mark.parametrize("admitted", [False, True])
def test_an_enqueue_that_differs_in_an_immutable_field_is_a_conflict(
    adm: Admission, field: str, value: Any, admitted: bool
) -> None:
    if not admitted:
        adm.send("drain", by=OPERATOR, to=0)
    body: dict[str, Any] = {
        "session_id": "s",
        "agent_id": "a",
        "fingerprint": "f",
        "provider": "p",
        "model": "m",
    }
    adm.send("enqueue", "r1", **body)
    before = adm.turn("r1")
    result = adm.send("enqueue", "r1", **{**body, field: value})
    assert (code_of(result), result["outcome"]) == ("conflict", "different-request")
    assert adm.turn("r1") == before


def test_another_principal_cannot_use_a_request_id_or_learn_about_it(paused: Admission) -> None:
    paused.enqueue("r1")
    result = paused.enqueue("r1", by="conn2")
    assert (code_of(result), result["data"]) == ("conflict", {})
    assert paused.turn("r1")["owner"] == {"principal": "conn", "uid": UID}


def test_the_same_prompt_sealed_again_is_the_same_request_and_another_prompt_is_not(
    paused: Admission,
) -> None:
    paused.enqueue("r1", payload=a_payload("f", revision=3))
    assert paused.enqueue("r1", payload=a_payload("f", revision=4))["outcome"] == "idempotent"
    result = paused.enqueue("r1", payload=a_payload("e", revision=3))
    assert result["outcome"] == "different-request"
    assert paused.enqueue("r1")["outcome"] == "different-request"


def test_a_new_life_of_the_principal_takes_over_what_is_queued(paused: Admission) -> None:
    paused.enqueue("r1", identity=process(1))
    result = paused.enqueue("r1", uid=UID2, identity=process(2))
    assert (result["outcome"], result["data"]["owner"]["uid"]) == ("adopted", UID2)
    assert paused.events()[-1] == ("request_adopted", "queued", "queued")
    paused.send("drain", by=OPERATOR, to=1)
    assert paused.turn("r1")["lease"]["owner"]["uid"] == UID2


def test_a_new_life_does_not_take_over_what_has_a_seat(adm: Admission) -> None:
    adm.enqueue("r1")
    result = adm.enqueue("r1", uid=UID2)
    assert (result["outcome"], result["data"]["owner"]["uid"]) == ("idempotent", UID)


@pytest.mark.parametrize(("late_ms", "state"), [(-1, "queued"), (0, "queue_timeout"), (1, None)])
def test_a_queue_deadline_equal_to_now_has_passed(
    paused: Admission, late_ms: int, state: str | None
) -> None:
    paused.enqueue("r1", timeout_ms=1_000)
    paused.tick(T0 + 1_000 + late_ms)
    assert paused.state("r1") == (state or "queue_timeout")


@pytest.mark.parametrize("late_ms", [-1, 0, 1])
def test_whoever_comes_before_the_deadline_wins_and_nobody_after(
    paused: Admission, late_ms: int
) -> None:
    paused.enqueue("r1", timeout_ms=1_000)
    result = paused.send("drain", by=OPERATOR, to=1, at=T0 + 1_000 + late_ms)
    assert result["outcome"] == "drained"
    assert paused.state("r1") == ("admitted" if late_ms < 0 else "queue_timeout")


@pytest.mark.parametrize("late_ms", [-1, 0])
def test_cancel_at_the_deadline(paused: Admission, late_ms: int) -> None:
    paused.enqueue("r1", timeout_ms=1_000)
    result = paused.send("cancel", "r1", at=T0 + 1_000 + late_ms)
    if late_ms < 0:
        assert result["outcome"] == "cancelled"
    else:
        assert (result["outcome"], result["data"]["state"]) == ("wrong-state", "queue_timeout")


def test_cancel_racing_admission_has_one_winner(tmp_path: Path) -> None:
    for first in ("cancel", "admit"):
        folder = tmp_path / first
        folder.mkdir()
        adm = Admission(folder)
        adm.send("drain", by=OPERATOR, to=0)
        adm.enqueue("r1", grant="pull")
        adm.send("drain", by=OPERATOR, to=1)
        second = "admit" if first == "cancel" else "cancel"
        assert adm.send(first, "r1")["status"] == "ok"
        assert adm.send(second, "r1")["outcome"] == "wrong-state"
        assert adm.state("r1") == ("cancelled" if first == "cancel" else "admitted")
        adm.close()


def test_the_shorter_of_policy_and_wish_is_the_deadline(tmp_path: Path) -> None:
    adm = Admission(tmp_path, queue_timeout_ms=5_000)
    adm.send("drain", by=OPERATOR, to=0)
    assert adm.enqueue("r1", timeout_ms=1_000)["data"]["deadline_at_ms"] == T0 + 1_000
    assert adm.enqueue("r2", timeout_ms=9_000)["data"]["deadline_at_ms"] == T0 + 5_000
    assert adm.enqueue("r3")["data"]["deadline_at_ms"] == T0 + 5_000
    adm.close()


@pytest.mark.parametrize(("spare_ms", "fine"), [(-1, False), (0, True), (1, True)])
def test_a_payload_lasts_until_the_deadline(paused: Admission, spare_ms: int, fine: bool) -> None:
    payload = a_payload(expires_at_ms=T0 + 1_000 + spare_ms)
    result = paused.enqueue("r1", timeout_ms=1_000, payload=payload)
    if fine:
        assert result["outcome"] == "queued"
    else:
        assert (code_of(result), result["error"]["field"]) == (
            "bad-request",
            "payload.expires_at_ms",
        )
        assert paused.policy()["queued"] == 0


def test_a_request_id_is_never_used_twice_not_even_after_pruning(adm: Admission) -> None:
    adm.bring_to("completed", "done")
    adm.bring_to("active", "running")
    adm.enqueue("queued", "agent-9", uid=UID2)
    result = adm.send("prune", plane="sys", by="_worker", before_at_ms=T0 + 1, at=T0 + 10)
    assert result["outcome"] == "pruned"
    assert adm.send("cancel", "done")["outcome"] == "no-such-request"
    assert adm.state("running") == "active"
    again = adm.enqueue("done")
    assert (code_of(again), again["outcome"]) == ("already-exists", "request-id-used")
    assert adm.step("complete", "running", outcome="completed")["status"] == "ok"


def test_pruning_empties_the_tree_of_heads_and_keeps_what_is_in_use(paused: Admission) -> None:
    for n in range(20):
        paused.enqueue(f"r{n}", agent=f"agent-{n}")
    for n in range(19):
        paused.send("cancel", f"r{n}")
    paused.send("prune", plane="sys", by="_worker", before_at_ms=T0 + 1, at=T0 + 10)
    count = "SELECT count(*) FROM adm_heads"
    assert paused.driver.db.execute(count).fetchone() == (4,)
    paused.send("drain", by=OPERATOR, to=1)
    assert paused.grants() == ["r19"]


def test_a_batch_of_deadlines_in_one_millisecond_ends_over_several_ticks(
    paused: Admission,
) -> None:
    for n in range(600):
        paused.enqueue(f"r{n:03d}", timeout_ms=1_000)
    for ticks in (1, 2, 3):
        assert paused.driver.fold.due_at() == T0 + 1_000
        paused.tick(T0 + 1_000)
        assert paused.policy()["queued"] == max(0, 600 - 256 * ticks)
    assert paused.driver.fold.due_at() is None


def test_an_expired_turn_is_over_for_a_command_about_it_before_its_tick(
    paused: Admission,
) -> None:
    for n in range(300):
        paused.enqueue(f"r{n:03d}", timeout_ms=1_000)
    result = paused.send("cancel", "r299", at=T0 + 1_000)
    assert result["data"]["state"] == "queue_timeout"
    assert paused.policy()["queued"] == 43
    paused.send("drain", by=OPERATOR, to=5)
    assert paused.grants() == []
