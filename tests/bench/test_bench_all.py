"""``tidegate bench timers`` and ``all``: many pending deadlines, and all beside the raw broker."""

import json
from pathlib import Path

import pytest

from tests.support.process import command, data_of, environment


@pytest.mark.bench
@pytest.mark.timeout(600)
def test_pending_timers_are_small_listed_whole_and_expire_once(tmp_path: Path) -> None:
    arguments = ["bench", "timers", "--pending", "10000", "--json"]
    done = command(arguments, environment(data_dir=tmp_path), timeout_s=580)
    assert done.returncode == 0, done.stderr
    figures = data_of(done.stdout)
    print(json.dumps(figures, indent=1))
    assert figures["pending"] == figures["asked"] == 10_000
    assert figures["worker_bytes_per_timer"] <= 1_536
    assert figures["list"]["whole"]
    assert figures["list"]["pages"] == 10
    assert figures["idle_cores"]["worker"] < 0.1
    expiry = figures["expiry"]
    assert expiry["due"] == expiry["expired_once"] == expiry["told_once"] == 10_000
    assert 0 <= expiry["lateness"]["min_ms"] <= expiry["lateness"]["p50_ms"]
    for restart in figures["restart"].values():
        assert 0 < restart["ready_ms"] <= restart["index_full_ms"]


@pytest.mark.bench
@pytest.mark.timeout(1_200)
def test_everything_is_measured_with_durability_bound_and_ceiling(tmp_path: Path) -> None:
    counts = ["--count", "100", "--max-timers", "1000", "--max-turns", "1000"]
    env = environment(data_dir=tmp_path)
    done = command(["bench", "all", *counts, "--json"], env, timeout_s=1_180)
    assert done.returncode == 0, done.stderr
    figures = data_of(done.stdout)
    rows = {row["name"]: row for row in figures["figures"]}
    assert len(rows) > 30
    assert all(row["value"] > 0 and row["durability"] and row["bound"] for row in rows.values())
    assert 0 < rows["checkpoints.always.settled"]["ratio"] < 1
    scaling = figures["scaling"]
    assert [point["pending"] for point in scaling["pending_timers"]] == [1_000]
    assert [point["queued"] for point in scaling["queued_turns"]] == [100, 1_000]
    assert [point["workers"] for point in scaling["replicas"]] == [1, 2, 3, 4]
