"""A connector as a process of its own that hands sealed prompts to children, until it is killed.

Run as ``python -m tests.support.prompt_connector URL SPACE SLOT FIRST SEED PROVIDER_PORT KEYS``. It
says one JSON object a line: which life it is, what it took up, which child it started, what ended.
"""

import asyncio
import contextlib
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any, Final

from schemas.commands.adm import Failure
from tests.support.space import speaker
from worker.bus.options import ConnectOptions
from worker.client import Client
from worker.connector import Connector, LeaseLost, NotAdmitted, Turn
from worker.evidence.procfs import NoEvidence
from worker.sealing.keyring import KeyRing
from worker.sealing.payloads import PayloadTaken
from worker.sealing.sealer import Sealer

HOST: Final = "host-of-the-connectors"
SECRET: Final = "SENTINEL-5d1e-only-the-provider-reads-this"

CHILD: Final = """
import contextlib, os, socket, sys, time
prompt = sys.stdin.buffer.readline()
if prompt:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as provider:
        provider.sendall(prompt)
        answer = provider.makefile("rb").readline()
    with contextlib.suppress(BrokenPipeError):
        os.write(1, answer)
    sys.stdin.buffer.read()  # until its connector is done with it, or has died
time.sleep(float(sys.argv[2]))
"""
"""What talks to the provider; it may outlive its connector for a while."""


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def prompt_of(request: str) -> bytes:
    """A turn's prompt: the counter in it is what the provider checks."""
    return json.dumps({"counter": request, "secret": SECRET}).encode()


class Work:
    """Takes up one turn after another.

    Args:
        slot: Which of the connectors this is; its turns are named after it.
        rng: Where chance comes from.
        port: Where the provider listens.
    """

    def __init__(self, slot: int, rng: random.Random, port: int) -> None:
        self.slot = slot
        self.rng = rng
        self.port = port
        self.stopping = asyncio.Event()

    async def run(self, connector: Connector, first: int) -> None:
        number = first
        while not self.stopping.is_set():
            request = f"s{self.slot}-{number:05d}"
            say(taken=number, request=request)
            if await self.take(connector, request):
                number += 1
            else:
                await asyncio.sleep(0.2)

    async def take(self, connector: Connector, request: str) -> bool:
        """Run a turn; ``False`` if it can be taken up again."""
        turn = connector.turn(
            request,
            session_id="session",
            agent_id=f"agent-{self.slot % 3}",
            fingerprint=request,
            provider="acme",
            model="m1",
            prompt=prompt_of(request),
        )
        try:
            async with turn:
                await self.work(turn, request)
        except NotAdmitted as refused:
            return refused.state not in ("queued", "admitted", "starting")
        except PayloadTaken:  # another life had dispatched it
            return True
        except LeaseLost:
            return False
        return True

    async def work(self, turn: Turn, request: str) -> None:
        prompt = await turn.prompt()
        assert prompt == prompt_of(request)
        await turn.start()
        child = await self.spawn()
        assert child.stdin is not None
        assert child.stdout is not None
        say(child=child.pid, of=request)
        try:
            await self.pause(100)
            try:
                await turn.intent(child.pid, channel="stdin")
            except NoEvidence:  # it was killed, and nothing was written
                await turn.abandon("failed")
                return
            await self.pause(50)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                child.stdin.write(prompt + b"\n")
                await child.stdin.drain()
            await turn.active()
            answer = await child.stdout.readline()
            await self.pause(200)
            if answer.strip() == b"ok":
                await turn.complete()
                say(completed=request)
            else:
                await turn.complete("failed", failure=Failure(category="transport"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def spawn(self) -> asyncio.subprocess.Process:
        """A child in a group of its own."""
        lingers_s = self.rng.choice([0.0, 0.0, 0.3, 1.0])
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", CHILD, str(self.port), str(lingers_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )

    async def pause(self, most_ms: int) -> None:
        await asyncio.sleep(self.rng.random() * most_ms / 1000)


async def main(
    url: str, space: str, slot: int, first: int, seed: str, port: int, keys: str
) -> None:
    ring = KeyRing(Path(keys))
    ring.init()
    work = Work(slot, random.Random(f"{seed}/{slot}/{first}"), port)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.stopping.set)
    me = speaker("conn")
    async with (
        Client(ConnectOptions((url,)), me, space) as client,
        Connector(client, host=HOST, sealer=Sealer(ring, space)) as connector,
    ):
        say(up=me.uid)
        await work.run(connector, first)


if __name__ == "__main__":
    _, url, space, slot, first, seed, port, keys = sys.argv
    asyncio.run(main(url, space, int(slot), int(first), seed, int(port), keys))
