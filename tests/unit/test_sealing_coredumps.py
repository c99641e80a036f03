"""Core dumps of our own processes hold no memory."""

import subprocess
import sys

import pytest

REPORTS = """
import ctypes
import resource
from pathlib import Path
from worker.sealing import coredumps
resource.setrlimit(resource.RLIMIT_CORE, (4096, resource.getrlimit(resource.RLIMIT_CORE)[1]))
coredumps.forbid()
print(resource.getrlimit(resource.RLIMIT_CORE)[0], end=" ")
print(int(Path("/proc/self/coredump_filter").read_text(), 16), end=" ")
PR_GET_DUMPABLE = 3
print(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="core dump filters are Linux")
def test_a_process_that_forbids_dumps_leaves_no_memory_behind_and_stays_observable() -> None:
    said = subprocess.run(
        [sys.executable, "-c", REPORTS], check=True, capture_output=True, text=True
    )
    assert said.stdout.split() == ["0", "0", "1"]
