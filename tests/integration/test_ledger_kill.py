"""SIGKILL of a real worker at every point of a batch: one effect, one result per command."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledger import Log, a_log, folding, prove_clean
from tests.support.ledger_zygote import POINTS
from tests.support.server import WORKER_PASSWORD
from tests.support.space import Space
from worker.bus import conf

KILLED = -signal.SIGKILL


class Zygote:
    """Starts ledgers that kill themselves."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ledger_zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    async def run(self, point: str, nth: int, *, through: int) -> int:
        """Run one until it dies, or has said everything; its exit code."""
        order: dict[str, Any] = {
            "point": point,
            "nth": nth,
            "through": through,
            "for_ever": False,
            "url": self._space.server.url,
            "user": conf.WORKER_USER,
            "password": WORKER_PASSWORD,
            "root": self._space.names.root,
            "space": self._space.names.space,
            "data_dir": str(self._space.data_dir),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        line = await asyncio.to_thread(self._process.stdout.readline)
        return int(line)

    def end(self) -> None:
        """Kill it and the child it may have."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def zygote(space: Space) -> Iterator[Zygote]:
    one = Zygote(space)
    yield one
    one.end()


async def prove(log: Log, space: Space, last: int, tmp_path: Path) -> None:
    async with folding(space) as one:
        await one.said(last)
        await prove_clean(log, await one.digest(), tmp_path / "clean.db")


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_each_point(
    space: Space, zygote: Zygote, tmp_path: Path, point: str
) -> None:
    async with a_log(space) as log:
        codes = []
        for nth in (1, 2, 7):
            last = await log.mixed(25)
            codes.append(await zygote.run(point, nth, through=last))
        assert codes[0] == KILLED
        assert set(codes) <= {0, KILLED}
        await prove(log, space, last, tmp_path)


async def kill_at_random(
    space: Space, zygote: Zygote, tmp_path: Path, rounds: int, seed: int
) -> None:
    chance = random.Random(seed)
    async with a_log(space) as log:
        last = await log.mixed(1)
        killed = 0
        for _ in range(rounds):
            last = await log.mixed(chance.randrange(1, 12))
            feeding = asyncio.create_task(log.mixed(chance.randrange(1, 20)))
            point, nth = chance.choice(POINTS), chance.randrange(1, 5)
            code = await zygote.run(point, nth, through=last)
            assert code in (0, KILLED), (seed, point, nth)
            killed += code == KILLED
            last = await feeding
            if chance.random() < 0.1:
                names = await log.js.api(f"CONSUMER.NAMES.{space.names.log_stream}", None)
                for name in names["consumers"]:
                    await log.js.consumer_delete(space.names.log_stream, name)
        assert killed > rounds // 3, "most of them must die for this to mean anything"
        await prove(log, space, last, tmp_path)


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_at_random(space: Space, zygote: Zygote, tmp_path: Path, seed: int) -> None:
    await kill_at_random(space, zygote, tmp_path, 20, seed)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_killed_two_hundred_times(space: Space, zygote: Zygote, tmp_path: Path) -> None:
    await kill_at_random(space, zygote, tmp_path, 200, 2_026)
