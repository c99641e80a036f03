"""The timer writer: the fence, the self-heal, and requests of foreign owners."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import subjects
from schemas.names import Names
from schemas.records import TimerBody
from schemas.subjects import Checkpoint, Timer
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    a_target,
    desk_in,
    serving,
    until,
)
from tests.support.space import Space
from worker.bus.errors import SCHEDULE_ERRORS
from worker.bus.headers import Headers
from worker.bus.jetstream import parse_ack
from worker.bus.messages import StoredMessage
from worker.bus.window import GroupPublisher
from worker.timers.requests import RequestHandler
from worker.timers.writer import ArmConflict, Armed, ArmTimeout, Discarded, Proof, TimerWriter

FOREIGN = "f" * 26


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space, wheel=False) as one:
        yield one


class HeldProof:
    """A proof of the status at the leader that waits, each time, until it is let go on.

    Attributes:
        asked: Set whenever the writer has come to its proof.
        calls: How often it has.
    """

    def __init__(self, replica: Replica) -> None:
        self._prove = replica.plane._records.prove
        self._hold = asyncio.Event()
        self._hold.set()
        self.asked = asyncio.Event()
        self.calls = 0

    def hold(self) -> None:
        self.asked.clear()
        self._hold.clear()

    def go_on(self) -> None:
        self._hold.set()

    async def __call__(self, target: Checkpoint) -> Proof | None:
        proof = await self._prove(target)
        self.calls += 1
        self.asked.set()
        await self._hold.wait()
        return proof


def writer_with(desk: Desk, prove: Any, *, budget_ms: int = 5_000) -> TimerWriter:
    ept = GroupPublisher(desk.js, desk.names.ept_stream, atomic=True)
    return TimerWriter(desk.js, desk.names, ept, prove, budget_ms=budget_ms)


def body_of(target: Checkpoint, told: Json) -> TimerBody:
    data = told["data"]
    return TimerBody(
        v=1,
        timerId=target.token,
        generation=data["generation"],
        deadline=data["deadline_at_ms"],
    )


async def coordinate(desk: Desk, target: Checkpoint) -> tuple[int, int] | None:
    """Generation and deadline that our own timer is armed for."""
    armed = await desk.armed(target)
    if armed is None:
        return None
    body = json.loads(armed.data)
    return body["generation"], body["deadline"]


def owner_of(desk: Desk, target: Checkpoint, instance: str = FOREIGN, epoch: str = "7") -> str:
    return f"{desk.names.prefix}.ept.{target.wire_endpoint}.{instance}.{epoch}.{target.token}"


async def request(
    desk: Desk,
    target: Checkpoint,
    body: Json | bytes,
    *,
    headers: dict[str, str] | None = None,
    subject: str | None = None,
) -> str:
    """A foreign owner's request, from the clients' account, until it has been handled.

    Some scheduler headers the broker itself refuses, also on a stream without schedules.
    """
    owner = subject or owner_of(desk, target)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await desk.voice.request(f"{owner}.schedule", data, headers=headers)
    if json.loads(reply.data).get("error", {}).get("err_code") not in SCHEDULE_ERRORS:
        await desk.handled(desk.names.timers_durable, parse_ack(reply.data, owner).seq)
    return owner


def request_body(target: Checkpoint, status: Json) -> Json:
    return {
        "v": 1,
        "timerId": target.token,
        "generation": status["deadlineGeneration"],
        "deadline": status["deadline"],
    }


# The fence.


async def test_a_held_writer_loses_to_whoever_moved_the_timer_meanwhile(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    minted = await desk.mint(target)
    prove = HeldProof(replica)
    writer = writer_with(desk, prove)
    prove.hold()
    held = asyncio.create_task(writer.arm(desk.own_timer(target), body_of(target, minted)))
    await prove.asked.wait()
    # It has read the sequence and proven generation 1; now the deadline moves, and its timer.
    moved = await desk.heartbeat(target, 1, in_ms=2 * MINUTE_MS)
    armed = await desk.armed(target)
    prove.go_on()

    assert await held == Discarded("stale")
    assert await desk.armed(target) == armed
    assert await coordinate(desk, target) == (2, moved["data"]["deadline_at_ms"])


async def test_the_sequence_is_read_before_the_proof(desk: Desk, replica: Replica) -> None:
    """Read after it, the sequence would let a stale proof overwrite the newer timer."""
    target = a_target()
    minted = await desk.mint(target)
    prove = HeldProof(replica)
    writer = writer_with(desk, prove)
    prove.hold()
    held = asyncio.create_task(writer.arm(desk.own_timer(target), body_of(target, minted)))
    await prove.asked.wait()
    await desk.heartbeat(target, 1)
    before = len(await desk.stored(desk.names.ept_stream, desk.timer_subject(target, "armed")))
    seq = (await desk.js.stream_info(desk.names.ept_stream)).last_seq
    prove.go_on()
    await held
    assert (await desk.js.stream_info(desk.names.ept_stream)).last_seq == seq
    assert before == 1


async def test_a_writer_held_over_a_settlement_arms_nothing(desk: Desk, replica: Replica) -> None:
    target = a_target()
    minted = await desk.mint(target)
    prove = HeldProof(replica)
    writer = writer_with(desk, prove)
    prove.hold()
    held = asyncio.create_task(writer.arm(desk.own_timer(target), body_of(target, minted)))
    await prove.asked.wait()
    await desk.resume(target)
    await desk.agree(target)
    prove.go_on()
    # The fence cannot see a timer that is gone; the second look at the status does.
    assert await held == Discarded("settled")
    assert await desk.all_armed(target) == []
    await desk.agree(target)


async def test_a_timer_armed_for_what_a_heartbeat_moved_is_armed_anew(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    minted = await desk.mint(target)
    first = body_of(target, minted)
    moved: dict[str, Json] = {}
    proofs = 0

    async def prove(asked: Checkpoint) -> Proof | None:
        nonlocal proofs
        proofs += 1
        if proofs == 2:
            # Between arming and the second look the status moves, but not yet its timer.
            status = await desk.status(target)
            assert status is not None
            status |= {"deadlineGeneration": 2, "deadline": status["deadline"] + MINUTE_MS}
            await desk.put(subjects.status_key(target), status)
            moved["status"] = status
        return await replica.plane._records.prove(asked)

    armed = await writer_with(desk, prove).arm(desk.own_timer(target), first)

    live = moved["status"]
    assert isinstance(armed, Armed)
    assert (armed.generation, armed.deadline_ms) == (2, live["deadline"])
    assert await coordinate(desk, target) == (2, live["deadline"])
    assert proofs == 2, "the live coordinate is armed once, without another look"


async def test_a_timer_armed_for_what_then_settled_is_cancelled(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    await desk.plant(target, in_ms=MINUTE_MS)
    status = await desk.status(target)
    assert status is not None
    proofs = 0

    async def prove(asked: Checkpoint) -> Proof | None:
        nonlocal proofs
        proofs += 1
        if proofs == 2:
            assert await desk.armed(target) is not None
            settled = {
                **status,
                "state": "expired",
                "settledGeneration": 1,
                "settledTs": status["deadline"],
            }
            await desk.put(subjects.status_key(target), settled)
        return await replica.plane._records.prove(asked)

    body = TimerBody(v=1, timerId=target.token, generation=1, deadline=status["deadline"])
    assert await writer_with(desk, prove).arm(desk.own_timer(target), body) == Discarded("settled")
    assert await desk.all_armed(target) == []


async def test_a_writer_gives_up_after_losing_three_times(desk: Desk, replica: Replica) -> None:
    target = a_target()
    minted = await desk.mint(target)
    original = await desk.armed(target)
    assert original is not None
    headers = {k: v for k, v in original.headers.items() if k.startswith("Nats-Schedule")}
    proofs = 0

    async def prove(asked: Checkpoint) -> Proof | None:
        nonlocal proofs
        proofs += 1
        await desk.js.publish(original.subject, original.data, headers=headers)
        return await replica.plane._records.prove(asked)

    with pytest.raises(ArmConflict) as caught:
        await writer_with(desk, prove).arm(desk.own_timer(target), body_of(target, minted))
    assert proofs == 3
    assert caught.value.code == "conflict"


async def test_reads_that_take_longer_than_the_budget_are_unavailable(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    minted = await desk.mint(target)
    prove = HeldProof(replica)
    prove.hold()
    writer = writer_with(desk, prove, budget_ms=50)
    with pytest.raises(ArmTimeout) as caught:
        await writer.arm(desk.own_timer(target), body_of(target, minted))
    assert caught.value.code == "unavailable"


async def test_what_the_leader_contradicts_is_discarded(desk: Desk, replica: Replica) -> None:
    waiting, resumed = a_target(), a_target()
    minted = await desk.mint(waiting)
    await desk.mint(resumed)
    settled = await desk.resume(resumed)
    deadline = minted["data"]["deadline_at_ms"]
    before = await desk.armed(waiting)
    wanted: list[tuple[Checkpoint, int, int, str]] = [
        (a_target(), 1, deadline, "unknown"),
        (resumed, 1, settled["data"]["deadline_at_ms"], "settled"),
        (waiting, 2, deadline, "stale"),
        (waiting, 1, deadline + 1, "stale"),
    ]
    writer = writer_with(desk, replica.plane._records.prove)
    for target, generation, at_ms, word in wanted:
        body = TimerBody(v=1, timerId=target.token, generation=generation, deadline=at_ms)
        assert await writer.arm(desk.own_timer(target), body) == Discarded(word)
    assert await desk.armed(waiting) == before
    await desk.unarmed(resumed)


async def test_a_deadline_beyond_the_brokers_calendar_is_never_armed(
    desk: Desk, replica: Replica
) -> None:
    """Beyond 2262 the broker's scheduler overflows and fires at once."""
    for in_ms in (240 * 365 * 24 * 3600 * 1000, 2**53 - 1 - await desk.now_ms() - 5_000):
        target = a_target()
        status = await desk.plant(target, in_ms=in_ms)
        told = await desk.ask("repair", target, {})
        assert (told["status"], told["outcome"]) == ("ok", "nothing_to_repair")
        assert await desk.all_armed(target) == []
        assert await desk.status(target) == status
        again = await desk.ask("mint", target, {"deadline_at_ms": status["deadline"]})
        assert again["status"] in ("ok", "refused")
        assert await desk.all_armed(target) == []
        assert (await desk.resume(target))["outcome"] == "resumed"


