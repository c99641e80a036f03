"""The wheel with an injected clock: what is due is settled once, and nothing before its time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from schemas.subjects import Checkpoint
from worker.timers.wheel import Coordinate, Wheel


class Hand:
    """A clock that only a test moves."""

    def __init__(self, now_ms: float = 1_000_000) -> None:
        self.now_ms = now_ms

    def lower_ms(self) -> float:
        return self.now_ms


class Settlements:
    """What the wheel settled, and a way to hold it up."""

    def __init__(self, clock: Hand) -> None:
        self.done: list[Coordinate] = []
        self.early: list[Coordinate] = []
        self.running = 0
        self.most = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._clock = clock

    async def settle(self, coordinate: Coordinate) -> None:
        if self._clock.now_ms < coordinate.deadline_ms:
            self.early.append(coordinate)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go_on.wait()
        self.running -= 1
        self.done.append(coordinate)


def at(deadline_ms: int, token: str = "t1", **changes: Any) -> Coordinate:
    coordinate = Coordinate(Checkpoint("ep", token), 1, deadline_ms, 10, 1, armed_seq=5)
    return replace(coordinate, **changes)


@asynccontextmanager
async def turning(wheel: Wheel) -> AsyncIterator[None]:
    task = asyncio.create_task(wheel.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a condition of plain values
            await asyncio.sleep(0)


async def turn() -> None:
    """Let everything that can run now run."""
    for _ in range(20):
        await asyncio.sleep(0)


def a_wheel(**how: Any) -> tuple[Hand, Settlements, Wheel]:
    clock = Hand()
    settlements = Settlements(clock)
    return clock, settlements, Wheel(clock, settlements.settle, **{"horizon_ms": 60_000, **how})


async def test_nothing_is_settled_before_its_deadline_by_the_lower_clock() -> None:
    clock, settlements, wheel = a_wheel()
    deadline = int(clock.now_ms) + 500
    async with turning(wheel):
        assert wheel.offer(at(deadline))
        await turn()
        clock.now_ms = deadline - 0.5
        wheel.offer(at(deadline + 10_000, "wake"))
        await turn()
        assert settlements.done == []
        clock.now_ms = deadline
        wheel.offer(at(deadline - 1, "waker"))
        await until(lambda: len(settlements.done) == 2)
    assert [one.target.token for one in settlements.done] == ["waker", "t1"]
    assert settlements.early == []
    assert len(wheel) == 1


async def test_a_step_of_the_clock_is_noticed_within_a_second() -> None:
    """Its sleep is cut short, since the broker's clock may be set."""
    clock, settlements, wheel = a_wheel(horizon_ms=10_000_000)
    async with turning(wheel):
        wheel.offer(at(int(clock.now_ms) + 3_600_000))
        await turn()
        clock.now_ms += 3_600_000
        async with asyncio.timeout(5):
            while not settlements.done:  # noqa: ASYNC110 - a condition of plain values
                await asyncio.sleep(0.01)
    assert settlements.early == []


async def test_what_is_due_is_settled_in_the_order_of_deadlines_and_once() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    order = [7, 3, 9, 1, 5]
    for number in order:
        wheel.offer(at(base + number, f"t{number}"))
        wheel.offer(at(base + number, f"t{number}"))
    clock.now_ms = base + 100
    async with turning(wheel):
        await until(lambda: len(settlements.done) == 5)
        await turn()
    assert [one.deadline_ms - base for one in settlements.done] == sorted(order)
    assert len(wheel) == 0


async def test_beyond_the_horizon_nothing_is_taken() -> None:
    clock, _, wheel = a_wheel(horizon_ms=1_000)
    base = int(clock.now_ms)
    assert wheel.offer(at(base + 1_000))
    assert not wheel.offer(at(base + 1_001, "t2"))
    assert len(wheel) == 1


async def test_a_heartbeat_beyond_the_horizon_takes_the_old_deadline_out() -> None:
    clock, settlements, wheel = a_wheel(horizon_ms=1_000)
    base = int(clock.now_ms)
    wheel.offer(at(base + 10))
    assert not wheel.offer(at(base + 5_000, generation=2, revision=11))
    assert len(wheel) == 0
    clock.now_ms = base + 10_000
    async with turning(wheel):
        await turn()
    assert settlements.done == []


async def test_a_newer_generation_replaces_and_an_older_one_does_not() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    newer = at(base + 20, generation=2, revision=11)
    wheel.offer(at(base + 10))
    assert wheel.offer(newer)
    assert wheel.offer(at(base + 5)), "an older one is answered with what is known"
    clock.now_ms = base + 100
    async with turning(wheel):
        await until(lambda: bool(settlements.done))
        await turn()
    assert settlements.done == [newer]


