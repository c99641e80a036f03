"""Bad input through a real broker, said byte by byte: one refused result each, and nothing else.

The worker is a process of its own and serves both ways of holding state: checkpoints by
compare-and-set, and the ledger's planes by folding. Whatever is sent, the command behind it is
served, nothing is written, and the worker is the same process afterwards.
"""

import json
import time
from collections.abc import AsyncIterator, Callable

import psutil
import pytest

from schemas.commands import BODIES, KEYS
from tests.support.door import UID, Door, open_door
from tests.support.process import WorkerProcess
from tests.support.space import Space

BODIES_OF_ROW_11: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "body", "empty"),
    "blanks": (b" \r\n\t" * 100, "body", "empty"),
    "1 MiB of spaces": (b" " * (1 << 20), "body", "too-large"),
    "invalid UTF-8": (b'{"v":1,"x":"\xff"}', "body", "not-utf8"),
    "a surrogate in UTF-8": (b'{"v":1,"x":"\xed\xa0\x80"}', "body", "not-utf8"),
    "a byte order mark": (b'\xef\xbb\xbf{"v":1}', "body", "not-json"),
    "half a body": (b'{"v":1', "body", "not-json"),
    "two bodies": (b'{"v":1}{"v":1}', "body", "not-json"),
    "NUL": (b"\0", "body", "not-json"),
    "an array": (b"[]", "body", "not-an-object"),
    "null": (b"null", "body", "not-an-object"),
    "100,000 brackets": (b"[" * 100_000, "body", "too-large"),
    "60,000 brackets": (b"[" * 60_000, "body", "too-deep"),
    "10,000 objects": (b'{"a":' * 10_000, "body", "too-deep"),
    "65 levels": (b'{"v":' + b"[" * 64 + b"]" * 64 + b"}", "body", "too-deep"),
    "a duplicate key": (b'{"v":1,"v":1}', "v", "duplicate-key"),
    "an escaped duplicate": (b'{"v":1,"\\u0076":1}', "v", "duplicate-key"),
    "a duplicate inside": (b'{"v":1,"x":{"y":1,"y":2}}', "x.y", "duplicate-key"),
    "NaN": (b'{"v":NaN}', "v", "not-finite"),
    "-Infinity inside": (b'{"v":1,"x":[0,-Infinity]}', "x[1]", "not-finite"),
    "1e999": (b'{"v":1,"x":1e999}', "x", "not-finite"),
    "2^63": (b'{"v":1,"x":9223372036854775808}', "x", "number-too-large"),
    "2^53": (b'{"v":1,"x":-9007199254740992}', "x", "number-too-large"),
    "5,000 digits": (b'{"v":' + b"7" * 5_000 + b"}", "v", "number-too-large"),
    "a lone surrogate": (b'{"v":1,"x":"\\ud800"}', "x", "lone-surrogate"),
    "a lone surrogate in a key": (b'{"v":1,"\\udfff":1}', "?", "lone-surrogate"),
    "true for a number": (b'{"v":true}', "v", "wrong-type"),
    "1.0 for a number": (b'{"v":1.0}', "v", "wrong-type"),
    "text for a number": (b'{"v":"1"}', "v", "wrong-type"),
    "another version": (b'{"v":2}', "v", "unsupported-version"),
    "no version": (b"{}", "v", "missing-field"),
}
"""Body, field and reason; the same for every verb, since they are found before any verb is."""

IDS_OF_ROW_18 = (
    b"a*",
    b">",
    b"*",
    "é".encode(),
    b"\xff",
    b"a\x01\x1b[31m",
    b"a\x7f",
    b"x" * 300,
    b"x" * 65,
    b"a$b",
    b"a/b",
    "\u2028".encode(),
)
"""Tokens as a subject can carry them; a blank or a line break would end the subject."""


@pytest.fixture
async def door(space: Space, process_worker: Callable[..., WorkerProcess]) -> AsyncIterator[Door]:
    async with open_door(space, process_worker) as one:
        yield one


def commands(door: Door) -> list[bytes]:
    """The subject of every verb that a plain principal or an operator may say, well formed."""
    fill = {
        "<endpoint>": b"runs",
        "<token>": b"t-1",
        "<request id>": b"r-1",
        "<user>": b"user-1",
        "<mint key>": b"k" * 16,
    }
    operators = ("resolve", "cooldown", "policy", "drain", "minting", "import")
    found = []
    for plane, verb in BODIES:
        if plane == "sys":
            continue
        key = [fill[part] for part in KEYS[plane, verb][0].split(".") if part]
        principal = b"_op" if verb in operators else b"alice"
        found.append(door.subject(plane.encode(), verb.encode(), *key, principal=principal))
    return found


