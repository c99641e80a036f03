"""``tidegate bench caps`` gives every figure that was asked for, and what bounds it."""

import json
from pathlib import Path

import pytest

from tests.support.process import command, data_of, environment

RATES = (
    "raw_publish_per_s",
    "raw_results_one_by_one_per_s",
    "pairs_per_s",
    "authorize_per_s",
    "commits_per_s",
    "drained_per_s",
)


@pytest.mark.bench
@pytest.mark.timeout(400)
def test_caps_are_measured_beside_the_raw_broker_and_plain_sqlite(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path)
    done = command(["bench", "caps", "--count", "300", "--json"], env, timeout_s=380)
    assert done.returncode == 0, done.stderr
    figures = data_of(done.stdout)
    print(json.dumps(figures, indent=1))
    for mode in ("always", "default"):
        one = figures[mode]
        assert all(one[name] > 0 for name in RATES)
        assert one["raw_publish_per_s"] > one["authorize_per_s"] > one["commits_per_s"]
        assert 0 < one["authorize_p50_ms"] <= one["authorize_p99_ms"]
        assert 0 < one["stop_to_refusal_p50_ms"] <= one["stop_to_refusal_p99_ms"]
        assert all(one[name] for name in ("pairs_bound", "authorize_bound", "drained_bound"))
    fold = figures["fold"]
    assert fold["commands"] > 300 * 3
    assert min(fold["fold_per_s"], fold["replay_per_s"]) > fold["sqlite_one_by_one_per_s"] > 0
