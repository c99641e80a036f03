"""Outages: brokers that stop, durables that vanish, workers that stand still or are told to end."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import structlog

from schemas.names import Names
from schemas.subjects import Checkpoint
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    QuickSpace,
    a_target,
    desk_in,
    new_id,
    serving,
    until,
)
from tests.support.cp_process import ForkServer, fork_server
from tests.support.server import Server
from tests.support.space import Space
from worker.bus.errors import Unavailable

SEED = 20_260_803


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("planes")) as server:
        yield server


@pytest.fixture
async def quick_space(bare_space: Space) -> Space:
    """A space on the session's server that hands out again after a second."""
    space = QuickSpace(bare_space.server, bare_space.names, bare_space.data_dir)
    await space.set_up()
    return space


@pytest.fixture
async def lonely_space(own_server: Callable[..., Server], tmp_path: Path) -> Space:
    """The same on a server of its own, which may be stopped."""
    server = await asyncio.to_thread(own_server("main").start)
    space = QuickSpace(server, Names("tidegate", "main"), tmp_path / "data")
    await space.set_up()
    return space


@pytest.fixture
async def desk(quick_space: Space) -> AsyncIterator[Desk]:
    async with desk_in(quick_space) as one:
        yield one


@pytest.fixture
async def lonely_desk(lonely_space: Space) -> AsyncIterator[Desk]:
    async with desk_in(lonely_space) as one:
        yield one


async def reached(desk: Desk) -> None:
    """Wait until the desk itself can see the broker again."""

    async def seen() -> bool:
        try:
            await desk.now_ms()
        except Unavailable:
            return False
        return desk.voice.connected

    await until(seen)


# The broker is stopped while a command is being answered, then started (row 2).


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_command_that_is_being_answered_as_the_broker_goes_has_one_effect(
    lonely_desk: Desk, lonely_space: Space, how: str
) -> None:
    desk, server = lonely_desk, lonely_space.server
    chance = random.Random(SEED + len(how))
    async with serving(lonely_space):
        for _ in range(4):
            minted, moved, resumed, due = targets = [a_target() for _ in range(4)]
            await desk.mint(moved)
            await desk.mint(resumed)
            await desk.plant(due, in_ms=-500)
            deadline = await desk.now_ms() + 2 * MINUTE_MS
            said = [
                asyncio.create_task(desk.insist(verb, target, body, command_id=new_id()))
                for verb, target, body in (
                    ("mint", minted, {"deadline_at_ms": deadline}),
                    ("heartbeat", moved, {"generation": 1, "deadline_at_ms": deadline}),
                    ("resume", resumed, {"answer": "yes"}),
                    ("expire", due, {}),
                )
            ]
            await asyncio.sleep(chance.uniform(0, 0.006))
            await asyncio.to_thread(server.kill if how == "killed" else server.stop)
            await asyncio.to_thread(server.start)
            seqs = [await task for task in said]
            words = [(await desk.result(seq, limit_s=30))["outcome"] for seq in seqs]
            await reached(desk)
            assert words[:3] == ["minted", "extended", "resumed"]
            assert words[3] in ("expired", "already_settled")
            for target in (resumed, due):
                await desk.agree(target)
            for target, generation in ((minted, 1), (moved, 2)):
                status = await desk.status(target)
                assert status is not None
                assert (status["state"], status["deadlineGeneration"]) == ("waiting", generation)
                assert len(await desk.all_armed(target)) == 1
            for seq in seqs:
                await desk.answered_once(seq)
            assert len({target.token for target in targets}) == 4


# The durable consumer is deleted, idle and in mid-fetch (row 9).


