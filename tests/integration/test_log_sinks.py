"""A worker whose log goes nowhere: its reader is gone, or has stopped reading."""

import asyncio
import sys
from contextlib import ExitStack

import pytest

from tests.nemesis.arena.workers import FullPipe, Worker, broken_pipe
from tests.support.process import space_environment
from tests.support.skewed_worker import VARIABLE
from tests.support.space import Space

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes are polled")


@pytest.mark.parametrize("kind", ["closed", "full"])
async def test_a_worker_serves_although_nobody_takes_its_log(own_space: Space, kind: str) -> None:
    with ExitStack() as stack:
        if kind == "full":
            pipe = FullPipe()
            stack.callback(pipe.close)
            sink = pipe.sink
        else:
            sink = broken_pipe()
        stack.enter_context(sink)
        own_space.data_dir.mkdir(exist_ok=True)
        environment = space_environment(own_space) | {
            VARIABLE: str(own_space.data_dir / "no-clock")
        }
        unused = own_space.data_dir / "no.log"
        unused.touch()
        worker = Worker(environment, unused, sink)
        stack.callback(worker.kill)
        await asyncio.to_thread(worker.wait_for, lambda reasons: reasons == [])
        async with own_space.client("alice") as client:
            assert (await client.cap.stop("ann")).generation == 1
        assert await asyncio.to_thread(worker.terminate) == 0
