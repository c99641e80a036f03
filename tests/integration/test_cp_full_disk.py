"""A disk that takes nothing more: checkpoints settle all the same, and no worker ends."""

import asyncio
import resource
import sys
import time
from collections.abc import Callable

import pytest

from tests.integration.test_ledger_disk import LITTLE, let_grow
from tests.support.process import WorkerProcess
from tests.support.space import Space

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are limited")


async def test_a_full_disk_ends_no_worker_and_holds_up_no_checkpoint(
    own_space: Space, worker_of: Callable[[Space], WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(lambda: worker_of(own_space).wait_ready())
    async with own_space.client("alice") as client:

        async def mint(token: str, in_ms: int) -> None:
            at_ms = time.time_ns() // 1_000_000 + in_ms
            await client.cp.mint("runs", token, deadline_at_ms=at_ms)

        let_grow(worker, LITTLE)
        await mint("a", 1_000)
        await mint("b", 60_000)
        assert (await client.cp.resume("runs", "b")).word == "resumed"
        reasons = await asyncio.to_thread(worker.wait_for, bool)
        assert "storage-full" in " ".join(reasons or ())
        settled = await client.cp.wait_settled("runs", "a", timeout_ms=20_000)
        assert settled.state == "expired"
        assert worker.exit_code is None

        let_grow(worker, resource.RLIM_INFINITY)
        await asyncio.to_thread(worker.wait_ready)
        await mint("c", 60_000)
        assert (await client.cp.resume("runs", "c")).word == "resumed"
    assert worker.exit_code is None, "no restart was needed"
    events = [event["event"] for event in worker.events()]
    assert "local_file_full" in events
    assert "local_file_has_room" in events
    assert events.count("local_file_full") <= 4, "not one line an attempt"


async def test_a_worker_on_a_full_disk_can_be_stopped(
    own_space: Space, worker_of: Callable[[Space], WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(lambda: worker_of(own_space).wait_ready())
    async with own_space.client("alice") as client:
        let_grow(worker, LITTLE)
        at_ms = time.time_ns() // 1_000_000 + 60_000
        await client.cp.mint("runs", "a", deadline_at_ms=at_ms)
        await client.cp.resume("runs", "a")
    await asyncio.to_thread(worker.wait_for, bool)
    assert await asyncio.to_thread(worker.terminate) == 0
