"""A disk that takes nothing more: the fold stops, callers are told, and it goes on by itself."""

import asyncio
import resource
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from schemas.codes import Code
from tests.support.process import WorkerProcess
from tests.support.space import Space
from worker.client import Client, Failed, new_command_id

LITTLE = 8 * 1024
"""Bytes beyond which no file of the worker may grow: its database is larger already."""


def let_grow(worker: WorkerProcess, limit: int) -> None:
    """Limit the size of every file that the worker writes, as a full disk would."""
    hard = psutil.Process(worker.pid).rlimit(resource.RLIMIT_FSIZE)[1]
    psutil.Process(worker.pid).rlimit(resource.RLIMIT_FSIZE, (limit, hard))


async def stop(client: Client, command_id: str) -> dict[str, Any]:
    result = await client.call("cap", "stop", ["user-1"], {}, command_id=command_id)
    return result.to_object()


async def test_a_full_disk_stops_the_fold_and_space_brings_it_back(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(lambda: process_worker().wait_ready())
    async with space.client("alice") as client:
        for n in range(1, 4):
            assert (await stop(client, new_command_id()))["data"]["generation"] == n
        let_grow(worker, LITTLE)
        intent = new_command_id()
        began = time.monotonic()
        with pytest.raises(Failed) as told:
            await stop(client, intent)
        assert told.value.code is Code.UNAVAILABLE
        assert time.monotonic() - began < 5
        reasons = await asyncio.to_thread(worker.wait_for, bool)
        assert reasons is not None
        assert "storage-full" in " ".join(reasons)
        with pytest.raises(Failed):
            await stop(client, new_command_id())

        let_grow(worker, resource.RLIM_INFINITY)
        await asyncio.to_thread(worker.wait_ready)
        assert worker.exit_code is None, "no restart was needed"
        # Both commands were in the log all the time, and were carried out once.
        assert (await stop(client, intent))["data"]["generation"] == 4
        assert (await stop(client, new_command_id()))["data"]["generation"] == 6
    events = [event["event"] for event in worker.events()]
    assert events.count("fold_stopped") == 1, "one line, not one per attempt"
    assert "fold_resumed" in events


async def test_a_worker_killed_on_a_full_disk_has_lost_nothing(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(lambda: process_worker().wait_ready())
    async with space.client("alice") as client:
        await stop(client, new_command_id())
        let_grow(worker, LITTLE)
        with pytest.raises(Failed):
            await stop(client, new_command_id())
        worker.kill()
        again = await asyncio.to_thread(lambda: process_worker().wait_ready())
        assert (await stop(client, new_command_id()))["data"]["generation"] == 3
        assert again.readiness() == []
