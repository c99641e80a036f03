"""Races: whoever comes at the same moment, one outcome, and everybody is told the same."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from schemas.subjects import Checkpoint
from tests.support.cp import MINUTE_MS, Desk, Json, a_target, code_of, desk_in, serving, until
from tests.support.space import Space
from worker.bus.errors import ConsumerMissing

SEED = 20_260_802


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


class BrokerTime:
    """Sleeps until instants of the broker's clock; what it is off by changes no outcome."""

    @classmethod
    async def of(cls, desk: Desk) -> "BrokerTime":
        one = cls()
        one._ahead_ms = await desk.now_ms() - time.monotonic() * 1_000
        return one

    def __init__(self) -> None:
        self._ahead_ms = 0.0

    def now_ms(self) -> int:
        return int(time.monotonic() * 1_000 + self._ahead_ms)

    async def at(self, instant_ms: float) -> None:
        await asyncio.sleep(
            max(0.0, instant_ms - self._ahead_ms - time.monotonic() * 1_000) / 1_000
        )


async def minted(desk: Desk, deadline: int, **body: Any) -> Checkpoint:
    target = a_target()
    told = await desk.ask("mint", target, {"deadline_at_ms": deadline, **body})
    assert told["outcome"] == "minted", told
    return target


async def many(count: int, work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*(work(number) for number in range(count))))


async def armed_for(desk: Desk, target: Checkpoint) -> tuple[int, int] | None:
    found = await desk.armed(target)
    if found is None:
        return None
    body = json.loads(found.data)
    return body["generation"], body["deadline"]


async def waits_whole(desk: Desk, target: Checkpoint) -> Json:
    """Require that a waiting checkpoint's timer is armed for the coordinate in force."""
    status = await desk.status(target)
    assert status is not None
    assert status["state"] == "waiting"
    wanted = (status["deadlineGeneration"], status["deadline"])

    async def armed() -> bool:
        return await armed_for(desk, target) == wanted

    await until(armed, what=f"{target} is armed for {wanted}")
    assert await desk.fact(target) is None
    return status


# A decision within 50 ms either side of the deadline, 300 times (row 1).


async def decide_at_the_deadline(desk: Desk, count: int, seed: int) -> Counter[str]:
    chance, clock = random.Random(seed), await BrokerTime.of(desk)
    seen: Counter[str] = Counter()

    async def one(number: int) -> None:
        deadline = clock.now_ms() + 900 + number % 50
        target = await minted(desk, deadline)
        await clock.at(deadline + chance.uniform(-50, 50))
        seq = await desk.say("resume", target, {})
        told = await desk.result(seq)
        status = await desk.agree(target)
        command = await desk.js.message(desk.names.cmd_stream, seq)
        assert command is not None
        assert told["outcome"] == status["state"]
        if command.time_ms >= deadline:
            assert status["state"] == "expired", "a resume sequenced at the deadline won"
        await desk.answered_once(seq)
        seen[status["state"]] += 1

    for start in range(0, count, 50):
        await many(min(50, count - start), one)
    return seen


@pytest.mark.parametrize("mode", ["wheel", "fires", "two replicas"])
async def test_a_decision_at_the_deadline_has_one_outcome(
    desk: Desk, space: Space, mode: str
) -> None:
    if mode == "two replicas":
        async with serving(space, "r1"), serving(space, "r2"):
            seen = await decide_at_the_deadline(desk, 100, SEED)
    else:
        async with serving(space, wheel=mode == "wheel"):
            seen = await decide_at_the_deadline(desk, 100, SEED + len(mode))
    assert seen.total() == 100


async def test_a_heartbeat_at_the_deadline_extends_or_comes_too_late(
    desk: Desk, space: Space
) -> None:
    chance = random.Random(SEED)
    async with serving(space, "r1"), serving(space, "r2", wheel=False):
        clock = await BrokerTime.of(desk)

        async def one(number: int) -> None:
            deadline = clock.now_ms() + 600 + number % 50
            target = await minted(desk, deadline)
            await clock.at(deadline + chance.uniform(-50, 50))
            told = await desk.heartbeat(target, 1)
            if told["outcome"] == "extended":
                status = await waits_whole(desk, target)
                assert status["deadlineGeneration"] == 2
                assert (await desk.resume(target))["outcome"] == "resumed"
                assert (await desk.agree(target))["settledGeneration"] == 2
            else:
                assert told["outcome"] == "expired"
                assert (await desk.agree(target))["settledGeneration"] == 1

        await many(60, one)


