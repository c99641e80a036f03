"""``tidegate bench caps``: how fast caps are kept, live and drained, beside the raw ceilings."""

import asyncio
import contextlib
import socket
import sqlite3
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from schemas import headers, strict_json, subjects
from schemas.names import Names
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.bench import folds, ground
from worker.bench.ground import BenchError, Ground, Rate, Say, percentile, pipeline, timed
from worker.bench.load import Load, cores, measured
from worker.bus.jetstream import JetStream
from worker.client import Client
from worker.ledger import store
from worker.ledger.database import Database
from worker.ledger.fold import LogMessage
from worker.planes import PLANES

FAR_MS: Final = 3_600_000
KEY: Final = "key-of-this-benchmark"
CAP: Final = 10
RESULT: Final = b"r" * 400
"""About the size of a result."""

IN_FLIGHT: Final = 256
"""Callers at once; fewer would all wait for the same batch and leave the pipeline half empty."""

WARM_UP: Final = 200


async def run(count: int, say: Say) -> JsonObject:
    """Measure live and drained, with a broker that syncs always and with its default.

    Args:
        count: Persons per figure.
        say: Told what is being measured.

    Returns:
        The figures; rates per second, durations in milliseconds.
    """
    modes: JsonObject = {}
    for name, always in (("always", True), ("default", False)):
        async with Ground.prepared(sync_always=always) as place, place.jetstream() as js:
            modes[name] = await _mode(place, js, count, ground.saying(say, name))
            if not always:
                say("folding and replaying the log without a broker's answers")
                modes["fold"] = await _fold(place, js)
    return {
        "v": 1,
        "bench": "caps",
        "count": count,
        "in_flight": IN_FLIGHT,
        "machine": ground.machine(),
        **modes,
    }


