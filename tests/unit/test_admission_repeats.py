"""The same command again, after the world has moved on: an ``ok`` is true when it is said."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.commands import BODIES, LEDGER_PLANES
from schemas.repeats import JUDGED_ANEW, REPEATS
from tests.support.adm import (
    CHILD_PROCESS,
    CONNECTOR_PROCESS,
    OPERATOR,
    UID,
    UID2,
    Admission,
    Json,
)
from worker.ledger.rulesets import FIRST

ID = "the-first-command-of-all"
INTENT: Json = {
    "channel": "pty",
    "identity": {"connector": CONNECTOR_PROCESS, "child": CHILD_PROCESS},
}


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def test_every_verb_of_the_ledger_says_why_its_memory_is_safe_or_not() -> None:
    assert set(REPEATS) == {name for name in BODIES if name[0] in LEDGER_PLANES}


def test_the_page_says_of_every_verb_what_the_code_does() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    for (plane, verb), repeat in REPEATS.items():
        answered = "judged anew" if repeat.anew else "answered from memory"
        assert f"| `{plane}.{verb}` | {answered} | {repeat.why} |" in page


def seat(adm: Admission) -> Json:
    """A seat of the first life, by the fence that its commands carry."""
    adm.enqueue("r1", identity=CONNECTOR_PROCESS)
    return adm.fence("r1")


def start(adm: Admission, fence: Json) -> Json:
    return adm.send("start", "r1", command_id=ID, **fence)


def intent(adm: Admission, fence: Json) -> Json:
    if adm.state("r1") == "admitted":
        adm.step("start", "r1")
    return adm.send("intent", "r1", command_id=ID, **fence, **INTENT)


def active(adm: Admission, fence: Json) -> Json:
    if adm.state("r1") == "admitted":
        adm.step("start", "r1")
        adm.intend("r1")
    return adm.send("active", "r1", command_id=ID, **fence)


STEPS = [start, intent, active]
Step = Callable[[Admission, Json], Json]


def give_to_another_life(adm: Admission) -> None:
    """The first life is lost, its turn is given back, and the second one takes it up."""
    turn = adm.turn("r1")
    if turn["state"] in ("admitted", "starting"):
        adm.tick(adm.now_ms + 60_000)
    else:
        adm.evidence("r1", child="alive", group="alive")
        resolution: Json = {"resolution": "confirmed_not_dispatched", "evidence": "looked"}
        assert adm.send("resolve", "r1", by=OPERATOR, **resolution)["outcome"] == "requeued"
    if adm.state("r1") == "queued":
        adm.enqueue("r1", uid=UID2, identity=CONNECTOR_PROCESS)
    assert adm.turn("r1")["generation"] == 2


@pytest.mark.parametrize("step", STEPS)
def test_while_the_seat_stands_a_repeat_is_told_the_same(adm: Admission, step: Step) -> None:
    fence = seat(adm)
    first, again = step(adm, fence), step(adm, fence)
    assert first["status"] == "ok"
    assert (again["outcome"], again["data"]) == (first["outcome"], first["data"])


@pytest.mark.parametrize("step", STEPS)
def test_a_licence_ends_with_its_seat(adm: Admission, step: Step) -> None:
    fence = seat(adm)
    assert step(adm, fence)["status"] == "ok"
    give_to_another_life(adm)
    before = adm.turn("r1")
    again = adm.send(
        step.__name__, "r1", command_id=ID, **fence, **(INTENT if step is intent else {})
    )
    assert (again["status"], again["outcome"]) == ("refused", "fenced")
    assert adm.turn("r1") == before


@pytest.mark.parametrize("step", STEPS)
def test_a_licence_ends_when_its_turn_has_moved_on(adm: Admission, step: Step) -> None:
    fence = seat(adm)
    assert step(adm, fence)["status"] == "ok"
    if step is start:
        adm.intend("r1")
    adm.step("recover", "r1")
    again = adm.send(
        step.__name__, "r1", command_id=ID, **fence, **(INTENT if step is intent else {})
    )
    assert (again["status"], again["outcome"]) == ("refused", "wrong-state")
    assert adm.state("r1") == "recovery_required"


def test_a_refused_licence_stays_refused(adm: Admission) -> None:
    fence = seat(adm)
    assert adm.send("intent", "r1", command_id=ID, **fence, **INTENT)["outcome"] == "wrong-state"
    adm.step("start", "r1")
    assert adm.send("intent", "r1", command_id=ID, **fence, **INTENT)["outcome"] == "wrong-state"
    assert adm.state("r1") == "starting"


def test_a_seat_that_was_asked_for_is_handed_out_again_and_never_a_second_one(
    adm: Admission,
) -> None:
    for n in (1, 2):
        adm.enqueue(f"r{n}", f"agent-{n}", grant="pull")
    first = adm.send("admit", command_id=ID)
    again = adm.send("admit", command_id=ID)
    assert first["data"]["request_id"] == again["data"]["request_id"] == "r1"
    assert first["data"]["lease_id"] == again["data"]["lease_id"]
    adm.step("start", "r1")
    assert adm.send("admit", command_id=ID)["outcome"] == "wrong-state"
    adm.step("abandon", "r1", outcome="failed")
    assert adm.send("admit", command_id=ID)["outcome"] == "fenced"
    assert adm.state("r2") == "queued"


def test_no_seat_stays_no_seat_under_the_same_id(adm: Admission) -> None:
    assert adm.send("admit", command_id=ID)["outcome"] == "none"
    adm.enqueue("r1", grant="pull")
    assert adm.send("admit", command_id=ID)["outcome"] == "none"
    assert adm.send("admit")["outcome"] == "admitted"


def test_an_assertion_says_what_is_in_force_now(adm: Admission) -> None:
    body: Json = {"assert": {"max_active_turns": 8}}
    assert adm.send("policy", by=OPERATOR, command_id=ID, **body)["outcome"] == "match"
    adm.send("policy", by=OPERATOR, epoch=1, max_active_turns=3)
    assert adm.send("policy", by=OPERATOR, command_id=ID, **body)["outcome"] == "policy-differs"


def test_a_drain_is_begun_once_and_says_how_far_it_is_by_now(adm: Admission) -> None:
    adm.bring_to("active", "r1")
    assert adm.send("drain", by=OPERATOR, command_id=ID, to=0)["outcome"] == "draining"
    adm.step("complete", "r1", outcome="completed")
    assert adm.send("drain", by=OPERATOR, command_id=ID, to=0)["outcome"] == "drained"
    adm.send("drain", by=OPERATOR, to=8)
    assert adm.send("drain", by=OPERATOR, command_id=ID, to=0)["outcome"] == "drain-superseded"
    assert adm.policy()["seat_limit"] == 8


@pytest.mark.parametrize("verb", ["resolve", "cooldown"])
def test_what_permits_nothing_is_answered_from_memory_and_changes_nothing(
    adm: Admission, verb: str
) -> None:
    if verb == "resolve":
        adm.bring_to("recovery_required", "r1")
        body: Json = {"resolution": "confirmed_not_dispatched", "evidence": "looked"}
        first = adm.send("resolve", "r1", by=OPERATOR, command_id=ID, **body)
        adm.step("start", "r1")
        adm.intend("r1")
        adm.step("recover", "r1")
        again = adm.send("resolve", "r1", by=OPERATOR, command_id=ID, **body)
        assert adm.state("r1") == "recovery_required"
    else:
        body = {"provider": "acme", "model": "m1", "not_before_ms": adm.now_ms + 1_000}
        first = adm.send("cooldown", by=OPERATOR, command_id=ID, replace=True, **body)
        longer = {**body, "not_before_ms": adm.now_ms + 9_000}
        adm.send("cooldown", by=OPERATOR, **longer)
        again = adm.send("cooldown", by=OPERATOR, command_id=ID, replace=True, **body)
        assert adm.answer("queue")["cooldowns"][0]["until_ms"] == adm.now_ms + 9_000
    assert (again["outcome"], again["data"]) == (first["outcome"], first["data"])


def test_under_the_first_ruleset_the_recorded_answer_is_repeated(tmp_path: Path) -> None:
    adm = Admission(tmp_path, ruleset=FIRST)
    fence = seat(adm)
    first = intent(adm, fence)
    give_to_another_life(adm)
    again = adm.send("intent", "r1", command_id=ID, uid=UID, **fence, **INTENT)
    assert (again["outcome"], again["data"]) == (first["outcome"], first["data"])
    adm.close()


def test_a_client_knows_the_same_verbs() -> None:
    assert ("adm", "intent") in JUDGED_ANEW
    assert ("cap", "stop") not in JUDGED_ANEW


def test_the_largest_policy_is_answered_while_it_drains_and_again(adm: Admission) -> None:
    def claim(epoch: int, seats: int) -> Json:
        # As much as a body can hold; what is answered of it is larger.
        bounds = {f"p{number:057d}": 1 for number in range(1_000)}
        policy: Json = {"epoch": epoch, "max_active_turns": seats, "max_priority": bounds}
        return adm.send("policy", by=OPERATOR, command_id=f"policy-{epoch:016d}", **policy)

    assert [claim(1, 2)["outcome"] for _ in range(2)] == ["claimed", "idempotent"]
    for number in range(2):
        adm.bring_to("active", f"r{number}")
    assert [claim(2, 1)["outcome"] for _ in range(2)] == ["draining", "draining"]
    adm.step("complete", "r0", outcome="completed")
    assert claim(2, 1)["outcome"] == "idempotent"
