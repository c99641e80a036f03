"""A worker whose wall clock is off: by less than a minute nothing, by more it settles nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.cp import MINUTE_MS, Desk, a_target, desk_in, serving
from tests.support.cp_process import ForkServer, PlaneProcess, fork_server
from tests.support.space import Space

HOUR_S = 3_600
LITTLE_S = 45
FAKETIME = [
    path
    for pattern in ("lib/*/faketime/libfaketime.so.1", "lib/faketime/libfaketime.so.1")
    for path in Path("/usr").glob(pattern)
]


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("planes")) as server:
        yield server


async def lives(desk: Desk) -> None:
    """Every rule that time has a part in."""
    resumed, moved, expired, overdue = (a_target() for _ in range(4))
    await desk.mint(resumed)
    assert (await desk.resume(resumed))["outcome"] == "resumed"
    await desk.mint(moved, in_ms=MINUTE_MS)
    assert (await desk.heartbeat(moved, 1, in_ms=400))["outcome"] == "extended"
    minted = await desk.mint(expired, in_ms=400)
    assert (await desk.ask("expire", expired, {}))["outcome"] in ("not-due", "already_settled")
    await desk.plant(overdue, in_ms=-1_000)
    assert (await desk.resume(overdue))["outcome"] == "expired"
    now = await desk.now_ms()
    for deadline in (now - 1, now + 11 * 366 * 24 * HOUR_S * 1_000):
        told = await desk.ask("mint", a_target(), {"deadline_at_ms": deadline})
        assert told["status"] == "refused"
    states = [(await desk.agree(one))["state"] for one in (resumed, moved, expired, overdue)]
    assert states == ["resumed", "expired", "expired", "expired"]
    status = await desk.status(expired)
    assert status is not None
    # Late by minutes would be the wall clock's doing; how late exactly is the machine's.
    assert 0 <= status["settledTs"] - minted["data"]["deadline_at_ms"] < MINUTE_MS
    spec = await desk.spec(resumed)
    assert spec is not None
    assert abs(spec["mintedAt"] - await desk.now_ms()) < MINUTE_MS


async def is_skewed(worker: PlaneProcess, seconds: int) -> None:
    await worker.ready()
    off_s = worker.wall_clock() - time.time()
    assert abs(off_s - seconds) < 30, "the worker's wall clock is not what it should be"


@pytest.mark.parametrize("seconds", [-LITTLE_S, LITTLE_S])
@pytest.mark.parametrize("wheel", [True, False])
async def test_a_worker_most_of_a_minute_off_does_everything_in_its_time(
    desk: Desk, space: Space, forks: ForkServer, seconds: int, wheel: bool
) -> None:
    worker = forks.start(space, wall_skew_s=seconds, wheel=wheel)
    try:
        await is_skewed(worker, seconds)
        await lives(desk)
    finally:
        await worker.kill()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_worker_an_hour_off_settles_nothing_and_leaves_it_to_the_others(
    desk: Desk, space: Space, hours: int
) -> None:
    def wall_ns() -> int:
        return time.time_ns() + off_s * 10**9

    off_s = 0
    due, waiting = a_target(), a_target()
    async with serving(space, "off", wall_ns=wall_ns, sweep_interval_ms=1_000) as replica:
        await desk.mint(due, in_ms=1_500)
        await desk.mint(waiting)
        off_s = hours * HOUR_S
        assert "this machine's" in " ".join(replica.plane.not_ready())
        resume = await desk.say("resume", waiting, {})
        while await desk.now_ms() < (await desk.status(due) or {})["deadline"] + 1_000:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for target in (due, waiting):
            assert (await desk.status(target) or {})["state"] == "waiting"
        async with serving(space, "right"):
            assert (await desk.agree(due))["state"] == "expired"
            assert (await desk.result(resume))["outcome"] == "resumed"


async def test_two_workers_that_are_off_either_way_agree(
    desk: Desk, space: Space, forks: ForkServer
) -> None:
    workers = [
        forks.start(space, replica=f"r{number}", wall_skew_s=skew)
        for number, skew in enumerate((-LITTLE_S, LITTLE_S))
    ]
    try:
        await asyncio.gather(*(worker.ready() for worker in workers))
        for _ in range(3):
            await lives(desk)
    finally:
        for worker in workers:
            await worker.kill()
    async with serving(space, "r9") as replica:
        await replica.swept()


@pytest.mark.parametrize("wheel", [True, False])
async def test_what_is_stored_after_the_deadline_loses_while_the_machines_clocks_stand_still(
    desk: Desk, space: Space, wheel: bool
) -> None:
    """A paused machine, whose clocks were paused with it, in the middle of its work."""
    paused_s = 0.0
    stood_at: float | None = None

    def monotonic() -> float:
        return (time.monotonic() if stood_at is None else stood_at) - paused_s

    def wall_ns() -> int:
        stood_s = 0.0 if stood_at is None else time.monotonic() - stood_at
        return time.time_ns() - int((paused_s + stood_s) * 1e9)

    async with serving(space, monotonic=monotonic, wall_ns=wall_ns, wheel=wheel):
        targets = [a_target() for _ in range(3)]
        deadline = await desk.now_ms() + 2_000
        for target in targets:
            await desk.mint(target, deadline_at_ms=deadline)
        stood_at = time.monotonic()
        while await desk.now_ms() < deadline:  # noqa: ASYNC110 - the broker's clock
            await asyncio.sleep(0.01)
        later = {"generation": 1, "deadline_at_ms": deadline + MINUTE_MS}
        seqs = [
            await desk.say("resume", targets[0], {}),
            await desk.say("heartbeat", targets[1], later),
            await desk.say("expire", targets[2], {}),
        ]
        # They go on from where they stood.
        paused_s, stood_at = time.monotonic() - stood_at, None
        for seq in seqs:
            assert (await desk.result(seq))["outcome"] in ("expired", "already_settled")
        for target in targets:
            assert (await desk.agree(target))["state"] == "expired"


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed")
@pytest.mark.parametrize("seconds", [-LITTLE_S, LITTLE_S])
async def test_a_worker_whose_whole_machine_is_off_does_everything_in_its_time(
    desk: Desk, space: Space, tmp_path: Path, seconds: int
) -> None:
    """As above, below the interpreter: every call for the time of day is off."""
    env = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with fork_server(tmp_path, env) as forks:
        worker = forks.start(space)
        try:
            await is_skewed(worker, seconds)
            await lives(desk)
        finally:
            await worker.kill()
