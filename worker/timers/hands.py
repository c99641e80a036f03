"""Which checkpoints this worker is settling at this moment.

A wheel that is late by more than the broker's own lateness meets the fire of the very timer it is
working on. Two attempts of one worker would race for one revision, and a loser costs everybody: the
atomic batch it is part of is refused and taken apart. So they take turns.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.subjects import Checkpoint


class Hands:
    """One turn at a time for each checkpoint, in this process only; the broker still decides."""

    def __init__(self) -> None:
        self._held: dict[Checkpoint, asyncio.Event] = {}

    @asynccontextmanager
    async def hold(self, target: Checkpoint) -> AsyncIterator[None]:
        """Wait until nobody else here has it in hand, and hold it; cancellation lets go."""
        while (held := self._held.get(target)) is not None:
            await held.wait()
        released = self._held[target] = asyncio.Event()
        try:
            yield
        finally:
            del self._held[target]
            released.set()
