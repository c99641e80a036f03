"""Starts pytest runs from a process in which everything is imported that no edit touches.

Run as ``python -m tests.nemesis.zygote`` at the root of a tree. For each line, a JSON object with
``arguments`` and ``log``, it forks a run of pytest in a session of its own and answers with two
lines: the run's process id, and its exit code once it has ended. What is imported beforehand is
what costs most of a run's start: other people's packages, and the contract in ``schemas``.
"""

import importlib
import json
import os
import pkgutil
import sys
import traceback
from typing import Any, Final

import pytest

PACKAGES: Final = (
    *("aiohttp.web", "aiosqlite", "cryptography.hazmat.primitives.ciphers.aead", "nats"),
    *("prometheus_client", "psutil", "pydantic", "pydantic_settings", "rfc8785", "rich.console"),
    *("structlog", "typer", "uvloop"),
)
"""None of them belongs to a plugin of pytest, which rewrites those as it loads them."""

NOT_FORKED_OVER: Final = "schemas/"
"""An edit below here needs another zygote."""


def preload() -> None:
    """Import what costs most."""
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    import schemas

    for module in pkgutil.walk_packages(schemas.__path__, "schemas."):
        importlib.import_module(module.name)


def run(order: dict[str, Any]) -> int:
    """Be a run of pytest; its exit code."""
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    return int(pytest.main(order["arguments"]))


def main() -> None:
    """Serve until standard input ends."""
    preload()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = run(order)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
