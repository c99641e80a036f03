"""``tidegate run`` whose wall clock is off by what a file says, read anew at every look.

The worker takes the time of day from ``time.time_ns`` alone; monotonic clocks are left as they are,
as a step of a machine's clock leaves them.
"""

import os
import time
from pathlib import Path

VARIABLE = "NEMESIS_CLOCK_FILE"
"""Names the file: milliseconds to add, as text."""


def replace_clock(path: Path) -> None:
    """Let ``time.time`` and ``time.time_ns`` follow a file."""
    true_ns = time.time_ns
    seen: list[float] = [0.0, 0]  # when the file was last looked at, and what it said in ns

    def offset_ns() -> int:
        now = time.monotonic()
        if now - seen[0] >= 0.02:
            seen[0] = now
            try:
                seen[1] = int(path.read_text() or "0") * 1_000_000
            except (OSError, ValueError):
                seen[1] = 0
        return int(seen[1])

    setattr(time, "time_ns", lambda: true_ns() + offset_ns())  # noqa: B010 - a function is replaced
    setattr(time, "time", lambda: (true_ns() + offset_ns()) / 1e9)  # noqa: B010 - as above


if __name__ == "__main__":
    replace_clock(Path(os.environ[VARIABLE]))
    from worker.cli.main import run

    run()
