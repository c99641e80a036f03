"""SIGKILL of workers and broker, in any order, with 2,000 pending timers: no loss, no double.

A short part runs in CI; the long one, with two workers and many rounds, has the mark ``nemesis``.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas.names import Names
from tests.support.cp import Desk, QuickSpace, desk_in
from tests.support.cp_storm import (
    Storm,
    all_settled,
    mint_many,
    nothing_armed,
    reckon,
    resume_some,
)
from tests.support.server import Server
from tests.support.space import Space

TIMERS = 2_000
SEED = 20_260_804


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


async def storm_over(
    desk: Desk,
    space: Space,
    directory: Path,
    *,
    orders: list[str],
    in_ms: int,
    spread_ms: int = 0,
    two: bool = False,
) -> None:
    chance = random.Random(SEED)
    storm = Storm(desk, space, directory, chance)
    try:
        for name in ("r1", "r2") if two else ("r1",):
            await asyncio.to_thread(storm.start_worker(name).wait_ready)
        targets = await mint_many(desk, TIMERS, in_ms, spread_ms)
        deciding = asyncio.create_task(
            resume_some(desk, chance.sample(sorted(targets, key=lambda t: t.token), 200))
        )
        for order in orders:
            await storm.strike(order)
        decided = await deciding
        await all_settled(desk, targets, limit_s=120)
        await nothing_armed(desk)
        seen = await reckon(desk, targets, decided)
        assert seen["resumed"] + seen["expired"] == TIMERS
        assert seen["expired"] >= TIMERS - 200
    except AssertionError as error:
        error.add_note(storm.log())
        raise
    finally:
        storm.end()


async def test_killing_worker_and_broker_loses_and_doubles_no_timer(
    desk: Desk, space: Space, tmp_path: Path
) -> None:
    await storm_over(
        desk,
        space,
        tmp_path,
        orders=["wbBW", "bwWB", "bB", "wW"],
        in_ms=9_000,
    )


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_killing_workers_and_broker_for_minutes_loses_and_doubles_no_timer(
    desk: Desk, space: Space, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    kinds = ["wbBW", "bwWB", "wbWB", "bwBW", "bB", "wW", "xX", "wxWX", "wxbBXW", "bwxXBW"]
    await storm_over(
        desk,
        space,
        tmp_path,
        orders=[chance.choice(kinds) for _ in range(30)],
        in_ms=15_000,
        spread_ms=60_000,
        two=True,
    )
