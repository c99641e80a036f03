"""The strict JSON edge: one way in, one clear refusal, naming the field, for everything else."""

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import strict_json
from schemas.codes import BadInput, Code
from schemas.commands.cp import Heartbeat, Mint, Resume
from schemas.limits import MAX_BODY_BYTES, MAX_DEPTH, MAX_SAFE_INTEGER

UID = "a1" * 13


def refusal(raw: bytes) -> BadInput:
    with pytest.raises(BadInput) as caught:
        strict_json.loads(raw)
    return caught.value


def nested(levels: int, inside: bytes = b"1") -> bytes:
    """An object whose value is that many arrays deep: ``levels`` + 1 levels in all."""
    return b'{"a":' + b"[" * levels + inside + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        (b"", "body", "empty"),
        (b" \r\n\t", "body", "empty"),
        (b" " * (MAX_BODY_BYTES), "body", "empty"),
        (b" " * (1024 * 1024), "body", "too-large"),
        (b'{"a":"' + b"x" * MAX_BODY_BYTES + b'"}', "body", "too-large"),
        (b"\xff\xfe", "body", "not-utf8"),
        (b'{"a":"\xff"}', "body", "not-utf8"),
        (b'{"a":"\xc3"}', "body", "not-utf8"),
        (b'{"a":"\xed\xa0\x80"}', "body", "not-utf8"),
        (b'{"a":"\xc0\x80"}', "body", "not-utf8"),
        ('{"a":1}'.encode("utf-16"), "body", "not-utf8"),
        (b"\xef\xbb\xbf{}", "body", "not-json"),
        (b"{", "body", "not-json"),
        (b"{}x", "body", "not-json"),
        (b"{}{}", "body", "not-json"),
        (b"{'a':1}", "body", "not-json"),
        (b'{"a":1,}', "body", "not-json"),
        (b'{"a":01}', "body", "not-json"),
        (b'{"a":+1}', "body", "not-json"),
        (b'{"a":.5}', "body", "not-json"),
        (b'{"a":0x1}', "body", "not-json"),
        (b'{"a":"\n"}', "body", "not-json"),
        (b'{"a":"\0"}', "body", "not-json"),
        (b'{"a":"\\x"}', "body", "not-json"),
        (b'{"a":undefined}', "body", "not-json"),
        (b'{"a":NaN', "body", "not-json"),
        (b"null", "body", "not-an-object"),
        (b"[]", "body", "not-an-object"),
        (b"1", "body", "not-an-object"),
        (b'"{}"', "body", "not-an-object"),
        (b"NaN", "body", "not-finite"),
        (b'{"a":1,"a":1}', "a", "duplicate-key"),
        (b'{"a":1,"b":2,"\\u0061":3}', "a", "duplicate-key"),
        (b'{"x":{"a":{"b":1,"b":2}}}', "x.a.b", "duplicate-key"),
        (b'{"x":[{},{"b":1,"b":2}]}', "x[1].b", "duplicate-key"),
        (b'{"x":{"a":NaN}}', "x.a", "not-finite"),
        (b'{"x":[1,Infinity]}', "x[1]", "not-finite"),
        (b'{"x":-Infinity}', "x", "not-finite"),
        (b'{"x":1e999}', "x", "not-finite"),
        (b'{"x":-1E400}', "x", "not-finite"),
        (b'{"x":9223372036854775808}', "x", "number-too-large"),
        (b'{"x":-9223372036854775809}', "x", "number-too-large"),
        (b'{"x":9007199254740992}', "x", "number-too-large"),
        (b'{"x":[{"y":' + b"9" * 5_000 + b"}]}", "x[0].y", "number-too-large"),
        (b'{"x":1e999,"y":NaN,"y":1}', "x", "not-finite"),
        (b'{"y":1,"y":{"a":1e999}}', "y", "duplicate-key"),
        (b'{"x":"\\ud800"}', "x", "lone-surrogate"),
        (b'{"x":["\\udc00\\ud800"]}', "x[0]", "lone-surrogate"),
        (b'{"x":{"y":"a\\uDBFFb"}}', "x.y", "lone-surrogate"),
        (b'{"body":{"\\ud800":1}}', "body.?", "lone-surrogate"),
        (nested(MAX_DEPTH), "body", "too-deep"),
        (nested(10_000), "body", "too-deep"),
        (b"[" * 60_000, "body", "too-deep"),
        (b'{"a":' * 13_000, "body", "too-deep"),
        (b"[" * 100_000, "body", "too-large"),
        (nested(50_000), "body", "too-large"),
    ],
)
def test_a_body_that_is_not_strict_json_is_refused_by_its_field(
    raw: bytes, field: str, reason: str
) -> None:
    bad = refusal(raw)
    assert (bad.field, bad.reason, bad.code) == (field, reason, Code.BAD_REQUEST)
    assert field in bad.message
    assert "\n" not in bad.message


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b' \r\n\t{ "a" : [ ] } \n', {"a": []}),
        (b'{"a":9007199254740991,"b":-9007199254740991}', {"a": 2**53 - 1, "b": -(2**53) + 1}),
        (b'{"a":-0,"b":1.5,"c":1e2}', {"a": 0, "b": 1.5, "c": 100.0}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a":"\\\\ud800"}', {"a": "\\ud800"}),
        (b'{"":{"":null}}', {"": {"": None}}),
        (b'{"a":"[[[[{{{{"}', {"a": "[[[[{{{{"}),
        (b'{"a":{"k":1},"b":{"k":1}}', {"a": {"k": 1}, "b": {"k": 1}}),
    ],
)
def test_a_strict_body_is_read_as_it_is_written(raw: bytes, value: object) -> None:
    assert strict_json.loads(raw) == value


