"""A worker inside the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from worker import wiring
from worker.app import PlaneFactory, Worker
from worker.settings import Settings

READY_S = 15.0


@dataclass(frozen=True)
class RunningWorker:
    """A worker that runs.

    Attributes:
        worker: It.
        done: Ends with its exit code.
    """

    worker: Worker
    done: asyncio.Task[int]

    async def stop(self) -> int:
        """Ask it to stop; its exit code."""
        self.worker.stop()
        async with asyncio.timeout(12):
            return await self.done


@asynccontextmanager
async def running(
    settings: Settings, planes: PlaneFactory = wiring.planes_of, *, ready_s: float = READY_S
) -> AsyncIterator[RunningWorker]:
    """Run a worker until the block ends; it is ready when the block begins."""
    worker = Worker(settings, planes)
    done = asyncio.create_task(worker.run(), name="worker")
    one = RunningWorker(worker, done)
    try:
        await until_ready(worker, done, ready_s)
        yield one
    finally:
        worker.stop()
        async with asyncio.timeout(12):
            await asyncio.wait({done})


async def until_ready(worker: Worker, done: asyncio.Task[int], limit_s: float) -> None:
    """Wait until a worker is ready.

    Raises:
        TimeoutError: It did not get ready.
    """
    async with asyncio.timeout(limit_s):
        while worker.not_ready():
            if done.done():
                raise AssertionError(f"the worker ended with {done.result()}")
            await asyncio.sleep(0.01)
