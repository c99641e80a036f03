"""``tidegate soak``: it reports what was done, finds what leaks, and ends when it is told to."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from schemas.names import Names
from tests.support.process import data_of
from worker.soak import series
from worker.soak.drift import Point
from worker.soak.processes import usage

NAMES = Names("tidegate", "bench")
VERBS = {
    *("cp.mint", "cp.resume", "adm.seat", "adm.start", "adm.intent", "adm.active"),
    *("adm.complete", "cap.reserve", "cap.confirm", "cap.authorize", "cap.authorize refused"),
}
STRETCH = 400.0
"""What a process does in seconds here is judged as if it took minutes."""

LEAKS = """
import sys, time
kept = []
while True:
    kept.append((bytearray(b"x" * 60_000), open("/dev/null")))
    time.sleep(0.005)
"""
STAYS = """
import sys, time
while True:
    kept = [(bytearray(b"x" * 60_000), open("/dev/null")) for _ in range(20)]
    del kept
    time.sleep(0.005)
"""


class Soak:
    """A soak that runs as a command.

    Args:
        arguments: Of the command.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "worker.cli.main", "soak", "--json", *arguments]
        outer = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=outer, text=True
        )
        self.said: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> None:
        """Read what it says until a line holds a text."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            if text in line:
                return
        raise AssertionError(f"it ended before it said {text}: {self.said}")

    def end(self, limit_s: float) -> tuple[int, Any]:
        """Wait for its end; exit code and report."""
        out, err = self._process.communicate(timeout=limit_s)
        self.said += err.splitlines()
        assert out, self.said
        return self._process.returncode, data_of(out)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def soaking(*arguments: str) -> Iterator[Soak]:
    soak = Soak(*arguments)
    try:
        yield soak
    finally:
        soak.close()


def test_a_short_soak_does_everything_and_reports_it() -> None:
    with soaking("--minutes", "0.07", "--rate", "12") as soak:
        code, report = soak.end(150)
    assert (code, report["ok"], report["faults"]) == (0, True, []), report["faults"]
    assert report["ended"] == "completed"
    (minute,) = report["per_minute"]
    assert minute["verbs"].keys() >= VERBS
    for verb, figures in minute["verbs"].items():
        assert figures["count"] > 0, verb
        assert 0 < figures["p50_ms"] <= figures["p99_ms"], verb
    judged = {one["series"]: one["verdict"] for one in report["judged"]}
    assert judged == {bound.name: "too-short" for bound in series.bounds(NAMES)}
    assert {one["what"] for one in report["grows_by_design"]} == {
        *series.growing_streams(NAMES),
        *series.GROWING_FILES,
    }
    assert all(one["why"] for one in report["grows_by_design"])
    assert minute["now"]["worker.memory"] > 20
    assert minute["now"][f"stream.{NAMES.log_stream}.stored"] > 20


def test_an_interrupt_ends_it_with_the_report_so_far() -> None:
    with soaking("--minutes", "8") as soak:
        soak.wait_for("minutes of")
        # As long as it runs there are a worker and a broker below it.
        below = psutil.Process(soak.pid).children(recursive=True)
        os.kill(soak.pid, signal.SIGINT)
        began = time.monotonic()
        code, report = soak.end(60)
    assert time.monotonic() - began < 30
    assert (report["ended"], code) == ("interrupted", 0), report["faults"]
    assert report["minutes"] < 5
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


@pytest.mark.soak
def test_a_worker_that_dies_is_named_and_fails_it() -> None:
    with soaking("--minutes", "1") as soak:
        soak.wait_for("minutes of")
        for child in psutil.Process(soak.pid).children(recursive=True):
            if child.cmdline()[-1] == "run":
                child.kill()
        code, report = soak.end(120)
    assert (code, report["ok"], report["ended"]) == (1, False, "broken")
    assert any("worker has ended" in fault["what"] for fault in report["faults"])


@pytest.mark.soak
@pytest.mark.timeout(1_500)
def test_nothing_drifts_in_twelve_minutes() -> None:
    with soaking("--minutes", "12") as soak:
        code, report = soak.end(1_300)
    assert (report["drifts"], report["faults"], code) == ([], [], 0)
    assert {one["verdict"] for one in report["judged"]} == {"steady"}


@contextmanager
def process(code: str) -> "Iterator[subprocess.Popen[bytes]]":
    one = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    try:
        yield one
    finally:
        one.kill()
        one.wait()


def sampled(code: str) -> dict[str, list[Point]]:
    """What our own sampler sees of a process, its time stretched to that of a real run."""
    found: dict[str, list[Point]] = defaultdict(list)
    with process(code) as one:
        began = time.monotonic()
        while (at_s := time.monotonic() - began) < 2.5:
            seen = usage(one.pid)
            found["worker.memory"].append((at_s * STRETCH, seen.memory_mb))
            found["worker.open_files"].append((at_s * STRETCH, seen.open_files))
            found["worker.threads"].append((at_s * STRETCH, seen.threads))
            time.sleep(0.03)  # the pace of the samples, not a wait for anything
    return found


def verdicts(code: str) -> dict[str, str]:
    found = sampled(code)
    length_s = found["worker.memory"][-1][0]
    judged = series.judge_all(found, series.bounds(NAMES), length_s=length_s)
    return {one.bound.name: one.judgement.verdict for one in judged}


def test_a_process_that_leaks_is_caught_by_what_is_really_sampled() -> None:
    assert verdicts(LEAKS) == {
        "worker.memory": "drifts",
        "worker.open_files": "drifts",
        "worker.threads": "steady",
    }


def test_a_process_that_gives_back_what_it_takes_is_not() -> None:
    assert set(verdicts(STAYS).values()) == {"steady"}
