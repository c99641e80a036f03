"""The admission plane's story: few seats, a fair queue, and a connector that dies in time."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from worker import identity
from worker.client import Client
from worker.connector import Connector, NotAdmitted, Turn
from worker.demo.stage import HOST, SPACE, Stage, StageError
from worker.demo.story import Ending, Scenario

CONNECTOR: Final = "connector"
LOOK_S: Final = 0.05
START_TIMEOUT_MS: Final = 60_000 if sys.platform == "linux" else 5_000
"""Where the end of a process can be proven nobody waits for this; elsewhere it is what frees."""


class Provider:
    """Stands for the outside: counts how often each turn was dispatched."""

    def __init__(self) -> None:
        self.dispatched: Counter[str] = Counter()

    async def run(self, turn: Turn) -> None:
        """Run a turn as a connector does: nothing is written before the intent is accepted."""
        await turn.start()
        await turn.intent(channel="http")
        self.dispatched[turn.request_id] += 1
        await turn.active()
        await turn.complete()


async def elsewhere(stage: Stage) -> Ending:
    """Three agents, two seats; one of the two connectors is killed before its intent."""
    provider = Provider()
    async with (
        stage.client("_op-demo") as operator,
        stage.client(CONNECTOR) as client,
        Connector(client, host=HOST) as connector,
    ):
        epoch = (await operator.adm.policy()).epoch + 1
        await operator.adm.claim_policy(
            epoch, max_active_turns=2, start_timeout_ms=START_TIMEOUT_MS
        )
        async with _turn(connector, "alice") as alice:
            async with _doomed(stage, "bob") as doomed:
                carol = asyncio.create_task(_run(connector, provider, "carol"))
                await _until_queued(operator, "carol")
                began = time.monotonic()
                doomed.kill()
                await doomed.wait()
            await carol
            freed_ms = _since(began)
            generation = await _run_again(connector, provider, "bob")
            moved_ms = _since(began)
            await provider.run(alice)
        states = {name: (await operator.adm.request(name)).state for name in _AGENTS}
    twice = [name for name, times in provider.dispatched.items() if times != 1]
    everyone_done = set(states.values()) == {"completed"}
    once = not twice and len(provider.dispatched) == len(_AGENTS)
    return Ending(
        outcome="ran-elsewhere" if everyone_done and once and generation > 1 else "went-wrong",
        told=f"Bob's connector was killed before its intent; Carol got the seat {freed_ms:.0f} ms "
        f"later, and Bob's turn ran on another connector after {moved_ms:.0f} ms, once.",
        settled_ms=moved_ms,
    )


STORY: Final = (
    Scenario(
        "ran-elsewhere",
        "Three agents share two seats; a connector is killed before it wrote",
        "ran-elsewhere",
        elsewhere,
    ),
)

_AGENTS: Final = ("alice", "bob", "carol")


def _turn(connector: Connector, agent: str) -> Turn:
    return connector.turn(
        agent,
        session_id=f"chat-of-{agent}",
        agent_id=agent,
        fingerprint=agent,
        provider="acme",
        model="large",
    )


async def _run(connector: Connector, provider: Provider, agent: str) -> int:
    async with _turn(connector, agent) as turn:
        await provider.run(turn)
        return turn.fence.generation


async def _run_again(connector: Connector, provider: Provider, agent: str) -> int:
    """Take over a turn as soon as its dead owner's seat has been taken back."""
    while True:
        try:
            return await _run(connector, provider, agent)
        except NotAdmitted:
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _doomed(stage: Stage, agent: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another life of the same principal, in a process of its own, that holds a seat."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "worker.demo.doomed"),
        *(stage.url, SPACE, CONNECTOR, identity.new_uid(), agent, agent),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        if process.stdout is None or await process.stdout.readline() != b"started\n":
            raise StageError("the connector that was to be killed did not start")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _until_queued(operator: Client, request_id: str) -> None:
    while True:
        waiting = (await operator.adm.queue()).turns
        if request_id in [turn.request_id for turn in waiting]:
            return
        await asyncio.sleep(LOOK_S)


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
