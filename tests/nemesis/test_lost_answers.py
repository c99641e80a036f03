"""Whatever answer a connector misses, hears late, twice or out of order, it writes a turn once.

The judge is what was written outside (``tests/support/outside.py``).
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.frames import Fate
from tests.support.outside import TROUBLES, Scene, a_scene, grant_of, run_turn
from tests.support.space import Space


@pytest.fixture
async def scene(space: Space, tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(space, tmp_path) as one:
        yield one


# The connector, step by step.

STEPS: Final = ("enqueue", "start", "intent", "active", "complete")


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_turn_is_written_once_whatever_answer_its_connector_misses(
    scene: Scene, trouble: str
) -> None:
    async def one(step: str) -> str:
        connector, proxy = await scene.connector()
        TROUBLES[trouble](proxy, f"adm.{step}")
        await run_turn(scene, connector, f"r-{step}")
        turn = await scene.operator.adm.request(f"r-{step}")
        count = scene.written(f"r-{step}")
        return "" if (turn.state, count) == ("completed", 1) else f"{step}: {turn.state}, {count}"

    async with asyncio.timeout(120):
        wrong = await asyncio.gather(*map(one, STEPS))
    assert not [text for text in wrong if text]


@pytest.mark.parametrize("fate", ["drop", "double", "cut", "cut-after"])
async def test_a_turn_is_written_once_whatever_becomes_of_its_grant(
    scene: Scene, fate: Fate
) -> None:
    connector, proxy = await scene.connector()
    proxy.rule(fate, grant_of)
    await run_turn(scene, connector, "r1")
    assert scene.written("r1") == 1
    assert (await scene.operator.adm.request("r1")).state == "completed"
