"""Crash windows: a real process dies before or after any one write, and nothing is lost or doubled.

Each scenario is run once per write that it makes, twice over: the process kills itself just before
the write is sent, and just after it was acknowledged. Then a fresh worker takes over, from the same
data directory: the command is delivered again, the timer fires, the sweep passes. There must be one
effect, one result, and a fact that agrees.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schemas import subjects
from schemas.names import Names
from schemas.subjects import Checkpoint
from tests.support.cp import (
    MINUTE_MS,
    QUICK_ACK_WAIT_MS,
    Desk,
    Json,
    QuickSpace,
    Replica,
    a_target,
    desk_in,
    serving,
    until,
)
from tests.support.cp_process import ForkServer, Kill, Stream, fork_server
from tests.support.server import Server
from tests.support.space import Space
from worker.checkpoints import sweep
from worker.timers.writer import rfc3339

PROMPT = {"v": 1, "title": "Ship it?", "choices": ["yes", "no"]}
MOST_WRITES = 6

Prepare = Callable[[Desk, Checkpoint], Awaitable[Json]]
Provoke = Callable[[Desk, Checkpoint, Json], Awaitable[int | None]]
Judge = Callable[[Desk, Checkpoint, Json, Json | None], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """Something a worker does, and how it must have ended.

    Attributes:
        prepare: What stands before; its answer is handed on.
        provoke: Makes the worker do it; the command's sequence, if it is one.
        judge: Looks at how it ended; gets the command's result.
        streams: Which streams it writes to.
        wheel: Whether the worker's wheel is on.
        kinds: Public facts that must stand in the end.
        at_start: The worker does it by itself as it starts.
    """

    prepare: Prepare
    provoke: Provoke
    judge: Judge
    streams: Sequence[Stream]
    kinds: Sequence[tuple[str, int]]
    wheel: bool = False
    at_start: bool = False


async def nothing(desk: Desk, target: Checkpoint) -> Json:
    return {}


async def minted(desk: Desk, target: Checkpoint) -> Json:
    return dict((await desk.mint(target, prompt=PROMPT))["data"])


async def minted_soon(desk: Desk, target: Checkpoint) -> Json:
    return dict((await desk.mint(target, in_ms=1_000))["data"])


async def minted_with_a_slow_timer(desk: Desk, target: Checkpoint) -> Json:
    """The broker's schedule comes long after the wheel, so the wheel does everything alone."""
    told = await minted_soon(desk, target)
    armed = await desk.armed(target)
    assert armed is not None
    headers = {name: armed.headers[name] for name in armed.headers if "Schedule" in name}
    headers["Nats-Schedule"] = f"@at {rfc3339(told['deadline_at_ms'] + 1_500)}"
    await desk.js.publish(armed.subject, armed.data, headers=headers)
    return told


async def planted_overdue(desk: Desk, target: Checkpoint) -> Json:
    return await desk.plant(target, in_ms=-10_000)


async def disarmed(desk: Desk, target: Checkpoint) -> Json:
    told = await desk.mint(target)
    await desk.disarm(target)
    return dict(told["data"])


async def planted_unproven(desk: Desk, target: Checkpoint) -> Json:
    now = await desk.now_ms()
    return await desk.plant(
        target, in_ms=-10_000, state="expired", settledGeneration=1, settledTs=now
    )


async def mint(desk: Desk, target: Checkpoint, before: Json) -> int:
    deadline = await desk.now_ms() + MINUTE_MS
    return await desk.say("mint", target, {"deadline_at_ms": deadline, "prompt": PROMPT})


async def heartbeat(desk: Desk, target: Checkpoint, before: Json) -> int:
    deadline = await desk.now_ms() + 2 * MINUTE_MS
    return await desk.say("heartbeat", target, {"generation": 1, "deadline_at_ms": deadline})


async def resume(desk: Desk, target: Checkpoint, before: Json) -> int:
    return await desk.say("resume", target, {"answer": "yes"})


async def expire(desk: Desk, target: Checkpoint, before: Json) -> int:
    return await desk.say("expire", target, {})


async def late_heartbeat(desk: Desk, target: Checkpoint, before: Json) -> int:
    return await heartbeat(desk, target, before)


async def repair(desk: Desk, target: Checkpoint, before: Json) -> int:
    return await desk.say("repair", target, {})


async def wait_for_it(desk: Desk, target: Checkpoint, before: Json) -> None:
    """The deadline does it."""


async def request_a_timer(desk: Desk, target: Checkpoint, before: Json) -> None:
    owner = f"{desk.names.prefix}.ept.{target.wire_endpoint}.{'f' * 26}.3.{target.token}"
    body = {"v": 1, "timerId": target.token, "generation": 1, "deadline": before["deadline"]}
    await desk.js.publish(f"{owner}.schedule", json.dumps(body).encode())


