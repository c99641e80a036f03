"""``tidegate status --wait``: what a script says between starting a worker and using it."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.support.process import WorkerProcess, command, environment


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
        assert json.loads(said)["ready"] is True
    finally:
        worker.terminate()


def test_it_says_why_nobody_came(tmp_path: Path) -> None:
    began = time.monotonic()
    done = command(["status", "--wait", "300ms", "--json"], environment(data_dir=tmp_path))
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["reason"] == "no-broker"
    assert time.monotonic() - began >= 0.3
