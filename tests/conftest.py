"""Fixtures that every test may use: real servers, spaces, workers and processes."""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import pytest

from schemas.names import Names
from tests.support.process import WorkerProcess, space_environment
from tests.support.running import RunningWorker, running
from tests.support.server import Server, spaces_of
from tests.support.space import Space
from worker import logs

POOL = int(os.environ.get("TEST_SPACES", "1500"))
"""Spaces of the session's server: their exports between the accounts stand in its configuration."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The session's server; a test takes a space of its own and never stops it."""
    pool = spaces_of("tidegate", [f"t{n:03d}" for n in range(POOL)])
    cotal = spaces_of("cotal", [f"c{n:03d}" for n in range(20)])
    one = Server.two_accounts(tmp_path_factory.mktemp("server"), [*pool, *cotal]).start()
    yield one
    one.stop()


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def bare_space(server: Server, _numbers: Iterator[int], tmp_path: Path) -> Space:
    """A space that nobody has set up yet."""
    number = next(_numbers)
    assert number < POOL, "the pool of spaces is used up; make it larger"
    return Space(server, Names("tidegate", f"t{number:03d}"), tmp_path / "data")


@pytest.fixture
async def space(bare_space: Space) -> Space:
    """A fresh space, set up."""
    await bare_space.set_up()
    return bare_space


@pytest.fixture
async def worker(space: Space) -> AsyncIterator[RunningWorker]:
    """A worker in this process that serves the space."""
    async with running(space.settings()) as one:
        yield one


@pytest.fixture
def worker_of(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts ``tidegate run`` on a space as a process of its own, as often as it is called."""
    started: list[WorkerProcess] = []

    def start(space: Space, **settings: object) -> WorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        one = WorkerProcess(space_environment(space, **settings), log)
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def process_worker(
    space: Space, worker_of: Callable[..., WorkerProcess]
) -> Callable[..., WorkerProcess]:
    """As ``worker_of``, on the test's space."""
    return partial(worker_of, space)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers of the test's own, to be stopped, killed and started at will."""
    made: list[Server] = []

    def make(*spaces: str, root: str = "tidegate") -> Server:
        directory = tmp_path / f"server-{len(made)}"
        one = Server.two_accounts(directory, spaces_of(root, spaces or ("main",)))
        made.append(one)
        return one

    yield make
    for one in made:
        one.kill()


@pytest.fixture
async def own_space(own_server: Callable[..., Server], tmp_path: Path) -> Space:
    """A space, set up, on a running server of the test's own."""
    server = await asyncio.to_thread(own_server("main").start)
    one = Space(server, Names("tidegate", "main"), tmp_path / "data")
    await one.set_up()
    return one


class _CurrentStderr:
    """Whatever standard error is at the moment, so that captured output shows the log."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return False


@pytest.fixture(autouse=True, scope="session")
def _logging() -> None:
    logs.configure("info", "json", cast(TextIO, _CurrentStderr()))
