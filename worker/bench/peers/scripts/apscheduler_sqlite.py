# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator"
"""APScheduler with a job store in SQLite: jobs at an instant.

It removes a job from the store before it runs it: what a crash interrupts then is lost.
"""

import asyncio
import json
import sqlite3
import sys
import time
from typing import Any

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler

options: dict[str, Any] = {}
late: list[float] = []
finished = asyncio.Event()
marks: list[sqlite3.Connection] = []


async def expire(number: int, deadline_ms: int) -> None:
    """Store that a deadline passed."""
    marks[0].execute("INSERT INTO expired VALUES (?)", (number,))
    marks[0].commit()
    late.append(time.time() * 1000 - deadline_ms)
    if len(late) == options["count"]:
        finished.set()


async def main() -> dict[str, Any]:
    """Deadlines close to each other, each a job of its own."""
    import datetime

    marks.append(sqlite3.connect(f"{options['folder']}/marks.sqlite"))
    marks[0].execute("CREATE TABLE expired (number INTEGER)")
    store = SQLAlchemyJobStore(url=f"sqlite:///{options['folder']}/jobs.sqlite")
    scheduler = AsyncIOScheduler(jobstores={"default": store}, timezone=datetime.UTC)
    scheduler.start()
    started = time.perf_counter()
    base_ms = int(time.time() * 1000) + options["lead_ms"]
    for number in range(options["count"]):
        deadline_ms = base_ms + int(number * options["spread_ms"] / options["count"])
        scheduler.add_job(
            expire,
            "date",
            run_date=datetime.datetime.fromtimestamp(deadline_ms / 1000, datetime.UTC),
            args=(number, deadline_ms),
            misfire_grace_time=None,
        )
    scheduled_s = time.perf_counter() - started
    await finished.wait()
    scheduler.shutdown()
    (synchronous,) = marks[0].execute("PRAGMA synchronous").fetchone()
    word = "fsync per commit" if synchronous == 2 else "no fsync per commit"
    return {
        "lateness_ms": late,
        "scheduled_per_s": options["count"] / scheduled_s,
        "durability": f"SQLite: {word}; a job leaves the store before it runs",
    }


if __name__ == "__main__":
    options.update(json.load(sys.stdin))
    print(json.dumps(asyncio.run(main())))
