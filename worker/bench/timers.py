"""``tidegate bench timers``: many pending deadlines at once, and how they all expire.

Every deadline is pending before the first one falls due. Which checkpoint falls due when follows
from its number, so that the facts alone tell how late each was and that each settled once. The last
to fall due is minted first: should minting take longer than was foreseen, it ends early, and all
that were minted still wait together.
"""

import asyncio
import time
from array import array
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

from schemas import headers as h
from schemas import subjects
from schemas.commands.cp import Mint
from schemas.records import SettleFact
from schemas.strict_json import JsonObject
from schemas.subjects import Checkpoint
from worker.bench import ground
from worker.bench.ground import BenchError, Ground, Say, pipeline, soon_ms, spread
from worker.bench.load import machine_s
from worker.bus.follow import FilteredReader
from worker.bus.jetstream import JetStream
from worker.client import Client

ENDPOINT: Final = "bench.timers"
WARM_ENDPOINT: Final = "bench.warm"
WARM: Final = 2_000
"""Checkpoints minted and settled beforehand: they tell the rates and warm the worker's caches."""

FAR_MS: Final = 24 * 3_600_000
AHEAD: Final = 4
"""How many times what the workers work on at once may be stored before they come to it."""

PAGE: Final = 1_000
EDGE: Final = 10
"""Pages at the start and at the end of a list whose time is told."""

LIST_PER_S: Final = 10_000
INDEX_PER_S: Final = 8_000
"""Rates low enough to foresee how long a list and a new index will take."""

MARGIN: Final = 1.35
"""How much longer than foreseen minting may take before deadlines fall due."""

PATIENCE_MS: Final = 600_000
"""How long one mint may take: a machine that stalls for a minute spoils no run of an hour."""

SETTLE_DOWN_S: Final = 3.0
IDLE_S: Final = 10.0
STALL_S: Final = 120.0
RESTART_S: Final = 600.0
LIMIT_BYTES: Final = 1_536
"""What one pending timer may take of the worker's memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which checkpoint falls due when.

    Attributes:
        count: How many.
        end_ms: When number 0, the last, falls due.
        per_s: How many fall due a second.
    """

    count: int
    end_ms: int
    per_s: float

    def deadline_ms(self, number: int) -> int:
        """When the checkpoint of this number falls due."""
        return self.end_ms - int(number * 1000 / self.per_s)

    def left_s(self, number: int | None = None) -> float:
        """Seconds until a number falls due; the first to do so if none is given."""
        number = self.count - 1 if number is None else number
        return (self.deadline_ms(number) - soon_ms(0)) / 1000

    @staticmethod
    def token(number: int) -> str:
        """The token of this number."""
        return f"t{number:08d}"

    def number(self, token: str) -> int:
        """The number of this token.

        Raises:
            BenchError: It is none of these.
        """
        number = int(token[1:])
        if not 0 <= number < self.count:
            raise BenchError(f"nobody minted {token}")
        return number


async def run(
    pending: int,
    per_s: float | None,
    lead_s: float | None,
    say: Say,
    *,
    in_flight: int = ground.IN_FLIGHT,
    minters: int = 1,
    for_s: float | None = None,
) -> JsonObject:
    """Measure once, on a broker with ``sync_interval: always``.

    Args:
        pending: How many deadlines are pending at once.
        per_s: How many fall due a second; half of the settle rate of this run if absent.
        lead_s: Seconds from the first mint to the first deadline; foreseen if absent.
        say: Told what is being measured.
        in_flight: Commands under way at once, and how many the worker works on.
        minters: How many workers mint; all but one are stopped then.
        for_s: Seconds after the first deadline when to stop waiting; until all expired if absent.

    Returns:
        The figures; rates per second, durations in milliseconds, memory of whole processes in MB.

    Raises:
        BenchError: Something expired early, twice or not at all, or minting took too long.
    """
    async with Ground.prepared() as place, place.jetstream() as js:
        say("measuring the raw broker")
        raw = await ground.ceilings(js, WARM)
        await place.start_worker(cp_in_flight=in_flight)
        idle_mb = place.worker_memory_mb()
        async with place.client("bench") as client:
            bench = _Bench(place, js, client, say, in_flight, minters - 1)
            minting, settled = await bench.warm_up()
            await asyncio.sleep(SETTLE_DOWN_S)
            warm_mb, broker_mb = place.worker_memory_mb(), place.broker_memory_mb()
            per_s = per_s or settled / 2
            lead_s = lead_s or _lead_s(pending, minting)
            plan = Plan(pending, soon_ms(int((lead_s + pending / per_s) * 1000)), per_s)
            say(f"minting {pending:,}; from {lead_s:,.0f} s on {per_s:,.0f} fall due a second")
            count, minted = await bench.mint(plan)
            plan = replace(plan, count=count)
            listed = await bench.list(plan)
            held = await bench.at_rest(plan, warm_mb)
            held["broker_bytes_per_timer"] = _bytes_each(held["broker_mb"], broker_mb, count)
            if plan.left_s() < 0:
                raise BenchError(f"deadlines fell due too early: give more than {lead_s:,.0f} s")
            restarted = await bench.restarts(plan)
            in_time = plan.left_s() >= 0
            expired = await bench.expiries(plan, for_s)
    return {
        "v": 1,
        "bench": "timers",
        "asked": pending,
        "pending": count,
        "due_per_s": round(per_s, 1),
        "in_flight": in_flight,
        "minters": minters,
        "sync": "always",
        "machine": ground.machine(),
        "raw_publish_per_s": round(raw.publish_per_s, 1),
        "raw_cas_per_s": round(raw.cas_per_s, 1),
        "settled_per_s": round(settled, 1),
        "settled_to_raw_cas": round(settled / raw.cas_per_s, 3),
        **minted,
        "minted_to_raw_cas": round(minted["minted_per_s"] / raw.cas_per_s, 3),
        "worker_idle_mb": round(idle_mb, 1),
        "worker_warm_mb": round(warm_mb, 1),
        **held,
        "list": listed,
        "restart": restarted,
        "restarts_ended_in_time": in_time,
        "expiry": expired,
    }


