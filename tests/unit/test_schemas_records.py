"""Records are closed: what does not fit is garbled, and nothing is defaulted or repaired."""

import base64
import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import strict_json
from schemas.codes import BadInput
from schemas.model import Closed
from schemas.records import (
    AnswerRecord,
    PromptRecord,
    SettleFact,
    SpecRecord,
    StatusRecord,
    TimerBody,
    answer_id,
    prompt_digest,
)

HOLDER = {"id": "u_abc.worker", "lifecycleUid": "u_meshwait"}
GOAL = {"caller": {"owner": "u_abc", "actor": "worker", "uid": "x"}, "goalId": "any goal"}
OBLIGATION: dict[str, Any] = {
    "v": 1,
    "space": "main",
    "requestId": "r",
    "signer": {"keyId": "k"},
    "attenuations": ["a"],
    "iat": -5,
    "exp": 5,
    "sig": "s" * 344,
}
SPEC: dict[str, Any] = {
    "v": 1,
    "token": "t",
    "goal": GOAL,
    "obligations": [OBLIGATION],
    "holder": HOLDER,
    "mintedAt": 1,
    "initialDeadline": 2,
}
WAITING: dict[str, Any] = {
    "state": "waiting",
    "deadlineGeneration": 2,
    "deadline": 9,
    "observedSpecRevision": 1,
}
SETTLED = {"settledGeneration": 2, "settledTs": 8}
RESUMED = {"settledHolder": HOLDER}
ANSWERED = {"settledAnswerId": "a" * 43}
FACT: dict[str, Any] = {"v": 1, "token": "t", "generation": 2, "ts": 8}
TIMER: dict[str, Any] = {"v": 1, "timerId": "t", "generation": 1, "deadline": 253402300799999}
PROMPT: dict[str, Any] = {"v": 1, "title": "Deploy?"}
ANSWER: dict[str, Any] = {"v": 1, "token": "t", "answerId": "a", "by": "alice", "at": 7}

VALID: list[tuple[type[Closed], dict[str, Any]]] = [
    (SpecRecord, SPEC),
    (SpecRecord, {k: v for k, v in SPEC.items() if k not in ("goal", "obligations")}),
    (SpecRecord, {k: v for k, v in SPEC.items() if k != "obligations"}),
    (StatusRecord, WAITING),
    (StatusRecord, WAITING | {"state": "expired"} | SETTLED),
    (StatusRecord, WAITING | {"state": "resumed"} | SETTLED | RESUMED),
    (StatusRecord, WAITING | {"state": "resumed"} | SETTLED | RESUMED | ANSWERED),
    (SettleFact, FACT | {"settle": "expired"}),
    (SettleFact, FACT | {"settle": "resumed", "holder": HOLDER}),
    (SettleFact, FACT | {"settle": "resumed", "holder": HOLDER, "answerId": "a"}),
    (TimerBody, TIMER),
    (PromptRecord, PROMPT),
    (PromptRecord, PROMPT | {"body": "*b*", "choices": ["y", "n"], "requested_by": "r"}),
    (PromptRecord, PROMPT | {"answer_schema": {"default": None, "enum": [None, 1.5]}}),
    (AnswerRecord, ANSWER),
    (AnswerRecord, ANSWER | {"value": {"a": [None]}, "artifact": "sha256:x"}),
    (AnswerRecord, ANSWER | {"value": False, "supersedes": "b"}),
]


@pytest.mark.parametrize(("model", "record"), VALID)
def test_a_record_is_kept_verbatim(model: type[Closed], record: dict[str, Any]) -> None:
    raw = json.dumps(record).encode()
    parsed = model.from_bytes(raw)
    assert json.loads(parsed.to_bytes()) == record
    assert model.from_bytes(parsed.to_bytes()) == parsed


