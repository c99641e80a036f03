"""``tidegate bench admission``: how fast turns queue, are seated and end, beside raw ceilings."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from schemas.names import Names
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.bench import folds, ground
from worker.bench.folds import Made, Script
from worker.bench.ground import BenchError, Ground, Say, percentile, pipeline
from worker.bench.load import measured
from worker.bus.jetstream import JetStream
from worker.client import Client
from worker.connector import Connector
from worker.ledger import store
from worker.ledger.fold import Fold
from worker.planes import PLANES

QUEUED: Final = (1_000, 10_000, 100_000)
"""Lengths of the queue at which a decision is measured."""

DECISIONS: Final = 200
AGENTS: Final = 50
MODELS: Final = 5
SEATS: Final = 64
CONNECTOR: Final = Speaker("bench", "b" * 26)
OPERATOR: Final = Speaker("_op-bench", "o" * 26)
BEGAN_MS: Final = 1_700_000_000_000


async def run(count: int, say: Say) -> JsonObject:
    """Measure live and folding, with a broker that syncs always and with its default.

    Args:
        count: Turns per figure.
        say: Told what is being measured.

    Returns:
        The figures; rates per second, durations in milliseconds.
    """
    figures: JsonObject = {}
    for name, always in (("always", True), ("default", False)):
        async with Ground.prepared(sync_always=always) as place, place.jetstream() as js:
            figures[name] = await _mode(place, js, count, ground.saying(say, name))
            if not always:
                say("folding and replaying that log without a broker's answers")
                figures["fold"] = await _fold(place, js, count)
                say(f"deciding with {', '.join(f'{n:,}' for n in QUEUED)} turns queued")
                figures["decision"] = await _decisions(place)
    return {
        "v": 1,
        "bench": "admission",
        "count": count,
        "in_flight": ground.IN_FLIGHT,
        "machine": ground.machine(),
        **figures,
    }


async def _mode(place: Ground, js: JetStream, count: int, say: Say) -> JsonObject:
    say("the raw broker")
    raw = await ground.ceilings(js, count)
    await place.start_worker()
    async with (
        place.client("_op-bench") as operator,
        place.client("bench") as client,
        Connector(client) as connector,
    ):
        await open_seats(operator)
        await pipeline(SEATS, lambda n: turn(connector, f"warm-{n}"))
        say(f"{count} turns from enqueue to completed, {ground.IN_FLIGHT} in flight")
        turns = await measured(place, count, lambda n: turn(connector, f"t{n}"))
        few = max(50, count // 10)
        say("seats, one at a time")
        seated = [await _seat(connector, f"s{n}") for n in range(few)]
        await operator.adm.drain(0)
        say(f"enqueueing {count} turns, {ground.IN_FLIGHT} in flight")
        queued = await measured(place, count, lambda n: enqueue(client, f"q{n}"))
    await place.stop_worker()
    return {
        "raw_publish_per_s": round(raw.publish_per_s, 1),
        "raw_cas_per_s": round(raw.cas_per_s, 1),
        "turns_per_s": turns.per_s,
        "turns_bound": turns.bound(),
        "turns_commands_to_raw_publish": round(5 * turns.rate.per_s / raw.publish_per_s, 3),
        "enqueued_per_s": queued.per_s,
        "enqueued_bound": queued.bound(),
        "enqueued_to_raw_publish": round(queued.rate.per_s / raw.publish_per_s, 3),
        "grant_p50_ms": round(percentile(seated, 50), 2),
        "grant_p99_ms": round(percentile(seated, 99), 2),
    }


async def open_seats(operator: Client) -> None:
    """Let as many turns be active as there are callers."""
    await operator.adm.claim_policy(1, max_active_turns=SEATS, max_concurrent_starts=SEATS)


async def turn(connector: Connector, request_id: str) -> None:
    """One whole turn: enqueued, seated, started, intended, active, completed."""
    async with connector.turn(request_id, **_fields(request_id)) as one:
        await one.start()
        await one.intent(channel="http")
        await one.active()
        await one.complete()


async def _seat(connector: Connector, request_id: str) -> float:
    """Milliseconds from the call that enqueues to the seat, which is then given back."""
    started = time.perf_counter()
    async with connector.turn(request_id, **_fields(request_id)):
        return (time.perf_counter() - started) * 1000


async def enqueue(client: Client, request_id: str) -> None:
    """Let one turn queue."""
    await client.adm.enqueue(request_id, **_fields(request_id))


def _fields(request_id: str) -> dict[str, Any]:
    number = sum(request_id.encode())
    return {
        "session_id": f"session-{number % AGENTS}",
        "agent_id": f"agent-{number % AGENTS}",
        "fingerprint": f"{request_id:0<64}",
        "provider": "acme",
        "model": f"model-{number % MODELS}",
    }


async def _fold(place: Ground, js: JetStream, count: int) -> JsonObject:
    """Fold what was recorded live: first the turns, then the enqueues."""
    log = await folds.read_log(js, place.names)
    ended = [n for n, message in enumerate(log) if ".adm.complete." in message.subject]
    if len(ended) < count:
        raise BenchError("the log holds fewer turns than were run")
    turns, rest = log[: ended[-1] + 1], log[ended[-1] + 1 :]
    paused = next(n for n, message in enumerate(rest) if ".adm.drain" in message.subject)
    between, enqueues = rest[: paused + 1], rest[paused + 1 :]
    folder = place.folder / "fold"
    rates = await folds.fold(folder / "said.db", place.names, turns, between, enqueues)
    replayed = await folds.replay(folder / "replayed.db", place.names, js)
    return {
        "commands": len(log),
        "turns_per_s": round(rates[0].per_s * len(ended) / len(turns), 1),
        "turn_commands_per_s": round(rates[0].per_s, 1),
        "enqueued_per_s": round(rates[2].per_s, 1),
        "replay_per_s": round(replayed.per_s, 1),
    }


async def _decisions(place: Ground) -> JsonObject:
    """What one admission costs behind queues of different lengths."""
    found: JsonObject = {}
    for queued in QUEUED:
        path = place.folder / "decisions" / f"{queued}.db"
        found[str(queued)] = decide(path, place.names, queued)
    least, most = found[str(QUEUED[0])], found[str(QUEUED[-1])]
    found["ratio_instructions"] = round(most["instructions"] / least["instructions"], 3)
    found["ratio_us"] = round(most["us"] / least["us"], 3)
    return found


def decide(path: Path, names: Names, queued: int) -> JsonObject:
    """What one decision costs behind a queue, folded into a file of its own."""
    db = store.open_ledger(path, names, PLANES)
    try:
        fold = Fold(db, names, PLANES)
        half = min(DECISIONS, queued - 2) // 2
        commands = _queue_and_decide(names, queued, 2 * half)
        _apply(fold, commands[: -2 * half], folds.BATCH)
        started = time.perf_counter()
        _apply(fold, commands[-2 * half : -half], half)
        took_s = time.perf_counter() - started
        instructions = _count(db, lambda: _apply(fold, commands[-half:], half))
        ((admissions,),) = db.execute("SELECT admissions FROM adm_limits").fetchall()
    finally:
        db.close()
    if admissions != 2 * half + 1:
        raise BenchError(f"{admissions} turns were admitted, not {2 * half + 1}")
    return {"us": round(took_s / half * 1e6, 1), "instructions": instructions // half}


def _queue_and_decide(names: Names, queued: int, decisions: int) -> Sequence[Made]:
    """A queue, one seat, and turns that each give it to the next one by ending."""
    script = Script(names)
    script.add(OPERATOR, "drain", at_ms=BEGAN_MS, body={"to": 0})
    for number in range(queued):
        fields = {
            "session_id": "session",
            "agent_id": f"agent-{number % AGENTS}",
            "fingerprint": "f",
            "provider": "acme",
            "model": f"model-{number % MODELS}",
        }
        at_ms = BEGAN_MS + number // 10
        script.add(CONNECTOR, "enqueue", f"r{number:06d}", at_ms=at_ms, body=fields)
    at_ms = BEGAN_MS + queued // 10
    seq = script.add(OPERATOR, "drain", at_ms=at_ms, body={"to": 1})
    for number in range(decisions):
        fence = {"lease_id": f"1-{seq}-{number + 1}", "generation": 1, "outcome": "failed"}
        seq = script.add(CONNECTOR, "abandon", f"r{number:06d}", at_ms=at_ms, body=fence)
    return script.messages


def _apply(fold: Fold, commands: Sequence[Made], batch: int) -> None:
    for start in range(0, len(commands), batch):
        fold.apply_batch(commands[start : start + batch], say_from_ms=folds.NEVER_SAID)


def _count(db: sqlite3.Connection, work: Callable[[], None]) -> int:
    """Instructions of SQLite's machine that some work takes."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    db.set_progress_handler(step, 1)
    try:
        work()
    finally:
        db.set_progress_handler(None, 1)
    return count