async def test_every_verb_refuses_every_bad_body_once_and_the_queue_flows(door: Door) -> None:
    before = await door.written()
    said = {}
    for subject in commands(door):
        for what, (body, field, reason) in BODIES_OF_ROW_11.items():
            if len(body) > 100_000 and b".mint." not in subject and b".reserve." not in subject:
                continue
            said[await door.say(subject, body)] = (f"{subject!r}: {what}", field, reason)
    assert len(said) > 600
    await door.refused(said)
    assert await door.written() == before
    await door.serves("after-row-11")


UNKNOWN_FIELDS = {
    ("cp", "mint"): b'{"v":1,"deadline_at_ms":1,"extra":1}',
    ("cp", "heartbeat"): b'{"v":1,"generation":1,"deadline_at_ms":1,"extra":1}',
    ("cp", "resume"): b'{"v":1,"extra":1}',
    ("cp", "expire"): b'{"v":1,"extra":1}',
    ("cp", "repair"): b'{"v":1,"extra":1}',
    ("adm", "cancel"): b'{"v":1,"extra":1}',
    ("adm", "admit"): b'{"v":1,"extra":1}',
    ("adm", "start"): b'{"v":1,"lease_id":"l","generation":1,"extra":1}',
    ("cap", "stop"): b'{"v":1,"extra":1}',
    ("cap", "authorize"): b'{"v":1,"amount":1,"grant_expires_at_ms":1,"extra":1}',
}


async def test_an_unknown_field_is_refused_by_name_whatever_else_is_right(door: Door) -> None:
    said = {}
    for (plane, verb), body in UNKNOWN_FIELDS.items():
        (subject,) = [s for s in commands(door) if f".{plane}.{verb}".encode() in s][:1]
        said[await door.say(subject, body)] = (verb, "extra", "unknown-field")
    await door.refused(said)