async def test_of_one_coordinate_the_own_one_is_kept() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    own = at(base + 10)
    learned = replace(own, armed_seq=None, grace_ms=5)
    for first, second in ((own, learned), (learned, own)):
        wheel.clear()
        wheel.offer(first)
        wheel.offer(second)
        assert wheel.owns(own.target, 1)
    assert not wheel.owns(own.target, 2)
    clock.now_ms = base + 10
    async with turning(wheel):
        await until(lambda: bool(settlements.done))
    assert settlements.done == [own]


async def test_a_learned_deadline_is_left_to_the_one_who_armed_it_for_its_grace() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    async with turning(wheel):
        wheel.offer(at(base + 10, armed_seq=None, grace_ms=50))
        clock.now_ms = base + 59
        wheel.offer(at(base + 1, "other"))
        await until(lambda: len(settlements.done) == 1)
        await turn()
        assert [one.target.token for one in settlements.done] == ["other"]
        clock.now_ms = base + 60
        wheel.offer(at(base + 2, "another"))
        await until(lambda: len(settlements.done) == 3)


async def test_what_was_discarded_is_not_settled() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    first, second, third = at(base + 10, "a"), at(base + 10, "b"), at(base + 10, "c")
    for coordinate in (first, second, third):
        wheel.offer(coordinate)
    assert wheel.discard(first.target, 1) == first
    assert wheel.discard(second.target, 0) is None, "it moved on to a later generation"
    assert wheel.discard(Checkpoint("ep", "unknown"), 9) is None
    clock.now_ms = base + 10
    async with turning(wheel):
        await until(lambda: len(settlements.done) == 2)
        await turn()
    assert {one.target.token for one in settlements.done} == {"b", "c"}


async def test_a_clear_forgets_everything_and_what_is_offered_again_is_taken() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    wheel.offer(at(base + 10))
    wheel.clear()
    assert len(wheel) == 0
    wheel.offer(at(base + 20))
    clock.now_ms = base + 100
    async with turning(wheel):
        await until(lambda: bool(settlements.done))
        await turn()
    assert [one.deadline_ms for one in settlements.done] == [base + 20]


async def test_a_burst_is_settled_so_many_at_a_time() -> None:
    clock, settlements, wheel = a_wheel(max_in_flight=8)
    settlements.go_on.clear()
    base = int(clock.now_ms)
    for number in range(100):
        wheel.offer(at(base + 1, f"t{number}"))
    clock.now_ms = base + 1
    async with turning(wheel):
        await until(lambda: settlements.running == 8)
        await turn()
        assert settlements.running == 8
        # What moves while it waits its turn is left alone.
        assert wheel.discard(Checkpoint("ep", "t99"), 1) is not None
        settlements.go_on.set()
        await until(lambda: len(settlements.done) == 99)
    assert settlements.most == 8
    await wheel.drain()


async def test_draining_waits_for_what_is_being_settled() -> None:
    clock, settlements, wheel = a_wheel()
    settlements.go_on.clear()
    wheel.offer(at(int(clock.now_ms)))
    async with turning(wheel):
        await until(lambda: settlements.running == 1)
    draining = asyncio.create_task(wheel.drain())
    await turn()
    assert not draining.done()
    settlements.go_on.set()
    await draining
    assert len(settlements.done) == 1


@pytest.mark.parametrize("moved", [True, False])
async def test_a_generation_that_moves_while_it_waits_for_its_turn_is_not_settled(
    moved: bool,
) -> None:
    clock, settlements, wheel = a_wheel(max_in_flight=1)
    settlements.go_on.clear()
    base = int(clock.now_ms)
    wheel.offer(at(base, "first"))
    wheel.offer(at(base + 1, "second"))
    clock.now_ms = base + 1
    async with turning(wheel):
        await until(lambda: settlements.running == 1)
        await turn()
        if moved:
            wheel.offer(at(base + 50_000, "second", generation=2, revision=11))
        settlements.go_on.set()
        await until(lambda: len(settlements.done) == (1 if moved else 2))
        await turn()
    assert len(settlements.done) == (1 if moved else 2)
    assert len(wheel) == (1 if moved else 0)


async def test_heartbeats_do_not_pile_up() -> None:
    clock, settlements, wheel = a_wheel()
    base = int(clock.now_ms)
    for generation in range(1, 20_000):
        wheel.offer(at(base + 30_000 + generation, generation=generation, revision=generation))
    wheel.offer(at(base + 5, "other"))
    assert len(wheel) == 2
    assert len(wheel._heap) < 1_000
    clock.now_ms = base + 60_000
    async with turning(wheel):
        await until(lambda: len(settlements.done) == 2)
    assert [one.generation for one in settlements.done] == [1, 19_999]
