"""Commands whose starter closed standard files, or left room for too few others."""

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


def test_a_worker_that_may_open_too_few_files_says_so(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path / "data")
    for limit, broker, needed in ((24, None, 256), (24, "nats://127.0.0.1:1", 64)):
        if broker is not None:
            env = environment(data_dir=tmp_path / "data", nats_url=broker)
        ended = subprocess.run(
            ["sh", "-c", f'ulimit -n {limit}; exec "$0" run', str(INSTALLED)],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 3, ended
        assert f"may have {limit} files open at once and needs {needed}" in ended.stderr
        assert "Traceback" not in ended.stderr


async def test_a_low_limit_that_may_be_raised_is_raised(own_space: Space, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    worker = WorkerProcess(
        space_environment(own_space), log, redirect="</dev/null", before="ulimit -S -n 24;"
    )
    try:
        await asyncio.to_thread(worker.wait_ready, 60)
    finally:
        worker.kill()
