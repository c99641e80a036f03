"""Heartbeat: a waiting checkpoint's deadline moves, status first and timer second."""

import json
from collections.abc import AsyncIterator

import pytest

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
from tests.support.space import Space


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    """A replica that expires by command only: no wheel, so tests can hold a due checkpoint."""
    async with serving(space, wheel=False) as one:
        yield one


@pytest.mark.usefixtures("replica")
async def test_a_heartbeat_counts_the_generation_and_moves_status_and_timer(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    await desk.mint(target, in_ms=MINUTE_MS)
    before = await desk.armed(target)
    told = await desk.heartbeat(target, 1, in_ms=2 * MINUTE_MS, command_id=command_id)

    deadline = told["data"]["deadline_at_ms"]
    assert (told["status"], told["outcome"]) == ("ok", "extended")
    assert (told["data"]["generation"], told["data"]["state"]) == (2, "waiting")
    assert await desk.status(target) == {
        "state": "waiting",
        "deadlineGeneration": 2,
        "deadline": deadline,
        "observedSpecRevision": await desk.spec_revision(target),
    }
    stored = await desk.status_at(target)
    assert stored.headers["Tidegate-Cause"] == f"alice/{command_id}"
    armed = await desk.armed(target)
    assert armed is not None
    assert before is not None
    assert armed.seq > before.seq
    assert json.loads(armed.data) == {
        "v": 1,
        "timerId": target.token,
        "generation": 2,
        "deadline": deadline,
    }
    await desk.was_told(target, ("extended", 2), ("waiting", 1))
    spec = await desk.spec(target)
    assert spec is not None
    assert spec["initialDeadline"] < deadline


@pytest.mark.usefixtures("replica")
async def test_a_deadline_may_move_earlier_and_then_expires_then(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target, in_ms=MINUTE_MS)
    told = await desk.heartbeat(target, 1, in_ms=200)
    assert told["outcome"] == "extended"
    status = await desk.agree(target)
    assert (status["state"], status["settledGeneration"]) == ("expired", 2)
    assert status["deadline"] == told["data"]["deadline_at_ms"]
    await desk.was_told(target, ("expired", 2), ("extended", 2), ("waiting", 1))


@pytest.mark.usefixtures("replica")
async def test_another_generation_than_the_one_in_force_conflicts(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    await desk.heartbeat(target, 1)
    before = await desk.status_at(target)
    for generation in (1, 3):
        told = await desk.heartbeat(target, generation)
        assert (code_of(told), told["outcome"]) == ("conflict", "stale-generation")
        assert told["data"]["generation"] == 2
    assert await desk.status_at(target) == before
    assert (await desk.heartbeat(target, 2))["data"]["generation"] == 3


@pytest.mark.usefixtures("replica")
async def test_a_heartbeat_sent_again_recognises_its_own_write(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    await desk.mint(target)
    body = {"generation": 1, "deadline_at_ms": await desk.now_ms() + 2 * MINUTE_MS}
    first = await desk.ask("heartbeat", target, body, command_id=command_id)
    before = await desk.status_at(target)
    await desk.disarm(target)

    again = await desk.ask("heartbeat", target, body, command_id=command_id)
    other = await desk.ask("heartbeat", target, body, command_id=new_id())

    assert again["outcome"] == "extended"
    assert again["data"] == first["data"]
    assert other["outcome"] == "stale-generation"
    assert await desk.status_at(target) == before
    assert await desk.armed(target) is not None
    await desk.was_told(target, ("extended", 2), ("waiting", 1))


@pytest.mark.usefixtures("replica")
async def test_a_heartbeat_on_a_due_checkpoint_expires_it(desk: Desk) -> None:
    target = a_target()
    planted = await desk.plant(target, in_ms=-1_000)
    told = await desk.heartbeat(target, 1)
    assert (told["status"], told["outcome"]) == ("refused", "expired")
    assert code_of(told) == "expired"
    assert told["data"]["state"] == "expired"
    status = await desk.agree(target)
    assert status["deadline"] == planted["deadline"]
    assert status["settledGeneration"] == 1


@pytest.mark.usefixtures("replica")
async def test_a_heartbeat_on_a_settled_checkpoint_is_refused_with_its_settlement(
    desk: Desk,
) -> None:
    resumed, expired = a_target(), a_target()
    await desk.mint(resumed)
    settlement = await desk.resume(resumed)
    await desk.mint(expired, in_ms=150)
    status = await desk.agree(expired)

    after_resume = await desk.heartbeat(resumed, 1)
    after_expiry = await desk.heartbeat(expired, 1)

    assert code_of(after_resume) == "conflict"
    assert after_resume["data"] == settlement["data"]
    assert code_of(after_expiry) == "expired"
    assert after_expiry["data"]["settled_at_ms"] == status["settledTs"]
    await desk.agree(resumed)


@pytest.mark.usefixtures("replica")
async def test_a_heartbeat_on_an_unknown_checkpoint_is_not_found(desk: Desk) -> None:
    target = a_target()
    told = await desk.heartbeat(target, 1)
    assert (code_of(told), told["outcome"]) == ("not-found", "unknown-checkpoint")
    assert await desk.status(target) is None
    assert await desk.all_armed(target) == []


@pytest.mark.usefixtures("replica")
async def test_the_new_deadline_is_bounded_like_a_mints(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    before, now = await desk.status_at(target), await desk.now_ms()
    wrong: list[tuple[Json, str]] = [
        ({"deadline_at_ms": now}, "deadline-not-future"),
        ({"deadline_at_ms": now + 11 * 366 * 24 * 3600 * 1000}, "deadline-too-far"),
        ({"deadline_at_ms": 1.5}, "wrong-type"),
        ({}, "missing-field"),
    ]
    for body, reason in wrong:
        told = await desk.ask("heartbeat", target, {"generation": 1, **body})
        assert (told["outcome"], told["error"]["field"]) == (reason, "deadline_at_ms")
    for generation in (0, -1, True, "1", None):
        told = await desk.ask(
            "heartbeat", target, {"generation": generation, "deadline_at_ms": now + MINUTE_MS}
        )
        assert told["error"]["field"] == "generation", generation
    assert await desk.status_at(target) == before


@pytest.mark.usefixtures("replica")
async def test_anyone_with_the_right_to_the_endpoint_may_heartbeat(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    told = await desk.heartbeat(target, 1, by=desk.bob)
    assert told["outcome"] == "extended"
    assert told["data"]["holder"]["id"] == "alice"
