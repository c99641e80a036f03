"""Observers are told of an expiry although its public fact could not be stored at first."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.names import Names
from tests.support.cp import Desk, QuickSpace, a_target, desk_in, serving, until
from tests.support.server import Server
from tests.support.space import Space
from worker.bus.errors import Unknown

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="as its neighbours")


@pytest.fixture
async def space(own_server: Callable[..., Server], tmp_path: Path) -> Space:
    server = await asyncio.to_thread(own_server("main").start)
    space = QuickSpace(server, Names("tidegate", "main"), tmp_path / "data")
    await space.set_up()
    return space


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


async def test_a_fire_that_comes_while_the_fact_is_on_its_way_is_not_thrown_away(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of results does not answer while the wheel settles and the timer fires."""
    async with serving(space) as replica:
        target = a_target()
        settler = replica.plane._settler
        tell: Any = settler.tell
        lost: list[str] = []

        async def fired() -> bool:
            return bool(await desk.timers(target, "fire"))

        async def handled() -> bool:
            info = await desk.js.consumer_info(desk.names.ept_stream, desk.names.fires_durable)
            return info.pending == 0 and info.ack_pending == 0

        async def once_unanswered(*args: Any, **how: Any) -> None:
            if args[1] == "expired" and not lost:
                lost.append(args[1])
                await until(fired, what="the timer fires")
                # Whoever judges it either is done with it, or waits for us.
                with contextlib.suppress(AssertionError):
                    await until(handled, what="its fire is judged", limit_s=2)
                raise Unknown("no answer within 5000 ms")
            await tell(*args, **how)

        monkeypatch.setattr(settler, "tell", once_unanswered)
        await desk.mint(target, in_ms=500)
        await desk.settled(target)
        await desk.was_told(target, ("waiting", 1), ("expired", 1))
        assert lost == ["expired"]


@pytest.mark.parametrize("verb", ["resume", "heartbeat", "expire"])
@pytest.mark.parametrize("state", ["resumed", "expired"])
async def test_observers_are_told_before_a_refusal_that_met_a_settlement_half_finished(
    desk: Desk, space: Space, verb: str, state: str
) -> None:
    """Whoever settled it was killed after the status; the refused command comes just once."""
    target = a_target()
    planted = await desk.plant(target, in_ms=60_000)
    settled = {
        **planted,
        "state": state,
        "settledGeneration": 1,
        "settledTs": planted["deadline"] + (1 if state == "expired" else -1),
    }
    if state == "resumed":
        settled["settledHolder"] = {
            "id": desk.alice.principal,
            "lifecycleUid": desk.alice.uid,
        }
    await desk.put(f"cp.{target.wire_endpoint}.{target.token}.status", settled)
    async with serving(space, wheel=False):
        body = (
            {"generation": 1, "deadline_at_ms": planted["deadline"]} if verb == "heartbeat" else {}
        )
        seq = await desk.say(verb, target, body)
        await desk.result(seq)
        await desk.answered_once(seq)
        prefix = desk.names.prefix
        (told,) = await desk.stored(
            desk.names.res_stream,
            f"{prefix}.fact.cp.{state}.{target.wire_endpoint}.{target.token}.1",
        )
        (answered,) = await desk.stored(desk.names.res_stream, f"{prefix}.res.*.*.cp.{verb}.*")
        assert told.seq < answered.seq


async def test_observers_hear_once_of_an_expiry_that_commands_and_fires_meet_together(
    desk: Desk, space: Space
) -> None:
    async with serving(space, wheel=False):
        targets = [a_target() for _ in range(20)]
        at_ms = await desk.now_ms() + 1_500
        for target in targets:
            await desk.mint(target, deadline_at_ms=at_ms)
        late_ms = at_ms + 60_000
        while await desk.now_ms() < at_ms:  # noqa: ASYNC110 - the broker's clock
            await asyncio.sleep(0.005)
        body = {"generation": 1, "deadline_at_ms": late_ms}
        seqs = [await desk.say("heartbeat", target, body) for target in targets]
        for seq in seqs:
            assert (await desk.result(seq))["outcome"] == "expired"
        for target in targets:
            await desk.agree(target)
            await desk.was_told(target, ("waiting", 1), ("expired", 1))
        expired = {k: n for k, n in desk.facts_heard.items() if k.startswith("expired.")}
        assert len(expired) == len(targets)
        assert set(expired.values()) == {1}