async def test_an_id_in_a_subject_that_is_none_is_refused_once_and_writes_nothing(
    door: Door,
) -> None:
    before = await door.written()
    mint = b'{"v":1,"deadline_at_ms":%d}' % (time.time_ns() // 1_000_000 + 60_000)
    said = {}
    for bad in IDS_OF_ROW_18:
        for subject, body, reason in (
            (door.subject(b"cp", b"mint", b"runs", bad), mint, "bad-token"),
            (door.subject(b"cp", b"mint", bad, b"t"), mint, "bad-endpoint"),
            (door.subject(b"cp", b"resume", b"runs", bad), b'{"v":1}', "bad-token"),
            (door.subject(b"cp", bad, b"runs", b"t"), mint, "unknown-verb"),
            (door.subject(b"cp", b"mint", b"runs", b"t", principal=bad), mint, "bad-principal"),
            (door.subject(b"cp", b"mint", b"runs", b"t", uid=bad), mint, "bad-uid"),
            (door.subject(b"cap", b"stop", b"u", principal=bad), b'{"v":1}', "bad-principal"),
            (door.subject(b"adm", b"admit", uid=bad), b'{"v":1}', "bad-uid"),
        ):
            said[await door.say(subject, body)] = (repr(subject), "subject", reason)
    for subject, reason in (
        (door.subject(b"cp", b"mint", b"runs", b"a", b"b"), "bad-key"),
        (door.subject(b"cp", b"mint", b"runs"), "bad-key"),
        (door.subject(b"cp", b"mint"), "bad-key"),
        (door.subject(b"cp", b"mint", b"Runs", b"t"), "bad-endpoint"),
        (door.subject(b"cp", b"mint", b"_runs", b"t"), "bad-endpoint"),
        (door.subject(b"cp", b"mint", b"a__b", b"t"), "bad-endpoint"),
        (door.subject(b"cp", b"steal", b"runs", b"t"), "unknown-verb"),
        (door.subject(b"cp", b"mint", b"e" * 2_000, b"t" * 1_500), "bad-endpoint"),
    ):
        said[await door.say(subject, mint)] = (repr(subject), "subject", reason)
    await door.refused(said)
    assert await door.written() == before
    await door.serves("after-row-18")


async def test_an_id_in_a_ledgers_key_that_is_none_is_refused_once(door: Door) -> None:
    said: set[tuple[str, int]] = set()
    for bad in IDS_OF_ROW_18:
        bodies = {
            door.subject(b"cap", b"stop", bad): b'{"v":1}',
            door.subject(b"cap", b"authorize", bad): b'{"v":1,"amount":1,"grant_expires_at_ms":1}',
            door.subject(b"adm", b"cancel", bad): b'{"v":1}',
        }
        for subject, body in bodies.items():
            # 65 characters are too many for a request, not for a person.
            if not (len(bad) == 65 and b".cap." in subject):
                said.add(await door.say(subject, body))
    results = await door.results(door.names.log_stream, {seq for _, seq in said})
    for subjects_of in results.values():
        assert len(subjects_of) == 1
        result = await door.read(subjects_of[0])
        assert result["status"] == "refused"
        assert result["error"]["code"] == "bad-request"
        assert result["error"]["field"] == "subject"
    await door.serves("after-keys")


TRACE = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ODD_HEADERS: dict[str, list[bytes]] = {
    "a line break in a value": [b"traceparent: 00\nNats-Rollup: all"],
    "a carriage return in a value": [b"traceparent: 00\rNats-Rollup: all"],
    "bytes that are no UTF-8": [b"traceparent: \xff\xfe", b"\xff: \xff"],
    "60 KB of trace": [b"traceparent: " + b"x" * 60_000],
    "a trace twice": [TRACE, TRACE],
    "a line without a colon": [b"no colon at all"],
    "a header without a name": [b": x"],
    "many headers": [b"H-%d: x" % number for number in range(2_000)],
    "the broker's status": [b"Status: 503", b"Description: No Responders"],
    "a KV marker": [b"KV-Operation: PURGE", b"Nats-Marker-Reason: Purge"],
    "somebody's cause": [b"Tidegate-Cause: bob/cccccccccccccccccccccc"],
    "a message id": [b"Nats-Msg-Id: same"],
}


@pytest.mark.parametrize("plane", ["cp", "cap"])
async def test_odd_headers_cost_no_command_its_result(door: Door, plane: str) -> None:
    seqs = set()
    for number, lines in enumerate(ODD_HEADERS.values()):
        tail = (
            (b"cp", b"mint", b"runs", b"odd-%d" % number)
            if plane == "cp"
            else (b"cap", b"stop", b"user-%d" % number)
        )
        deadline = time.time_ns() // 1_000_000 + 600_000
        body = b'{"v":1,"deadline_at_ms":%d}' % deadline if plane == "cp" else b'{"v":1}'
        stream, seq = await door.say(door.subject(*tail), body, lines)
        seqs.add(seq)
    assert len(seqs) == len(ODD_HEADERS)
    for of_one in (await door.results(stream, seqs)).values():
        assert len(of_one) == 1
        found = await door.streams.last(door.names.res_stream, of_one[0])
        assert found is not None
        assert json.loads(found.data)["status"] == "ok"
        assert "traceparent" not in found.headers
        assert "Nats-Rollup" not in found.headers
    await door.serves("after-headers")


async def test_a_trace_context_that_is_one_is_carried_on(door: Door) -> None:
    body = b'{"v":1,"deadline_at_ms":%d}' % (time.time_ns() // 1_000_000 + 600_000)
    stream, seq = await door.say(door.subject(b"cp", b"mint", b"runs", b"t"), body, [TRACE])
    (subject,) = (await door.results(stream, {seq}))[seq]
    found = await door.streams.last(door.names.res_stream, subject)
    assert found is not None
    assert found.headers["traceparent"] == TRACE.split(b": ")[1].decode()


COMMAND_IDS = [
    [b"Tidegate-Command: short"],
    [b"Tidegate-Command: " + b"x" * 65],
    [b"Tidegate-Command: has.a.dot.in.it.somewhere"],
    [b"Tidegate-Command: " + "é".encode() * 16],
    [b"Tidegate-Command: \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"],
    [b"Tidegate-Command: aaaaaaaaaaaaaaaa\nbbbb"],
    [b"Tidegate-Command:"],
    [b"Tidegate-Command: " + b"c" * 22, b"Tidegate-Command: " + b"c" * 22],
    [b"Tidegate-Command: " + b"c" * 22, b"Tidegate-Command: " + b"d" * 22],
]


async def test_a_command_id_that_is_none_is_refused_by_the_headers_name(door: Door) -> None:
    before = await door.written()
    said = {}
    for lines in COMMAND_IDS:
        reason = "bad-command-id" if len(lines) == 1 else "repeated-header"
        for subject in (
            door.subject(b"cp", b"expire", b"runs", b"t"),
            door.subject(b"cap", b"stop", b"user-1"),
        ):
            wanted = (repr(lines), "Tidegate-Command", reason)
            said[await door.say(subject, b'{"v":1}', lines)] = wanted
    await door.refused(said)
    assert await door.written() == before


async def test_bad_commands_among_good_ones_hold_up_none_of_them(door: Door) -> None:
    """A hundred good commands, each with bad neighbours of every kind in front of it."""
    bad = [body for body, _, _ in BODIES_OF_ROW_11.values() if len(body) <= 100_000]
    good: set[int] = set()
    for number in range(100):
        await door.say(
            door.subject(b"cp", b"mint", b"runs", b"bad-%d" % number), bad[number % len(bad)]
        )
        deadline = time.time_ns() // 1_000_000 + 600_000
        body = b'{"v":1,"deadline_at_ms":%d}' % deadline
        _, seq = await door.say(door.subject(b"cp", b"mint", b"runs", b"good-%d" % number), body)
        good.add(seq)
    for subjects_of in (await door.results(door.names.cmd_stream, good)).values():
        assert (await door.read(subjects_of[0]))["outcome"] == "minted"
    specs = [s for s in await door.subjects(f"KV_{door.names.records_bucket}") if "bad-" in s]
    assert specs == []


async def test_the_worker_pays_little_for_what_it_refuses(door: Door) -> None:
    """Memory and log stay bounded; nothing of a body ever reaches the log."""
    process = psutil.Process(door.worker.pid)
    secret = b"do-not-log-this-0123456789"
    before = process.memory_info().rss
    said = []
    for number in range(60):
        body = (b" " * (900 * 1024)) if number % 2 else b'{"v":1,"x":"' + secret + b'\xff"}'
        said.append(await door.say(door.subject(b"cp", b"mint", b"runs", b"t"), body))
    await door.results(door.names.cmd_stream, {seq for _, seq in said})
    assert process.memory_info().rss - before < 80 * 1024 * 1024
    assert secret.decode() not in door.worker.log()
    assert len(door.worker.events()) < 60


BAD_QUERIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "body"),
    "a duplicate key": (b'{"endpoint":"runs","endpoint":"runs","token":"t"}', "endpoint"),
    "NaN": (b'{"endpoint":"runs","token":NaN}', "token"),
    "too deep": (b'{"endpoint":' + b"[" * 70 + b"]" * 70 + b"}", "body"),
    "a lone surrogate": (b'{"endpoint":"runs","token":"\\ud800"}', "token"),
    "an unknown field": (b'{"endpoint":"runs","token":"t","x":1}', "x"),
    "a blank": (b'{"endpoint":"runs","token":"a b"}', "token"),
    "a trailing line break": (b'{"endpoint":"runs","token":"t\\n"}', "token"),
    "an endpoint with one": (b'{"endpoint":"runs\\n","token":"t"}', "endpoint"),
    "a dot": (b'{"endpoint":"runs","token":"a.b"}', "token"),
    "a wildcard": (b'{"endpoint":"runs","token":"a*"}', "token"),
    "another script": ('{"endpoint":"runs","token":"é"}'.encode(), "token"),
    "300 characters": (b'{"endpoint":"runs","token":"' + b"x" * 300 + b'"}', "token"),
    "a number": (b'{"endpoint":"runs","token":7}', "token"),
    "no token": (b'{"endpoint":"runs"}', "token"),
}


async def test_a_query_that_is_none_is_refused_by_its_field(door: Door) -> None:
    for what, (body, field) in BAD_QUERIES.items():
        for name in ("show", "wait"):
            subject = f"{door.names.prefix}.qry.alice.{UID}.cp.{name}"
            reply = await door.streams.nc.request(subject, body, timeout=5)
            answer = json.loads(reply.data)
            assert answer["status"] == "refused", what
            assert answer["error"]["field"] == field, (what, answer)
            assert answer["error"]["code"] == "bad-request"
    assert door.worker.readiness() == []


async def test_a_subject_that_no_stream_takes_has_no_responders_at_once(door: Door) -> None:
    for subject in (
        door.subject(b"nope", b"mint", b"runs", b"t"),
        door.subject(b"cp"),
        door.subject(b"cp.mint.runs.t", principal=b"a.b"),
        b".".join((door.names.prefix.encode(), b"cmd", b"alice")),
    ):
        answer = await door.socket.publish(subject, b"{}")
        assert str(answer.get("headers")).startswith("NATS/1.0 503"), (subject, answer)
