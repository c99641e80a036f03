"""Every token's grammar, at its edges: a token is what it says and nothing that contains it."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import tokens
from schemas.codes import BadInput
from schemas.commands.adm import Cooldown
from schemas.limits import MAX_SAFE_INTEGER
from schemas.names import Names, kv_stream, object_stream

UID = "a1" * 13

GRAMMARS: dict[str, tuple[Callable[[str], bool], str, int, int]] = {
    "space": (tokens.is_space, "aZ0_-", 1, 64),
    "root": (tokens.is_root, "aZ0_-", 1, 32),
    "uid": (tokens.is_uid, "az09", 26, 32),
    "name": (tokens.is_name, "aZ0_-", 1, 64),
    "principal": (tokens.is_principal, "aZ0_-", 1, 64),
    "command id": (tokens.is_command_id, "aZ0_-", 16, 64),
    "user": (tokens.is_user, "aZ0-", 1, 100),
    "mint key": (tokens.is_mint_key, "aZ0_-", 16, 100),
    "endpoint": (tokens.is_endpoint, "az09", 1, 64),
}
"""Predicate, characters that may stand anywhere, least and most characters."""

NEVER = (
    "\n", "\r", "\t", " ", "\0", "\x1b", "\x7f", "\x85", "\xa0", "\u2028", "\u200b", "\ufeff",
    ".", "*", ">", "/", "\\", "$", ":", "@", "+", "=", "~", "%", '"', "'", "{",
    "é", "\u0131", "ß", "\uff21", "\u0663", "²", "\u2167", "😀", "\ud800",
)  # fmt: skip
"""Characters that no token but a dotted endpoint may hold, digits of other scripts among them."""


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_token_has_its_length_and_no_other(name: str) -> None:
    is_token, alphabet, least, most = GRAMMARS[name]
    long = (alphabet * (most + 1))[: most + 1].replace("-", "a")
    assert is_token(long[:least])
    assert is_token(long[:most])
    assert not is_token(long[: least - 1])
    assert not is_token(long)
    assert not is_token("a" * 300)


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_token_is_matched_as_a_whole(name: str, where: str) -> None:
    is_token, _, least, _ = GRAMMARS[name]
    good = "a" * (least + 1)
    assert is_token(good)
    for character in NEVER:
        bad = {
            "before": character + good,
            "inside": good[:1] + character + good[1:],
            "after": good + character,
        }[where]
        dotted = name == "endpoint" and (character, where) == (".", "inside")
        assert is_token(bad) is dotted, repr(bad)


@pytest.mark.parametrize("name", GRAMMARS)
@given(text=st.text(max_size=70))
def test_a_token_holds_only_ascii_letters_digits_and_what_its_table_allows(
    name: str, text: str
) -> None:
    if GRAMMARS[name][0](text):
        assert re.fullmatch(r"[A-Za-z0-9._-]+", text, re.ASCII)


@pytest.mark.parametrize(
    ("endpoint", "good"),
    [
        ("runs", True),
        ("a", True),
        ("acme.runs", True),
        ("a-b.c-d.e", True),
        ("a--b", True),
        ("0", True),
        ("a" * 64, True),
        ("a." * 31 + "aa", True),
        ("a" * 65, False),
        ("a." * 32 + "a", False),
        ("", False),
        (".", False),
        ("a.", False),
        (".a", False),
        ("a..b", False),
        ("-a", False),
        ("a-", False),
        ("a-.b", False),
        ("a.-b", False),
        ("a_b", False),
        ("A", False),
        ("a\n", False),
    ],
)
def test_an_endpoint_is_dotted_labels(endpoint: str, good: bool) -> None:
    assert tokens.is_endpoint(endpoint) is good


@pytest.mark.parametrize(
    ("epoch", "good"),
    [
        ("0", True),
        ("1", True),
        (str(MAX_SAFE_INTEGER), True),
        (str(MAX_SAFE_INTEGER + 1), False),
        ("9" * 16, False),
        ("1" + "0" * 40, False),
        ("", False),
        ("00", False),
        ("01", False),
        ("-1", False),
        ("+1", False),
        ("1.0", False),
        ("1e3", False),
        ("1_0", False),
        ("\u0663", False),
        ("1\n", False),
        (" 1", False),
    ],
)
def test_an_epoch_is_a_decimal_without_leading_zero(epoch: str, good: bool) -> None:
    assert tokens.is_epoch(epoch) is good


_LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
ENDPOINTS = st.lists(_LABEL, min_size=1, max_size=6).map(".".join).filter(tokens.is_endpoint)


@given(endpoint=ENDPOINTS)
def test_an_endpoint_is_one_token_on_the_wire_and_comes_back(endpoint: str) -> None:
    wire = tokens.endpoint_to_wire(endpoint)
    assert "." not in wire
    assert len(wire) == len(endpoint)
    assert tokens.endpoint_from_wire(wire) == endpoint


@given(one=ENDPOINTS, other=ENDPOINTS)
def test_no_two_endpoints_share_a_token(one: str, other: str) -> None:
    same = tokens.endpoint_to_wire(one) == tokens.endpoint_to_wire(other)
    assert same is (one == other)


@pytest.mark.parametrize("space", ["", "a.b", "a*", "é", "a b", "a" * 65, "main\n", ">", "a/b"])
def test_a_space_outside_the_grammar_is_refused_and_never_mapped(space: str) -> None:
    with pytest.raises(BadInput) as caught:
        Names("tidegate", space)
    assert caught.value.field == "space"


@pytest.mark.parametrize("root", ["", "a.b", "tidegate\n", "$JS", "a" * 33])
def test_a_root_outside_the_grammar_is_refused(root: str) -> None:
    with pytest.raises(BadInput) as caught:
        Names(root, "main")
    assert caught.value.field == "root"


def everything(names: Names) -> list[str]:
    """Every stream of a space."""
    buckets = (
        names.records_bucket,
        names.payloads_bucket,
        names.keys_bucket,
        names.leases_bucket,
    )
    return [
        names.cmd_stream,
        names.log_stream,
        names.res_stream,
        names.ept_stream,
        names.ept_req_stream,
        names.epf_stream,
        object_stream(names.snapshots_bucket),
        *map(kv_stream, buckets),
    ]


SPACES = st.from_regex(
    r"(REQ_|records_|payloads_|keys_|leases_)?[A-Za-z0-9_-]{1,8}", fullmatch=True
)


def test_a_space_whose_timers_would_be_another_ones_requests_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        Names("tidegate", "REQ_main")
    assert caught.value.reason == "reserved-space"


@given(one=SPACES, other=SPACES)
def test_no_two_spaces_share_a_stream(one: str, other: str) -> None:
    made = []
    for space in {one, other}:
        if not space.startswith("REQ_"):
            made += everything(Names("tidegate", space))
    assert len(set(made)) == len(made)


@given(a=st.text(max_size=3), b=st.text(max_size=3))
def test_a_label_in_a_body_has_no_outer_blanks_and_no_control_characters(a: str, b: str) -> None:
    text = a + "x" + b
    field = field_refused({"v": 1, "provider": text, "model": "m", "not_before_ms": 0})
    if field is None:
        assert text == text.strip()
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", text)
    else:
        assert field == "provider"


@pytest.mark.parametrize(
    "text", ["", " x", "x ", "x\n", "\tx", "a\0b", "a\x85b", "x" * 257, "\xa0x"]
)
def test_a_label_outside_its_grammar_is_refused_by_name(text: str) -> None:
    assert field_refused({"v": 1, "provider": "p", "model": text, "not_before_ms": 0}) == "model"


def field_refused(body: dict[str, object]) -> str | None:
    try:
        Cooldown.from_object(body)
    except BadInput as bad:
        return bad.field
    return None