async def _mode(place: Ground, js: JetStream, count: int, say: Say) -> JsonObject:
    say("the raw broker")
    raw = await ground.ceilings(js, count)
    one_by_one = await _results_one_by_one(js, count)
    metrics = _Metrics()
    await place.start_worker(health_port=metrics.port)
    async with place.client("_op-bench") as operator, place.client("bench") as client:
        await operator.cap.minting(True)
        expiry = _in(FAR_MS)
        await pipeline(WARM_UP, lambda n: _pair(client, f"warm-{n}", expiry))
        say(f"reserving and confirming {count} caps, {IN_FLIGHT} in flight")
        pairs = await measured(
            place, count, lambda n: _pair(client, f"a{n}", expiry), in_flight=IN_FLIGHT
        )
        say(f"authorizing {count} times, {IN_FLIGHT} in flight")
        commits = await metrics.commits()
        authorized = await measured(
            place, count, lambda n: _authorize(client, f"a{n}", expiry, ""), in_flight=IN_FLIGHT
        )
        commits = await metrics.commits() - commits
        few = min(count, max(100, count // 10))
        say("authorizing one at a time, and stopping")
        took = await timed(few, lambda n: _authorize(client, f"a{n}", expiry, ""))
        stopped = await timed(few, lambda n: _stop_and_ask(client, f"a{n}", expiry))
    await place.stop_worker()
    say(f"draining {3 * count} commands that were published beforehand")
    drained = await _drain(place, js, count)
    return {
        "raw_publish_per_s": round(raw.publish_per_s, 1),
        "raw_results_one_by_one_per_s": round(one_by_one.per_s, 1),
        "pairs_per_s": round(pairs.rate.per_s, 1),
        "pairs_commands_to_raw_publish": round(2 * pairs.rate.per_s / raw.publish_per_s, 3),
        "pairs_bound": pairs.bound(),
        "authorize_per_s": round(authorized.rate.per_s, 1),
        "authorize_to_raw_publish": round(authorized.rate.per_s / raw.publish_per_s, 3),
        "authorize_bound": authorized.bound(),
        "commits_per_s": round(commits * authorized.rate.per_s / count, 1),
        "authorize_p50_ms": round(percentile(took, 50), 2),
        "authorize_p99_ms": round(percentile(took, 99), 2),
        "stop_to_refusal_p50_ms": round(percentile(stopped, 50), 2),
        "stop_to_refusal_p99_ms": round(percentile(stopped, 99), 2),
        "drained_per_s": round(drained.rate.per_s, 1),
        "drained_to_one_by_one": round(drained.rate.per_s / one_by_one.per_s, 3),
        "drained_bound": drained.bound(),
    }


async def _pair(client: Client, user: str, expiry: int) -> None:
    await client.cap.reserve(user, KEY, latest_expires_at_ms=expiry, cap=CAP)
    await client.cap.confirm(user, KEY, grant_expires_at_ms=expiry)


async def _authorize(client: Client, user: str, expiry: int, wanted: str) -> None:
    answer = await client.cap.authorize(user, amount=CAP, grant_expires_at_ms=expiry)
    if answer.reason != wanted:
        raise BenchError(f"an authorization ended in {answer.reason or 'allowed'}")


async def _stop_and_ask(client: Client, user: str, expiry: int) -> None:
    """Publish a Stop and, without waiting for it, ask; done when the refusal is here."""
    stopping = asyncio.create_task(client.cap.stop(user))
    await asyncio.sleep(0)  # the Stop leaves first
    await _authorize(client, user, expiry, "stopped")
    await stopping


async def _results_one_by_one(js: JetStream, count: int) -> Rate:
    """What the broker takes if every result is a publish of its own, created once."""
    await js.stream_create(
        {"name": "RAWRES", "subjects": ["bench.RAWRES.>"], "storage": "file", "allow_direct": True}
    )
    rate = await pipeline(
        count, lambda n: js.publish(f"bench.RAWRES.{n}", RESULT, expect_last_subject_seq=0)
    )
    await js.stream_delete("RAWRES")
    return rate


async def _drain(place: Ground, js: JetStream, count: int) -> Load:
    """From opening the ledger to the last result stored, by the machine's clock."""
    names, first = place.names, (await js.stream_info(place.names.res_stream)).last_seq + 1
    commands = _story(names, count)

    async def publish(number: int) -> None:
        subject, body, command_id = commands[number]
        await js.publish(subject, body, headers={headers.COMMAND: command_id})

    await pipeline(len(commands), publish, in_flight=IN_FLIGHT)
    before = place.processor_s()
    await place.start_worker()
    async with place.client("_op-bench") as operator:
        while True:
            shown = (await operator.status())["planes"]["ledger"]
            if shown["lag"] == 0 and shown["unpublished"] == 0:
                break
            await asyncio.sleep(0.05)
    cpu = place.processor_s()
    opened_s = _opened_s(place.worker_log())
    info = await js.stream_info(names.res_stream)
    last = await js.message(names.res_stream, info.last_seq)
    if last is None or last.seq <= first:
        raise BenchError("nothing was drained")
    took_s = last.time_ns / 1e9 - opened_s
    await place.stop_worker()
    return Load(Rate(len(commands), len(commands) / took_s), cores(before, cpu, took_s))


def _story(names: Names, count: int) -> list[tuple[str, bytes, str]]:
    """Subject, body and id of three commands for each person: reserve, confirm, authorize."""
    speaker, expiry = Speaker("bench", "b" * 26), _in(FAR_MS)
    reserve = strict_json.dumps({"v": 1, "latest_expires_at_ms": expiry, "cap": CAP})
    confirm = strict_json.dumps({"v": 1, "grant_expires_at_ms": expiry})
    authorize = strict_json.dumps({"v": 1, "amount": CAP, "grant_expires_at_ms": expiry})
    commands = []
    for number in range(count):
        user = f"d{number}"
        for verb, key, body in (
            ("reserve", (user, KEY), reserve),
            ("confirm", (user, KEY), confirm),
            ("authorize", (user,), authorize),
        ):
            subject = subjects.command(names, speaker, "cap", verb, *key)
            commands.append((subject, body, f"{verb}-number-{number:08d}"))
    # All reservations first: the verbs of one person must not overtake each other on their way.
    return commands[0::3] + commands[1::3] + commands[2::3]


def _opened_s(log: Sequence[JsonObject]) -> float:
    opened = [event["at"] for event in log if event["event"] == "ledger_opened"]
    return datetime.fromisoformat(opened[-1].replace("Z", "+00:00")).timestamp()


async def _fold(place: Ground, js: JetStream) -> JsonObject:
    """Fold the whole log again: said and replayed, and its rows by plain SQLite."""
    folder, names = place.folder / "fold", place.names
    log = await folds.read_log(js, names)
    (said,) = await folds.fold(folder / "said.db", names, log)
    replayed = await folds.replay(folder / "replayed.db", names, js)
    reserves = [message for message in log if ".cap.reserve." in message.subject]
    rows = await _rows(folder / "rows.db", names, log)
    plain = await asyncio.to_thread(_plain, folder / "plain.db", names, rows)
    return {
        "commands": len(log),
        "reservations": len(reserves),
        "fold_per_s": round(said.per_s, 1),
        "replay_per_s": round(replayed.per_s, 1),
        "replay_bound": "one core: decoding, judging and writing rows",
        "sqlite_one_by_one_per_s": round(plain.per_s, 1),
        "fold_to_sqlite_one_by_one": round(said.per_s / plain.per_s, 2),
    }


Rows = list[list[tuple[str, tuple[object, ...]]]]
"""Of each reservation: statement and values of every row it wrote."""


async def _rows(path: Path, names: Names, log: Sequence[LogMessage]) -> Rows:
    """The rows that the first batch's reservations wrote, read back."""
    until = next((n for n, m in enumerate(log) if ".cap.confirm." in m.subject), len(log))
    database = await Database.open(path, names, PLANES)
    try:
        first = log[: min(until, 2 * folds.BATCH)]
        await database.run(lambda: database.fold.apply_batch(first))
        return await database.read(lambda db, _: _by_reservation(db))
    finally:
        await database.close()


def _by_reservation(db: sqlite3.Connection) -> Rows:
    said: dict[int, list[tuple[object, ...]]] = defaultdict(list)
    for row in db.execute("SELECT * FROM outbox ORDER BY id"):
        said[row[1]].append(row)
    commands = db.execute("SELECT * FROM commands ORDER BY ordinal").fetchall()
    reservations = {row[0]: row for row in db.execute("SELECT * FROM reservations")}
    counters = {row[0]: row for row in db.execute("SELECT * FROM revoke_generations")}
    rows: Rows = []
    for command, user in zip(commands[-len(reservations) :], reservations, strict=True):
        written = [("revoke_generations", counters[user]), ("reservations", reservations[user])]
        written.append(("commands", command))
        written += [("outbox", row) for row in said[command[0]]]
        rows.append(
            [
                (f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - own names
                for table, row in written
            ]
        )
    return rows


def _plain(path: Path, names: Names, rows: Rows) -> Rate:
    """Commit each reservation's rows in a transaction of its own, at the same durability."""
    with contextlib.closing(store.open_ledger(path, names, PLANES)) as db:
        started = time.perf_counter()
        for number, written in enumerate(rows, start=1):
            db.execute("BEGIN IMMEDIATE")
            for statement, values in written:
                db.execute(statement, values)
            db.execute("UPDATE fold SET watermark = ?", (number,))
            db.execute("COMMIT")
        return Rate(len(rows), len(rows) / (time.perf_counter() - started))


class _Metrics:
    """The worker's own count of its transactions.

    Attributes:
        port: Where it answers.
    """

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    async def commits(self) -> float:
        """Transactions of the fold so far."""
        text = await asyncio.to_thread(self._scrape)
        name = "tidegate_fold_batch_commands_count "
        return float(next(line for line in text.splitlines() if line.startswith(name)).split()[1])

    def _scrape(self) -> str:
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
        return text


def _in(wait_ms: int) -> int:
    """A whole second so far from now; the broker runs on this machine, so its clock is ours."""
    return (time.time_ns() // 1_000_000 + wait_ms) // 1_000 * 1_000