async def planted(desk: Desk, target: Checkpoint) -> Json:
    return await desk.plant(target, in_ms=MINUTE_MS)


async def waits(desk: Desk, target: Checkpoint, generation: int) -> Json:
    """Require that it waits at a generation, with its timer armed for it."""
    status = await desk.status(target)
    assert status is not None
    assert (status["state"], status["deadlineGeneration"]) == ("waiting", generation)

    async def armed() -> bool:
        found = await desk.armed(target)
        if found is None:
            return False
        body = json.loads(found.data)
        return (body["generation"], body["deadline"]) == (generation, status["deadline"])

    await until(armed, what=f"{target} is armed for generation {generation}")
    assert await desk.fact(target) is None
    return status


async def was_minted(desk: Desk, target: Checkpoint, before: Json, told: Json | None) -> None:
    assert told is not None
    assert told["outcome"] == "minted"
    await waits(desk, target, 1)
    assert await desk.prompt(target) == PROMPT


async def was_extended(desk: Desk, target: Checkpoint, before: Json, told: Json | None) -> None:
    assert told is not None
    assert told["outcome"] == "extended"
    status = await waits(desk, target, 2)
    assert told["data"]["deadline_at_ms"] == status["deadline"]


async def was_resumed(desk: Desk, target: Checkpoint, before: Json, told: Json | None) -> None:
    assert told is not None
    assert told["outcome"] == "resumed"
    status = await desk.agree(target)
    assert status["state"] == "resumed"
    answers = await desk.stored(
        f"KV_{desk.names.records_bucket}",
        f"$KV.{desk.names.records_bucket}.answer.{target.wire_endpoint}.{target.token}.*",
    )
    assert [message.subject.rpartition(".")[2] for message in answers] == [
        status["settledAnswerId"]
    ]


async def was_expired(desk: Desk, target: Checkpoint, before: Json, told: Json | None) -> None:
    if told is not None:
        assert told["outcome"] in ("expired", "already_settled", "repaired")
    status = await desk.agree(target)
    assert (status["state"], status["settledGeneration"]) == ("expired", 1)


async def was_rearmed(desk: Desk, target: Checkpoint, before: Json, told: Json | None) -> None:
    assert told is not None
    assert told["status"] == "ok"
    await waits(desk, target, 1)


async def was_proven(desk: Desk, target: Checkpoint, before: Json, told: Json | None) -> None:
    assert told is not None
    assert told["status"] == "ok"
    assert await desk.agree(target) == before


async def foreign_was_armed(
    desk: Desk, target: Checkpoint, before: Json, told: Json | None
) -> None:
    async def armed() -> bool:
        return len(await desk.all_armed(target)) == 1

    await until(armed, what="the foreign timer is armed")
    assert (await desk.resume(target))["outcome"] == "resumed"
    await desk.agree(target)


SETTLING: Sequence[Stream] = ("records", "facts", "timers", "results")
WAITING, EXTENDED = ("waiting", 1), ("extended", 2)
RESUMED, EXPIRED = ("resumed", 1), ("expired", 1)

SCENARIOS: dict[str, Scenario] = {
    "mint": Scenario(nothing, mint, was_minted, ("records", "timers", "results"), [WAITING]),
    "heartbeat": Scenario(
        minted, heartbeat, was_extended, ("records", "timers", "results"), [EXTENDED, WAITING]
    ),
    "resume": Scenario(minted, resume, was_resumed, SETTLING, [RESUMED, WAITING]),
    "resume of another's": Scenario(planted, resume, was_resumed, SETTLING, [RESUMED]),
    "expire": Scenario(planted_overdue, expire, was_expired, SETTLING, [EXPIRED]),
    "late resume": Scenario(planted_overdue, resume, was_expired, SETTLING, [EXPIRED]),
    "late heartbeat": Scenario(planted_overdue, late_heartbeat, was_expired, SETTLING, [EXPIRED]),
    "repair of a timer": Scenario(disarmed, repair, was_rearmed, ("timers", "results"), [WAITING]),
    "repair of a fact": Scenario(
        planted_unproven, repair, was_proven, ("facts", "results"), [EXPIRED]
    ),
    "the wheel": Scenario(
        minted_soon, wait_for_it, was_expired, SETTLING, [EXPIRED, WAITING], wheel=True
    ),
    "the wheel alone": Scenario(
        minted_with_a_slow_timer,
        wait_for_it,
        was_expired,
        SETTLING,
        [EXPIRED, WAITING],
        wheel=True,
    ),
    "a fire": Scenario(minted_soon, wait_for_it, was_expired, SETTLING, [EXPIRED, WAITING]),
    "the sweep": Scenario(
        planted_overdue, wait_for_it, was_expired, SETTLING, [EXPIRED], at_start=True
    ),
    "a foreign request": Scenario(
        planted, request_a_timer, foreign_was_armed, ("timers",), [RESUMED]
    ),
}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("planes")) as server:
        yield server


