"""What a process takes up on Linux, read from ``/proc``."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at one process.

    Attributes:
        memory_mb: Resident memory.
        open_files: Open file descriptors.
        threads: Threads.
    """

    memory_mb: float
    open_files: int
    threads: int


def usage(pid: int) -> Usage:
    """Look at a process of ours.

    Raises:
        OSError: It has ended.
    """
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    open_files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Usage(int(status["VmRSS"].split()[0]) / 1024, open_files, int(status["Threads"]))
