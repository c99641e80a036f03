"""One run: an arena, traffic, the faults of a seed, then quiet, everything read back and judged."""

import asyncio
import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from tests.nemesis.arena.arena import READY_S, SPACE, Arena
from tests.nemesis.history import answers, checker, checkpoints, events, reading
from tests.nemesis.history.events import Stored
from tests.nemesis.history.past import History, Violation
from tests.nemesis.history.recorder import Recorder
from tests.nemesis.injecting import Nemesis
from tests.nemesis.schedule import plan
from tests.nemesis.traffic.crowd import Crowd, observing
from tests.nemesis.traffic.turns import SEATS
from worker.bench import folds
from worker.spaces import LEDGER_FILE, space_dir

CALM_S = 60.0
"""Longest time until nothing is owed any more."""

SHORT_S = 10.0
"""A run of so many seconds is a short one."""

OWED = frozenset(
    {
        "no-result",
        "never-settled",
        "fact-missing",
        "observers-differ",
        "timer-left",
        "settlement-differs",
    }
)
"""Verdicts that time may still put right."""

FOREVER_MS = 1 << 62


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        path: The history's file.
        violations: Promises broken.
        summary: One line for a person.
    """

    path: Path
    violations: list[Violation]
    summary: str


async def run(seed: int, seconds: float, brokers: int, directory: Path) -> Outcome:
    """Run one seed.

    Args:
        seed: Of the schedule and of the traffic.
        seconds: Of faults.
        brokers: 1 or 3.
        directory: Where everything is kept.
    """
    planned = plan(seed, seconds, brokers)
    print(f"seed {seed}, {brokers} broker(s), {seconds:g} s:", *planned, sep="\n  ")
    path = directory / f"history-{seed}.jsonl"
    recorder = Recorder(path)
    began = events.Began(
        at_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        seed=seed,
        space=SPACE,
        seats=SEATS,
    )
    recorder.add(began)
    clock = [time.monotonic()]
    try:
        async with Arena(directory / "arena", brokers, recorder) as arena:
            clock.append(time.monotonic())
            async with observing(arena):
                crowd = Crowd(arena, seed, short=seconds <= SHORT_S)
                await crowd.begin()
                try:
                    await Nemesis(arena).run(planned, seconds)
                finally:
                    clock.append(time.monotonic())
                    await crowd.end()
                await _calm_down(arena, began)
            await _read_back(arena)
            clock.append(time.monotonic())
    finally:
        recorder.close()
    recorded = list(events.read(path))
    found = checker.check(recorded)
    return Outcome(path, found, _summary(recorded, clock))


async def _calm_down(arena: Arena, began: events.Began) -> None:
    """Wait until both workers are ready and nothing is owed any more, or time is up."""
    await asyncio.gather(*(slot.wait_ready(READY_S) for slot in arena.slots))

    def owed(found: list[Stored]) -> list[str]:
        past = History.of([began, *found, events.Ended(at_ns=0, now_ms=FOREVER_MS)])
        return [
            str(violation)
            for judge in (answers, checkpoints)
            for violation in judge.check(past)
            if violation.verdict in OWED
        ]

    await reading.settled_space(arena.js, arena.names, owed, CALM_S)


async def _read_back(arena: Arena) -> None:
    """Record what the streams hold, then what the workers' ledgers do."""
    js, names = arena.js, arena.names
    for message in await reading.patiently(lambda: reading.read_space(js, names), CALM_S):
        arena.recorder.add(message)
    codes = await asyncio.gather(*(slot.stop() for slot in arena.slots))
    assert codes == [0] * len(codes), f"the workers ended with {codes}"
    log = await reading.patiently(lambda: folds.read_log(js, names), CALM_S)
    ledgers = {
        slot.name: space_dir(slot.disk.path, names.space) / LEDGER_FILE for slot in arena.slots
    }
    folder = arena.directory / "folded-anew"
    async for replica in reading.replicas(log, names, ledgers, folder):
        arena.recorder.add(replica)
    arena.recorder.add(events.Ended(at_ns=time.monotonic_ns(), now_ms=time.time_ns() // 1_000_000))


def _summary(recorded: list[events.Event], clock: list[float]) -> str:
    past = History.of(recorded)
    unknown = sum(call.result is None for call in past.calls.values())
    settled = sum((m.body or {}).get("state") != "waiting" for m in past.stored["records"])
    allowed = sum(permit.allowed for permit in past.permits)
    faults = [e for e in recorded if isinstance(e, events.Injected)]
    begun = sum(fault.phase == "begin" for fault in faults)
    skipped = sum(fault.phase == "skipped" for fault in faults)
    ended = sum(fault.fault == "ended" for fault in faults)
    start, faulty, calm = (b - a for a, b in itertools.pairwise(clock))
    return (
        f"{begun} faults ({skipped} skipped, {ended} workers ended), {len(past.calls)} calls "
        f"({unknown} unknown), log {len(past.log)}, checkpoints {settled}, "
        f"permits {allowed}/{len(past.permits)}, dispatched {len(past.written)}, "
        f"heard {len(past.heard)}; start {start:.0f} s, faults {faulty:.0f} s, calm {calm:.0f} s"
    )
