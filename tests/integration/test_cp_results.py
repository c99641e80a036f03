"""Every stored command gets exactly one result, whatever it holds and however often it comes."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from schemas import subjects
from schemas.names import kv_stream
from schemas.subjects import Checkpoint
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    a_target,
    desk_in,
    new_id,
    serving,
    until,
)
from tests.support.space import Space
from worker.bus.headers import Headers
from worker.bus.jetstream import parse_ack
from worker.bus.messages import StoredMessage

UID = "a" * 26


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space) as one:
        yield one


async def tell(
    desk: Desk, subject: str, data: bytes, headers: list[tuple[str, str]] | None = None
) -> int:
    """Publish bytes on any subject from the clients' account; the sequence."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers or [])
    header = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""
    _, answer = await desk.voice.begin(subject, header, data)
    return parse_ack(answer, subject).seq


async def everything(desk: Desk) -> Json:
    """What a user can observe of the space: every stream's messages but the commands."""
    names = desk.names
    found: Json = {}
    for stream in (kv_stream(names.records_bucket), names.epf_stream, names.res_stream):
        found[stream] = [
            (message.subject, message.seq, message.data) for message in await desk.stored(stream)
        ]
    return found


@pytest.mark.usefixtures("replica")
async def test_a_result_is_stored_once_under_the_commands_sequence(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    body = {"deadline_at_ms": await desk.now_ms() + MINUTE_MS}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    seq = await desk.say(
        "mint", target, body, command_id=command_id, headers={"traceparent": trace}
    )
    told = await desk.result(seq)

    subject = f"{desk.names.prefix}.res.alice.{desk.alice.uid}.cp.mint.{await desk.result_id(seq)}"
    await desk.answered_once(seq)
    await desk.was_told(target, ("waiting", 1))
    stored = await desk.stored(desk.names.res_stream, subject)
    command = await desk.js.message(desk.names.cmd_stream, seq)
    assert command is not None
    assert [json.loads(message.data) for message in stored] == [told]
    assert {name: told[name] for name in ("v", "command_id", "id", "status", "outcome")} == {
        "v": 1,
        "command_id": command_id,
        "id": await desk.result_id(seq),
        "status": "ok",
        "outcome": "minted",
    }
    assert told["at_ms"] >= command.time_ms
    assert "error" not in told
    assert "chain" not in told
    assert stored[0].headers["Tidegate-Command"] == command_id
    assert stored[0].headers["traceparent"] == trace
    assert (await desk.facts(target))[0].headers["traceparent"] == trace


@pytest.mark.usefixtures("replica")
async def test_a_refusal_says_why_in_a_stable_shape(desk: Desk) -> None:
    told = await desk.resume(a_target())
    assert told["status"] == "refused"
    assert told["outcome"] == told["error"]["reason"] == "unknown-checkpoint"
    assert told["error"] == {
        "code": "not-found",
        "reason": "unknown-checkpoint",
        "message": told["error"]["message"],
        "retryable": False,
    }
    assert told["data"] == {}


@pytest.mark.usefixtures("replica")
async def test_a_missing_command_id_derives_from_the_sequence(desk: Desk) -> None:
    target = a_target()
    subject = subjects.checkpoint_command(desk.names, desk.alice, "mint", target)
    body = {"v": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS}
    seq = await tell(desk, subject, json.dumps(body).encode())
    told = await desk.result(seq)
    assert told["outcome"] == "minted"
    epoch = (await desk.result_id(seq)).partition("-")[0]
    made = f"cp-{epoch}-{seq:016d}"
    assert told["command_id"] == made
    assert (await desk.status_at(target)).headers["Tidegate-Cause"] == f"alice/{made}"


@pytest.mark.usefixtures("replica")
async def test_a_bad_command_id_is_refused_naming_the_header(desk: Desk) -> None:
    target = a_target()
    subject = subjects.checkpoint_command(desk.names, desk.alice, "mint", target)
    body = json.dumps({"v": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS}).encode()
    good = "x" * 16
    for headers in (
        [("Tidegate-Command", "short")],
        [("Tidegate-Command", "x" * 65)],
        [("Tidegate-Command", "has a blank in it")],
        [("Tidegate-Command", "é" * 16)],
        [("Tidegate-Command", "")],
        [("Tidegate-Command", good), ("Tidegate-Command", good)],
    ):
        told = await desk.result(await tell(desk, subject, body, headers))
        reason = "bad-command-id" if len(headers) == 1 else "repeated-header"
        assert (told["status"], told["outcome"]) == ("refused", reason), headers
        assert told["error"]["field"] == "Tidegate-Command"
    assert await desk.status(target) is None


HOSTILE: list[tuple[str, bytes, str]] = [
    ("duplicate keys", b'{"v":1,"deadline_at_ms":1,"deadline_at_ms":2}', "duplicate-key"),
    ("NaN", b'{"v":1,"deadline_at_ms":NaN}', "not-finite"),
    ("1e999", b'{"v":1,"deadline_at_ms":1e999}', "not-finite"),
    ("2^63", b'{"v":1,"deadline_at_ms":9223372036854775808}', "number-too-large"),
    ("a lone surrogate", b'{"v":1,"prompt":{"v":1,"title":"\\ud800"}}', "lone-surrogate"),
    ("brackets", b"[" * 60_000, "too-deep"),
    ("100,000 brackets", b"[" * 100_000, "too-large"),
    ("not UTF-8", b'{"v":1,"deadline_at_ms":\xff}', "not-utf8"),
    ("empty", b"", "empty"),
    ("1 MiB of blanks", b" " * (1 << 20), "too-large"),
    ("an array", b"[1]", "not-an-object"),
    ("true for an int", b'{"v":1,"deadline_at_ms":true}', "wrong-type"),
    ("true for a version", b'{"v":true,"deadline_at_ms":1}', "wrong-type"),
    ("another version", b'{"v":2,"deadline_at_ms":1}', "unsupported-version"),
    ("no version", b'{"deadline_at_ms":1}', "missing-field"),
    ("an unknown field", b'{"v":1,"deadline_at_ms":9,"x":1}', "unknown-field"),
    ("a long name", b'{"v":1,"' + b"n" * 5_000 + b'":1,"deadline_at_ms":9}', "unknown-field"),
]


async def test_hostile_bodies_get_one_refused_result_each_and_the_queue_flows(
    desk: Desk, replica: Replica
) -> None:
    seqs: dict[int, tuple[str, str]] = {}
    for verb in ("mint", "heartbeat", "resume", "expire", "repair"):
        subject = subjects.checkpoint_command(desk.names, desk.alice, verb, a_target())
        for name, data, reason in HOSTILE:
            if verb != "mint" and reason in ("wrong-type", "missing-field", "unknown-field"):
                continue
            seqs[await tell(desk, subject, data)] = (name, reason)
    good = await desk.mint(a_target())
    for seq, (name, reason) in seqs.items():
        told = await desk.result(seq)
        assert told["status"] == "refused", name
        assert told["outcome"] == reason, (name, told)
        assert told["error"]["field"], name
        assert len(told["error"]["message"]) < 300, name
        await desk.answered_once(seq)
    assert good["outcome"] == "minted"
    assert replica.task is not None
    assert not replica.task.done()
    records = await desk.js.stream_info(kv_stream(desk.names.records_bucket))
    assert records.messages == 2, "only the good mint wrote"


async def test_subjects_that_do_not_parse_get_one_refused_result_each(
    desk: Desk, replica: Replica
) -> None:
    names, uid = desk.names, desk.alice.uid
    head = f"{names.prefix}.cmd"
    cases: list[tuple[str, str, str]] = [
        (f"{head}.alice.{uid}.cp.mint.ep.a.b", "bad-key", "known"),
        (f"{head}.alice.{uid}.cp.mint.ep", "bad-key", "known"),
        (f"{head}.alice.{uid}.cp.mint.ep.é", "bad-token", "known"),
        (f"{head}.alice.{uid}.cp.mint.ep.a$b", "bad-token", "known"),
        (f"{head}.alice.{uid}.cp.mint.ep.{'t' * 300}", "bad-token", "known"),
        (f"{head}.alice.{uid}.cp.mint.UPPER.t", "bad-endpoint", "known"),
        (f"{head}.alice.{uid}.cp.mint.-ep.t", "bad-endpoint", "known"),
        (f"{head}.alice.{uid}.cp.mint.{'e' * 65}.t", "bad-endpoint", "known"),
        (f"{head}.alice.{uid}.cp.steal.ep.t", "unknown-verb", "known"),
        (f"{head}.alice.{uid}.cp.MINT.ep.t", "unknown-verb", "known"),
        (f"{head}.ali$ce.{uid}.cp.mint.ep.t", "bad-principal", "unknown"),
        (f"{head}.{'p' * 65}.{uid}.cp.mint.ep.t", "bad-principal", "unknown"),
        (f"{head}.alice.short.cp.mint.ep.t", "bad-uid", "unknown"),
        (f"{head}.alice.{'U' * 26}.cp.mint.ep.t", "bad-uid", "unknown"),
    ]
    body = json.dumps({"v": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS}).encode()
    for subject, reason, speaker in cases:
        seq = await tell(desk, subject, body)
        told = await desk.result(seq)
        assert (told["status"], told["outcome"]) == ("refused", reason), subject
        assert told["error"]["field"] == "subject"
        await desk.answered_once(seq)
        assert (seq in desk.heard_invalid) == (speaker == "unknown")
    records = await desk.js.stream_info(kv_stream(names.records_bucket))
    assert records.messages == 0
    assert (await desk.mint(a_target()))["outcome"] == "minted"
    assert replica.plane.not_ready() == []


@pytest.mark.usefixtures("replica")
async def test_headers_of_the_brokers_own_cost_no_command_its_result(desk: Desk) -> None:
    body = json.dumps({"v": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS}).encode()
    seqs = []
    for value in ("503", "404", "408", "409", "100"):
        target = a_target()
        subject = subjects.checkpoint_command(desk.names, desk.alice, "mint", target)
        headers = [("Status", value), ("Description", "No Messages"), ("Nats-Sequence", "1")]
        seqs.append(await tell(desk, subject, body, headers))
    for seq in seqs:
        assert (await desk.result(seq))["outcome"] == "minted"


async def everything_said(desk: Desk) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """A little of everything: checkpoints that wait, and ones that settled."""
    waiting, resumed, expired, refused = (a_target() for _ in range(4))
    await desk.mint(waiting, prompt={"v": 1, "title": "t"})
    await desk.heartbeat(waiting, 1, in_ms=10 * MINUTE_MS)
    await desk.mint(resumed)
    await desk.resume(resumed, {"answer": {"a": 1}})
    await desk.resume(resumed, {"answer": {"a": 2}})
    await desk.mint(expired, in_ms=200)
    await desk.agree(expired)
    await desk.resume(expired)
    await desk.ask("expire", expired, {})
    await desk.ask("expire", waiting, {})
    await desk.resume(refused)
    await desk.ask("mint", refused, {"deadline_at_ms": 1})
    await desk.ask("repair", waiting, {})
    await desk.agree(resumed)
    return [waiting], [resumed, expired]


async def test_every_command_delivered_again_changes_nothing(desk: Desk, space: Space) -> None:
    async with serving(space):
        waiting, settled = await everything_said(desk)
    before = await everything(desk)
    commands = (await desk.js.stream_info(desk.names.cmd_stream)).last_seq
    # The durable is lost with all it knew, so every command is delivered anew.
    await desk.js.consumer_delete(desk.names.cmd_stream, desk.names.cp_durable)

    async with serving(space, "r2") as replica:

        async def all_handled() -> bool:
            return replica.plane._pullers[desk.names.cmd_stream].handled >= commands

        await until(all_handled, what="every command was delivered again")
        assert await everything(desk) == before
        assert {len(answers) for answers in desk.heard.values()} == {1}
        for target in settled:
            await desk.agree(target)
        for target in waiting:
            assert len(await desk.all_armed(target)) == 1
            assert (await desk.resume(target))["outcome"] == "resumed"
    for seq in range(1, commands + 1):
        await desk.answered_once(seq)


async def test_a_command_delivered_again_reads_its_result_first(
    desk: Desk, replica: Replica
) -> None:
    """A result that stands ends the command, whatever serving it would do now."""
    handler = replica.plane._commands
    for delivered, age_ms, served in ((1, 0, True), (2, 0, False), (1, 1_001, False)):
        target = a_target()
        subject = subjects.checkpoint_command(desk.names, desk.alice, "mint", target)
        body = {"v": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS}
        # A sequence that the stream has not reached: only this delivery speaks of it.
        seq = 1_000_000 + delivered + age_ms
        result = subjects.result(desk.names, desk.alice, "cp", "mint", await desk.result_id(seq))
        await desk.js.publish(result, b'{"answered":"before"}')
        stored = await desk.js.message(
            desk.names.res_stream, (await desk.js.stream_info(desk.names.res_stream)).last_seq
        )
        assert stored is not None
        message = _command(desk, subject, json.dumps(body).encode(), seq, stored.time_ms - age_ms)
        delivery = await desk.deliver(message, delivered=delivered)
        await handler.handle(delivery)
        assert delivery.settled
        assert (await desk.status(target) is not None) is served
        kept = await desk.stored(desk.names.res_stream, result)
        assert [one.data for one in kept] == [b'{"answered":"before"}']


def _command(desk: Desk, subject: str, data: bytes, seq: int, time_ms: int) -> StoredMessage:
    return StoredMessage(subject, seq, time_ms * 1_000_000, Headers(), data, desk.names.cmd_stream)


async def test_two_replicas_that_serve_the_same_delivery_answer_once(
    desk: Desk, space: Space
) -> None:
    async with serving(space, "r1") as one, serving(space, "r2") as two:
        seqs = []
        for _ in range(10):
            target = a_target()
            body = {"deadline_at_ms": await desk.now_ms() + MINUTE_MS}
            seq = await desk.say("mint", target, body)
            seqs.append((seq, target))
            message = await desk.js.message(desk.names.cmd_stream, seq)
            assert message is not None
            deliveries = [await desk.deliver(message) for _ in range(2)]
            await asyncio.gather(
                one.plane._commands.handle(deliveries[0]),
                two.plane._commands.handle(deliveries[1]),
            )
        for seq, target in seqs:
            assert (await desk.result(seq))["outcome"] == "minted"
            await desk.answered_once(seq)
            await desk.was_told(target, ("waiting", 1))
            assert (await desk.resume(target))["outcome"] == "resumed"
            await desk.agree(target)


async def test_a_refused_command_has_no_effect_when_its_delivery_is_repeated_as_the_first(
    desk: Desk, replica: Replica
) -> None:
    """The durable is lost, and what was refused would be granted now."""
    target = a_target()
    seq = await desk.say("resume", target, {})
    assert (await desk.result(seq))["outcome"] == "unknown-checkpoint"
    await desk.mint(target)
    handled = replica.plane._pullers[desk.names.cmd_stream]
    before = handled.handled
    await desk.js.consumer_delete(desk.names.cmd_stream, desk.names.cp_durable)

    async def all_handled() -> bool:
        return handled.handled >= before + 2

    await until(all_handled, what="both commands were delivered again")
    assert (await desk.status(target) or {})["state"] == "waiting"
    assert len(desk.heard[seq]) == 1
    assert (await desk.resume(target))["outcome"] == "resumed"
    await desk.agree(target)


async def test_observers_hear_each_fact_once_however_often_it_is_touched(
    desk: Desk, replica: Replica
) -> None:
    resumed, expired = a_target(), a_target()
    deadline = await desk.now_ms() + MINUTE_MS
    command_id = new_id()
    await desk.mint(resumed, deadline_at_ms=deadline)
    extend = {"generation": 1, "deadline_at_ms": deadline + MINUTE_MS}
    for _ in range(2):
        await desk.ask("mint", resumed, {"deadline_at_ms": deadline})
        await desk.ask("heartbeat", resumed, extend, command_id=command_id)
    told = await desk.mint(expired, in_ms=200)
    await desk.agree(expired)
    await desk.resume(resumed)
    for target in (resumed, expired):
        for verb, body in (
            ("resume", {}),
            ("expire", {}),
            ("repair", {}),
            ("heartbeat", extend),
            ("mint", {"deadline_at_ms": told["data"]["deadline_at_ms"]}),
        ):
            await desk.ask(verb, target, body)
        await desk.agree(target)
    await replica.swept()
    await desk.ask("expire", a_target(), {})

    async def all_heard() -> bool:
        return desk.facts_heard.total() >= 5

    await until(all_heard)
    assert dict(desk.facts_heard) == {
        f"waiting.review_eu.{resumed.token}.1": 1,
        f"extended.review_eu.{resumed.token}.2": 1,
        f"resumed.review_eu.{resumed.token}.2": 1,
        f"waiting.review_eu.{expired.token}.1": 1,
        f"expired.review_eu.{expired.token}.1": 1,
    }


async def test_a_worker_that_was_stopped_for_long_says_nothing_that_another_has_answered(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 10: it decided, then stood still for longer than the broker waits."""
    async with serving(space, "r1") as slow:
        target = a_target()
        subject = subjects.checkpoint_command(desk.names, desk.alice, "resume", target)
        seq = 1_000_000
        message = _command(desk, subject, b'{"v":1}', seq, await desk.now_ms())
        decided, go_on = asyncio.Event(), asyncio.Event()
        resume = slow.plane._commands._verbs.resume

        async def held(*arguments: object) -> object:
            verdict = await resume(*arguments)  # type: ignore[arg-type]  # passed through
            decided.set()
            await go_on.wait()
            return verdict

        monkeypatch.setattr(slow.plane._commands._verbs, "resume", held)
        first = await desk.deliver(message, lapses=lambda: int(decided.is_set()))
        stopped = asyncio.create_task(slow.plane._commands.handle(first))
        await decided.wait()
        # Meanwhile it comes to exist, and the other replica serves the second delivery.
        await desk.plant(target, in_ms=MINUTE_MS)
        async with serving(space, "r2") as other:
            await other.plane._commands.handle(await desk.deliver(message, delivered=2))
        go_on.set()
        await stopped
        assert (await desk.result(seq))["outcome"] == "resumed"
        await desk.ask("expire", a_target(), {})
        assert [told["outcome"] for told in desk.heard[seq]] == ["resumed"]
        await desk.agree(target)


async def test_a_command_cut_off_right_after_its_result_is_completed_when_it_comes_again(
    desk: Desk, space: Space
) -> None:
    """The result stands, but neither observers were told nor the timer cancelled."""
    minted, moved, resumed = a_target(), a_target(), a_target()
    deadline = await desk.now_ms() + MINUTE_MS
    ids = [new_id() for _ in range(3)]
    holder = {"id": "alice", "lifecycleUid": desk.alice.uid}
    cases: list[tuple[Checkpoint, str, Json, Json, tuple[str, int]]] = [
        (minted, "mint", {"deadline_at_ms": deadline}, {}, ("waiting", 1)),
        (
            moved,
            "heartbeat",
            {"generation": 1, "deadline_at_ms": deadline},
            {"deadlineGeneration": 2},
            ("extended", 2),
        ),
        (
            resumed,
            "resume",
            {},
            {
                "state": "resumed",
                "settledGeneration": 1,
                "settledTs": deadline - 5,
                "settledHolder": holder,
            },
            ("resumed", 1),
        ),
    ]
    async with serving(space) as replica:
        for number, (target, verb, body, changes, told) in enumerate(cases):
            seq = 1_000_000 + number
            status = await desk.plant(target, in_ms=MINUTE_MS)
            spec = await desk.spec(target)
            assert spec is not None
            await desk.put(subjects.spec_key(target), {**spec, "initialDeadline": deadline})
            cause = {"Tidegate-Cause": f"alice/{ids[number]}"}
            status |= {"deadline": deadline, **changes}
            await desk.put(subjects.status_key(target), status, **cause)
            result = {
                "v": 1,
                "command_id": ids[number],
                "id": await desk.result_id(seq),
                "at_ms": deadline - 4,
                "status": "ok",
                "outcome": "whatever",
                "data": {},
            }
            where = subjects.result(desk.names, desk.alice, "cp", verb, await desk.result_id(seq))
            await desk.js.publish(where, json.dumps(result).encode())
            message = StoredMessage(
                subjects.checkpoint_command(desk.names, desk.alice, verb, target),
                seq,
                await desk.now_ms() * 1_000_000,
                Headers({"Tidegate-Command": ids[number]}),
                json.dumps({"v": 1, **body}).encode(),
                desk.names.cmd_stream,
            )
            delivery = await desk.deliver(message, delivered=2)
            await replica.plane._commands.handle(delivery)
            assert delivery.settled
            await desk.was_told(target, told)
            kept = await desk.stored(desk.names.res_stream, where)
            assert [json.loads(one.data) for one in kept] == [result]
            if changes.get("state") == "resumed":
                assert await desk.fact(target) is not None
                await desk.unarmed(target)
            else:
                assert len(await desk.all_armed(target)) == 1
