"""What all traffic shares: lives of clients that come, are cut off in the middle, and go."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from schemas.subjects import Speaker
from tests.nemesis.arena.arena import Arena
from tests.nemesis.history.recorder import RecordedClient
from worker import identity
from worker.client import CallTimeout, new_command_id
from worker.errors import TidegateError

T = TypeVar("T")

PAUSE_S = 0.2
CALL_MS = 4_000


def now_ms() -> int:
    """The broker's time: it runs on this machine, whose clock no fault touches."""
    return time.time_ns() // 1_000_000


class Actor:
    """Somebody who speaks until told to stop.

    Args:
        arena: Where.
        seed: Of all its choices.
        stop: Set when no new work is to begin.

    Attributes:
        defects: What ended its work and is no trouble with the platform.
    """

    def __init__(self, arena: Arena, seed: int, stop: asyncio.Event) -> None:
        self.arena = arena
        self.rng = random.Random(seed)
        self.stopping = stop
        self.defects: list[BaseException] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        raise NotImplementedError

    def speaker(self, principal: str) -> Speaker:
        """A new life."""
        return Speaker(principal, identity.new_uid(self.rng.randbytes))

    @asynccontextmanager
    async def life(self, principal: str) -> AsyncIterator[RecordedClient | None]:
        """A client under a new uid; ``None`` if the broker cannot be reached now."""
        client = self.arena.client(self.speaker(principal))
        try:
            await client.open()
        except TidegateError:
            await asyncio.sleep(PAUSE_S)
            yield None
            return
        try:
            yield client
        finally:
            await client.close()

    async def pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def insist(self, call: Callable[[str], Awaitable[T]], times: int = 2) -> T:
        """A call under one command id, asked for again when no answer came.

        Raises:
            TidegateError: It was refused, or is still unknown.
        """
        command_id = new_command_id()
        for _ in range(times - 1):
            with contextlib.suppress(CallTimeout):
                return await call(command_id)
        return await call(command_id)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work beside this; trouble with the platform ends it, anything else is a defect."""
        task = asyncio.create_task(self._bear(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.defects.append(error)

    async def _bear(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(TidegateError):
            await work

    async def finish(self, limit_s: float = 30) -> None:
        """Wait for all work beside this; what is late is cut off in the middle."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=limit_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