async def test_a_lost_durable_comes_back_by_itself_and_costs_nothing(
    desk: Desk, quick_space: Space
) -> None:
    names = desk.names
    async with serving(quick_space, wheel=False):
        foreign = a_target()
        status = await desk.plant(foreign, in_ms=MINUTE_MS)
        with structlog.testing.capture_logs() as lines:
            began, spent = time.monotonic(), time.process_time()
            for stream, durable in (
                (names.cmd_stream, names.cp_durable),
                (names.ept_req_stream, names.timers_durable),
                (names.ept_stream, names.fires_durable),
            ):
                await desk.js.consumer_delete(stream, durable)
            # Idle: nothing is waiting while they are away.
            resumed, expired = a_target(), a_target()
            await desk.mint(resumed)
            await desk.mint(expired, in_ms=300)
            owner = f"{names.prefix}.ept.review_eu.{'f' * 26}.1.{foreign.token}"
            body = {
                "v": 1,
                "timerId": foreign.token,
                "generation": 1,
                "deadline": status["deadline"],
            }
            await desk.js.publish(f"{owner}.schedule", str(body).replace("'", '"').encode())
            assert (await desk.resume(resumed))["outcome"] == "resumed"
            assert (await desk.agree(expired))["state"] == "expired"

            async def armed() -> bool:
                return await desk.all_armed(foreign) == [f"{owner}.armed"]

            await until(armed)
            took = time.monotonic() - began
        assert took < 30
        assert len(lines) < 10 * (took + 1), lines
        assert time.process_time() - spent < 1.0 + took
        await desk.agree(resumed)


async def test_a_durable_lost_in_mid_fetch_loses_no_command(desk: Desk, quick_space: Space) -> None:
    async with serving(quick_space):
        deadline = await desk.now_ms() + MINUTE_MS
        targets = [a_target() for _ in range(120)]

        async def say(target: Checkpoint) -> int:
            return await desk.say("mint", target, {"deadline_at_ms": deadline})

        first = await asyncio.gather(*(say(target) for target in targets[:60]))
        await desk.js.consumer_delete(desk.names.cmd_stream, desk.names.cp_durable)
        second = await asyncio.gather(*(say(target) for target in targets[60:]))
        for seq in (*first, *second):
            assert (await desk.result(seq))["outcome"] in ("minted", "already_minted")
            await desk.answered_once(seq)
        for target in targets:
            await desk.was_told(target, ("waiting", 1))
            assert len(await desk.all_armed(target)) == 1


# SIGSTOP for longer than ack_wait, another replica takes over, SIGCONT (row 10).


async def test_a_worker_that_stood_still_while_another_took_over_doubles_nothing(
    desk: Desk, quick_space: Space, forks: ForkServer
) -> None:
    still = forks.start(quick_space, replica="r1", ack_wait_ms=1_000)
    await still.ready()
    deadline = await desk.now_ms() + MINUTE_MS
    resumed = [a_target() for _ in range(40)]
    expired = [a_target() for _ in range(20)]
    for target in resumed:
        await desk.mint(target, deadline_at_ms=deadline)
    for target in expired:
        await desk.mint(target, in_ms=700)
    seqs = await asyncio.gather(
        *(desk.say("resume", target, {"answer": "yes"}) for target in resumed)
    )
    still.send(signal.SIGSTOP)
    async with serving(quick_space, "r2") as other:
        told = [await desk.result(seq, limit_s=30) for seq in seqs]
        for target in expired:
            assert (await desk.settled(target))["state"] == "expired"
        still.send(signal.SIGCONT)
        await desk.handled(desk.names.cp_durable, max(seqs))
        assert {result["outcome"] for result in told} == {"resumed"}
        # Another round through both, now that it goes on.
        again = [a_target() for _ in range(20)]
        for target in again:
            await desk.mint(target, deadline_at_ms=deadline)
            assert (await desk.resume(target))["outcome"] == "resumed"
        for target in (*resumed, *expired, *again):
            await desk.agree(target)
        for seq in seqs:
            await desk.answered_once(seq)
        assert other.plane.not_ready() == []
    assert still.alive
    await still.kill()


# SIGTERM in mid-request (row 8).


