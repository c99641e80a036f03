"""A client that dies at a chosen step: by SIGKILL in a child, by an exception in the test."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.subjects import Speaker
from worker.bus.options import ConnectOptions
from worker.client import Client, Outcome
from worker.client.checkpoints import Checkpoints

BEFORE_MINT, AFTER_MINT, BEFORE_RESUME = "before-mint", "after-mint", "before-resume"


class Died(BaseException):
    """The process is gone, as far as the test is concerned."""


class Doom:
    """Decides when it is over; from then on nothing gets through.

    Attributes:
        dead: Whether it is over.
    """

    def __init__(self, at: str | None, *, really: bool = False) -> None:
        self._at = at
        self._really = really
        self.dead = False

    def at(self, step: str) -> None:
        if self._at == step or self.dead:
            if self._really:
                os.kill(os.getpid(), signal.SIGKILL)
            self.dead = True
            raise Died

    def on(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A coroutine function that dies before it does anything."""

        async def doomed(*args: Any, **options: Any) -> Any:
            self.at(step)
            return await call(*args, **options)

        return doomed


def all_there(folder: Path, count: int) -> None:
    """Wait until as many processes have come to the start as will race."""
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.001)


class DoomedClient(Client):
    """Speaks until it is over."""

    def __init__(
        self, broker: ConnectOptions, speaker: Speaker, space: str, root: str, doom: Doom
    ) -> None:
        super().__init__(broker, speaker, space, root=root)
        self.cp = _DoomedCheckpoints(self, doom)

    async def let_its_leases_pass(self, endpoint: str) -> None:
        """The time of what it held passes, sooner than it would by itself."""
        cp = Checkpoints(self)
        async for page in cp.pages(endpoint=endpoint, holder=self.speaker.principal):
            for lease in page.items:
                await cp.heartbeat(
                    endpoint,
                    lease.token,
                    generation=lease.generation,
                    deadline_at_ms=time.time_ns() // 1_000_000 + 300,
                )


class _DoomedCheckpoints(Checkpoints):
    def __init__(self, client: Client, doom: Doom) -> None:
        super().__init__(client)
        self._doom = doom

    async def mint(self, endpoint: str, token: str, **options: Any) -> Outcome:
        lease = token.startswith("lease-")
        self._doom.at("" if lease else BEFORE_MINT)
        outcome = await super().mint(endpoint, token, **options)
        self._doom.at("" if lease else AFTER_MINT)
        return outcome

    async def resume(self, endpoint: str, token: str, **options: Any) -> Outcome:
        self._doom.at("")
        return await super().resume(endpoint, token, **options)

    async def heartbeat(self, endpoint: str, token: str, **options: Any) -> Outcome:
        self._doom.at("")
        return await super().heartbeat(endpoint, token, **options)