@pytest.mark.parametrize(("model", "record"), VALID)
def test_a_record_has_no_field_more_and_no_required_field_less(
    model: type[Closed], record: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as caught:
        model.from_object(record | {"extra": 1})
    assert caught.value.field == "extra"
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    for name in required:
        with pytest.raises(BadInput) as caught:
            model.from_object({k: v for k, v in record.items() if k != name})
        assert (caught.value.field, caught.value.reason) == (name, "missing-field")


@pytest.mark.parametrize(("model", "record"), VALID)
def test_null_is_not_absence(model: type[Closed], record: dict[str, Any]) -> None:
    """Taking a null for a field that was left out would repair a garbled record."""
    for name in model.model_fields:
        if name == "value":
            continue
        with pytest.raises(BadInput) as caught:
            model.from_object(record | {name: None})
        assert caught.value.field == name


@pytest.mark.parametrize(("model", "record"), VALID)
def test_a_number_in_a_record_is_a_whole_number(
    model: type[Closed], record: dict[str, Any]
) -> None:
    for name, value in record.items():
        if type(value) is int:
            for bad in (True, float(value), str(value), [value]):
                with pytest.raises(BadInput) as caught:
                    model.from_object(record | {name: bad})
                assert (caught.value.field, caught.value.reason) == (name, "wrong-type")


def fits(record: dict[str, Any]) -> bool:
    """The rule of the state's fields once more, written as the spec has it."""
    optional = {"settledGeneration", "settledTs", "settledHolder", "settledAnswerId"}
    present = record.keys() & optional
    must: set[str]
    may: set[str]
    match record["state"]:
        case "waiting":
            must, may = set(), set()
        case "expired":
            must, may = {"settledGeneration", "settledTs"}, set()
        case "resumed":
            must = {"settledGeneration", "settledTs", "settledHolder"}
            may = {"settledAnswerId"}
        case _:
            return False
    same = record.get("settledGeneration", 2) == 2
    return must <= present <= must | may and same


@pytest.mark.parametrize("state", ["waiting", "resumed", "expired", "WAITING", ""])
@pytest.mark.parametrize("generation", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("ts", "holder", "answered"), list(itertools.product([False, True], repeat=3))
)
def test_of_all_mixes_of_a_status_only_the_three_states_are_read(
    state: str, generation: int | None, ts: bool, holder: bool, answered: bool
) -> None:
    record = WAITING | {"state": state}
    if generation is not None:
        record["settledGeneration"] = generation
    record |= {"settledTs": 8} if ts else {}
    record |= RESUMED if holder else {}
    record |= ANSWERED if answered else {}
    if fits(record):
        assert StatusRecord.from_object(record).to_object() == record
    else:
        with pytest.raises(BadInput):
            StatusRecord.from_object(record)


@pytest.mark.parametrize("settle", ["resumed", "expired", "waiting", ""])
@pytest.mark.parametrize("holder", [False, True])
@pytest.mark.parametrize("answered", [False, True])
def test_a_fact_names_a_holder_iff_resumed_and_an_answer_only_then(
    settle: str, holder: bool, answered: bool
) -> None:
    record = FACT | {"settle": settle}
    record |= {"holder": HOLDER} if holder else {}
    record |= {"answerId": "a"} if answered else {}
    if (settle == "resumed" and holder) or (settle == "expired" and not holder and not answered):
        assert SettleFact.from_object(record).to_object() == record
    else:
        with pytest.raises(BadInput):
            SettleFact.from_object(record)


@pytest.mark.parametrize(
    "change",
    [
        {"holder": {"id": "", "lifecycleUid": "u"}},
        {"holder": {"id": "a", "lifecycleUid": ""}},
        {"holder": {"id": "a"}},
        {"holder": {"id": "a", "lifecycleUid": "u", "more": 1}},
        {"holder": "alice"},
        {"goal": {"caller": {"owner": "o", "actor": "a"}, "goalId": "g"}},
        {"goal": GOAL | {"goalId": ""}},
        {"obligations": [OBLIGATION | {"attenuations": []}]},
        {"obligations": [OBLIGATION | {"signer": {"keyId": "k", "alg": "x"}}]},
        {"obligations": [OBLIGATION | {"v": 2}]},
        {"obligations": [OBLIGATION | {"iat": 1.5}]},
        {"obligations": [OBLIGATION | {"exp": 2**53}]},
        {"obligations": {}},
        {"token": "a.b"},
        {"token": "t\n"},
        {"token": "x" * 65},
        {"v": 2},
        {"mintedAt": -1},
        {"initialDeadline": 2**53},
    ],
)
def test_a_spec_that_does_not_fit_is_garbled(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        SpecRecord.from_object(SPEC | change)


def test_obligations_stand_only_beside_a_goal() -> None:
    with pytest.raises(BadInput) as caught:
        SpecRecord.from_object({k: v for k, v in SPEC.items() if k != "goal"})
    assert caught.value.reason == "needs-goal"


@pytest.mark.parametrize(
    "change",
    [
        {"deadlineGeneration": 0},
        {"deadline": -1},
        {"observedSpecRevision": 0},
        {"v": 1},
        {"token": "t"},
    ],
)
def test_a_status_that_does_not_fit_is_garbled(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        StatusRecord.from_object(WAITING | change)


def canonical(value: Any) -> str:
    """RFC 8785 for values without floats: sorted by UTF-16 code units, nothing escaped but must."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(n)}:{canonical(value[n])}" for n in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def expected_answer_id(token: str, by: str, value: Any, artifact: str | None) -> str:
    content = canonical({"artifact": artifact, "by": by, "token": token, "value": value})
    digest = hashlib.sha256(content.encode()).digest()
    return base64.b64encode(digest, b"-_").decode().rstrip("=")


@pytest.mark.parametrize(
    ("token", "by", "value", "artifact", "expected"),
    [
        ("t-1", "alice", None, None, "pWFK8fvNNi2U7eK3UqQlPWFcFBrU87PKD3ZjnI0nOLg"),
        ("t-1", "alice", "approve", None, "d-ldOnonPcAE5T7XlDPzNxJzL6G34M4z8fHRHWZ2scE"),
        (
            "t-1",
            "alice",
            {"b": 1, "a": [True, None]},
            "sha256:00ff",
            "H2QRHfXWf3RWRzF6rIDN3XwZx3KF7GFM7W_41qklJp4",
        ),
        ("t-1", "u_abc.worker", 1.5, None, "39tjs8xCamWTdL6W1n52Stx_GtIVA8Ipq5wUygHs8TQ"),
        (
            "t-1",
            "alice",
            {"é": "ü", "\U0001f600": 1, "\ufb33": 2},
            None,
            "nvDVSxM5mswm_9rw5cnvUJHWTuT78m0hRppvykN4dU8",
        ),
        (
            "t-1",
            "alice",
            [1e21, 1e-7, -0.0, 333333333.33333329, 5e-324, 1e16],
            None,
            "Shgv2_IbZVyHSqCCN-rrsqjWdCihdEgnPsbB2CO3STI",
        ),
    ],
)
def test_an_answers_id_is_the_digest_of_its_content(
    token: str, by: str, value: Any, artifact: str | None, expected: str
) -> None:
    """The expected ids were computed in another language, by JSON.stringify and OpenSSL."""
    assert answer_id(token, by, value, artifact) == expected


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner)
    ),
    max_leaves=10,
)


@given(value=JSON, artifact=st.none() | st.text("abc:", max_size=5))
def test_the_same_answer_has_the_same_id_however_it_was_written(
    value: Any, artifact: str | None
) -> None:
    given_id = answer_id("t", "alice", value, artifact)
    assert given_id == expected_answer_id("t", "alice", value, artifact)
    assert len(given_id) == 43
    rewritten = strict_json.loads(json.dumps({"a": value}, indent=2).encode(), max_bytes=2**20)
    assert answer_id("t", "alice", rewritten["a"], artifact) == given_id


@pytest.mark.parametrize(
    "other",
    [
        ("t2", "alice", "yes", None),
        ("t", "bob", "yes", None),
        ("t", "alice", "no", None),
        ("t", "alice", None, "yes"),
        ("t", "alice", "yes", ""),
        ("t", "alice", ["yes"], None),
    ],
)
def test_another_answer_has_another_id(other: tuple[str, str, Any, str | None]) -> None:
    assert answer_id(*other) != answer_id("t", "alice", "yes", None)


PROMPT_DIGEST = "6d0e3dfdeed969ca0cd99455f3b649ef2af80f5676b31281885c890b0ad61dc3"


def test_a_prompts_digest_is_over_the_whole_record() -> None:
    """The expected digest was computed in another language, by JSON.stringify and OpenSSL."""
    prompt = PromptRecord.from_object(
        {
            "v": 1,
            "title": "Deploy 1.4.2?",
            "body": "**Risk**: low\n",
            "choices": ["yes", "no"],
            "answer_schema": {"type": "string", "default": None},
            "requested_by": "deployer",
        }
    )
    assert prompt_digest(prompt) == PROMPT_DIGEST
    for name in ("body", "choices", "answer_schema", "requested_by"):
        less = prompt.to_object()
        del less[name]
        assert prompt_digest(PromptRecord.from_object(less)) != prompt_digest(prompt)


def test_a_prompts_digest_does_not_depend_on_the_order_of_fields() -> None:
    one = PromptRecord.from_bytes(b'{"v":1,"title":"t","answer_schema":{"a":1,"b":2}}')
    other = PromptRecord.from_bytes(b'{"answer_schema":{"b":2,"a":1},"title":"t","v":1}')
    assert prompt_digest(one) == prompt_digest(other)
    content = '{"answer_schema":{"a":1,"b":2},"title":"t","v":1}'
    assert prompt_digest(one) == hashlib.sha256(content.encode()).hexdigest()
