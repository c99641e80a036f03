"""Every guard's removal is noticed by an assertion, and the unbroken build fails none of them."""

import json
import subprocess
import sys

import pytest

from tests.nemesis.guards import ROOT
from tests.nemesis.removals import GUARDS


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_each_guard_that_is_removed_is_noticed() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.nemesis.guards", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout, found.stderr[-2_000:]
    report = json.loads(found.stdout)
    assert report["control"] == []
    survivors = {one["guard"]: one["why"] for one in report["guards"] if one["verdict"] != "caught"}
    assert survivors == {}
    assert len(report["guards"]) == len(GUARDS)
    assert found.returncode == 0
