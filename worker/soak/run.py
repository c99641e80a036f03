"""``tidegate soak``: run traffic for as long as asked, and say what drifts."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.strict_json import JsonObject
from worker.bench import ground
from worker.errors import TidegateError
from worker.soak import drift, report, series
from worker.soak.ground import RES_MAX_AGE_MS, TRIM_MS, SoakGround
from worker.soak.sampling import Sampler
from worker.soak.tally import Tally
from worker.soak.traffic import Traffic

END_S: Final = 30.0
MINUTE_S: Final = 60.0
LOOK_S: Final = 0.5

Say = Callable[[str], None]
Ended = Literal["completed", "interrupted", "broken"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        minutes: How long.
        rate: Stories begun a second, each of several commands.
        seed: Where chance comes from.
    """

    minutes: float
    rate: float
    seed: int

    @property
    def length_s(self) -> float:
        """How long, in seconds."""
        return self.minutes * MINUTE_S

    @property
    def is_judged(self) -> bool:
        """Whether it is long enough for drift to be judged."""
        return self.length_s - drift.warm_up_s(self.length_s) >= drift.LEAST_S


@dataclass(slots=True)
class Course:
    """How a run went.

    Attributes:
        ended: How it ended.
        length_s: How long it lasted.
        minutes: What was done and what there was, minute by minute.
    """

    ended: Ended = "completed"
    length_s: float = 0.0
    minutes: list[JsonObject] = field(default_factory=list)


async def run(plan: Plan, say: Say) -> JsonObject:
    """Soak, and report; an interrupt or SIGTERM ends it early, with the report so far.

    Args:
        plan: What to run.
        say: Told what happens, and each minute's figures.

    Returns:
        The report; ``ok`` is false if anything drifts or went wrong.
    """
    stop = asyncio.Event()
    with _heeding(stop):
        return await _run(plan, say, stop)


async def _run(plan: Plan, say: Say, stop: asyncio.Event) -> JsonObject:
    tally, course = Tally(), Course()
    async with SoakGround.laid_out() as place, place.jetstream() as js:
        say("starting the worker")
        port = _free_port()
        await place.start_worker(
            health_port=port,
            snapshot_interval_ms=TRIM_MS,
            log_keep_ms=TRIM_MS,
            log_level="warning",
        )
        async with Traffic.on(place, tally, plan.seed) as traffic:
            if plan.is_judged:
                say("filling what the worker remembers")
                await traffic.fill()
            say(f"{plan.minutes:g} minutes of {plan.rate:g} stories a second")
            sampler = Sampler(place, js, port, time.monotonic())
            await _soak(plan, say, stop, traffic, sampler, course)
            faults = tally.faults_object()
            if course.ended == "completed":
                await traffic.end(END_S)
                faults = tally.faults_object()
    judged = series.judge_all(sampler.series, series.bounds(place.names), length_s=course.length_s)
    drifts = [one.bound.name for one in judged if one.judgement.verdict == "drifts"]
    ok = not drifts and not faults and course.ended != "broken"
    return {
        "v": 1,
        "soak": "mixed",
        "ok": ok,
        "ended": course.ended,
        "minutes": round(course.length_s / MINUTE_S, 2),
        "rate": plan.rate,
        "seed": plan.seed,
        "machine": ground.machine(),
        "settings": {"res_max_age_ms": RES_MAX_AGE_MS, "log_keep_ms": TRIM_MS},
        "stories": traffic.started,
        "late": traffic.late,
        "samples_missed": sampler.missed,
        "faults": faults,
        "drifts": drifts,
        "judged": [one.to_object() for one in judged],
        "grows_by_design": report.growth_by_design(sampler.series, place.names, course.length_s),
        "per_minute": course.minutes,
    }


async def _soak(
    plan: Plan,
    say: Say,
    stop: asyncio.Event,
    traffic: Traffic,
    sampler: Sampler,
    course: Course,
) -> None:
    """Run traffic and sampler until the time is up, we are told to stop, or a part of it dies."""
    began = minute_began = time.monotonic()
    interval_s = min(5.0, max(0.5, plan.length_s / 120))
    working = [
        asyncio.create_task(traffic.run(plan.rate), name="soak-traffic"),
        asyncio.create_task(sampler.run(interval_s), name="soak-sampler"),
    ]
    before: Mapping[str, float] = {}
    try:
        while (left_s := began + plan.length_s - time.monotonic()) > 0 and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, left_s)):
                    await stop.wait()
            trouble = await _trouble(sampler, working)
            if trouble:
                course.ended = "broken"
                traffic.tally.fault(trouble)
                break
            now = time.monotonic()
            if now - minute_began >= MINUTE_S or now >= began + plan.length_s:
                verbs = traffic.tally.turn_over(now - minute_began)
                minute = report.minute(len(course.minutes) + 1, verbs, sampler.latest, before)
                course.minutes.append(minute)
                say("\n".join(report.minute_lines(minute)))
                before, minute_began = sampler.latest, now
    finally:
        if stop.is_set():
            course.ended = "interrupted"
        course.length_s = time.monotonic() - began
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def _trouble(sampler: Sampler, working: list["asyncio.Task[None]"]) -> str:
    """What ended that must not; empty if nothing did."""
    for task in working:
        if task.done() and (error := task.exception()) is not None:
            return f"{task.get_name()}: {type(error).__name__}: {error}"
    try:
        sampler.check()
    except TidegateError as error:
        # An interrupt reaches the worker as well: what it ends is no trouble.
        await asyncio.sleep(LOOK_S)
        return error.message
    return ""


@contextlib.contextmanager
def _heeding(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
