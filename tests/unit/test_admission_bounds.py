"""What a connector, or a slip of an operator's hand, can ask for is bounded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.adm import CONNECTOR, OPERATOR, Admission, Json
from tests.support.results import code_of
from worker.ledger.rulesets import FIRST

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
SECONDS_SINCE_1970 = 1_700_000_000
RESTS: Json = {"provider": "acme", "model": "m1", "not_before_ms": 1}


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def cool(adm: Admission, until_ms: int, **more: object) -> Json:
    body: Json = {"provider": "acme", "model": "m1", "not_before_ms": until_ms, **more}
    return adm.send("cooldown", by=OPERATOR, **body)


@pytest.mark.parametrize(("after_ms", "is_fine"), [(YEAR_MS, True), (YEAR_MS + 1, False)])
def test_a_model_rests_for_a_year_at_most(adm: Admission, after_ms: int, is_fine: bool) -> None:
    result = cool(adm, adm.now_ms + after_ms)
    assert (result["status"] == "ok") is is_fine
    if not is_fine:
        assert (code_of(result), result["error"]["field"]) == ("bad-request", "not_before_ms")


@pytest.mark.parametrize("left_ms", [-1, 0, 1, 5_000])
def test_an_operator_takes_back_a_mistyped_cooldown(adm: Admission, left_ms: int) -> None:
    cool(adm, adm.now_ms + YEAR_MS)
    adm.enqueue("r1")
    assert adm.state("r1") == "queued"
    assert cool(adm, adm.now_ms + left_ms)["data"]["until_ms"] == adm.now_ms + YEAR_MS
    assert cool(adm, adm.now_ms + left_ms, replace=True)["status"] == "ok"
    if left_ms > 0:
        assert adm.driver.fold.due_at() == adm.now_ms + left_ms
        adm.tick(adm.now_ms + left_ms)
    assert adm.state("r1") == "admitted"


def test_a_cooldown_of_the_first_ruleset_can_be_taken_back(tmp_path: Path) -> None:
    adm = Admission(tmp_path, ruleset=FIRST)
    assert cool(adm, 2**53 - 1)["outcome"] == "cooling"
    assert cool(adm, adm.now_ms, replace=True)["outcome"] == "unknown-field"
    adm.enqueue("r1")
    adm.send("ruleset", plane="sys", by="_worker", version=3)
    assert cool(adm, adm.now_ms, replace=True)["outcome"] == "not-cooling"
    assert adm.state("r1") == "admitted"
    adm.close()


@pytest.mark.parametrize(
    ("policy", "wish_ms", "rest_ms"),
    [
        ({}, SECONDS_SINCE_1970, DAY_MS),
        ({}, DAY_MS, DAY_MS),
        ({}, 1_000, 30_000),
        ({"max_retry_after_ms": 60_000}, DAY_MS, 60_000),
        ({"max_retry_after_ms": 0}, DAY_MS, 30_000),
        ({"max_retry_after_ms": 0, "capacity_cooldown_ms": 2 * DAY_MS}, 1, 2 * DAY_MS),
    ],
)
def test_a_providers_wish_is_bounded_by_the_policy(
    tmp_path: Path, policy: dict[str, int], wish_ms: int, rest_ms: int
) -> None:
    adm = Admission(tmp_path, max_active_turns=4, **policy)
    adm.bring_to("active", "r1")
    failure = {"failure": {"category": "provider_capacity"}, "retry_after_ms": wish_ms}
    adm.step("complete", "r1", outcome="failed", **failure)
    (cooldown,) = adm.answer("queue")["cooldowns"]
    assert cooldown["until_ms"] == adm.now_ms + rest_ms
    adm.close()


def test_under_the_first_ruleset_a_providers_wish_is_not_bounded(tmp_path: Path) -> None:
    adm = Admission(tmp_path, ruleset=FIRST)
    adm.bring_to("active", "r1")
    failure = {"failure": {"category": "provider_capacity"}, "retry_after_ms": 2 * DAY_MS}
    adm.step("complete", "r1", outcome="failed", **failure)
    assert adm.answer("queue")["cooldowns"][0]["until_ms"] == adm.now_ms + 2 * DAY_MS
    adm.close()


@pytest.mark.parametrize(
    ("bounds", "priority", "is_fine"),
    [
        ({}, 100, True),
        ({CONNECTOR: 5}, 5, True),
        ({CONNECTOR: 5}, 6, False),
        ({CONNECTOR: -100}, -99, False),
        ({"other": -5}, 100, True),
        ({"*": 0}, 1, False),
        ({"*": 0, CONNECTOR: 1}, 1, True),
        ({"*": 1, CONNECTOR: 0}, 1, False),
    ],
)
def test_a_priority_is_bounded_per_principal(
    tmp_path: Path, bounds: dict[str, int], priority: int, is_fine: bool
) -> None:
    adm = Admission(tmp_path, max_active_turns=4, max_priority=bounds)
    result = adm.enqueue("r1", priority=priority)
    if is_fine:
        assert result["outcome"] == "queued"
    else:
        assert (code_of(result), result["outcome"]) == ("permission-denied", "priority-too-high")
        assert result["error"]["field"] == "priority"
        assert adm.policy()["queued"] == 0
    assert adm.policy()["policy"]["max_priority"] == bounds
    adm.close()


def test_a_bound_that_comes_later_takes_nothing_back(tmp_path: Path) -> None:
    adm = Admission(tmp_path, max_active_turns=1)
    adm.enqueue("r1", priority=9)
    claim: Json = {"epoch": 2, "max_active_turns": 1, "max_priority": {"*": 0}}
    assert adm.send("policy", by=OPERATOR, **claim)["outcome"] == "claimed"
    assert adm.enqueue("r1", priority=9)["outcome"] == "idempotent"
    assert adm.enqueue("r2", priority=9)["outcome"] == "priority-too-high"
    adm.close()


@pytest.mark.parametrize(
    "bounds", [{"a b": 1}, {"": 1}, {"**": 1}, {"conn": 101}, {"conn": True}, {"conn": 1.0}, []]
)
def test_bounds_that_are_none_are_refused(adm: Admission, bounds: object) -> None:
    result = adm.send("policy", by=OPERATOR, epoch=1, max_priority=bounds)
    assert code_of(result) == "bad-request"
    assert result["error"]["field"].startswith("max_priority")
    assert adm.policy()["epoch"] == 0


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("policy", {"assert": {"max_priority": "x"}}, "assert.max_priority"),
        ("policy", {"epoch": 1, "assert": {"max_retry_after_ms": 5}}, "assert.max_retry_after_ms"),
        ("policy", {"epoch": 1, "resume": "x"}, "resume"),
        ("policy", {"epoch": 1, "max_retry_after_ms": 5, "other": 1}, "max_retry_after_ms"),
        ("policy", {"epoch": 1, "other": 1, "max_retry_after_ms": 5}, "other"),
        ("cooldown", {**RESTS, "replace": True, "other": 1}, "replace"),
    ],
)
def test_an_earlier_ruleset_refuses_a_later_field_before_and_after_whatever_it_always_did(
    tmp_path: Path, verb: str, body: Json, field: str
) -> None:
    # Another word, from a worker that is newer than its neighbour, would be a divergence.
    adm = Admission(tmp_path, ruleset=FIRST)
    error = adm.send(verb, by=OPERATOR, **body)["error"]
    assert (error["reason"], error["field"]) == ("unknown-field", field)
    assert error["message"] == f"field {field} is not known here"
    adm.close()
