"""Observers are told of an expiry although its public fact could not be stored at first."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.names import Names
from tests.support.cp import Desk, QuickSpace, a_target, desk_in, serving, until
from tests.support.server import Server
from tests.support.space import Space
from worker.bus.errors import Unknown

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="as its neighbours")


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


async def test_a_fire_that_comes_while_the_fact_is_on_its_way_is_not_thrown_away(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of results does not answer while the wheel settles and the timer fires."""
    async with serving(space) as replica:
        target = a_target()
        settler = replica.plane._settler
        tell: Any = settler.tell
        lost: list[str] = []

        async def fired() -> bool:
            return bool(await desk.timers(target, "fire"))

        async def handled() -> bool:
            info = await desk.js.consumer_info(desk.names.ept_stream, desk.names.fires_durable)
            return info.pending == 0 and info.ack_pending == 0

        async def once_unanswered(*args: Any, **how: Any) -> None:
            if args[1] == "expired" and not lost:
                lost.append(args[1])
                await until(fired, what="the timer fires")
                # Whoever judges it either is done with it, or waits for us.
                with contextlib.suppress(AssertionError):
                    await until(handled, what="its fire is judged", limit_s=2)
                raise Unknown("no answer within 5000 ms")
            await tell(*args, **how)

        monkeypatch.setattr(settler, "tell", once_unanswered)
        await desk.mint(target, in_ms=500)
        await desk.settled(target)
        await desk.was_told(target, ("waiting", 1), ("expired", 1))
        assert lost == ["expired"]
