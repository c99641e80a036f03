"""The broker's clock is set, or jumps for a moment: nothing settles early, and it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas.names import Names
from tests.support.cp import MINUTE_MS, Desk, QuickSpace, Replica, a_target, desk_in, serving, until
from tests.support.server import Server
from tests.support.space import Space
from tests.support.wall_clock import WallClock

DAY_S = 86_400


@pytest.fixture
async def space(own_server: Callable[..., Server], tmp_path: Path) -> Space:
    server = await asyncio.to_thread(own_server("main").start)
    space = QuickSpace(server, Names("tidegate", "main"), tmp_path / "data")
    await space.set_up()
    return space


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
def broker(space: Space) -> WallClock:
    return WallClock(space.server.pid)


async def is_told(replica: Replica, words: str) -> None:
    async def told() -> bool:
        return words in " ".join(replica.plane.not_ready())

    await until(told, what=f"readiness says: {words}")


async def is_ready(replica: Replica) -> None:
    async def ready() -> bool:
        return not replica.plane.not_ready()

    await until(ready, what="the plane is ready")


@pytest.mark.parametrize("wheel", [True, False])
async def test_a_broker_that_is_a_day_ahead_for_a_while_expires_nothing(
    desk: Desk, space: Space, broker: WallClock, wheel: bool
) -> None:
    waiting = a_target()
    async with serving(space, wheel=wheel, sweep_interval_ms=1_000) as replica:
        await desk.mint(waiting, in_ms=10 * MINUTE_MS)
        with broker.ahead(DAY_S):
            await replica.plane._clock.refresh()
            await is_told(replica, "ahead of this machine's")
            resume = await desk.say("resume", waiting, {})
            expire = await desk.say("expire", waiting, {})

            async def fired_and_put_off() -> bool:
                info = await desk.js.consumer_info(desk.names.cmd_stream, desk.names.cp_durable)
                return info.redelivered > 0

            await until(fired_and_put_off, what="the commands were put off")
            replica.plane._sweep.ask()
            assert (await desk.status(waiting) or {})["state"] == "waiting"
        await is_ready(replica)
        told = {(await desk.result(seq))["outcome"] for seq in (resume, expire)}
        assert told <= {"resumed", "not-due", "already_settled"}
        assert (await desk.agree(waiting))["state"] == "resumed"
        assert replica.plane.status()["clock_jumps"] != 0


async def test_what_is_due_while_the_clocks_are_apart_expires_when_they_agree_again(
    desk: Desk, space: Space, broker: WallClock
) -> None:
    due = a_target()
    async with serving(space, sweep_interval_ms=1_000) as replica:
        minted = await desk.mint(due, in_ms=3_000)
        broker.set(-DAY_S)
        await replica.plane._clock.refresh()
        await is_told(replica, "behind this machine's")
        await asyncio.sleep(3)
        assert (await desk.status(due) or {})["state"] == "waiting"
        broker.set(0)
        await is_ready(replica)
        status = await desk.agree(due)
        assert status["state"] == "expired"
        assert status["settledTs"] >= minted["data"]["deadline_at_ms"]


async def test_a_command_that_was_stored_in_a_jump_of_the_clock_is_judged_by_what_is_now(
    desk: Desk, space: Space, broker: WallClock
) -> None:
    """For the time of one command, too short for any look, the broker is a day ahead."""
    resumed, moved, early, minted = (a_target() for _ in range(4))
    async with serving(space) as replica:
        for target in (resumed, moved, early):
            await desk.mint(target, in_ms=10 * MINUTE_MS)
        at_ms = await desk.now_ms() + 10 * MINUTE_MS
        with broker.ahead(DAY_S):
            seqs = [
                await desk.say("resume", resumed, {}),
                await desk.say("heartbeat", moved, {"generation": 1, "deadline_at_ms": at_ms}),
                await desk.say("expire", early, {}),
                await desk.say("mint", minted, {"deadline_at_ms": at_ms}),
            ]
        outcomes = [(await desk.result(seq))["outcome"] for seq in seqs]
        assert outcomes == ["resumed", "extended", "not-due", "minted"]
        assert (await desk.status(early) or {})["state"] == "waiting"
        spec = await desk.spec(minted)
        assert spec is not None
        assert spec["mintedAt"] <= await desk.now_ms()
        status = await desk.agree(resumed)
        assert status["settledTs"] < status["deadline"]
        assert replica.plane.status()["clock_jumps"] != 0, "a jump that nobody acted on is told"
        await is_ready(replica)


async def test_a_broker_whose_clock_is_set_for_good_by_less_than_a_minute_is_followed(
    desk: Desk, space: Space, broker: WallClock
) -> None:
    async with serving(space) as replica:
        broker.set(-40)
        await replica.plane._clock.refresh()
        await is_ready(replica)
        due, waiting = a_target(), a_target()
        await desk.mint(due, in_ms=500)
        await desk.mint(waiting)
        assert (await desk.settled(due))["state"] == "expired"
        assert (await desk.resume(waiting))["outcome"] == "resumed"