async def test_cancelling_removes_only_the_timer_that_was_meant(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    await desk.mint(target)
    writer = writer_with(desk, replica.plane._records.prove)
    owner = desk.own_timer(target)
    first = await desk.armed(target)
    assert first is not None
    await desk.heartbeat(target, 1)
    assert await writer.cancel(owner, first.seq) is False
    second = await desk.armed(target)
    assert second is not None
    assert await writer.cancel(owner, second.seq) is True
    assert await desk.armed(target) is None
    assert await writer.cancel(owner, second.seq) is False

    async def gone() -> bool:
        return await desk.timers(target) == []

    await until(gone, what="the cancel leaves the stream by itself")


# Requests of foreign owners.


@pytest.mark.usefixtures("replica")
async def test_a_foreign_owners_timer_is_armed_under_its_own_subject(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    owner = await request(desk, target, request_body(target, status))
    assert await desk.all_armed(target) == [f"{owner}.armed"]
    armed = await desk.js.last_message(desk.names.ept_stream, f"{owner}.armed")
    assert armed is not None
    assert json.loads(armed.data) == request_body(target, status)
    assert armed.headers["Nats-Schedule-Target"] == f"{owner}.fire"


@pytest.mark.usefixtures("replica")
async def test_a_foreign_owners_checkpoint_expires_by_its_own_timer(desk: Desk) -> None:
    target = a_target("ops")
    status = await desk.plant(target, in_ms=400)
    await request(desk, target, request_body(target, status))
    settled = await desk.agree(target)
    assert settled["state"] == "expired"
    assert settled["deadline"] == status["deadline"]


@pytest.mark.usefixtures("replica")
async def test_a_request_with_a_scheduler_header_is_refused(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    for name, value in (
        ("Nats-Scheduler", "x"),
        ("nats-scheduler", "x"),
        ("Nats-Schedule-Target", "a.b"),
        ("NATS-SCHEDULE-TTL", "1h"),
        ("Nats-Schedule-Next", "purge"),
        ("Nats-Schedule-Something-New", "1"),
        ("nats-rollup-of-mine", "1"),
    ):
        await request(desk, target, request_body(target, status), headers={name: value})
        assert await desk.all_armed(target) == [], name
    await request(desk, target, request_body(target, status), headers={"traceparent": "x"})
    assert len(await desk.all_armed(target)) == 1


@pytest.mark.usefixtures("replica")
async def test_a_poison_request_is_terminated_and_the_next_one_served(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    good = request_body(target, status)
    poison: list[Json | bytes] = [
        b"",
        b"{",
        b"\xff",
        {**good, "timerId": "another"},
        {**good, "v": 2},
        {**good, "extra": 1},
        {**good, "generation": 0},
        {**good, "generation": True},
        {**good, "deadline": 1.5},
        {**good, "deadline": 2**53 - 1},
        b'{"v":1,"v":1,"timerId":"%s","generation":1,"deadline":5}' % target.token.encode(),
    ]
    for body in poison:
        await request(desk, target, body)
        assert await desk.all_armed(target) == [], body
    for wrong in (
        owner_of(desk, target, instance="short"),
        owner_of(desk, target, epoch="01"),
        owner_of(desk, target, epoch=str(2**53)),
        f"{desk.names.prefix}.ept.UPPER.{FOREIGN}.7.{target.token}",
    ):
        await request(desk, target, good, subject=wrong)
    assert await desk.all_armed() == []
    await request(desk, target, good)
    assert len(await desk.all_armed(target)) == 1


@pytest.mark.usefixtures("replica")
async def test_a_request_the_status_contradicts_is_discarded(desk: Desk) -> None:
    waiting, settled, unknown = a_target(), a_target(), a_target()
    status = await desk.plant(waiting, in_ms=MINUTE_MS, generation=3)
    done = await desk.plant(
        settled, in_ms=-1_000, state="expired", settledGeneration=1, settledTs=await desk.now_ms()
    )
    await request(desk, waiting, {**request_body(waiting, status), "generation": 2})
    await request(
        desk, waiting, {**request_body(waiting, status), "deadline": status["deadline"] - 1}
    )
    await request(desk, settled, request_body(settled, done))
    await request(desk, unknown, request_body(unknown, status))
    assert await desk.all_armed() == []


@pytest.mark.usefixtures("replica")
async def test_a_request_about_a_garbled_record_is_terminated(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS, settledTs=1)
    await request(desk, target, request_body(target, status))
    assert await desk.all_armed(target) == []


async def test_a_request_of_another_space_is_refused(desk: Desk, replica: Replica) -> None:
    """The stream's own subjects keep others out; the handler does not rely on that."""
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    other = Names(desk.names.root, "other")
    owner = Timer(target.endpoint, FOREIGN, "7", target.token, "schedule")
    writer = writer_with(desk, replica.plane._records.prove)
    handler = RequestHandler(desk.names, replica.plane._clock, writer)
    for names, kind, armed in ((other, "schedule", 0), (desk.names, "fire", 0)):
        message = StoredMessage(
            subjects.timer(names, owner, kind),
            1,
            1,
            Headers(),
            json.dumps(request_body(target, status)).encode(),
            desk.names.ept_req_stream,
        )
        delivery = await desk.deliver(message)
        await handler.handle(delivery)
        assert delivery.settled
        assert len(await desk.all_armed()) == armed


@pytest.mark.usefixtures("replica")
async def test_a_client_cannot_arm_past_the_writer(desk: Desk) -> None:
    """Only ``.schedule`` crosses the accounts' border; a schedule header is refused there."""
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    owner = owner_of(desk, target)
    refused = await desk.voice.request(
        f"{owner}.schedule",
        json.dumps(request_body(target, status)).encode(),
        headers={"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "x"},
    )
    assert json.loads(refused.data)["error"]["err_code"] == 10188
    assert await desk.all_armed() == []