def test_64_levels_are_allowed_whatever_stands_in_text() -> None:
    assert strict_json.loads(nested(MAX_DEPTH - 1))
    brackets = b'"' + b"[" * 1_000 + b'\\""'
    assert strict_json.loads(nested(MAX_DEPTH - 1, brackets))
    many = b'{"a":[' + b",".join([b'{"b":[]}'] * 5_000) + b"]}"
    assert len(strict_json.loads(many)["a"]) == 5_000


def test_what_is_wrong_deep_inside_is_found_at_the_last_level_allowed() -> None:
    bad = refusal(nested(MAX_DEPTH - 1, b"1e999"))
    assert bad.reason == "not-finite"
    assert bad.field.startswith("a[0][0]")
    assert len(bad.field) <= 128


@pytest.mark.parametrize("levels", [65, 100, 300, 900, 990, 1_000, 1_100, 5_000, 30_000])
@pytest.mark.parametrize("end", [b"", b"]", b"x", b"NaN"])
def test_the_word_for_too_deep_does_not_depend_on_the_interpreter(levels: int, end: bytes) -> None:
    """The decoder gives up somewhere near a thousand levels, where exactly is its own affair."""
    assert refusal(b'{"a":' + b"[" * levels + end).reason == "too-deep"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":"' + b'\\"' * 32_000,
        b'{"a":"' + b'\\"' * 32_000 + b"\\",
        b'"' * 65_000,
        b'{"a":' + b'["",' * 16_000,
        b"{" * 65_000,
        b'{"k":1' + b',"k":1' * 10_000 + b"}",
        b'{"a":[' + b"1e999," * 10_000 + b"1]}",
    ],
)
def test_no_body_takes_long_to_refuse(raw: bytes) -> None:
    began = time.process_time()
    refusal(raw)
    assert time.process_time() - began < 0.5


def test_a_refusal_never_quotes_a_value_or_what_a_terminal_would_obey() -> None:
    bad = refusal(b'{"\\u001b[31m":1,"\\u001b[31m":2}')
    assert bad.field == "?[31m"
    assert "\x1b" not in bad.message
    for raw in (b'{"a":"secret\\ud800"}', b'{"a":"secret","a":"secret"}', b'{"a":secret}'):
        assert "secret" not in refusal(raw).message


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON)


@given(value=OBJECTS)
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert strict_json.loads(strict_json.dumps(value), max_bytes=2**20) == value
    assert strict_json.loads(json.dumps(value).encode(), max_bytes=2**20) == value


@given(
    raw=st.binary(max_size=60) | st.text(max_size=60).map(lambda s: s.encode("utf-8", "replace"))
)
def test_any_bytes_are_read_or_refused_and_nothing_else(raw: bytes) -> None:
    try:
        value = strict_json.loads(raw)
    except BadInput:
        return
    assert value == json.loads(raw)


