"""What can be looked at on this machine: the data directory, its disk, its files, SQLite."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from worker.doctor.findings import Finding, Severity, fine
from worker.settings import Settings
from worker.spaces import LEDGER_FILE, space_dir

LEAST_FREE_BYTES = 1024**3
LEAST_FREE_SHARE = 0.05
WAL_RESET_FIXED = (3, 51, 3)
"""First SQLite without the WAL-reset corruption; one connection keeps older ones safe."""


def examine(settings: Settings) -> list[Finding]:
    """Look at this machine; changes nothing."""
    findings = [_directory(settings.data_dir), _disk(settings.data_dir), _sqlite()]
    for space in settings.spaces:
        findings += _databases(space_dir(settings.data_dir, space), space)
    findings += _private_files(settings.data_dir)
    return findings


def _directory(directory: Path) -> Finding:
    try:
        found = directory.stat()
    except FileNotFoundError:
        return Finding(
            "data-directory",
            Severity.WARNING,
            f"{directory} does not exist yet",
            "the worker creates it at its first start; no ledger or journal is here",
            f"start the worker, or point TIDEGATE_DATA_DIR at the right folder (now {directory})",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return Finding(
            "data-directory",
            Severity.DANGER,
            f"{directory} can be read by other users (mode {mode:04o})",
            "keys, identities and the broker's password lie there",
            f"chmod 700 {directory}",
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        return Finding(
            "data-directory",
            Severity.DANGER,
            f"{directory} cannot be written by this user",
            "the worker cannot keep its ledger and will not start",
            f"chown it to the worker's user: chown -R USER {directory}",
        )
    return fine("data-directory", f"{directory} is private and writable")


def _disk(directory: Path) -> Finding:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    usage = shutil.disk_usage(there)
    free_mb = usage.free // 1024**2
    if usage.free < LEAST_FREE_BYTES or usage.free < usage.total * LEAST_FREE_SHARE:
        return Finding(
            "disk-space",
            Severity.DANGER if usage.free < LEAST_FREE_BYTES // 4 else Severity.WARNING,
            f"{free_mb} MiB are free where {directory} lies",
            "a full disk stops the fold: nothing is lost, but nothing is authorised either",
            "free space, or move TIDEGATE_DATA_DIR to a larger disk",
        )
    return fine("disk-space", f"{free_mb} MiB are free where {directory} lies")


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < WAL_RESET_FIXED:
        return Finding(
            "sqlite-version",
            Severity.FINE,
            f"SQLite {version} is inside the range of the WAL-reset fault; "
            "one exclusive connection per file, as used here, keeps clear of it",
        )
    return fine("sqlite-version", f"SQLite {version}")


def _databases(directory: Path, space: str) -> Iterator[Finding]:
    path = directory / LEDGER_FILE
    if not path.exists():
        return
    try:
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=0.2)
        try:
            damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            mode = db.execute("PRAGMA journal_mode").fetchone()[0]
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN):
            yield fine("ledger-file", f"the ledger of {space} is held by a running worker")
            return
        yield _damaged(path, space)
        return
    except sqlite3.DatabaseError:
        yield _damaged(path, space)
        return
    if damage != "ok":
        yield _damaged(path, space)
    elif mode != "wal":
        yield Finding(
            "ledger-file",
            Severity.WARNING,
            f"the ledger of {space} is in journal mode {mode}, not wal",
            "somebody changed the file by hand",
            "start the worker once; it sets the mode and checks the schema",
        )
    else:
        yield fine("ledger-file", f"the ledger of {space} passes SQLite's check")


def _damaged(path: Path, space: str) -> Finding:
    return Finding(
        "ledger-file",
        Severity.DANGER,
        f"the ledger of {space} does not pass SQLite's check",
        "the worker refuses to start with it",
        f"move {path} away; the worker rebuilds it from the newest snapshot and the log",
    )


def _private_files(directory: Path) -> Iterator[Finding]:
    """Key files, identities and the broker's password must be their owner's alone."""
    patterns = ("keys/*", "*/keys/*", "identities/*.json", "identity.json", "broker.json")
    loose = []
    looked = 0
    for pattern in patterns:
        for path in sorted(directory.glob(pattern)):
            if path.is_symlink() or not path.is_file():
                continue
            looked += 1
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                loose.append(path)
    for path in loose:
        yield Finding(
            "private-files",
            Severity.DANGER,
            f"{path} can be read by other users",
            "whoever reads it can speak as its owner, or open sealed prompts",
            f"chmod 600 {path}, then rotate what it holds",
        )
    if looked and not loose:
        yield fine("private-files", f"{looked} private files are their owner's alone")
