"""The demo ends as it must, quickly, and leaves nothing behind."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.process import command, data_of, environment
from worker.demo import show
from worker.demo.story import Ending, Scenario


def test_the_demo_ends_as_it_must(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    env = {**environment(data_dir=tmp_path / "unused"), "TMPDIR": str(folder)}
    done = command(["demo", "--json"], env, timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    report = data_of(done.stdout)
    assert report["ok"] is True
    by_name = {one["name"]: one for one in report["scenarios"]}
    assert {name: one["outcome"] for name, one in by_name.items()} == {
        "approved": "resumed",
        "wrong-holder": "not-the-holder",
        "expired": "expired",
        "too-late": "expired",
        "extended": "resumed",
        "power-cut": "expired",
        "ran-elsewhere": "ran-elsewhere",
        "cap-allowed": "allowed",
        "cap-exceeded": "over-cap",
        "cap-stopped": "stopped",
        "cap-renewed": "allowed",
    }
    assert all(one["settled_ms"] >= 0 for one in report["scenarios"])
    assert by_name["expired"]["lateness_ms"] >= 0
    assert by_name["power-cut"]["lateness_ms"] >= 0
    assert list(folder.iterdir()) == []
    assert not (tmp_path / "unused").exists()


def test_the_demo_tells_its_story_to_a_person(tmp_path: Path) -> None:
    done = command(["demo"], environment(data_dir=tmp_path), timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == len(show.STORY)
    assert "Every scene ended as it must" in done.stdout


def heed_signals() -> None:
    """Where a suite runs in the background, hangups and interrupts are ignored by inheritance."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_demo_with_all_that_it_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    env = {**environment(data_dir=tmp_path / "unused"), "TMPDIR": str(folder)}
    demo = subprocess.Popen(
        [sys.executable, "-m", "worker.cli.main", "demo"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_signals,
    )
    assert demo.stdout is not None
    with demo.stdout as told:
        next(line for line in told if "✓" in line)
        started = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(number)
        told.read()
    assert demo.wait(30) == 128 + number
    assert started
    assert psutil.wait_procs(started, timeout=5)[1] == []
    assert list(folder.iterdir()) == []


class Silent:
    def begins(self) -> None: ...
    def ready(self, took_ms: float) -> None: ...
    def scene(self, scenario: Scenario) -> None: ...
    def scene_ended(self, played: object) -> None: ...
    def ended(self, ok: bool, took_ms: float) -> None: ...


@pytest.mark.parametrize("breaks", ["ends-otherwise", "raises"])
async def test_a_scene_that_ends_otherwise_is_not_ok(breaks: str) -> None:
    async def play(stage: object) -> Ending:
        if breaks == "raises":
            raise TimeoutError
        return Ending(outcome="resumed", told="")

    report = await show.play(Silent(), (Scenario("odd", "", "expired", play),))
    assert report["ok"] is False
    assert report["scenarios"][0]["ok"] is False
