"""Many pending timers while workers and broker are killed, and the reckoning afterwards."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

from schemas.names import kv_stream
from schemas.subjects import Checkpoint, parse_settle_fact
from tests.support.cp import Desk, Json, a_target, until
from tests.support.process import WorkerProcess, space_environment
from tests.support.space import Space
from worker.bus.errors import Unavailable

IN_FLIGHT = 100


class Storm:
    """Workers and a broker that die and come back.

    Attributes:
        deaths: How often each was killed.
    """

    def __init__(self, desk: Desk, space: Space, directory: Path, chance: random.Random) -> None:
        self._desk = desk
        self._space = space
        self._directory = directory
        self._chance = chance
        self._workers: dict[str, WorkerProcess] = {}
        self.deaths: Counter[str] = Counter()

    def start_worker(self, name: str) -> WorkerProcess:
        environment = space_environment(
            self._space,
            data_dir=self._space.data_dir / name,
            ack_wait_ms=1_000,
            sweep_interval_ms=2_000,
        )
        log = self._directory / f"{name}.log"
        self._workers[name] = worker = WorkerProcess(environment, log)
        return worker

    def log(self) -> str:
        """The end of each worker's log, for a failure."""
        return "\n".join(worker.log()[-2_000:] for worker in self._workers.values())

    async def strike(self, order: str) -> None:
        """Kill and start in an order: ``w`` and ``b`` kill, ``W`` and ``B`` start again.

        ``x`` is the second worker.
        """
        names = {"w": "r1", "x": "r2"}
        for step in order:
            if step == "b":
                await asyncio.to_thread(self._space.server.kill)
            elif step == "B":
                await asyncio.to_thread(self._space.server.start)
            elif step.islower():
                await asyncio.to_thread(self._workers[names[step]].kill)
            else:
                await asyncio.to_thread(self.start_worker, names[step.lower()])
            if step.islower():
                self.deaths[step] += 1
            await asyncio.sleep(self._chance.uniform(0, 0.3))

    def end(self) -> None:
        for worker in self._workers.values():
            worker.kill()


async def mint_many(
    desk: Desk, count: int, in_ms: int, spread_ms: int = 0
) -> dict[Checkpoint, int]:
    """Mint so many checkpoints, each due so long after it is asked for; their deadlines.

    However slow the machine is, every deadline lies ahead when it is asked for.
    """
    slots = asyncio.Semaphore(IN_FLIGHT)
    minted: dict[Checkpoint, int] = {}

    async def one(number: int) -> None:
        target = a_target()
        async with slots:
            deadline = await desk.now_ms() + in_ms + number * spread_ms // count
            told = await desk.ask("mint", target, {"deadline_at_ms": deadline})
        assert told["outcome"] == "minted", told
        minted[target] = deadline

    await asyncio.gather(*(one(number) for number in range(count)))
    return minted


async def resume_some(desk: Desk, targets: list[Checkpoint]) -> dict[Checkpoint, Json]:
    """Resume, whatever happens to broker and workers meanwhile; the results."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(target: Checkpoint) -> Json:
        async with slots:
            seq = await desk.insist("resume", target, {"answer": target.token})
            return await desk.result(seq, limit_s=60)

    told = await asyncio.gather(*(one(target) for target in targets))
    return dict(zip(targets, told, strict=True))


async def all_settled(desk: Desk, targets: dict[Checkpoint, int], limit_s: float) -> None:
    """Wait until every settle fact stands."""

    async def settled() -> bool:
        try:
            info = await desk.js.stream_info(desk.names.epf_stream)
        except Unavailable:
            return False
        return info.messages >= len(targets)

    await until(settled, what="everything settles", limit_s=limit_s)


async def reckon(
    desk: Desk, targets: dict[Checkpoint, int], decided: dict[Checkpoint, Json]
) -> Counter[str]:
    """Require one settlement, one settle fact and one public fact each, and nothing early.

    Returns:
        How many settled in which way.
    """
    names = desk.names
    seen: Counter[str] = Counter()
    facts = await desk.stored(names.epf_stream)
    per_target = Counter(parse_settle_fact(names, fact.subject) for fact in facts)
    assert per_target == Counter(targets.keys()), "a settlement is lost or doubled"
    settled = {parse_settle_fact(names, fact.subject): json.loads(fact.data) for fact in facts}
    statuses = {
        tuple(message.subject.split(".")[-3:-1]): (message, json.loads(message.data))
        for message in await desk.stored(
            kv_stream(names.records_bucket), f"$KV.{names.records_bucket}.cp.*.*.status"
        )
    }
    told = await _told(desk)
    for target, deadline in targets.items():
        message, status = statuses[target.wire_endpoint, target.token]
        fact = settled[target]
        assert status["deadline"] == deadline
        assert (fact["settle"], fact["generation"]) == (status["state"], 1)
        assert fact["ts"] == status["settledTs"]
        if status["state"] == "expired":
            assert fact["ts"] >= deadline, "it expired early"
            assert message.time_ms >= deadline, "it was stored as expired early"
        else:
            assert fact["ts"] < deadline
        assert told[target.token] == [status["state"]], target
        if target in decided:
            outcome = decided[target]["outcome"]
            assert outcome == status["state"], decided[target]
        else:
            assert status["state"] == "expired"
        seen[status["state"]] += 1
    return seen


async def _told(desk: Desk) -> dict[str, list[str]]:
    """Kinds of the settlements that observers were told, by token."""
    found: dict[str, list[str]] = {}
    for kind in ("resumed", "expired"):
        pattern = f"{desk.names.prefix}.fact.cp.{kind}.*.*.*"
        for message in await desk.stored(desk.names.res_stream, pattern):
            found.setdefault(message.subject.split(".")[-2], []).append(kind)
    return found


async def nothing_armed(desk: Desk) -> None:
    """Wait until no timer is left."""

    async def none() -> bool:
        return await desk.all_armed() == []

    await until(none, what="no timer is left", limit_s=60)
