"""Where the command ``tidegate`` begins: an interrupt while it loads ends it like any other."""

import os
import sys

INTERRUPTED = 130


def run() -> None:
    """Load the command line and run it."""
    open_standard_files()
    try:
        from worker.cli.main import run as run_command_line
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run_command_line()


def open_standard_files() -> None:
    """Open on the null device what was closed of standard input, output and error.

    Otherwise the next files and sockets get their numbers, and what is said is written into them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - open for as long as the process
