"""A disk that takes nothing more: checkpoints settle all the same, and no worker ends."""

import asyncio
import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.test_ledger_disk import LITTLE, let_grow
from tests.support.process import WorkerProcess
from tests.support.space import Space
from worker.client import Client

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


@pytest.fixture
def little_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of four megabytes."""
    at = tmp_path / "disk"
    at.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(at)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


def fill(disk: Path) -> Path:
    """Take every byte that is left."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4_096))
    return filling


async def settles(client: Client, token: str) -> None:
    """A checkpoint is resumed and another one expires."""
    at_ms = time.time_ns() // 1_000_000
    await client.cp.mint("runs", f"{token}-a", deadline_at_ms=at_ms + 1_500)
    await client.cp.mint("runs", f"{token}-b", deadline_at_ms=at_ms + 60_000)
    assert (await client.cp.resume("runs", f"{token}-b")).word == "resumed"
    settled = await client.cp.wait_settled("runs", f"{token}-a", timeout_ms=20_000)
    assert settled.state == "expired"


async def test_checkpoints_settle_on_through_a_reconnect_on_a_full_disk(
    own_space: Space, worker_of: Callable[..., WorkerProcess], little_disk: Path
) -> None:
    worker = await asyncio.to_thread(
        lambda: worker_of(own_space, data_dir=little_disk / "data").wait_ready()
    )
    async with own_space.client("alice") as client:
        filling = fill(little_disk)
        await settles(client, "full")
        await asyncio.to_thread(worker.wait_for, lambda r: "storage-full" in " ".join(r or ()))
        await asyncio.to_thread(own_space.server.stop)
        await asyncio.to_thread(own_space.server.start)
        await settles(client, "again")
        assert worker.exit_code is None
        filling.unlink()
        await asyncio.to_thread(worker.wait_ready)
        await settles(client, "room")
    assert worker.exit_code is None


@pytest.mark.parametrize("known", [True, False], ids=["restarted", "new-space-directory"])
async def test_checkpoints_settle_on_when_the_worker_is_started_on_a_full_disk(
    own_space: Space, worker_of: Callable[..., WorkerProcess], little_disk: Path, known: bool
) -> None:
    data = little_disk / "data"
    first = await asyncio.to_thread(lambda: worker_of(own_space, data_dir=data).wait_ready())
    async with own_space.client("alice") as client:
        await settles(client, "first")
        at_ms = time.time_ns() // 1_000_000
        await client.cp.mint("runs", "before", deadline_at_ms=at_ms + 4_000)
        filling = fill(little_disk)
        await settles(client, "full")
        first.kill()
        if not known:
            for path in (data / own_space.names.space).iterdir():
                if path.is_file():
                    path.unlink()
            filling.unlink()
            filling = fill(little_disk)
        again = await asyncio.to_thread(worker_of, own_space, data_dir=data)
        await asyncio.to_thread(again.wait_for, lambda r: "storage-full" in " ".join(r or ()))
        await settles(client, "again")
        settled = await client.cp.wait_settled("runs", "before", timeout_ms=20_000)
        assert settled.state == "expired"
        assert again.exit_code is None
        filling.unlink()
        await asyncio.to_thread(again.wait_ready)
        await settles(client, "room")
    assert again.exit_code is None, "no restart was needed"
