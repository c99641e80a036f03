"""Expire and repair by command, and what a settlement leaves behind."""

import json
from collections.abc import AsyncIterator

import pytest

from schemas import subjects
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    a_target,
    code_of,
    desk_in,
    new_id,
    serving,
)
from tests.support.space import Space, speaker


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space, wheel=False) as one:
        yield one


def fact_for(target: subjects.Checkpoint, status: Json) -> Json:
    fact = {
        "v": 1,
        "token": target.token,
        "settle": status["state"],
        "generation": status["settledGeneration"],
        "ts": status["settledTs"],
    }
    return fact


async def repaired(desk: Desk, target: subjects.Checkpoint) -> tuple[list[str], Json]:
    told = await desk.ask("repair", target, {})
    assert told["status"] == "ok", told
    wanted = "repaired" if told["data"]["repairs"] else "nothing_to_repair"
    assert told["outcome"] == wanted
    return told["data"]["repairs"], told


# Expire.


@pytest.mark.usefixtures("replica")
async def test_a_checkpoint_that_is_not_due_is_not_expired(desk: Desk) -> None:
    target = a_target()
    minted = await desk.mint(target)
    before = await desk.status_at(target)
    told = await desk.ask("expire", target, {})
    assert (code_of(told), told["outcome"]) == ("failed-precondition", "not-due")
    assert told["data"] == minted["data"]
    assert await desk.status_at(target) == before
    assert await desk.armed(target) is not None


