"""Those who wait for a checkpoint to settle."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from schemas.subjects import Checkpoint


class Waiters:
    """Wakes whoever waits for a checkpoint; a wake is a hint to look again."""

    def __init__(self) -> None:
        self._events: dict[Checkpoint, set[asyncio.Event]] = {}

    @contextmanager
    def listen(self, target: Checkpoint) -> Iterator[asyncio.Event]:
        """An event that is set whenever the checkpoint may have settled."""
        event = asyncio.Event()
        self._events.setdefault(target, set()).add(event)
        try:
            yield event
        finally:
            listening = self._events[target]
            listening.discard(event)
            if not listening:
                del self._events[target]

    def tell(self, target: Checkpoint) -> None:
        """Wake those who wait for this checkpoint."""
        for event in self._events.get(target, ()):
            event.set()
