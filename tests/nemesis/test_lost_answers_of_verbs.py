"""Every verb whose answer is lost, late, doubled or out of order is carried out once.

Each speaks through a proxy of its own that handles whole frames (``tests/support/frames.py``).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.outside import TROUBLES, Scene, a_scene, brought_to, enqueued, take_step
from tests.support.space import Space
from worker.client import Client


@pytest.fixture
async def scene(space: Space, tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(space, tmp_path) as one:
        yield one


# Every verb, and what must have come of it once.


@dataclass
class Done:
    """A verb that was carried out.

    Attributes:
        words: What it may have been answered with; the second and later only when it was repeated.
        word: What it was.
        once: Proves that it happened once.
    """

    words: tuple[str, ...]
    word: str
    once: Callable[[], Awaitable[bool]]


Act = Callable[[Scene, Client, str], Awaitable[Callable[[], Awaitable[Done]]]]


def turn_verb(step: str, before: str, words: tuple[str, ...], state: str) -> Act:
    async def prepare(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
        fence = await brought_to(client, name, before)

        async def act() -> Done:
            told = await take_step(client, step, fence)

            async def once() -> bool:
                turn = await scene.operator.adm.request(name, after=told.result.id)
                return turn.state == state and turn.generation == 1

            return Done(words, told.word, once)

        return act

    return prepare


async def enqueue(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    async def act() -> Done:
        told = await enqueued(client, name)

        async def once() -> bool:
            turn = await scene.operator.adm.request(name, after=told.result.id)
            return turn.state == "queued" and turn.generation == 1

        return Done(("queued", "idempotent"), told.word, once)

    return act


async def cancel(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    await enqueued(client, name)

    async def act() -> Done:
        told = await client.adm.cancel(name)

        async def once() -> bool:
            turn = await scene.operator.adm.request(name, after=told.result.id)
            return turn.state == "cancelled"

        return Done(("cancelled",), told.word, once)

    return act


async def admit(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    await enqueued(client, name)

    async def act() -> Done:
        told = await client.adm.admit(name)
        assert told.grant is not None, told
        lease = told.grant.lease_id

        async def once() -> bool:
            turn = await scene.operator.adm.request(name, after=told.result.id)
            return turn.lease is not None and turn.lease.lease_id == lease

        return Done(("admitted", "idempotent"), told.result.outcome, once)

    return act


async def resolve(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    other, _ = await scene.behind(name)
    fence = await brought_to(other, name, "active")
    await take_step(other, "ambiguous", fence)

    async def act() -> Done:
        told = await client.adm.resolve(name, "confirmed_not_dispatched", "seen")

        async def once() -> bool:
            turn = await scene.operator.adm.request(name, after=told.result.id)
            return turn.generation == 2

        return Done(("requeued",), told.word, once)

    return act


async def cooldown(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    async def act() -> Done:
        result = await client.call(
            "adm",
            "cooldown",
            (),
            {"provider": name, "model": "m", "not_before_ms": now_ms() + 60_000},
        )
        return Done(("cooling",), result.outcome, _always)

    return act


async def drain(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    async def act() -> Done:
        result = await client.call("adm", "drain", (), {"to": 90})
        return Done(("drained",), result.outcome, _always)

    return act


async def _always() -> bool:
    return True


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _reserved(client: Client, name: str) -> int:
    told = await client.cap.reserve(
        name, f"key-of-{name}-0123456789", latest_expires_at_ms=now_ms() + 600_000, cap=10
    )
    assert told.cap is not None
    return told.cap.expires_at_ms


async def reserve(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    latest = now_ms() + 600_000

    async def act() -> Done:
        key = f"key-of-{name}-0123456789"
        told = await client.cap.reserve(name, key, latest_expires_at_ms=latest, cap=10)

        async def once() -> bool:
            second = await client.cap.reserve(name, key + "-2", latest_expires_at_ms=latest, cap=10)
            assert told.cap is not None
            assert second.cap is not None
            return second.cap.expires_at_ms == told.cap.expires_at_ms - 1_000

        return Done(("reserved", "already_reserved"), told.word, once)

    return act


async def confirm(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    second = await _reserved(client, name)

    async def act() -> Done:
        key = f"key-of-{name}-0123456789"
        told = await client.cap.confirm(name, key, grant_expires_at_ms=second)

        async def once() -> bool:
            shown = await client.cap.show(name, after=told.result.id)
            return bool(shown.authority.authorizes)

        return Done(("confirmed", "already_confirmed"), told.word, once)

    return act


async def _confirmed(client: Client, name: str) -> int:
    second = await _reserved(client, name)
    key = f"key-of-{name}-0123456789"
    await client.cap.confirm(name, key, grant_expires_at_ms=second)
    return second


async def authorize(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    """A permit that came too late is none, so refusing is right whatever was lost."""
    second = await _confirmed(client, name)

    async def act() -> Done:
        told = await client.cap.authorize(name, amount=1, grant_expires_at_ms=second)
        if told.allowed:
            assert told.ends_at_s > time.monotonic()
        return Done(("", "permit-lapsed", "unavailable"), told.reason, _always)

    return act


async def revoke(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    second = await _confirmed(client, name)

    async def act() -> Done:
        told = await client.cap.revoke(name, expires_at_ms=second)
        return Done(("revoked",), told.word, _always)

    return act


def counted(verb: str) -> Act:
    """Stop and bump: each raises the generation once."""

    async def prepare(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
        async def act() -> Done:
            told = await client.call("cap", verb, (name,), {})

            async def once() -> bool:
                shown = await client.cap.show(name, after=told.id)
                return bool(shown.generation == 1 == told.data["generation"])

            return Done(({"stop": "stopped", "bump": "bumped"}[verb],), told.outcome, once)

        return act

    return prepare


async def mint(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    async def act() -> Done:
        told = await client.cp.mint("runs", name, deadline_at_ms=now_ms() + 600_000)

        async def once() -> bool:
            return (await client.cp.show("runs", name)).checkpoint.generation == 1

        return Done(("minted", "already_minted"), told.word, once)

    return act


async def _minted(client: Client, name: str) -> None:
    await client.cp.mint("runs", name, deadline_at_ms=now_ms() + 600_000)


async def heartbeat(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    await _minted(client, name)

    async def act() -> Done:
        told = await client.cp.heartbeat(
            "runs", name, generation=1, deadline_at_ms=now_ms() + 900_000
        )

        async def once() -> bool:
            return (await client.cp.show("runs", name)).checkpoint.generation == 2

        return Done(("extended",), told.word, once)

    return act


async def resume(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    await _minted(client, name)

    async def act() -> Done:
        told = await client.cp.resume("runs", name, answer="yes")

        async def once() -> bool:
            return (await client.cp.show("runs", name)).checkpoint.state == "resumed"

        return Done(("resumed",), told.word, once)

    return act


async def expire(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    await client.cp.mint("runs", name, deadline_at_ms=now_ms() + 2_000)
    await client.cp.wait_settled("runs", name, timeout_ms=20_000)

    async def act() -> Done:
        told = await client.cp.expire("runs", name)
        return Done(("already_settled",), told.word, _always)

    return act


async def repair(scene: Scene, client: Client, name: str) -> Callable[[], Awaitable[Done]]:
    await _minted(client, name)

    async def act() -> Done:
        result = await client.call("cp", "repair", ("runs", name), {})
        return Done((result.outcome,), result.outcome, _always)

    return act


VERBS: Final[dict[str, tuple[str, Act]]] = {
    "cp.mint": ("ann", mint),
    "cp.heartbeat": ("ann", heartbeat),
    "cp.resume": ("ann", resume),
    "cp.expire": ("ann", expire),
    "cp.repair": ("ann", repair),
    "adm.enqueue": ("conn", enqueue),
    "adm.cancel": ("conn", cancel),
    "adm.admit": ("conn", admit),
    "adm.start": ("conn", turn_verb("start", "start", ("starting",), "starting")),
    "adm.intent": (
        "conn",
        turn_verb("intent", "intent", ("dispatch_intent", "idempotent"), "dispatch_intent"),
    ),
    "adm.active": ("conn", turn_verb("active", "active", ("active",), "active")),
    "adm.ambiguous": (
        "conn",
        turn_verb("ambiguous", "active", ("dispatch_ambiguous",), "dispatch_ambiguous"),
    ),
    "adm.complete": ("conn", turn_verb("complete", "", ("completed",), "completed")),
    "adm.abandon": ("conn", turn_verb("abandon", "intent", ("failed",), "failed")),
    "adm.recover": (
        "conn",
        turn_verb("recover", "", ("recovery_required", "idempotent"), "recovery_required"),
    ),
    "adm.resolve": ("_op", resolve),
    "adm.cooldown": ("_op", cooldown),
    "adm.drain": ("_op", drain),
    "cap.reserve": ("platform", reserve),
    "cap.confirm": ("platform", confirm),
    "cap.authorize": ("agent", authorize),
    "cap.revoke": ("ann", revoke),
    "cap.stop": ("ann", counted("stop")),
    "cap.bump": ("ann", counted("bump")),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_verb_whose_answer_is_lost_late_or_doubled_is_carried_out_once(
    scene: Scene, trouble: str
) -> None:
    async def one(verb: str, who: str, prepare: Act) -> str:
        name = f"n-{verb.replace('.', '-')}"
        client, proxy = await scene.behind(name if who == "conn" else who)
        act = await prepare(scene, client, name)
        TROUBLES[trouble](proxy, verb)
        done = await act()
        if done.word not in done.words:
            return f"{verb} was answered {done.word!r}, not one of {done.words}"
        return "" if await done.once() else f"{verb} did not happen once"

    async with asyncio.timeout(120):
        wrong = await asyncio.gather(*(one(verb, *how) for verb, how in VERBS.items()))
    assert not [text for text in wrong if text]
