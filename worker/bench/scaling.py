"""Scaling curves: more pending deadlines, longer queues, more replicas."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from schemas import subjects
from schemas.admission import Grant
from schemas.strict_json import JsonObject
from worker.bench import admission, checkpoints, ground, timers
from worker.bench.ground import Ground, Say, percentile, pipeline, saying, soon_ms
from worker.bench.load import measured
from worker.bus.subscription import Msg
from worker.client import Client
from worker.client.admission import Fence
from worker.client.hearing import is_stored

FEWEST_TIMERS: Final = 1_000
FEWEST_TURNS: Final = 100
HANDOVERS: Final = 50
"""Seats handed from one turn to the next, per length of the queue."""

MOST_REPLICAS: Final = 4
FAR_MS: Final = 3_600_000


async def curves(count: int, max_timers: int, max_turns: int, say: Say) -> JsonObject:
    """All of them; each is a list of points.

    Args:
        count: Checkpoints that are settled per number of replicas.
        max_timers: Most deadlines that are pending at once.
        max_turns: Most turns that are queued at once.
        say: Told what is being measured.
    """
    pending = [
        await timers.run(number, None, None, saying(say, f"{number:,} pending timers"))
        for number in tenfold(FEWEST_TIMERS, max_timers)
    ]
    return {
        "sync": "always",
        "pending_timers": pending,
        "queued_turns": await queued_turns(max_turns, saying(say, "queued turns")),
        "replicas": await replicas(count, saying(say, "replicas")),
    }


def tenfold(least: int, most: int) -> Iterator[int]:
    """``least``, ten times as many, and so on up to ``most``, which ends it."""
    number = least
    while number < most:
        yield number
        number *= 10
    yield most


async def queued_turns(most: int, say: Say) -> list[JsonObject]:
    """What a decision costs and how long a seat is empty behind ever longer queues."""
    points = []
    async with Ground.prepared() as place:
        await place.start_worker()
        idle_mb, queued, ever = place.worker_memory_mb(), 0, 0
        async with place.client("bench") as client, place.client("_op-bench") as operator:
            seats = _Seats(client)
            await seats.listen()
            await operator.adm.claim_policy(1, max_active_turns=1, max_concurrent_starts=1)
            await operator.adm.drain(0)
            for wanted in tenfold(FEWEST_TURNS, most):
                say(f"{wanted:,}")
                await pipeline(wanted - queued, partial(_enqueue, client, ever))
                ever, queued = ever + wanted - queued, wanted
                resident_mb = place.worker_memory_mb()
                await operator.adm.drain(1)
                grant = await seats.next()
                took = []
                for _ in range(HANDOVERS):
                    started = time.perf_counter()
                    grant = await seats.hand_over(grant)
                    took.append((time.perf_counter() - started) * 1000)
                await operator.adm.drain(0)
                await seats.give_back(grant)
                queued -= HANDOVERS + 1
                path = place.folder / "decisions" / f"{wanted}.db"
                decided = await asyncio.to_thread(admission.decide, path, place.names, wanted)
                points.append(
                    {
                        "queued": wanted,
                        "decision_us": decided["us"],
                        "decision_instructions": decided["instructions"],
                        "seat_to_next_p50_ms": round(percentile(took, 50), 2),
                        "seat_to_next_p99_ms": round(percentile(took, 99), 2),
                        "worker_mb": round(resident_mb, 1),
                        "worker_bytes_per_turn": round((resident_mb - idle_mb) * 2**20 / wanted),
                    }
                )
    return points


async def replicas(count: int, say: Say) -> list[JsonObject]:
    """How many checkpoints settle a second with one to four workers."""
    points = []
    async with Ground.prepared() as place, place.jetstream() as js:
        raw = await ground.ceilings(js, count)
        await place.start_worker()
        async with place.client("bench") as client:
            for workers in range(1, MOST_REPLICAS + 1):
                say(f"{workers}")
                await place.start_replicas(workers - 1)
                point = await _settle(place, client, workers, count)
                await place.stop_replicas()
                points.append({**point, "raw_cas_per_s": round(raw.cas_per_s, 1)})
                points[-1]["settled_to_raw_cas"] = round(point["settled_per_s"] / raw.cas_per_s, 3)
    return points


async def _settle(place: Ground, client: Client, workers: int, count: int) -> JsonObject:
    cp, endpoint, far_ms = client.cp, checkpoints.ENDPOINT, soon_ms(FAR_MS)
    in_flight = ground.IN_FLIGHT * workers
    minted = await measured(
        place,
        count,
        lambda n: cp.mint(endpoint, f"r{workers}-{n}", deadline_at_ms=far_ms),
        in_flight=in_flight,
    )
    settled = await measured(
        place, count, lambda n: cp.resume(endpoint, f"r{workers}-{n}"), in_flight=in_flight
    )
    return {
        "workers": workers,
        "in_flight": in_flight,
        "minted_per_s": minted.per_s,
        "settled_per_s": settled.per_s,
        "settled_bound": settled.bound(),
    }


async def _enqueue(client: Client, first: int, number: int) -> None:
    await admission.enqueue(client, f"q{first + number:06d}")


class _Seats:
    """Hears of seats and hands them on.

    Args:
        client: Whose turns.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._granted: asyncio.Queue[Grant] = asyncio.Queue()

    async def listen(self) -> None:
        """Hear of every seat from now on."""
        pattern = subjects.grants_of(self._client.names, self._client.speaker)
        await self._client.conn.subscribe(pattern, self._on_grant)

    async def next(self) -> Grant:
        """The next seat."""
        async with asyncio.timeout(60):
            return await self._granted.get()

    async def hand_over(self, grant: Grant) -> Grant:
        """Give a seat back, and hear who has it now."""
        giving = asyncio.create_task(self.give_back(grant))
        try:
            return await self.next()
        finally:
            await giving

    async def give_back(self, grant: Grant) -> None:
        """End the turn that has a seat."""
        fence = Fence(grant.request_id, grant.lease_id, grant.generation)
        await self._client.adm.abandon(fence, "cancelled")

    async def _on_grant(self, msg: Msg) -> None:
        if is_stored(self._client.names, msg):
            self._granted.put_nowait(Grant.from_bytes(msg.data))
