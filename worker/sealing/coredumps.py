"""Keeps prompts and keys out of core dumps."""

import contextlib
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource


def forbid() -> None:
    """Leave no memory behind when this process, or a child it starts, crashes.

    For a process that is ours alone, such as a command: a library must not decide this for its
    host. The limit stops dumps to files; a handler that the kernel pipes dumps to ignores it, so
    the filter also leaves all memory out (core(5)). The process stays readable in ``/proc``, which
    the evidence of its end needs.
    """
    if sys.platform != "win32":
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):  # no such file outside Linux
        Path("/proc/self/coredump_filter").write_text("0", encoding="ascii")