def _lead_s(pending: int, minted_per_s: float) -> float:
    """How long after the first mint the first deadline may fall due."""
    return (
        _looking_s(pending)
        + 60
        + 2 * pending / LIST_PER_S
        + pending / INDEX_PER_S
        + MARGIN * pending / minted_per_s
    )


def _looking_s(pending: int) -> float:
    """How long looking at everything that waits may take, restarts aside."""
    return 30 + IDLE_S + pending / LIST_PER_S


def _bytes_each(now_mb: float, before_mb: float, count: int) -> int:
    return round((now_mb - before_mb) * 2**20 / count)


@dataclass(frozen=True, slots=True)
class _Bench:
    place: Ground
    js: JetStream
    client: Client
    say: Say
    in_flight: int
    replicas: int

    async def warm_up(self) -> tuple[float, float]:
        """Mint and settle a few; how many a second of each."""
        self.say(f"minting and settling {WARM:,}, {ground.IN_FLIGHT} in flight")
        cp, far = self.client.cp, soon_ms(FAR_MS)
        minted = await pipeline(
            WARM,
            lambda n: cp.mint(WARM_ENDPOINT, f"w{n}", deadline_at_ms=far),
            in_flight=ground.IN_FLIGHT,
        )
        settled = await pipeline(
            WARM, lambda n: cp.resume(WARM_ENDPOINT, f"w{n}"), in_flight=ground.IN_FLIGHT
        )
        return minted.per_s, settled.per_s

    async def mint(self, plan: Plan) -> tuple[int, JsonObject]:
        """Have them all minted, or as many as there is time for.

        The commands are stored ahead of the workers by no more than they work on at once, and
        nobody waits for a result: what was minted is counted afterwards.
        """
        tell = _Progress(self.say, "minted", plan.count)
        looking_s, count = _looking_s(plan.count), 0

        async def one(first: int, number: int) -> None:
            nonlocal count
            number += first
            if plan.left_s(number) < looking_s:
                return
            count = max(count, number + 1)
            target = Checkpoint(ENDPOINT, plan.token(number))
            await self.client.conn.request(
                subjects.checkpoint_command(names, speaker, "mint", target),
                Mint(v=1, deadline_at_ms=plan.deadline_ms(number)).to_bytes(),
                headers={h.COMMAND: f"mint-{number:012d}"},
                timeout_ms=PATIENCE_MS,
            )

        names, speaker = self.place.names, self.client.speaker
        ahead = AHEAD * self.in_flight * (1 + self.replicas)
        before, started = self.place.processor_s(), time.perf_counter()
        await self.place.start_replicas(self.replicas, cp_in_flight=self.in_flight)
        for first in range(0, plan.count, ahead // 2):
            most = min(ahead // 2, plan.count - first)
            await pipeline(most, partial(one, first))
            await self._until_served(ahead // 2)
            tell.reached(first + most)
            if count < first + most:
                break
        await self._until_served(0)
        took_s = time.perf_counter() - started
        used = self.place.processor_s()
        await self.place.stop_replicas()
        return count, {
            "minted_per_s": round(count / took_s, 1),
            "minting_s": round(took_s, 1),
            "minting_cores": {
                name: round((used[name] - before[name]) / took_s, 2) for name in used
            },
        }

    async def _until_served(self, most: int) -> None:
        """Wait until no more than so many commands wait or are being worked on."""
        names = self.place.names
        while True:
            consumer = await self.js.consumer_info(names.cmd_stream, names.cp_durable)
            if consumer.pending + consumer.ack_pending <= most:
                return
            await asyncio.sleep(0.02)

    async def list(self, plan: Plan) -> JsonObject:
        """List everything that waits, page by page, and see that each is there once."""
        self.say("listing them")
        await asyncio.sleep(SETTLE_DOWN_S)  # the index follows the records
        seen, order, took = bytearray(plan.count), [-1], []
        started = time.perf_counter()
        async for page in self.client.cp.pages(endpoint=ENDPOINT, limit=PAGE):
            took.append((time.perf_counter() - started) * 1000)
            for item in page.items:
                seen[plan.number(item.token)] += 1
            order += [item.deadline_at_ms for item in page.items]
            started = time.perf_counter()
        whole = seen.count(1) == plan.count
        if any(after < before for before, after in pairwise(order)):
            raise BenchError("a list is not in the order of deadlines")
        if not whole and plan.left_s() > 0:
            raise BenchError(f"a list of {plan.count:,} named {seen.count(1):,} once")
        return {
            "whole": whole,
            "pages": len(took),
            "page": PAGE,
            "first_pages_ms": round(sum(took[:EDGE]) / len(took[:EDGE]), 2),
            "last_pages_ms": round(sum(took[-EDGE:]) / len(took[-EDGE:]), 2),
            "all_s": round(sum(took) / 1000, 2),
        }

    async def at_rest(self, plan: Plan, warm_mb: float) -> JsonObject:
        """Memory, disk and processor time with all pending and nothing to do."""
        self.say("looking at memory, disk and processor")
        await asyncio.sleep(SETTLE_DOWN_S)
        cores = await self._idle_cores()
        worker_mb, broker_mb = self.place.worker_memory_mb(), self.place.broker_memory_mb()
        index = self.place.folder / "data" / ground.SPACE / "waiting.db"
        each = _bytes_each(worker_mb, warm_mb, plan.count)
        return {
            "worker_mb": round(worker_mb, 1),
            "worker_bytes_per_timer": each,
            "worker_within_limit": each <= LIMIT_BYTES,
            "broker_mb": round(broker_mb, 1),
            "store_mb": round(await asyncio.to_thread(self.place.store_mb), 1),
            "index_mb": round(index.stat().st_size / 2**20, 1),
            "idle_cores": cores,
        }

    async def _idle_cores(self) -> JsonObject:
        before, started = self.place.processor_s(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        took_s = time.monotonic() - started
        used = self.place.processor_s()
        return {
            name: round((used[name] - before[name]) / took_s, 4) for name in ("worker", "broker")
        }

    async def restarts(self, plan: Plan) -> JsonObject:
        """Restart with everything pending: with its index, and with none."""
        found: JsonObject = {}
        if plan.left_s() > 30 + plan.count / LIST_PER_S:
            found["index_kept"] = await self._restart(plan, keep=True)
        if plan.left_s() > 30 + plan.count / LIST_PER_S + plan.count / INDEX_PER_S:
            found["index_lost"] = await self._restart(plan, keep=False)
        return found

    async def _restart(self, plan: Plan, *, keep: bool) -> JsonObject:
        self.say(f"restarting the worker, {'with' if keep else 'without'} its index")
        started = time.perf_counter()
        await self.place.stop_worker()
        stopped = time.perf_counter()
        if not keep:
            for path in (self.place.folder / "data" / ground.SPACE).glob("waiting.db*"):
                path.unlink()
        await self.place.start_worker(cp_in_flight=self.in_flight)
        ready = time.perf_counter()
        while not await self._caught_up():
            if time.perf_counter() - ready > RESTART_S:
                raise BenchError("the index does not catch up")
            await asyncio.sleep(0.05)
        full = time.perf_counter()
        await asyncio.sleep(SETTLE_DOWN_S)
        resident_mb = self.place.worker_memory_mb()
        await self.list(plan)
        return {
            "stopped_ms": round((stopped - started) * 1000),
            "ready_ms": round((ready - stopped) * 1000),
            "index_full_ms": round((full - stopped) * 1000),
            "worker_mb": round(resident_mb, 1),
        }

    async def _caught_up(self) -> bool:
        planes = (await self.client.status(timeout_ms=60_000))["planes"]
        return bool(planes["checkpoints"]["index_caught_up"])

    async def expiries(self, plan: Plan, for_s: float | None) -> JsonObject:
        """Wait until all have expired; how late each was, and that each was told of once."""
        self.say(f"waiting {max(0, plan.left_s()):,.0f} s for the first deadline")
        await asyncio.sleep(max(0, plan.left_s()))
        before, started = self.place.processor_s(), time.monotonic()
        busy_s = machine_s()
        facts = await self._until_settled(plan, for_s)
        took_s, busy_s = time.monotonic() - started, machine_s() - busy_s
        due = sum(plan.left_s(number) < 0 for number in range(plan.count))
        used = self.place.processor_s()
        # What follows a settlement, telling observers and ending the timer, may be under way.
        await asyncio.sleep(SETTLE_DOWN_S)
        self.say("reading every fact")
        late = await self._late(plan, facts)
        told = await self._told(plan)
        if for_s is None and not len(late) == told == plan.count:
            raise BenchError(f"{len(late):,} of {plan.count:,} expired, {told:,} were told of")
        return {
            "took_s": round(took_s, 1),
            "per_s": round(len(late) / took_s, 1),
            "cores": {name: round((used[name] - before[name]) / took_s, 2) for name in used},
            "machine_cores": round(busy_s / took_s, 2),
            "due": due,
            "expired_once": len(late),
            "told_once": told,
            "lateness": spread(late),
            "worker_mb_afterwards": round(self.place.worker_memory_mb(), 1),
        }

    async def _until_settled(self, plan: Plan, for_s: float | None) -> int:
        """Wait until all have settled or the time is up; how many facts there are then."""
        stream, most = self.place.names.epf_stream, plan.count + WARM
        tell = _Progress(self.say, "expired", plan.count)
        settled, started = 0, time.monotonic()
        since = started
        while settled < most and (for_s is None or time.monotonic() - started < for_s):
            await asyncio.sleep(1)
            now = (await self.js.stream_info(stream)).messages
            if now != settled:
                settled, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                raise BenchError(f"only {settled - WARM:,} of {plan.count:,} expired")
            tell.reached(settled - WARM)
        return settled

    async def _late(self, plan: Plan, facts: int) -> "array[float]":
        """Milliseconds from each deadline to its settle fact, both by the broker's clock."""
        names, late, counts = self.place.names, array("d"), bytearray(plan.count)
        pattern = f"{names.prefix}.epf.*.cp.*"
        reader = await FilteredReader.open(self.js, names.epf_stream, pattern)
        try:
            read = 0
            while read < facts:
                messages = await reader.next_batch(min(2_048, facts - read), 10_000)
                if not messages:
                    raise BenchError("the settle facts end early")
                read += len(messages)
                for message in messages:
                    target = subjects.parse_settle_fact(names, message.subject)
                    if target is None or target.endpoint != ENDPOINT:
                        continue
                    number = plan.number(target.token)
                    fact = SettleFact.from_bytes(message.data)
                    due_ms = plan.deadline_ms(number)
                    if fact.settle != "expired" or fact.ts < due_ms or counts[number]:
                        raise BenchError(f"{target.token} is {fact.settle}, early, or told twice")
                    counts[number] = 1
                    late.append(message.time_ns / 1e6 - due_ms)
        finally:
            await reader.close()
        return late

    async def _told(self, plan: Plan) -> int:
        """How many expiries observers were told of, each exactly once."""
        names, counts = self.place.names, bytearray(plan.count)
        pattern = f"{names.prefix}.fact.cp.expired.*.*.*"
        reader = await FilteredReader.open(self.js, names.res_stream, pattern, headers_only=True)
        try:
            async for messages in reader.to_the_end(2_048, 10_000):
                for message in messages:
                    parsed = subjects.parse_checkpoint_fact(names, message.subject)
                    if parsed is None or parsed[1].endpoint != ENDPOINT:
                        continue
                    number = plan.number(parsed[1].token)
                    if counts[number]:
                        raise BenchError("observers were told twice of one expiry")
                    counts[number] = 1
        finally:
            await reader.close()
        return sum(counts)


class _Progress:
    """Says how far something is, every so often."""

    def __init__(self, say: Say, what: str, count: int) -> None:
        self._say = say
        self._what = what
        self._count = count
        self._next = self._step = max(1, count // 20)

    def reached(self, number: int) -> None:
        if number >= self._next and self._count >= 20_000:
            self._say(f"{self._what} {number:,} of {self._count:,}")
            self._next = number - number % self._step + self._step