async def test_what_a_killed_worker_had_in_hand_comes_back_at_once(
    bare_space: Space, forks: ForkServer
) -> None:
    """With the settings as they are by default, while another worker stands by."""
    await bare_space.set_up()
    async with desk_in(bare_space) as desk:
        victim = forks.start(bare_space, replica="r1")
        try:
            await victim.ready()
            victim.send(signal.SIGSTOP)
            at_ms = await desk.now_ms() + MINUTE_MS
            seqs = [
                await desk.say("mint", a_target(), {"deadline_at_ms": at_ms}) for _ in range(20)
            ]

            async def in_its_hands() -> bool:
                info = await desk.js.consumer_info(desk.names.cmd_stream, desk.names.cp_durable)
                return info.ack_pending == len(seqs)

            await until(in_its_hands, what="the worker has all of them")
        finally:
            await victim.kill()
        async with serving(bare_space, "r2"):
            for seq in seqs:
                assert (await desk.result(seq, limit_s=15))["outcome"] == "minted"


async def test_a_worker_told_to_end_in_mid_request_loses_nothing(
    desk: Desk, quick_space: Space, forks: ForkServer
) -> None:
    worker = forks.start(quick_space, replica="r1", ack_wait_ms=1_000)
    await worker.ready()
    deadline = await desk.now_ms() + MINUTE_MS
    targets = [a_target() for _ in range(100)]
    seqs = await asyncio.gather(
        *(desk.say("mint", target, {"deadline_at_ms": deadline}) for target in targets[:50])
    )
    worker.send(signal.SIGTERM)
    began = time.monotonic()
    seqs += await asyncio.gather(
        *(desk.say("mint", target, {"deadline_at_ms": deadline}) for target in targets[50:])
    )
    await worker.gone()
    assert time.monotonic() - began < 10
    answered = sum(bool(desk.heard.get(seq)) for seq in seqs)
    async with serving(quick_space):
        for seq in seqs:
            assert (await desk.result(seq))["outcome"] == "minted"
            await desk.answered_once(seq)
        for target in targets:
            assert len(await desk.all_armed(target)) == 1
            await desk.was_told(target, ("waiting", 1))
    assert answered <= len(seqs)


# Killed in mid-request, over and over, with many commands in flight (row 3).


async def test_a_worker_killed_again_and_again_under_load_doubles_nothing(
    desk: Desk, quick_space: Space, forks: ForkServer
) -> None:
    chance = random.Random(SEED)
    deadline = await desk.now_ms() + 30 * MINUTE_MS
    done = asyncio.Event()

    deaths = 0

    async def life_and_death() -> None:
        nonlocal deaths
        while not done.is_set():
            worker = forks.start(quick_space, replica="r1", ack_wait_ms=1_000)
            await worker.ready()
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            await worker.kill()
            deaths += 1

    dying = asyncio.create_task(life_and_death())
    outcomes: Counter[str] = Counter()

    async def one(number: int) -> tuple[Checkpoint, list[int]]:
        target = a_target()
        seqs: list[int] = []
        bodies: list[tuple[str, Json]] = [
            ("mint", {"deadline_at_ms": deadline}),
            ("heartbeat", {"generation": 1, "deadline_at_ms": deadline + 1}),
            ("resume", {"answer": number}),
            ("resume", {"answer": -1}),
        ]
        for verb, body in bodies:
            seqs.append(await desk.say(verb, target, body))
            outcomes[(await desk.result(seqs[-1], limit_s=60))["outcome"]] += 1
        return target, seqs

    finished: list[tuple[Checkpoint, list[int]]] = []
    try:
        while deaths < 3:
            finished += await asyncio.gather(*(one(number) for number in range(15)))
    finally:
        done.set()
        await dying
    words = ("minted", "extended", "resumed", "already-resumed")
    assert outcomes == dict.fromkeys(words, len(finished))
    async with serving(quick_space) as replica:
        await replica.swept()
        for target, seqs in finished:
            await desk.agree(target)
            await desk.was_told(target, ("extended", 2), ("resumed", 2), ("waiting", 1))
            for seq in seqs:
                await desk.answered_once(seq)
