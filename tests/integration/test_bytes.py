"""Whatever bytes a stranger puts where the broker lets him: nobody else notices.

Everything here is said on a raw socket in the clients' account of the shipped two-account layout,
in each place of a message that a publisher chooses.
"""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.door import UID, Door, open_door
from tests.support.ledger import a_log, folding, until
from tests.support.process import WorkerProcess
from tests.support.space import Space
from tests.support.wire import RawSocket

UNSAYABLE = b" \t\r\n"
"""Bytes that end a subject in the publisher's own protocol line."""

PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
BROKEN = (
    b"x\xe2\x82",
    b"\xe2\x82x",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"\xff\xfe",
    b"\x0b\x0c",
    b"x\xef\xbf\xbd",
    "a\u2028b\u00a0c\u0085d".encode(),
)
"""Cut off, overlong, out of range, a surrogate, blanks of other alphabets, and U+FFFD itself."""


def odd_tokens(seed: int) -> Iterator[bytes]:
    """Every byte that can stand in a subject and in no token of ours, some pairs, and BROKEN."""
    odd = [bytes([n]) for n in range(256) if n not in UNSAYABLE and n not in PLAIN]
    yield from (b"x" + one for one in odd)
    yield from BROKEN
    chance = random.Random(seed)
    yield from (b"".join(chance.choices(odd, k=2)) for _ in range(30))


@pytest.fixture
async def door(space: Space, process_worker: Callable[..., WorkerProcess]) -> AsyncIterator[Door]:
    async with open_door(space, process_worker) as one:
        yield one


async def test_any_byte_in_any_token_is_refused_once_and_the_queue_flows(door: Door) -> None:
    said: dict[tuple[str, int], tuple[str, str, str]] = {}
    uid = UID.encode()
    mint = b'{"v":1,"deadline_at_ms":%d}' % (time.time_ns() // 1_000_000 + 600_000)
    for number, odd in enumerate(odd_tokens(1)):
        tokens: dict[str, tuple[tuple[bytes, ...], bytes, bytes]] = {
            "bad-principal": ((b"cp", b"mint", b"runs", b"t"), odd, uid),
            "bad-uid": ((b"cp", b"mint", b"runs", b"t"), b"alice", odd),
            "unknown-verb": ((b"cp", odd, b"runs", b"t"), b"alice", uid),
            "bad-endpoint": ((b"cp", b"mint", odd, b"t"), b"alice", uid),
            "bad-token": ((b"cp", b"mint", b"runs", odd), b"alice", uid),
        }
        for reason, (tail, principal, life) in tokens.items():
            subject = door.subject(*tail, principal=principal, uid=life)
            said[await door.say(subject, mint)] = (repr(subject), "subject", reason)
        of_ledger: tuple[tuple[tuple[bytes, ...], bytes, bytes, str], ...] = (
            ((b"cap", b"stop", b"u"), odd, uid, "bad-principal"),
            ((b"adm", b"admit"), b"alice", odd, "bad-uid"),
            ((b"cap", odd, b"u"), b"alice", uid, "unknown-verb"),
            ((b"cap", b"stop", odd), b"alice", uid, "bad-user"),
            ((b"adm", b"cancel", odd), b"alice", uid, "bad-key"),
        )
        for tail, principal, life, reason in of_ledger:
            subject = door.subject(*tail, principal=principal, uid=life)
            said[await door.say(subject, b'{"v":1}')] = (repr(subject), "subject", reason)
        if number % 60 == 0:
            await door.serves(f"between-{number}")
    await door.refused(said)
    await door.serves("at-the-end")


async def test_any_byte_on_the_other_subjects_of_a_client_hurts_nobody(door: Door) -> None:
    prefix = door.names.prefix.encode()
    life = b"alice." + UID.encode()
    for odd in odd_tokens(2):
        timer = b".".join((b"ept", b"runs", UID.encode(), b"0", odd, b"schedule"))
        await door.socket.publish(prefix + b"." + timer, b"{}")
        payload = b"$KV.%b.alice.%b" % (door.names.payloads_bucket.encode(), odd)
        await door.socket.publish(payload, b"sealed")
        door.socket.tell(prefix + b".hb." + odd + b"." + UID.encode(), b"")
        door.socket.tell(prefix + b".hb.alice." + odd, b"")
        for who in (odd + b"." + UID.encode(), b"alice." + odd):
            answer = await door.socket.ask(prefix + b".qry." + who + b".cp.show", b"{}")
            assert answer["error"]["reason"] == "bad-speaker", odd
        query = prefix + b".qry." + life + b".cp.show"
        inbox = b"_INBOX.raw." + odd
        answer = await door.socket.ask(query, b'{"endpoint":"runs","token":"t"}', reply=inbox)
        assert answer["error"]["reason"] == "unknown-checkpoint", odd
    await door.serves("at-the-end")
    await until(lambda: door.worker.readiness() == [])


async def test_any_byte_in_a_header_costs_no_command_its_result(door: Door) -> None:
    seqs = set()
    for number in range(256):
        if number in b"\r\n":
            continue
        byte = bytes([number])
        for lines in (
            [b"X-" + byte + b": 1"],
            [b"X: " + byte],
            [byte + b"traceparent: 00"],
            [b"traceparent: 00" + byte],
            [b"traceparent" + byte + b": 00", byte + b": " + byte],
        ):
            subject = door.subject(b"cap", b"stop", b"user-%d" % number)
            stream, seq = await door.say(subject, b'{"v":1}', lines)
            seqs.add(seq)
    for of_one in (await door.results(stream, seqs)).values():
        assert len(of_one) == 1
        assert (await door.read(of_one[0]))["status"] == "ok"
    await door.serves("after-headers")


@pytest.mark.parametrize("where", ["subject", "header"])
async def test_no_byte_makes_a_worker_that_opens_again_doubt_its_log(
    space: Space, where: str
) -> None:
    prefix = space.names.prefix.encode()
    head = b"%b.cmd.alice.%b.cap.reserve." % (prefix, UID.encode())
    async with RawSocket.held(space.server.port) as socket, a_log(space) as log:
        # At every open the last message is compared, and a few before it: so one at a time.
        for odd in BROKEN:
            if where == "subject":
                await socket.publish(head + odd, b'{"v":1}')
            else:
                await socket.publish(head + b"u", b'{"v":1}', [b"X: " + odd])
            for _ in range(2):
                async with folding(space) as one:
                    info = await log.js.stream_info(space.names.log_stream)
                    await one.said(info.last_seq)
                    assert one.ledger.status()["epoch"] == 1, odd
                    assert one.ledger.not_ready() == [], odd
