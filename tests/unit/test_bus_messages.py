"""Instants and reply subjects as the broker writes them."""

import pytest

from worker.bus.delivery import AckReply
from worker.bus.messages import Outgoing, parse_instant_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-29T17:23:53.980236746Z", 1795973033980236746),
        ("2026-11-29T17:23:53.98Z", 1795973033980000000),
        ("2026-11-29T19:23:53.5+02:00", 1795973033500000000),
    ],
)
def test_instants_keep_their_nanoseconds(text: str, expected: int) -> None:
    assert parse_instant_ns(text) == expected


@pytest.mark.parametrize("text", ["", "now", "2026-11-29 17:23:53Z", "2026-11-29T17:23:53"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_instant_ns(text)


def test_the_short_ack_reply() -> None:
    told = AckReply(b"$JS.ACK.CMD_main.cp_main.2.41.7.1795973033980236746.3")
    assert (told.stream, told.delivered, told.stream_seq) == ("CMD_main", 2, 41)
    assert (told.consumer_seq, told.time_ns, told.pending) == (7, 1795973033980236746, 3)


def test_the_long_ack_reply() -> None:
    told = AckReply(b"$JS.ACK.hub.ACC.CMD_main.cp_main.2.41.7.1795973033980236746.3.xyz")
    assert (told.stream, told.delivered, told.stream_seq) == ("CMD_main", 2, 41)
    assert told.pending == 3


def test_expectations_become_headers_behind_the_own_ones() -> None:
    message = Outgoing("a.b", b"", {"X": "1"}, 7, "c.d")
    assert message.header() == (
        b"NATS/1.0\r\nX: 1\r\nNats-Expected-Last-Subject-Sequence: 7\r\n"
        b"Nats-Expected-Last-Subject-Sequence-Subject: c.d\r\n\r\n"
    )
    assert message.keys == ("a.b", "c.d")
    assert Outgoing("a.b").header() == b""
    assert Outgoing("a.b").keys == ("a.b",)
