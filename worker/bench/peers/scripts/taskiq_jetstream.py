# mypy: disable-error-code="import-not-found,untyped-decorator"
"""taskiq-nats on the same kind of broker as ours: a queue in a stream."""

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_nats import PullBasedJetStreamBroker

options = json.load(sys.stdin)
broker = PullBasedJetStreamBroker(
    [options["url"]],
    user=options["user"],
    password=options["password"],
    pull_consume_batch=options["in_flight"],
)
done: list[int] = []
finished = asyncio.Event()


@broker.task
async def job(number: int) -> None:
    """Nothing but the bookkeeping."""
    done.append(number)
    if len(done) == options["jobs"]:
        finished.set()


async def main() -> dict[str, Any]:
    """Enqueue jobs from several callers; they run as they come."""
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker, max_async_tasks=options["in_flight"]))
    numbers = iter(range(options["jobs"]))

    async def lane() -> None:
        for number in numbers:
            await job.kiq(number)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(options["in_flight"])))
    enqueued_s = time.perf_counter() - started
    await finished.wait()
    took_s = time.perf_counter() - started
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker
    await broker.shutdown()
    return {
        "enqueued_per_s": options["jobs"] / enqueued_s,
        "done_per_s": options["jobs"] / took_s,
        "durability": options["durability"],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
