"""A broker whose disk, a real file system, was full: which restart helps is said, and helps."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.names import Names
from tests.nemesis.arena.disks import Disk
from tests.support.ledger import until
from tests.support.running import running
from tests.support.server import Server, spaces_of
from tests.support.space import Space


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    disk = Disk.mount(tmp_path / "server" / "store", 64)
    if disk.why_not:
        pytest.skip(f"no file system of its own: {disk.why_not}")
    yield disk
    disk.unmount()


async def test_readiness_says_that_the_broker_needs_the_restart(disk: Disk, tmp_path: Path) -> None:
    server = Server.two_accounts(tmp_path / "server", spaces_of("tidegate", ["main"]))
    await asyncio.to_thread(server.start)
    space = Space(server, Names("tidegate", "main"), tmp_path / "data")
    await space.set_up()
    try:
        async with running(space.settings()) as worker, space.client() as client:

            def reasons() -> str:
                return "; ".join(worker.worker.not_ready())

            await asyncio.to_thread(disk.fill)
            await until(lambda: "stores nothing" in reasons(), 30, reasons)
            await asyncio.to_thread(disk.empty)
            helps = "only after a restart of the broker, not of this worker"
            await until(lambda: helps in reasons(), 30, reasons)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await until(lambda: reasons() == "", 40, reasons)
            deadline_at_ms = time.time_ns() // 1_000_000 + 600_000
            await client.cp.mint("runs", "t-1", deadline_at_ms=deadline_at_ms)
            await client.call("cap", "stop", ["user-1"], {})
            assert not worker.done.done()
    finally:
        server.kill()