# Two approvals, or an approval and a denial, at once, 200 times (row 6).


async def test_two_decisions_at_once_leave_one_and_both_are_told_it(
    desk: Desk, space: Space
) -> None:
    async with serving(space, "r1"), serving(space, "r2"):
        deadline = await desk.now_ms() + MINUTE_MS

        async def one(number: int) -> None:
            target = await minted(desk, deadline)
            other = "yes" if number % 2 else "no"
            answers = await asyncio.gather(
                desk.resume(target, {"answer": "yes"}), desk.resume(target, {"answer": other})
            )
            status = await desk.agree(target)
            assert sorted(told["outcome"] for told in answers) == ["already-resumed", "resumed"]
            won, lost = sorted(answers, key=lambda told: told["status"] != "ok")
            assert won["data"] == lost["data"]
            assert code_of(lost) == "conflict"
            filed = await desk.answer(target, status["settledAnswerId"])
            assert filed is not None
            assert filed["answerId"] == won["data"]["answer_id"]

        for _ in range(4):
            await many(50, one)


async def test_resume_against_heartbeat(desk: Desk, space: Space) -> None:
    async with serving(space, "r1"), serving(space, "r2"):
        deadline = await desk.now_ms() + MINUTE_MS

        async def one(number: int) -> str:
            target = await minted(desk, deadline)
            resume, *beats = await asyncio.gather(
                desk.resume(target), *(desk.heartbeat(target, 1) for _ in range(1 + number % 3))
            )
            words = Counter(told["outcome"] for told in beats)
            # It loses to a heartbeat at most once, so its one retry is enough.
            assert resume["outcome"] == "resumed", resume
            status = await desk.agree(target)
            assert words["extended"] == status["settledGeneration"] - 1 <= 1
            assert set(words) <= {"extended", "stale-generation", "already-resumed"}
            assert await desk.all_armed(target) == []
            return f"generation {status['settledGeneration']}"

        for _ in range(2):
            await many(50, one)


async def test_resume_against_a_chain_of_heartbeats(desk: Desk, space: Space) -> None:
    async with serving(space, "r1"), serving(space, "r2"):
        deadline = await desk.now_ms() + MINUTE_MS

        async def beats(target: Checkpoint) -> int:
            generation = 1
            while generation < 8:
                told = await desk.heartbeat(target, generation)
                if told["outcome"] != "extended":
                    assert told["outcome"] == "already-resumed"
                    return generation
                generation += 1
            return generation

        async def one(number: int) -> None:
            target = await minted(desk, deadline)

            async def decide() -> Json:
                await asyncio.sleep(0.002 * (number % 5))
                return await desk.resume(target)

            generation, told = await asyncio.gather(beats(target), decide())
            if told["outcome"] == "resumed":
                assert (await desk.agree(target))["settledGeneration"] == generation
                return
            assert told["outcome"] == "deadline-moved"
            assert code_of(told) == "conflict"
            status = await waits_whole(desk, target)
            assert status["deadlineGeneration"] == generation
            assert (await desk.resume(target))["outcome"] == "resumed"
            await desk.agree(target)

        await many(50, one)


async def test_heartbeats_against_each_other(desk: Desk, space: Space) -> None:
    async with serving(space, "r1"), serving(space, "r2"):
        deadline = await desk.now_ms() + MINUTE_MS

        async def one(number: int) -> None:
            target = await minted(desk, deadline)
            told = await asyncio.gather(
                *(desk.heartbeat(target, 1, in_ms=MINUTE_MS * (2 + n)) for n in range(3))
            )
            words = sorted(one["outcome"] for one in told)
            assert words == ["extended", "stale-generation", "stale-generation"]
            won = next(one for one in told if one["outcome"] == "extended")
            status = await waits_whole(desk, target)
            assert status["deadline"] == won["data"]["deadline_at_ms"]
            assert status["deadlineGeneration"] == 2
            await desk.was_told(target, ("extended", 2), ("waiting", 1))

        await many(50, one)


