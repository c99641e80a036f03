"""Where the command ``tidegate`` begins: an interrupt while it loads ends it like any other."""

import sys

INTERRUPTED = 130


def run() -> None:
    """Load the command line and run it."""
    try:
        from worker.cli.main import run as run_command_line
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run_command_line()
