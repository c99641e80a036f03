# mypy: disable-error-code="import-not-found,untyped-decorator"
"""Procrastinate on PostgreSQL: scheduled jobs, and a queue.

It has no waiter that receives an answer. ``poll_s`` is how often its worker looks for jobs that
have become due; what it is told to defer at once wakes the worker by a notification.
"""

import asyncio
import contextlib
import datetime
import json
import sys
import time
from typing import Any

import procrastinate
from psycopg_pool import AsyncConnectionPool

options = json.load(sys.stdin)
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=options["conninfo"], max_size=16)
)
pool = AsyncConnectionPool(options["conninfo"], open=False, max_size=8)

late: list[float] = []
done: list[int] = []
all_late, finished = asyncio.Event(), asyncio.Event()


@app.task
async def expire(number: int, deadline_ms: int) -> None:
    """Store that a deadline passed."""
    async with pool.connection() as connection:
        await connection.execute("INSERT INTO expired VALUES (%s)", (number,))
    late.append(time.time() * 1000 - deadline_ms)
    if len(late) == options["count"]:
        all_late.set()


@app.task
async def job(number: int) -> None:
    """Nothing but the bookkeeping."""
    done.append(number)
    if len(done) == options["jobs"]:
        finished.set()


async def lateness() -> None:
    """Deadlines close to each other, each a job that is scheduled for it."""
    base_ms = int(time.time() * 1000) + options["lead_ms"]
    for number in range(options["count"]):
        deadline_ms = base_ms + int(number * options["spread_ms"] / options["count"])
        at = datetime.datetime.fromtimestamp(deadline_ms / 1000, datetime.UTC)
        await expire.configure(schedule_at=at).defer_async(number=number, deadline_ms=deadline_ms)
    await all_late.wait()


async def queue() -> dict[str, float]:
    """Defer jobs from several callers; they run as they come."""
    numbers = iter(range(options["jobs"]))

    async def lane() -> None:
        for number in numbers:
            await job.defer_async(number=number)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(options["in_flight"])))
    enqueued_s = time.perf_counter() - started
    await finished.wait()
    return {
        "enqueued_per_s": options["jobs"] / enqueued_s,
        "done_per_s": options["jobs"] / (time.perf_counter() - started),
    }


async def main() -> dict[str, Any]:
    """Everything, one after another, with one worker."""
    async with app.open_async(), pool:
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS expired (number bigint)")
            await connection.execute("TRUNCATE expired")
            found = await connection.execute("SHOW fsync")
            fsync = (await found.fetchone() or ("?",))[0]
            found = await connection.execute("SHOW synchronous_commit")
            commit = (await found.fetchone() or ("?",))[0]
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=options["in_flight"],
                fetch_job_polling_interval=options["poll_s"],
                install_signal_handlers=False,
            )
        )
        await lateness()
        figures = await queue() if options["jobs"] else {}
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
    durability = f"PostgreSQL, fsync {fsync}, synchronous_commit {commit}"
    if (fsync, commit) == ("on", "on"):
        durability += ": fsync before each commit returns, grouped"
    return {"lateness_ms": late, **figures, "durability": durability}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
