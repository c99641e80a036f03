"""The checkpoint plane's story: pause, resume, expire, refuse, survive."""

import asyncio
import time
from typing import Final

from schemas.records import PromptRecord
from schemas.views import CheckpointView
from worker.client import NO_ANSWER, Client, Outcome, Refused
from worker.demo.stage import Stage
from worker.demo.story import Ending, Scenario

AGENT: Final = "agent-7"
MARIA: Final = "maria"
STRANGER: Final = "mallory"
ENDPOINT: Final = "deploy.shop"
PROMPT: Final = PromptRecord(
    v=1,
    title="Deploy shop 2.4 to production?",
    choices=["approve", "deny"],
    requested_by=AGENT,
)
SHORT_MS: Final = 1_000


async def approved(stage: Stage) -> Ending:
    """A run pauses; its holder approves; it goes on."""
    async with stage.client(AGENT) as agent, stage.client(MARIA) as maria:
        await _pause(agent, stage, "release-2-4", 60_000)
        waiting = asyncio.create_task(
            agent.cp.wait_settled(ENDPOINT, "release-2-4", timeout_ms=8_000)
        )
        began = time.monotonic()
        outcome = await maria.cp.resume(ENDPOINT, "release-2-4", answer="approve")
        took = _since(began)
        seen = await waiting
    return Ending(
        outcome=seen.state if seen.state == outcome.checkpoint.state else "disagreement",
        told=f"Maria answered “approve”; the run went on after {took} ms.",
        settled_ms=took,
    )


async def wrong_holder(stage: Stage) -> Ending:
    """Somebody else tries to resume."""
    async with stage.client(AGENT) as agent, stage.client(STRANGER) as stranger:
        await _pause(agent, stage, "release-2-5", 60_000)
        began = time.monotonic()
        word = await _refusal(stranger, "release-2-5")
        took = _since(began)
        still = (await agent.cp.show(ENDPOINT, "release-2-5")).checkpoint.state
    return Ending(
        outcome=word if still == "waiting" else f"settled-{still}",
        told=f"Mallory was refused ({word}); the run still waits.",
        settled_ms=took,
    )


async def expired(stage: Stage) -> Ending:
    """A deadline passes."""
    async with stage.client(AGENT) as agent:
        await _pause(agent, stage, "nobody-answers", SHORT_MS)
        began = time.monotonic()
        seen = await agent.cp.wait_settled(ENDPOINT, "nobody-answers", timeout_ms=6_000)
        took = _since(began)
    late = _lateness(seen)
    return Ending(
        outcome=seen.state,
        told=f"Nobody answered; it expired {late} ms after its deadline.",
        settled_ms=took,
        lateness_ms=late,
    )


async def too_late(stage: Stage) -> Ending:
    """The holder answers after the deadline."""
    async with stage.client(MARIA) as maria:
        began = time.monotonic()
        word = await _refusal(maria, "nobody-answers", answer="approve")
        took = _since(began)
    return Ending(
        outcome=word, told="Maria's answer came too late and was refused.", settled_ms=took
    )


async def extended(stage: Stage) -> Ending:
    """A heartbeat moves the deadline; the old one passes and nothing happens."""
    async with stage.client(AGENT) as agent, stage.client(MARIA) as maria:
        outcome = await _pause(agent, stage, "long-think", SHORT_MS)
        old = outcome.checkpoint
        await agent.cp.heartbeat(
            ENDPOINT,
            "long-think",
            generation=old.generation,
            deadline_at_ms=old.deadline_at_ms + 60_000,
        )
        await asyncio.sleep(max(0.0, old.deadline_at_ms / 1000 - time.time()) + 0.3)
        began = time.monotonic()
        resumed = await maria.cp.resume(ENDPOINT, "long-think")
        took = _since(began)
    return Ending(
        outcome=resumed.word,
        told="The agent asked for more time; the old deadline passed and the run still resumed.",
        settled_ms=took,
    )


async def power_cut(stage: Stage) -> Ending:
    """Broker and worker are killed; the deadline passes meanwhile."""
    async with stage.client(AGENT) as agent:
        await _pause(agent, stage, "power-cut", SHORT_MS)
    await stage.kill_everything()
    await asyncio.sleep(SHORT_MS / 1000)
    began = time.monotonic()
    await stage.start_broker()
    await stage.start_worker()
    async with stage.client(AGENT) as agent, stage.client(MARIA) as maria:
        seen = await agent.cp.wait_settled(ENDPOINT, "power-cut", timeout_ms=6_000)
        took = _since(began)
        word = await _refusal(maria, "power-cut", answer="approve")
    late = _lateness(seen)
    return Ending(
        outcome=seen.state if seen.state == word else "disagreement",
        told=f"Both were killed with SIGKILL; back up, it expired once, {late} ms late.",
        settled_ms=took,
        lateness_ms=late,
    )


STORY: Final = (
    Scenario("approved", "A run pauses and its holder lets it go on", "resumed", approved),
    Scenario(
        "wrong-holder", "Somebody who is not the holder tries", "not-the-holder", wrong_holder
    ),
    Scenario("expired", "A deadline passes", "expired", expired),
    Scenario("too-late", "The holder answers after the deadline", "expired", too_late),
    Scenario("extended", "A heartbeat moves the deadline", "resumed", extended),
    Scenario("power-cut", "The power goes while a run waits", "expired", power_cut),
)


async def _pause(agent: Client, stage: Stage, token: str, for_ms: int) -> Outcome:
    return await agent.cp.mint(
        ENDPOINT,
        token,
        deadline_at_ms=time.time_ns() // 1_000_000 + for_ms,
        holder=stage.speaker(MARIA),
        prompt=PROMPT,
    )


async def _refusal(client: Client, token: str, answer: object = NO_ANSWER) -> str:
    try:
        outcome = await client.cp.resume(ENDPOINT, token, answer=answer)
    except Refused as refused:
        return refused.reason
    return outcome.word


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)


def _lateness(view: CheckpointView) -> int:
    return (view.settled_at_ms or 0) - view.deadline_at_ms
