"""One connector as a process of its own, doing random work until it is told to stop or killed.

Run as ``python -m tests.support.connector_process URL SPACE SLOT FIRST SEED PROVIDER``. It says one
JSON object a line: what it took up, how long each seat was waited for, how each turn ended.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from typing import Any

from schemas.commands.adm import Failure
from tests.support.space import speaker
from worker.bus.options import ConnectOptions
from worker.client import Client
from worker.client.errors import Refused
from worker.connector import Connector, LeaseLost, NotAdmitted, Turn

PRINCIPAL = "conn"
AGENTS = 5
HOST = "host-of-the-connectors"


class ProviderError(Exception):
    """The fake provider went away in the middle of a turn."""


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Work:
    """Takes up one turn after another.

    Args:
        client: Speaks for a new life of the one principal.
        slot: Which of the connectors this is; its turns are named after it.
        rng: Where chance comes from.
        provider: The file that stands for the provider: one line for each dispatch.
        stopping: Set when it is told to stop.
    """

    def __init__(
        self,
        client: Client,
        slot: int,
        rng: random.Random,
        provider: int,
        stopping: asyncio.Event,
    ) -> None:
        self.client = client
        self.slot = slot
        self.rng = rng
        self.provider = provider
        self.stopping = stopping

    async def run(self, first: int) -> None:
        async with Connector(self.client, host=HOST) as connector:
            number = first
            while not self.stopping.is_set():
                request = f"s{self.slot}-{number:05d}"
                say(taken=number, request=request)
                if await self.take(connector, request):
                    number += 1
                else:
                    await asyncio.sleep(0.1)
            say(stopped=number)

    async def take(self, connector: Connector, request: str) -> bool:
        """Run a turn; ``False`` if its seat is still a dead life's."""
        turn = connector.turn(
            request,
            session_id="session",
            agent_id=f"agent-{sum(request.encode()) % AGENTS}",
            fingerprint=request,
            provider="acme",
            model="m1",
        )
        try:
            async with turn:
                view = await connector.adm.request(request)
                assert view.lease is not None
                say(seated=request, waited_ms=view.lease.admitted_at_ms - view.enqueued_at_ms)
                await self.work(turn, request)
        except NotAdmitted as refused:
            return refused.state not in ("queued", "admitted", "starting")
        except (LeaseLost, ProviderError):
            pass
        return True

    async def work(self, turn: Turn, request: str) -> None:
        await self.pause(20)
        if self.rng.random() < 0.1:
            await turn.abandon("failed")
            return
        await turn.start()
        child = self.spawn() if self.rng.random() < 0.3 else None
        try:
            if child is None:
                await turn.intent(channel="http")
            else:
                await turn.intent(child.pid)
            os.write(self.provider, f"{request} {turn.fence.generation}\n".encode())
            await self.pause(20)
            if self.rng.random() < 0.05:
                await turn.ambiguous()
                return
            await turn.active()
            await self.pause(40)
            chance = self.rng.random()
            if chance < 0.05:
                raise ProviderError
            if chance < 0.15:
                failure = Failure(category=self.rng.choice(["transport", "timeout"]))
                await turn.complete("failed", failure=failure)
            else:
                await turn.complete()
        finally:
            if child is not None:
                child.communicate()

    def spawn(self) -> "subprocess.Popen[bytes]":
        """A child in a group of its own, which ends when we do."""
        code = "import sys; sys.stdin.read()"
        return subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, process_group=0
        )

    async def pause(self, most_ms: int) -> None:
        await asyncio.sleep(self.rng.random() * most_ms / 1000)


async def main(url: str, space: str, slot: int, first: int, seed: int, provider: str) -> None:
    rng = random.Random(f"{seed}/{slot}/{first}")
    file = os.open(provider, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    say(up=os.getpid())
    async with Client(ConnectOptions((url,)), speaker(PRINCIPAL), space) as client:
        work = Work(client, slot, rng, file, stopping)
        try:
            await work.run(first)
        except (Refused, AssertionError, OSError) as error:
            say(trouble=repr(error))
            raise


if __name__ == "__main__":
    _, url, space, slot, first, seed, provider = sys.argv
    asyncio.run(main(url, space, int(slot), int(first), int(seed), provider))
