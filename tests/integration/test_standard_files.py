"""Commands whose starter closed standard input, output or error."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.support.process import INSTALLED, WorkerProcess, environment, space_environment
from tests.support.space import Space

CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")


@pytest.mark.parametrize("redirect", CLOSED)
async def test_a_worker_with_closed_files_serves_and_stops(
    own_space: Space, tmp_path: Path, redirect: str
) -> None:
    log = tmp_path / "worker.log"
    worker = WorkerProcess(space_environment(own_space), log, redirect=redirect)
    try:
        await asyncio.to_thread(worker.wait_ready, 60)
        async with own_space.client() as client:
            assert (await client.query("sys", "status", {"v": 1})).data["ready"] is True
        assert await asyncio.to_thread(worker.terminate) == 0
    finally:
        worker.kill()


@pytest.mark.parametrize("redirect", CLOSED)
def test_a_command_with_closed_files_ends_as_it_would(redirect: str) -> None:
    for arguments, code in (("--version", 0), ("config show", 0), ("no-such-command", 2)):
        ended = subprocess.run(
            ["sh", "-c", f'exec "$0" {arguments} {redirect}', str(INSTALLED)],
            env=environment(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == code, (arguments, ended)
