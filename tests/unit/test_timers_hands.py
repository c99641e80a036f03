"""Hands: one settlement of a checkpoint at a time in this process."""

import asyncio

from schemas.subjects import Checkpoint
from worker.timers.hands import Hands

TARGET, OTHER = Checkpoint("runs", "one"), Checkpoint("runs", "other")


class Doing:
    """Holds a checkpoint until it is let go on, and says what it came to."""

    def __init__(self, hands: Hands, target: Checkpoint) -> None:
        self.holds = asyncio.Event()
        self.go_on = asyncio.Event()
        self.task = asyncio.create_task(self._hold(hands, target))

    async def _hold(self, hands: Hands, target: Checkpoint) -> None:
        async with hands.hold(target):
            self.holds.set()
            await self.go_on.wait()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_two_settlements_of_one_checkpoint_take_turns() -> None:
    hands = Hands()
    first, second, third = (Doing(hands, TARGET) for _ in range(3))
    await first.holds.wait()
    await turns()
    assert not second.holds.is_set()
    first.go_on.set()
    await second.holds.wait()
    await turns()
    assert not third.holds.is_set()
    second.go_on.set()
    third.go_on.set()
    await asyncio.gather(first.task, second.task, third.task)


async def test_different_checkpoints_do_not_wait_for_each_other() -> None:
    hands = Hands()
    one, other = Doing(hands, TARGET), Doing(hands, OTHER)
    await asyncio.gather(one.holds.wait(), other.holds.wait())
    one.go_on.set()
    other.go_on.set()
    await asyncio.gather(one.task, other.task)


async def test_whoever_is_cancelled_or_fails_lets_go() -> None:
    hands = Hands()
    holding, waiting = Doing(hands, TARGET), Doing(hands, TARGET)
    await holding.holds.wait()
    await turns()
    waiting.task.cancel()
    holding.task.cancel()
    await asyncio.gather(holding.task, waiting.task, return_exceptions=True)
    try:
        async with hands.hold(TARGET):
            raise ValueError
    except ValueError:
        pass
    async with asyncio.timeout(1), hands.hold(TARGET):
        pass
