"""The wire parser: any byte stream, cut anywhere, gives the same messages."""

import asyncio
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.bus.wire import Violation, WireClient, is_refusal_text, parse_violation

TOKEN = st.binary(min_size=1, max_size=30).map(
    lambda raw: bytes(set(raw) - set(b" \t\r\n")) or b"x"
)
"""Whatever a publisher's own line can carry; the server hands it on as it came."""

MESSAGE = st.tuples(
    TOKEN,
    st.one_of(st.just(b""), TOKEN),
    st.one_of(st.just(b""), st.binary(max_size=40)),
    st.binary(max_size=200),
)


def _wire(subject: bytes, reply: bytes, header: bytes, data: bytes) -> bytes:
    where = b" ".join(part for part in (subject, b"7", reply) if part)
    if header:
        size = len(header) + len(data)
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (where, len(header), size, header, data)
    return b"MSG %b %d\r\n%b\r\n" % (where, len(data), data)


def _parse(chunks: list[bytes]) -> tuple[list[tuple[bytes, ...]], WireClient]:
    got: list[tuple[bytes, ...]] = []

    async def run() -> WireClient:
        client = WireClient(want_tls=False, violations=lambda _: None)
        client.sinks[b"7"] = lambda *message: got.append(message)
        for chunk in chunks:
            await client._ps.parse(chunk)
        return client

    return got, asyncio.run(run())


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(st.lists(MESSAGE, max_size=8), st.lists(st.integers(0, 5_000), max_size=12))
def test_messages_survive_any_cutting(
    messages: list[tuple[bytes, bytes, bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"+OK\r\n".join(_wire(*message) for message in messages)
    got, client = _parse(_cut(stream, cuts))
    assert got == messages
    assert not client.lost.done()


def test_only_a_blank_ends_a_subject() -> None:
    for byte in set(range(256)) - set(b" \r\n"):
        message = (b"a.x%by" % bytes([byte]), b"r%b" % bytes([byte]), b"", b"data")
        got, client = _parse([_wire(*message)])
        assert got == [message]
        assert not client.lost.done()


def test_one_byte_at_a_time() -> None:
    stream = _wire(b"a.b", b"r", b"NATS/1.0\r\nX: 1\r\n\r\n", b"\r\nMSG a 7 1\r\n")
    got, _ = _parse([stream[i : i + 1] for i in range(len(stream))])
    assert got == [(b"a.b", b"r", b"NATS/1.0\r\nX: 1\r\n\r\n", b"\r\nMSG a 7 1\r\n")]


def test_a_message_for_nobody_is_skipped() -> None:
    got, client = _parse([b"MSG a 9 2\r\nhi\r\n" + _wire(b"b", b"", b"", b"x")])
    assert got == [(b"b", b"", b"", b"x")]
    assert not client.lost.done()


def test_a_sink_that_raises_loses_no_neighbour() -> None:
    got: list[bytes] = []

    def sink(subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        got.append(data)
        if data == b"bad":
            raise RuntimeError

    async def run() -> None:
        client = WireClient(want_tls=False, violations=lambda _: None)
        client.sinks[b"7"] = sink
        stream = b"".join(_wire(b"a", b"", b"", body) for body in (b"1", b"bad", b"2"))
        await client._ps.parse(stream)
        assert not client.lost.done()

    asyncio.run(run())
    assert got == [b"1", b"bad", b"2"]


def test_what_is_not_nats_ends_the_connection() -> None:
    _, client = _parse([b"HTTP/1.1 400 Bad Request\r\n"])
    assert "not NATS" in client.lost.result()


def test_a_fatal_error_ends_the_connection_with_its_reason() -> None:
    _, client = _parse([b"-ERR 'User Authentication Expired'\r\n"])
    assert "User Authentication Expired" in client.lost.result()
    assert client.refused


def test_a_violation_does_not_end_the_connection() -> None:
    seen: list[Any] = []

    async def run() -> None:
        client = WireClient(want_tls=False, violations=seen.append)
        await client._ps.parse(b"-ERR 'Permissions Violation for Publish to \"A.b\"'\r\n")
        assert not client.lost.done()

    asyncio.run(run())
    assert seen == [Violation("publish", "A.b")]


def test_violations_are_read_with_their_subject() -> None:
    text = 'Permissions Violation for Subscription to "a.>" using queue "q"'
    assert parse_violation(text) == Violation("subscribe", "a.>")
    text = 'Permissions Violation for Publish with Reply of "x.y"'
    assert parse_violation(text) == Violation("reply", "x.y")
    assert parse_violation("Maximum Payload Violation") is None


def test_refusals_are_told_from_other_errors() -> None:
    assert is_refusal_text("Authorization Violation")
    assert is_refusal_text("Account Authentication Expired")
    assert not is_refusal_text("maximum account active connections exceeded")
    assert not is_refusal_text("Stale Connection")
