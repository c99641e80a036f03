"""The cap plane's story: an agent spends up to a cap, and a Stop beats whatever is in flight."""

import asyncio
import time
from typing import Final

from worker.client import Authorization, Client, Refused
from worker.demo.stage import Stage
from worker.demo.story import Ending, Scenario

AGENT: Final = "agent-7"
OPERATOR: Final = "_op-demo"
ANNA: Final = "anna"
CAP: Final = 50
FIRST_KEY: Final = "anna-first-cap-0001"
SECOND_KEY: Final = "anna-second-cap-0001"
BURST: Final = 20
HOUR_MS: Final = 3_600_000


async def within_cap(stage: Stage) -> Ending:
    """A cap is reserved, minted elsewhere, confirmed and used."""
    async with stage.client(OPERATOR) as operator, stage.client(AGENT) as agent:
        await operator.cap.minting(True)
        expires_at_ms = await _reserve(agent, FIRST_KEY)
        await agent.cap.confirm(ANNA, FIRST_KEY, grant_expires_at_ms=expires_at_ms)
        began = time.monotonic()
        answer = await agent.cap.authorize(ANNA, amount=40, grant_expires_at_ms=expires_at_ms)
        took = _since(began)
    return Ending(
        outcome=answer.reason or "allowed",
        told=f"Anna's agent may spend up to {CAP} at a time; 40 was allowed after {took} ms.",
        settled_ms=took,
    )


async def over_cap(stage: Stage) -> Ending:
    """The agent asks for more than the cap."""
    async with stage.client(AGENT) as agent:
        began = time.monotonic()
        answer = await agent.cap.authorize(
            ANNA, amount=CAP + 10, grant_expires_at_ms=await _active(agent)
        )
        took = _since(began)
    return Ending(
        outcome=answer.reason or "allowed",
        told=f"{CAP + 10} was refused ({answer.reason}).",
        settled_ms=took,
    )


async def stopped(stage: Stage) -> Ending:
    """Anna stops while the agent is asking again and again and has another cap in flight."""
    async with stage.client(AGENT) as agent, stage.client(ANNA) as anna:
        active = await _active(agent)
        in_flight = await _reserve(agent, SECOND_KEY)
        asking = _ask(agent, BURST // 2, active)
        began = time.monotonic()
        stopping = asyncio.create_task(anna.cap.stop(ANNA))
        await asyncio.sleep(0.001)
        asking += _ask(agent, BURST - BURST // 2, active)
        await stopping
        took = _since(began)
        allowed = sum([(await one).allowed for one in asking])
        after = await agent.cap.authorize(ANNA, amount=1, grant_expires_at_ms=active)
        late = await _confirm(agent, SECOND_KEY, in_flight)
    return Ending(
        outcome=late if late == after.reason else "disagreement",
        told=f"Anna pressed Stop; it held after {took} ms. Of {BURST} requests at that moment "
        f"{allowed} came before it; after it nothing was allowed, and the cap that was in flight "
        "could not be confirmed.",
        settled_ms=took,
    )


async def begins_anew(stage: Stage) -> Ending:
    """A new cap after the Stop."""
    key = "anna-third-cap-00001"
    async with stage.client(AGENT) as agent:
        expires_at_ms = await _reserve(agent, key)
        began = time.monotonic()
        await agent.cap.confirm(ANNA, key, grant_expires_at_ms=expires_at_ms)
        answer = await agent.cap.authorize(ANNA, amount=CAP, grant_expires_at_ms=expires_at_ms)
        took = _since(began)
    return Ending(
        outcome=answer.reason or "allowed",
        told="Anna let the agent go on with a new cap; the old ones stay ended.",
        settled_ms=took,
    )


STORY: Final = (
    Scenario("cap-allowed", "A person lets an agent spend up to a cap", "allowed", within_cap),
    Scenario("cap-exceeded", "The agent asks for more", "over-cap", over_cap),
    Scenario("cap-stopped", "The person stops it in the middle of everything", "stopped", stopped),
    Scenario("cap-renewed", "The person lets it go on with a new cap", "allowed", begins_anew),
)


def _ask(agent: Client, times: int, second: int) -> list[asyncio.Task[Authorization]]:
    """Ask so many times at once."""
    return [
        asyncio.create_task(agent.cap.authorize(ANNA, amount=1, grant_expires_at_ms=second))
        for _ in range(times)
    ]


async def _reserve(agent: Client, key: str) -> int:
    """Reserve a cap of an hour; the second it was given."""
    latest = time.time_ns() // 1_000_000 + HOUR_MS
    reserved = await agent.cap.reserve(ANNA, key, latest_expires_at_ms=latest, cap=CAP)
    return 0 if reserved.cap is None else reserved.cap.expires_at_ms


async def _active(agent: Client) -> int:
    """The second of the live grant."""
    return (await agent.cap.show(ANNA)).authority.expires_at_ms or 0


async def _confirm(agent: Client, key: str, expires_at_ms: int) -> str:
    try:
        confirmed = await agent.cap.confirm(ANNA, key, grant_expires_at_ms=expires_at_ms)
    except Refused as refused:
        return refused.reason
    return confirmed.word


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
