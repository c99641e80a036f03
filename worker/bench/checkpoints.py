"""``tidegate bench checkpoints``: how fast runs pause and settle, and how late they expire."""

import asyncio
import time

from schemas import subjects
from schemas.records import SettleFact, TimerBody
from schemas.strict_json import JsonObject
from schemas.subjects import Checkpoint, Timer
from worker.bench import ground
from worker.bench.ground import Ground, Say, percentile, pipeline, soon_ms, spread, timed
from worker.bench.load import measured
from worker.bus.errors import MessageAbsent
from worker.bus.jetstream import JetStream
from worker.client import Client

ENDPOINT = "bench.runs"
FOREIGN_INSTANCE = "b" * 26
FAR_MS = 3_600_000
SPREAD_MS = 4_000
LEAD_MS = 3_000


async def run(count: int, say: Say) -> JsonObject:
    """Measure everything once, on a broker with ``sync_interval: always``.

    Args:
        count: Checkpoints per figure.
        say: Told what is being measured.

    Returns:
        The figures; rates per second, durations in milliseconds.
    """
    async with Ground.prepared() as place, place.jetstream() as js:
        say("measuring the raw broker")
        raw = await ground.ceilings(js, count)
        say("starting the worker")
        await place.start_worker()
        idle_mb = place.worker_memory_mb()
        async with place.client("bench") as client:
            say(f"minting and settling {count} checkpoints, {ground.IN_FLIGHT} in flight")
            minted = await measured(place, count, lambda n: _mint(client, f"m{n}", soon_ms(FAR_MS)))
            armed = await _arm_foreign(js, place, client, count)
            settled = await measured(place, count, lambda n: client.cp.resume(ENDPOINT, f"m{n}"))
            say("measuring the latency of one settlement at a time")
            few = max(50, count // 10)
            await pipeline(few, lambda n: _mint(client, f"l{n}", soon_ms(FAR_MS)))
            took = await timed(few, lambda n: client.cp.resume(ENDPOINT, f"l{n}"))
            say("measuring how late deadlines expire, through the wheel")
            wheel = await lateness(js, place, client, "w", few)
        busy_mb = place.worker_memory_mb()
        await place.stop_worker()
        say("measuring how late deadlines expire, through the broker alone")
        await place.start_worker(wheel="false")
        async with place.client("bench") as client:
            broker = await lateness(js, place, client, "b", few)
    return {
        "v": 1,
        "bench": "checkpoints",
        "count": count,
        "in_flight": ground.IN_FLIGHT,
        "sync": "always",
        "machine": ground.machine(),
        "minted_per_s": minted.per_s,
        "minted_to_raw_cas": round(minted.rate.per_s / raw.cas_per_s, 3),
        "minted_bound": minted.bound(),
        "armed_per_s": round(armed, 1),
        "settled_per_s": settled.per_s,
        "settled_bound": settled.bound(),
        "settle_p50_ms": round(percentile(took, 50), 2),
        "settle_p99_ms": round(percentile(took, 99), 2),
        "lateness_wheel": spread(wheel),
        "lateness_broker": spread(broker),
        "raw_publish_per_s": round(raw.publish_per_s, 1),
        "raw_cas_per_s": round(raw.cas_per_s, 1),
        "settled_to_raw_cas": round(settled.rate.per_s / raw.cas_per_s, 3),
        "worker_idle_mb": round(idle_mb, 1),
        "worker_busy_mb": round(busy_mb, 1),
    }


async def _mint(client: Client, token: str, deadline_at_ms: int) -> None:
    await client.cp.mint(ENDPOINT, token, deadline_at_ms=deadline_at_ms)


async def _arm_foreign(js: JetStream, place: Ground, client: Client, count: int) -> float:
    """Ask for timers as a foreign owner would, and see them all armed."""
    deadlines = {
        item.token: item.deadline_at_ms
        async for page in client.cp.pages(endpoint=ENDPOINT)
        for item in page.items
    }
    tokens = list(deadlines)[:count]
    pattern = f"{place.names.prefix}.ept.*.{FOREIGN_INSTANCE}.*.*.armed"
    started = time.perf_counter()

    async def ask(number: int) -> None:
        token = tokens[number]
        owner = Timer(ENDPOINT, FOREIGN_INSTANCE, "0", token, "schedule")
        body = TimerBody(v=1, timerId=token, generation=1, deadline=deadlines[token])
        await client.conn.request(subjects.timer(place.names, owner, "schedule"), body.to_bytes())

    await pipeline(len(tokens), ask)
    while True:
        standing = 0
        async for subjects_page in js.subject_pages(place.names.ept_stream, pattern):
            standing += len(subjects_page)
        if standing >= len(tokens):
            return len(tokens) / (time.perf_counter() - started)
        await asyncio.sleep(0.01)


async def lateness(
    js: JetStream, place: Ground, client: Client, prefix: str, count: int
) -> list[float]:
    """Milliseconds from each deadline to its settle fact, both by the broker's clock."""
    base_ms = soon_ms(LEAD_MS)
    deadlines = {f"{prefix}{n}": base_ms + n * SPREAD_MS // count for n in range(count)}
    await asyncio.gather(*(_mint(client, token, at) for token, at in deadlines.items()))
    late = []
    for token, deadline_ms in deadlines.items():
        await client.cp.wait_settled(ENDPOINT, token, timeout_ms=30_000)
        subject = subjects.settle_fact(place.names, Checkpoint(ENDPOINT, token))
        message = await js.last_message(place.names.epf_stream, subject)
        if message is None:
            raise MessageAbsent("a settled checkpoint has no settle fact", subject=subject)
        fact = SettleFact.from_bytes(message.data)
        late.append(message.time_ns / 1e6 - deadline_ms)
        if fact.settle != "expired" or fact.ts < deadline_ms:
            raise ground.BenchError("a checkpoint settled before its deadline")
    return late
