"""A provider outside, connectors behind proxies that lose answers, and an operator who decides.

A connector writes a turn to its provider by appending a line to a file. Two lines for one turn are
a double dispatch, whatever a journal says.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from schemas.commands.adm import IntentIdentity
from schemas.commands.sys import ProcessIdentity
from tests.support.frames import Fate, FrameProxy, Passing, frames_to
from tests.support.running import running
from tests.support.space import Space, speaker
from worker.bus.options import ConnectOptions
from worker.client import Client
from worker.client.admission import Fence
from worker.connector import Connector

HOST: Final = "host-of-this-test"
CALL_MS: Final = 40_000
LIMIT_S: Final = 60.0
NOBODY: Final = ProcessIdentity(host="elsewhere", boot_id="b", pid=1, start_ticks=1, pid_ns=1)

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]], limit_s: float = LIMIT_S) -> T:
    async with asyncio.timeout(limit_s):
        while True:
            found = await look()
            if found is not None:
                return found
            await asyncio.sleep(0.05)


@dataclass
class Scene:
    """A worker with plenty of seats, an operator, and clients behind proxies.

    Attributes:
        provider: What stands outside: a line for each turn that was written.
    """

    space: Space
    operator: Client
    stack: AsyncExitStack
    provider: Path

    async def behind(self, who: str) -> tuple[Client, FrameProxy]:
        """A client and its proxy."""
        proxy = await self.stack.enter_async_context(frames_to(self.space.server.port))
        client = Client(
            ConnectOptions((proxy.url,)),
            speaker(who),
            self.space.names.space,
            root=self.space.names.root,
            timeout_ms=CALL_MS,
        )
        return await self.stack.enter_async_context(client), proxy

    async def connector(self, who: str = "conn") -> tuple[Connector, FrameProxy]:
        client, proxy = await self.behind(who)
        made = await self.stack.enter_async_context(Connector(client, host=HOST))
        return made, proxy

    def write(self, request: str) -> None:
        """Write a turn to its provider."""
        with self.provider.open("a") as file:
            file.write(request + "\n")

    def written(self, request: str) -> int:
        return self.provider.read_text().split("\n").count(request)


@asynccontextmanager
async def a_scene(space: Space, tmp_path: Path) -> AsyncIterator[Scene]:
    provider = tmp_path / "provider"
    provider.touch()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(space.settings(host=HOST)))
        operator = await stack.enter_async_context(space.client("_op", timeout_ms=CALL_MS))
        await operator.adm.claim_policy(1, max_active_turns=90, max_concurrent_starts=90)
        await operator.cap.minting(True)
        yield Scene(space, operator, stack, provider)


# What is done to whose frames.


def command_of(verb: str) -> Callable[[Passing], bool]:
    """The command itself, on its way up."""
    return lambda one: not one.down and _is_command(one.about, verb)


def ack_of(verb: str) -> Callable[[Passing], bool]:
    """The stream's acknowledgement."""
    return lambda one: one.down and one.answers and _is_command(one.about, verb)


def result_of(verb: str) -> Callable[[Passing], bool]:
    """The result, as it is said or looked up."""
    plane, word = verb.split(".")
    tail = f".{plane}.{word}."
    return lambda one: one.down and ".res." in one.about and tail in one.about


def grant_of(one: Passing) -> bool:
    return one.down and ".grant." in one.about


def _is_command(subject: str, verb: str) -> bool:
    plane, word = verb.split(".")
    tokens = subject.split(".")
    return tokens[2:3] == ["cmd"] and tokens[5:7] == [plane, word]


Trouble = Callable[[FrameProxy, str], None]


def _one(fate: Fate, which: Callable[[str], Callable[[Passing], bool]], times: int = 1) -> Trouble:
    def begin(proxy: FrameProxy, verb: str) -> None:
        proxy.rule(fate, which(verb), times)

    return begin


def _both_lost(proxy: FrameProxy, verb: str) -> None:
    proxy.rule("drop", ack_of(verb))
    proxy.rule("drop", result_of(verb), 2)


TROUBLES: Final[dict[str, Trouble]] = {
    "command lost": _one("drop", command_of),
    "command doubled": _one("double", command_of),
    "cut after the command": _one("cut-after", command_of),
    "acknowledgement lost": _one("drop", ack_of),
    "acknowledgement after the result": _one("swap", ack_of),
    "cut instead of the acknowledgement": _one("cut", ack_of),
    "results lost": _one("drop", result_of, 2),
    "result doubled": _one("double", result_of),
    "cut instead of the result": _one("cut", result_of),
    "acknowledgement and results lost": _both_lost,
}


async def seated(client: Client, request: str) -> Fence:
    """A turn with its seat, pulled."""
    await enqueued(client, request)
    told = await client.adm.admit(request)
    assert told.grant is not None, told
    return Fence(request, told.grant.lease_id, told.grant.generation)


async def enqueued(client: Client, request: str) -> Any:
    return await client.adm.enqueue(
        request,
        session_id="s",
        agent_id=request,
        fingerprint="f",
        provider="acme",
        model="m",
        grant="pull",
    )


async def brought_to(client: Client, request: str, phase: str) -> Fence:
    fence = await seated(client, request)
    for step in ("start", "intent", "active"):
        if phase == step:
            break
        await take_step(client, step, fence)
    return fence


async def take_step(client: Client, step: str, fence: Fence) -> Any:
    adm = client.adm
    match step:
        case "intent":
            identity = IntentIdentity(connector=NOBODY, child=None)
            return await adm.intent(fence, identity, "http")
        case "complete":
            return await adm.complete(fence, "completed")
        case "abandon":
            return await adm.abandon(fence, "failed")
    return await getattr(adm, step)(fence)


async def run_turn(scene: Scene, connector: Connector, request: str) -> None:
    """One turn from the queue to its end, as a connector runs it."""
    turn = connector.turn(
        request, session_id="s", agent_id=request, fingerprint="f", provider="acme", model="m"
    )
    async with turn:
        await turn.start()
        await turn.intent(channel="http")
        scene.write(request)
        await turn.active()
        await turn.complete()