@given(text=st.text('[]{}":,\\1aN \n', max_size=40))
def test_text_that_is_nearly_json_is_read_or_refused_and_nothing_else(text: str) -> None:
    try:
        value = strict_json.loads(text.encode())
    except BadInput:
        return
    assert value == json.loads(text)


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        (b"{}", "v", "missing-field"),
        (b'{"v":null,"deadline_at_ms":1}', "v", "wrong-type"),
        (b'{"v":true,"deadline_at_ms":1}', "v", "wrong-type"),
        (b'{"v":1.0,"deadline_at_ms":1}', "v", "wrong-type"),
        (b'{"v":"1","deadline_at_ms":1}', "v", "wrong-type"),
        (b'{"v":1}', "deadline_at_ms", "missing-field"),
        (b'{"v":1,"deadline_at_ms":null}', "deadline_at_ms", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":true}', "deadline_at_ms", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":1.0}', "deadline_at_ms", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":1e3}', "deadline_at_ms", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":"1"}', "deadline_at_ms", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":[1]}', "deadline_at_ms", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":-1}', "deadline_at_ms", "out-of-range"),
        (b'{"v":1,"deadline_at_ms":1,"extra":1}', "extra", "unknown-field"),
        (b'{"v":1,"deadline_at_ms":1,"Holder":null}', "Holder", "unknown-field"),
        (b'{"v":1,"deadline_at_ms":1,"holder":"alice"}', "holder", "wrong-type"),
        (b'{"v":1,"deadline_at_ms":1,"holder":{}}', "holder.id", "missing-field"),
        (
            b'{"v":1,"deadline_at_ms":1,"holder":{"id":"a.b","lifecycleUid":"x"}}',
            "holder.id",
            "bad-token",
        ),
        (
            b'{"v":1,"deadline_at_ms":1,"holder":{"id":"a\\n","lifecycleUid":"x"}}',
            "holder.id",
            "bad-token",
        ),
        (
            f'{{"v":1,"deadline_at_ms":1,"holder":{{"id":"a","lifecycleUid":"{UID}\\n"}}}}'.encode(),
            "holder.lifecycleUid",
            "bad-token",
        ),
        (
            f'{{"v":1,"deadline_at_ms":1,"holder":{{"id":"{"a" * 300}",'
            f'"lifecycleUid":"{UID}"}}}}'.encode(),
            "holder.id",
            "bad-token",
        ),
        (
            f'{{"v":1,"deadline_at_ms":1,"holder":{{"id":"é","lifecycleUid":"{UID}"}}}}'.encode(),
            "holder.id",
            "bad-token",
        ),
        (
            b'{"v":1,"deadline_at_ms":1,"obligations":[{"v":1}]}',
            "obligations[0].space",
            "missing-field",
        ),
        (b'{"v":1,"deadline_at_ms":1,"prompt":{"v":1,"title":""}}', "prompt.title", "out-of-range"),
        (
            b'{"v":1,"deadline_at_ms":1,"prompt":{"v":1,"title":"t","choices":["a","a"]}}',
            "prompt",
            "duplicate-entry",
        ),
    ],
)
def test_a_mint_is_refused_by_the_path_of_its_field(raw: bytes, field: str, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        Mint.from_bytes(raw)
    bad = caught.value
    assert (bad.field, bad.reason, bad.code) == (field, reason, Code.BAD_REQUEST)
    assert field in bad.message


@pytest.mark.parametrize("version", [b"0", b"2", b"-1", b"9007199254740991"])
def test_another_version_is_told_apart_from_a_bad_one(version: bytes) -> None:
    """Said before anything else, so that a newer client learns what is the matter."""
    with pytest.raises(BadInput) as caught:
        Heartbeat.from_bytes(b'{"v":' + version + b',"whatever":true}')
    assert (caught.value.field, caught.value.code) == ("v", Code.UNSUPPORTED_VERSION)


def test_obligations_without_a_goal_are_refused() -> None:
    body = {"v": 1, "deadline_at_ms": 1, "obligations": [OBLIGATION]}
    with pytest.raises(BadInput) as caught:
        Mint.from_object(body)
    assert caught.value.reason == "needs-goal"
    goal = {"caller": {"owner": "o", "actor": "a", "uid": "u"}, "goalId": "g"}
    assert Mint.from_object(body | {"goal": goal}).obligations is not None
    assert Mint.from_object(body | {"obligations": []}).obligations == []


OBLIGATION = {
    "v": 1,
    "space": "main",
    "requestId": "r",
    "signer": {"keyId": "k"},
    "attenuations": [{"any": None}],
    "iat": -1,
    "exp": 2,
    "sig": "s" * 344,
}


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, 1.5, math.pi, "", "text", [], [None], {}, {"a": [{"b": None}]}]
)
def test_any_json_value_may_be_an_answer_and_is_kept_as_it_is(value: object) -> None:
    body = Resume.from_bytes(strict_json.dumps({"v": 1, "answer": value}))
    assert body.answer == value
    assert type(body.answer) is type(value)
    assert body.has_answer
    assert not Resume.from_bytes(b'{"v":1}').has_answer
