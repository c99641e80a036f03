"""``tidegate bench admission`` gives every figure that was asked for."""

import json
from pathlib import Path

import pytest

from tests.support.process import command, data_of, environment


@pytest.mark.bench
@pytest.mark.timeout(400)
def test_admission_is_measured_beside_the_raw_broker(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path)
    done = command(["bench", "admission", "--count", "200", "--json"], env, timeout_s=380)
    assert done.returncode == 0, done.stderr
    figures = data_of(done.stdout)
    print(json.dumps(figures, indent=1))
    for mode in ("always", "default"):
        assert all(figures[mode][name] > 0 for name in ("turns_per_s", "enqueued_per_s"))
        assert figures[mode]["raw_publish_per_s"] > figures[mode]["turns_per_s"]
        assert figures[mode]["grant_p50_ms"] <= figures[mode]["grant_p99_ms"]
    assert figures["fold"]["replay_per_s"] > 0
    assert set(figures["decision"]) >= {"1000", "10000", "100000"}
    assert figures["decision"]["ratio_instructions"] <= 1.5
