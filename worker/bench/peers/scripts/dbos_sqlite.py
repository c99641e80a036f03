# mypy: disable-error-code="import-not-found,untyped-decorator"
"""DBOS Transact on SQLite: durable sleep, send and receive, a queue."""

import asyncio
import json
import sqlite3
import sys
import time
from typing import Any

from dbos import DBOS

options = json.load(sys.stdin)
url = f"sqlite:///{options['folder']}/dbos.sqlite"
DBOS(config={"name": "peer", "system_database_url": url, "log_level": "ERROR"})

late: list[float] = []
heard: dict[int, asyncio.Future[float]] = {}
done: list[int] = []
finished = asyncio.Event()
loops: list[asyncio.AbstractEventLoop] = []
"""Ours; what DBOS dequeues runs in another loop of its own, in another thread."""


@DBOS.step()
async def expire(number: int) -> str:
    """Its outcome is stored when it returns."""
    return "expired"


@DBOS.workflow()
async def wait_until(number: int, deadline_ms: int) -> None:
    """Sleep durably until the deadline, then store that it passed."""
    await DBOS.sleep_async(max(0.0, deadline_ms / 1000 - time.time()))
    await expire(number)
    late.append(time.time() * 1000 - deadline_ms)


@DBOS.workflow()
async def wait_for_answer(number: int) -> None:
    """Wait durably for an answer."""
    await DBOS.recv_async("answer", timeout_seconds=3_600)
    loops[0].call_soon_threadsafe(heard[number].set_result, time.perf_counter())


@DBOS.workflow()
async def job(number: int) -> None:
    """Nothing but the bookkeeping."""
    done.append(number)
    if len(done) == options["jobs"]:
        loops[0].call_soon_threadsafe(finished.set)


async def lateness() -> None:
    """Deadlines close to each other, each slept for by a workflow of its own."""
    base_ms = int(time.time() * 1000) + options["lead_ms"]
    step_ms = options["spread_ms"] / options["count"]
    handles = [
        await DBOS.start_workflow_async(wait_until, n, base_ms + int(n * step_ms))
        for n in range(options["count"])
    ]
    await asyncio.gather(*(handle.get_result() for handle in handles))


async def settle() -> list[float]:
    """From sending an answer until its waiter goes on, one at a time."""
    loop, took = asyncio.get_running_loop(), []
    handles = []
    for number in range(options["answers"]):
        heard[number] = loop.create_future()
        handles.append(await DBOS.start_workflow_async(wait_for_answer, number))
    await asyncio.sleep(2)
    for number, handle in enumerate(handles):
        started = time.perf_counter()
        await DBOS.send_async(handle.workflow_id, "yes", topic="answer")
        took.append((await heard[number] - started) * 1000)
    return took


async def queue() -> dict[str, float]:
    """Enqueue jobs from several callers; they run as they come."""
    jobs = await DBOS.register_queue_async("jobs")
    numbers = iter(range(options["jobs"]))

    async def lane() -> None:
        for number in numbers:
            await jobs.enqueue_async(job, number)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(options["in_flight"])))
    enqueued_s = time.perf_counter() - started
    await finished.wait()
    return {
        "enqueued_per_s": options["jobs"] / enqueued_s,
        "done_per_s": options["jobs"] / (time.perf_counter() - started),
    }


def durability() -> str:
    """As a connection like its own finds the file."""
    with sqlite3.connect(f"{options['folder']}/dbos.sqlite") as db:
        (journal,) = db.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
    word = {0: "no fsync", 1: "fsync at checkpoints", 2: "fsync per commit"}.get(synchronous, "?")
    return f"SQLite, journal {journal}: {word}"


async def main() -> dict[str, Any]:
    """Everything, one after another."""
    loops.append(asyncio.get_running_loop())
    await lateness()
    took = await settle()
    return {"lateness_ms": late, "settle_ms": took, **await queue(), "durability": durability()}


if __name__ == "__main__":
    DBOS.launch()
    print(json.dumps(asyncio.run(main())))
    DBOS.destroy()
