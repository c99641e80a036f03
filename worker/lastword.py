"""Why the last worker of a data directory did not start, for whoever waits for it there.

Its log may go to a file that nobody looks at yet.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Final

from worker import files

FILE_NAME: Final = "not-started.json"
LOCK_NAME: Final = "worker.lock"
"""Held by a worker for as long as it keeps its state here."""


def leave(data_dir: Path, message: str, now_ms: int) -> None:
    """A worker refuses to start; nothing is left where another one runs or nothing can be kept."""
    with contextlib.suppress(OSError):
        lock = files.hold(data_dir / LOCK_NAME)
        if lock is not None:
            content = json.dumps({"v": 1, "at_ms": now_ms, "message": message}) + "\n"
            files.replace_private(data_dir / FILE_NAME, content.encode())
            os.close(lock)


def take_back(data_dir: Path) -> None:
    """A worker starts."""
    with contextlib.suppress(OSError):
        (data_dir / FILE_NAME).unlink(missing_ok=True)


def left_since(data_dir: Path, at_ms: int) -> str | None:
    """What was left at ``at_ms`` or later."""
    try:
        value = json.loads((data_dir / FILE_NAME).read_bytes())
        return str(value["message"]) if int(value["at_ms"]) >= at_ms else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
