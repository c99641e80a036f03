"""Header blocks: nothing hidden, nothing mistaken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.bus.headers import Headers, decode, encode

NAMES = st.from_regex(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,20}", fullmatch=True)
VALUES = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters="\x85"),
    max_size=30,
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_what_is_encoded_is_decoded(headers: dict[str, str]) -> None:
    found = decode(encode(headers))
    assert found == headers
    assert found.repeated == frozenset()
    assert found.status == 0


@given(st.binary(max_size=200))
def test_any_bytes_decode_without_an_error(raw: bytes) -> None:
    assert isinstance(decode(raw), Headers)
    assert isinstance(decode(b"NATS/1.0\r\n" + raw + b"\r\n\r\n"), Headers)


def test_a_repeated_name_is_visible() -> None:
    found = decode(b"NATS/1.0\r\nNats-Scheduler: a\r\nX: 1\r\nNats-Scheduler: b\r\n\r\n")
    assert found["Nats-Scheduler"] == "b"
    assert found.repeated == {"Nats-Scheduler"}
    assert found.single("Nats-Scheduler") is None
    assert found.single("X") == "1"
    assert found.single("Y") is None


def test_a_status_line_is_not_a_header() -> None:
    told = decode(b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 7\r\n\r\n")
    assert told.status == 409
    assert told.description == "Consumer Deleted"
    assert told == {"Nats-Pending-Messages": "7"}


def test_a_stored_status_header_is_not_a_status() -> None:
    found = decode(b"NATS/1.0\r\nStatus: 503\r\nDescription: gone\r\n\r\n")
    assert found.status == 0
    assert found == {"Status": "503", "Description": "gone"}


def test_a_name_with_blanks_around_it_is_still_seen() -> None:
    assert decode(b"NATS/1.0\r\n Nats-Rollup :sub\r\n\r\n") == {"Nats-Rollup": "sub"}


def test_bytes_that_are_not_utf8_stay_visible() -> None:
    assert decode(b"NATS/1.0\r\nX: a\xffb\r\n\r\n")["X"] == "a\udcffb"


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\nb", "a\rb"])
def test_a_value_cannot_smuggle_a_line(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode({"X": value})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\n", "é", "a\n"])
def test_a_name_is_a_header_name(name: str) -> None:
    with pytest.raises(ValueError, match="header name"):
        encode({name: "1"})


def test_no_headers_are_no_bytes() -> None:
    assert encode({}) == b""
    assert encode(None) == b""
    assert decode(b"") == {}