async def test_mint_against_mint(desk: Desk, space: Space) -> None:
    async with serving(space, "r1"), serving(space, "r2"):
        deadline = await desk.now_ms() + MINUTE_MS

        async def one(number: int) -> None:
            target, same = a_target(), number % 2 == 0
            body: Json = {
                "deadline_at_ms": deadline,
                "holder": {"id": "alice", "lifecycleUid": desk.alice.uid},
                "prompt": {"v": 1, "title": "which?"},
            }
            other = body if same else {**body, "deadline_at_ms": deadline + 1}
            told = await asyncio.gather(
                desk.ask("mint", target, body), desk.ask("mint", target, other, by=desk.bob)
            )
            words = sorted(one["outcome"] for one in told)
            assert words == (
                ["already_minted", "minted"] if same else ["different-checkpoint", "minted"]
            )
            assert told[0]["data"]["deadline_at_ms"] == told[1]["data"]["deadline_at_ms"]
            status = await waits_whole(desk, target)
            assert status["deadline"] == told[0]["data"]["deadline_at_ms"]
            assert status["deadlineGeneration"] == 1
            await desk.was_told(target, ("waiting", 1))
            assert (await desk.resume(target))["outcome"] == "resumed"
            await desk.agree(target)

        for _ in range(2):
            await many(50, one)


async def test_expire_against_resume_against_heartbeat_at_the_deadline(
    desk: Desk, space: Space
) -> None:
    chance = random.Random(SEED)
    async with serving(space, "r1"), serving(space, "r2"):
        clock = await BrokerTime.of(desk)

        async def one(number: int) -> str:
            deadline = clock.now_ms() + 700 + number % 20
            target = await minted(desk, deadline)

            async def late(work: Callable[[], Awaitable[Json]]) -> Json:
                await clock.at(deadline + chance.uniform(-15, 15))
                return await work()

            resume, beat, expire = await asyncio.gather(
                late(lambda: desk.resume(target, {"answer": number})),
                late(lambda: desk.heartbeat(target, 1)),
                late(lambda: desk.ask("expire", target, {})),
            )
            status = await desk.status(target)
            assert status is not None
            if status["state"] == "waiting":
                assert beat["outcome"] == "extended"
                assert expire["outcome"] in ("not-due", "deadline-moved")
                assert resume["outcome"] == "deadline-moved"
                await waits_whole(desk, target)
                assert (await desk.resume(target))["outcome"] == "resumed"
            await desk.agree(target)
            return str(status["state"])

        await many(60, one)


async def test_everything_at_once_over_two_replicas_that_redeliver(
    desk: Desk, space: Space
) -> None:
    """The durable is lost again and again while both serve: still one effect each."""
    async with serving(space, "r1"), serving(space, "r2", wheel=False):
        deadline = await desk.now_ms() + MINUTE_MS
        done = asyncio.Event()

        async def lose_the_durable() -> int:
            lost = 0
            while not done.is_set():
                try:
                    await desk.js.consumer_delete(desk.names.cmd_stream, desk.names.cp_durable)
                    lost += 1
                except ConsumerMissing:
                    pass  # it is not made again yet
                await asyncio.sleep(0.15)
            return lost

        losing = asyncio.create_task(lose_the_durable())

        async def one(number: int) -> None:
            target = await minted(desk, deadline)
            beat = await desk.heartbeat(target, 1)
            assert beat["outcome"] == "extended"
            told = await asyncio.gather(
                desk.resume(target, {"answer": "yes"}), desk.resume(target, {"answer": "no"})
            )
            assert sorted(one["outcome"] for one in told) == ["already-resumed", "resumed"]
            await desk.agree(target)

        try:
            for _ in range(3):
                await many(10, one)
        finally:
            done.set()
        assert await losing >= 1
        for seq in list(desk.heard):
            await desk.answered_once(seq)