@pytest.mark.usefixtures("replica")
async def test_expire_settles_a_due_checkpoint(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    planted = await desk.plant(target, in_ms=-1_000)
    told = await desk.ask("expire", target, {}, by=desk.bob, command_id=command_id)
    assert (told["status"], told["outcome"]) == ("ok", "expired")
    status = await desk.agree(target)
    assert status == {
        "state": "expired",
        "deadlineGeneration": 1,
        "deadline": planted["deadline"],
        "observedSpecRevision": 1,
        "settledGeneration": 1,
        "settledTs": told["data"]["settled_at_ms"],
    }
    stored = await desk.status_at(target)
    assert stored.headers["Tidegate-Cause"] == f"bob/{command_id}"
    fact = next(fact for fact in await desk.facts(target) if fact.kind == "expired")
    assert fact.body["lateness_ms"] == status["settledTs"] - status["deadline"] >= 1_000
    assert fact.body["holder"] == {"id": "alice", "lifecycleUid": desk.alice.uid}


@pytest.mark.usefixtures("replica")
async def test_expire_on_a_settled_checkpoint_returns_its_settlement(desk: Desk) -> None:
    resumed, expired, command_id = a_target(), a_target(), new_id()
    await desk.mint(resumed)
    settlement = await desk.resume(resumed, {"answer": 1})
    await desk.plant(expired, in_ms=-1)
    first = await desk.ask("expire", expired, {}, command_id=command_id)

    of_resumed = await desk.ask("expire", resumed, {})
    of_expired = await desk.ask("expire", expired, {})
    again = await desk.ask("expire", expired, {}, command_id=command_id)

    assert (of_resumed["status"], of_resumed["outcome"]) == ("ok", "already_settled")
    assert of_resumed["data"] == settlement["data"]
    assert (of_expired["outcome"], of_expired["data"]) == ("already_settled", first["data"])
    assert (again["outcome"], again["data"]) == ("expired", first["data"])
    await desk.agree(resumed)
    await desk.agree(expired)


@pytest.mark.usefixtures("replica")
async def test_expire_and_repair_of_an_unknown_checkpoint_are_not_found(desk: Desk) -> None:
    for verb in ("expire", "repair"):
        told = await desk.ask(verb, a_target(), {})
        assert (code_of(told), told["outcome"]) == ("not-found", "unknown-checkpoint")


@pytest.mark.usefixtures("replica")
async def test_an_operator_may_expire_and_repair_and_nothing_else(desk: Desk) -> None:
    operator, target = speaker("_op1"), a_target()
    await desk.plant(target, in_ms=-1)
    for verb, body in (
        ("mint", {"deadline_at_ms": await desk.now_ms() + MINUTE_MS}),
        ("heartbeat", {"generation": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS}),
        ("resume", {}),
    ):
        told = await desk.ask(verb, target, body, by=operator)
        assert code_of(told) == "permission-denied", verb
    assert (await desk.ask("expire", target, {}, by=operator))["outcome"] == "expired"
    assert (await desk.ask("repair", target, {}, by=operator))["status"] == "ok"
    for verb in ("expire", "repair"):
        told = await desk.ask(verb, target, {}, by=speaker("_worker9"))
        assert code_of(told) == "permission-denied", verb


# Repair.


@pytest.mark.usefixtures("replica")
async def test_repair_finds_nothing_where_all_is_well(desk: Desk) -> None:
    waiting, resumed = a_target(), a_target()
    await desk.mint(waiting)
    await desk.mint(resumed)
    await desk.resume(resumed)
    await desk.agree(resumed)
    armed = await desk.armed(waiting)
    for target in (waiting, resumed):
        assert (await repaired(desk, target))[0] == []
    assert await desk.armed(waiting) == armed
    assert [fact.kind for fact in await desk.facts(waiting)] == ["waiting"]


@pytest.mark.usefixtures("replica")
async def test_repair_expires_what_is_due(desk: Desk) -> None:
    target = a_target()
    await desk.plant(target, in_ms=-1)
    repairs, told = await repaired(desk, target)
    assert repairs == ["expired"]
    assert told["data"]["state"] == "expired"
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_repair_arms_a_timer_that_was_lost(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    moved = await desk.heartbeat(target, 1, in_ms=2 * MINUTE_MS)
    await desk.disarm(target)
    assert (await repaired(desk, target))[0] == ["rearmed"]
    armed = await desk.armed(target)
    assert armed is not None
    body = json.loads(armed.data)
    assert (body["generation"], body["deadline"]) == (2, moved["data"]["deadline_at_ms"])
    assert (await repaired(desk, target))[0] == []
    told = [fact for fact in await desk.facts(target) if fact.kind == "repaired"]
    assert [(fact.generation, fact.body["repairs"]) for fact in told] == [(2, ["rearmed"])]


@pytest.mark.usefixtures("replica")
async def test_repair_replaces_a_timer_of_another_coordinate(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    armed = await desk.armed(target)
    moved = await desk.heartbeat(target, 1, in_ms=2 * MINUTE_MS)
    assert armed is not None
    # The first generation's timer is put back, as by a writer that was held for long.
    await desk.js.publish(armed.subject, armed.data, headers=_schedule(armed.headers))
    assert (await repaired(desk, target))[0] == ["rearmed"]
    now = await desk.armed(target)
    assert now is not None
    assert json.loads(now.data)["deadline"] == moved["data"]["deadline_at_ms"]


@pytest.mark.usefixtures("replica")
async def test_a_foreign_timer_counts_only_for_the_coordinate_in_force(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    owner = f"{desk.names.prefix}.ept.review_eu.{'f' * 26}.7.{target.token}"
    request = {"v": 1, "timerId": target.token, "generation": 1, "deadline": status["deadline"]}
    ack = await desk.js.publish(f"{owner}.schedule", json.dumps(request).encode())
    await desk.handled(desk.names.timers_durable, ack.seq)
    assert (await repaired(desk, target))[0] == []
    status |= {"deadlineGeneration": 2, "deadline": status["deadline"] + 1}
    await desk.put(subjects.status_key(target), status)
    assert (await repaired(desk, target))[0] == ["rearmed"]
    assert len(await desk.all_armed(target)) == 2


def _schedule(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("Nats-Schedule")}


@pytest.mark.usefixtures("replica")
async def test_repair_publishes_a_fact_that_is_missing(desk: Desk) -> None:
    for state in ("resumed", "expired"):
        target = a_target()
        now = await desk.now_ms()
        holder = {"id": "alice", "lifecycleUid": desk.alice.uid}
        settled: Json = {"state": state, "settledGeneration": 2, "settledTs": now}
        if state == "resumed":
            settled |= {"settledHolder": holder, "settledAnswerId": "a1"}
        in_ms = MINUTE_MS if state == "resumed" else -1_000
        status = await desk.plant(target, in_ms=in_ms, generation=2, **settled)
        assert (await repaired(desk, target))[0] == ["fact-published"]
        assert (await desk.agree(target)) == status


@pytest.mark.usefixtures("replica")
async def test_repair_cancels_timers_left_after_a_settlement(desk: Desk) -> None:
    target = a_target()
    minted = await desk.mint(target)
    armed = await desk.armed(target)
    assert armed is not None
    await desk.resume(target)
    await desk.agree(target)
    foreign = f"{desk.names.prefix}.ept.review_eu.{'x' * 26}.3.{target.token}"
    for owner in (armed.subject.removesuffix(".armed"), foreign):
        schedule = {**_schedule(armed.headers), "Nats-Schedule-Target": f"{owner}.fire"}
        await desk.js.publish(f"{owner}.armed", armed.data, headers=schedule)
    assert len(await desk.all_armed(target)) == 2

    assert (await repaired(desk, target))[0] == ["timer-cancelled"]

    assert await desk.all_armed(target) == []
    assert (await repaired(desk, target))[0] == []
    assert minted["data"]["state"] == "waiting"
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_repair_restores_a_status_that_fell_behind_its_fact(desk: Desk) -> None:
    for state in ("resumed", "expired"):
        target = a_target()
        status = await desk.plant(target, in_ms=MINUTE_MS if state == "resumed" else -1_000)
        now = await desk.now_ms()
        fact: Json = {
            "v": 1,
            "token": target.token,
            "settle": state,
            "generation": 2,
            "ts": now,
        }
        if state == "resumed":
            fact["holder"] = {"id": "alice", "lifecycleUid": desk.alice.uid}
            fact["answerId"] = "a1"
        await desk.put_fact(target, fact)
        repairs, told = await repaired(desk, target)
        assert repairs == ["status-restored"]
        assert told["data"]["state"] == state
        restored = await desk.agree(target)
        assert restored["deadlineGeneration"] == 2
        assert restored["deadline"] == status["deadline"]
        assert await desk.fact(target) == fact


# What a settlement leaves behind.


@pytest.mark.usefixtures("replica")
async def test_any_later_touch_makes_a_missing_fact_exist(desk: Desk) -> None:
    deadline = await desk.now_ms() + MINUTE_MS
    touches: list[tuple[str, Json]] = [
        ("resume", {}),
        ("heartbeat", {"generation": 1, "deadline_at_ms": deadline}),
        ("expire", {}),
        ("repair", {}),
        ("fire", {}),
    ]
    for verb, body in touches:
        target = a_target()
        now = await desk.now_ms()
        await desk.plant(target, in_ms=-1_000, state="expired", settledGeneration=1, settledTs=now)
        if verb == "fire":
            await fire(desk, target, generation=1, deadline=now - 1_000)
        else:
            await desk.ask(verb, target, body)
        assert (await desk.agree(target))["settledTs"] == now, verb
    target = a_target()
    status = await desk.plant(
        target, in_ms=-1_000, state="expired", settledGeneration=1, settledTs=deadline
    )
    told = await desk.ask("mint", target, {"deadline_at_ms": status["deadline"]})
    assert told["outcome"] == "already_minted"
    await desk.agree(target)


async def fire(desk: Desk, target: subjects.Checkpoint, *, generation: int, deadline: int) -> None:
    """A fire as the broker publishes it."""
    body = {"v": 1, "timerId": target.token, "generation": generation, "deadline": deadline}
    headers = {
        "Nats-Scheduler": desk.timer_subject(target, "armed"),
        "Nats-Schedule-Next": "purge",
    }
    await desk.js.publish(
        desk.timer_subject(target, "fire"), json.dumps(body).encode(), headers=headers
    )


@pytest.mark.usefixtures("replica")
async def test_a_settlement_cancels_the_timer_of_a_foreign_owner(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=MINUTE_MS)
    owner = f"{desk.names.prefix}.ept.review_eu.{'f' * 26}.7.{target.token}"
    request = {
        "v": 1,
        "timerId": target.token,
        "generation": 1,
        "deadline": status["deadline"],
    }
    ack = await desk.js.publish(f"{owner}.schedule", json.dumps(request).encode())
    await desk.handled(desk.names.timers_durable, ack.seq)
    assert await desk.all_armed(target) == [f"{owner}.armed"]
    assert (await desk.resume(target))["outcome"] == "resumed"
    await desk.agree(target)
    assert await desk.all_armed(target) == []
