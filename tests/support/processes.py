"""Connectors and their children as real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

PATIENCE_S: Final = 20.0

CHILD: Final = """
import os, signal, subprocess, sys
def wait():
    while True: signal.pause()
def say(*pids):
    os.write(1, (" ".join(map(str, pids)) + "\\n").encode())  # also from a signal's handler
plan = sys.argv[1]
if plan == "alone":
    say(os.getpid())
elif plan == "with-grandchild":
    grandchild = os.fork()
    if grandchild == 0: wait()
    say(os.getpid(), grandchild)
elif plan == "with-escaping-grandchild":
    read, write = os.pipe()
    grandchild = os.fork()
    if grandchild == 0:
        os.setsid()
        os.write(write, b"x")
        wait()
    os.read(read, 1)
    say(os.getpid(), grandchild)
elif plan == "escapes-later":
    signal.signal(signal.SIGUSR1, lambda *_: (os.setsid(), say("escaped")))
    say(os.getpid())
wait()
"""

CONNECTOR: Final = """
import os, signal, subprocess, sys
child, plan, group = sys.argv[1:]
process = subprocess.Popen(
    [sys.executable, "-I", "-S", "-c", child, plan],
    start_new_session=group == "own-session",
    process_group=0 if group == "own-group" else None,
)
while True: signal.pause()
"""


@dataclass
class Family:
    """A connector, its child and what the child started.

    Attributes:
        connector: The process we started.
        child: Its child's id.
        grandchild: What the child started, if its plan says so.
    """

    connector: subprocess.Popen[str]
    child: int
    grandchild: int | None = None

    def said(self) -> str:
        """The next line from any of them."""
        assert self.connector.stdout is not None
        return self.connector.stdout.readline().strip()

    def kill(self, pid: int | None) -> None:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def kill_connector(self) -> None:
        """Kill it and reap it."""
        self.connector.kill()
        self.connector.wait()


@contextlib.contextmanager
def family(plan: str = "alone", group: str = "own-group") -> Iterator[Family]:
    """Start a connector with a child, and leave none of them behind.

    Args:
        plan: What the child does; see ``CHILD``.
        group: ``own-group``, ``own-session`` or ``shared``: where the child runs.
    """
    connector = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CONNECTOR, CHILD, plan, group],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    pids: list[int] = []
    try:
        assert connector.stdout is not None
        pids = [int(word) for word in connector.stdout.readline().split()]
        yield Family(connector, *pids)
    finally:
        connector.kill()
        connector.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert connector.stdout is not None
        connector.stdout.close()


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: If it does not in 20 s.
    """
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"not in {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.01)
