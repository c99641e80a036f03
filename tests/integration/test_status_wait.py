"""``tidegate status --wait``: what a script says between starting a worker and using it."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.process import WorkerProcess, command, data_of, environment


def test_it_waits_for_a_worker_that_is_started_after_it(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path / "data")
    waiting = subprocess.Popen(
        [sys.executable, "-m", "worker.cli.main", "status", "--wait", "60s", "--json"],
        env=env,
        stdout=subprocess.PIPE,
    )
    worker = WorkerProcess(env, tmp_path / "worker.log")
    try:
        said, _ = waiting.communicate(timeout=90)
        assert waiting.returncode == 0, worker.log()
        assert data_of(said.decode())["ready"] is True
    finally:
        worker.terminate()


def test_it_says_at_once_why_a_worker_did_not_start(tmp_path: Path) -> None:
    """The log of a worker in the background is read by nobody yet."""
    env = environment(data_dir=tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = command(["run"], {**env, "TIDEGATE_HEALTH_PORT": str(port)})
        assert refused.returncode == 3
        assert str(port) in refused.stderr
    waited = command(["status", "--wait", "60s"], env)
    assert waited.returncode == 1
    assert refused.stderr.splitlines()[-1].removeprefix("tidegate: ") in waited.stderr
    worker = WorkerProcess(env, tmp_path / "worker.log")
    try:
        worker.wait_ready()
        assert command(["status", "--wait", "60s"], env, timeout_s=90).returncode == 0
        beside = command(["run"], env)
        assert "another worker" in beside.stderr
        assert command(["status", "--wait", "60s"], env, timeout_s=90).returncode == 0
    finally:
        worker.terminate()
    assert not (tmp_path / "data" / "not-started.json").exists()


def test_it_says_why_nobody_came(tmp_path: Path) -> None:
    began = time.monotonic()
    done = command(["status", "--wait", "300ms", "--json"], environment(data_dir=tmp_path))
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["reason"] == "no-broker"
    assert time.monotonic() - began >= 0.3