GROUPS = (
    ("mint", "heartbeat", "a foreign request", "repair of a timer", "repair of a fact"),
    ("resume", "resume of another's", "late resume", "late heartbeat"),
    ("expire", "the wheel", "the wheel alone", "a fire", "the sweep"),
)
WITHOUT_TIMER = {
    *("resume of another's", "expire", "late resume", "late heartbeat"),
    *("the sweep", "a fire", "the wheel"),
}
"""These settle what may have no timer any more, so there is none to cancel."""


def test_every_scenario_is_run() -> None:
    assert sorted(name for group in GROUPS for name in group) == sorted(SCENARIOS)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: str(group[0]))
async def test_killed_at_any_write(
    server: Server,
    request: pytest.FixtureRequest,
    forks: ForkServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: Sequence[str],
) -> None:
    monkeypatch.setattr(sweep, "GRACE_MS", -1)
    numbers = request.getfixturevalue("_numbers")

    async def one(name: str, number: int) -> None:
        space = QuickSpace(server, Names("tidegate", f"t{number:03d}"), tmp_path / str(number))
        await space.set_up()
        async with desk_in(space) as desk:
            await _at_every_write(desk, space, forks, name)

    # Side by side, since each waits most of the time for the broker to hand out again.
    work = {name: asyncio.create_task(one(name, next(numbers))) for name in group}
    await asyncio.wait(work.values())
    for name, task in work.items():
        if (error := task.exception()) is not None:
            error.add_note(f"in the scenario {name!r}")
            raise error


async def _at_every_write(desk: Desk, space: Space, forks: ForkServer, name: str) -> None:
    scenario, cases = SCENARIOS[name], 0
    for stream in scenario.streams:
        for nth in range(1, MOST_WRITES):
            killed = 0
            for when in ("before", "after"):
                killed += await _one(desk, space, forks, scenario, Kill(stream, nth, when))
            cases += killed
            if not killed:
                break
        else:
            raise AssertionError(f"more than {MOST_WRITES} writes to {stream}")
    assert cases >= 2 * len(scenario.streams) - 2 * (name in WITHOUT_TIMER), cases


async def _one(desk: Desk, space: Space, forks: ForkServer, scenario: Scenario, kill: Kill) -> bool:
    """Run a scenario, kill it at one write, let a fresh worker take over, and judge.

    Returns:
        Whether there was such a write.
    """
    target = a_target()
    how: dict[str, Any] = {"wheel": scenario.wheel, "ack_wait_ms": QUICK_ACK_WAIT_MS}
    before: Json = {}
    if scenario.at_start:
        before = await scenario.prepare(desk, target)
    victim = forks.start(space, kill=kill, armed=scenario.at_start, **how)
    await victim.ready()
    if not scenario.at_start:
        before = await scenario.prepare(desk, target)
        await victim.arm()
    seq = await scenario.provoke(desk, target, before)

    async def over() -> bool:
        if not victim.alive:
            return True
        if seq is not None:
            return bool(desk.heard.get(seq))
        status = await desk.status(target)
        settled = status is not None and status["state"] != "waiting"
        told = any(fact.kind == "expired" for fact in await desk.facts(target))
        asked = scenario.provoke is request_a_timer and await desk.all_armed(target)
        return bool(asked or (settled and told and not await desk.all_armed(target)))

    await until(over, what=f"{kill} ends the process, or it is done")
    # What follows the last write (an acknowledgement) is left to happen.
    await asyncio.sleep(0.02)
    killed = not victim.alive
    await victim.kill()
    async with serving(space, sweep_interval_ms=3_600_000, **how) as replica:
        told = None if seq is None else await desk.result(seq)
        await scenario.judge(desk, target, before, told)
        await _afterwards(desk, replica, scenario, target, seq)
    return killed


async def _afterwards(
    desk: Desk, replica: Replica, scenario: Scenario, target: Checkpoint, seq: int | None
) -> None:
    """The sweep passes twice; in the end everything stands, once, and nothing moves any more."""
    for durable in (desk.names.cp_durable, desk.names.timers_durable, desk.names.fires_durable):
        await desk.handled(durable, 0)
    await replica.swept()

    async def all_told() -> bool:
        return await desk.kinds(target) == sorted(scenario.kinds)

    await until(all_told, what=f"observers are told of {target}: {scenario.kinds}")
    if seq is not None:
        await desk.answered_once(seq)
    facts = await desk.stored(desk.names.epf_stream, subjects.settle_fact(desk.names, target))
    assert len(facts) <= 1
    status, armed = await desk.status_at(target), await desk.all_armed(target)
    await replica.swept()
    assert await desk.status_at(target) == status
    assert await desk.all_armed(target) == armed
