"""Small private files: written whole or not at all, readable by their owner only."""

import fcntl
import os
import secrets
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_DIR = 0o700


def private_dir(path: Path) -> Path:
    """Make a folder (and its parents) that only its owner may enter; an existing one stays."""
    path.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
    return path


def create_private(path: Path, content: bytes) -> bool:
    """Create a file unless it exists.

    Returns:
        Whether it was created. After a crash there is the whole file or none.
    """
    temporary = _write_beside(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def replace_private(path: Path, content: bytes) -> None:
    """Write a file, replacing the one that was there; a reader sees the old one or the new one."""
    _write_beside(path, content).replace(path)


def hold(path: Path) -> int | None:
    """Lock a file for as long as this process lives, or until the descriptor is closed.

    Returns:
        The descriptor, or ``None`` if another process holds it.
    """
    private_dir(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _write_beside(path: Path, content: bytes) -> Path:
    private_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        # On a full disk every attempt would leave one more.
        temporary.unlink(missing_ok=True)
        raise
    return temporary
