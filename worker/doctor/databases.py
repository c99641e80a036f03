"""The worker's databases, opened to be read and nothing else: whole, ours, and this version's.

The worker asserts its connection's settings and the schema at each start and refuses a file that
does not fit; the same comparison is made here while nobody holds the file.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from schemas.names import Names
from worker.checkpoints import journal
from worker.doctor.findings import Check, Finding, danger, fine
from worker.ledger import store
from worker.ledger.inspection import differences, integrity_faults, read_shape, statements
from worker.planes import PLANES
from worker.spaces import LEDGER_FILE

JOURNAL_FILE: Final = "settled.db"
_HELD: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_WAL_VERSIONS: Final = b"\x02\x02"
_SHOWN: Final = 3
"""How many of a file's faults are named."""


def examine(directory: Path, names: Names) -> list[Finding]:
    """Look at the databases of one space."""
    return [
        *_look(
            directory / LEDGER_FILE,
            Check.LEDGER_FILE,
            lambda db: _ledger_faults(db, names) + _mode_faults(directory / LEDGER_FILE),
            f"the ledger of {names.space}",
            "the worker refuses to start with it",
            "move {path} and {path}-wal away and start the worker: "
            "it begins at the newest snapshot and folds the log from there",
        ),
        *_look(
            directory / JOURNAL_FILE,
            Check.JOURNAL_FILE,
            _journal_faults,
            f"the journal of settlements of {names.space}",
            "the worker refuses to start with it",
            "move {path} and {path}-wal away and start the worker: it begins a new one, and "
            "what the old one knew no longer guards against a broker that is set back",
        ),
    ]


def _look(
    path: Path,
    check: Check,
    faults_of: Callable[[sqlite3.Connection], list[str]],
    what: str,
    endangers: str,
    fix: str,
) -> Iterator[Finding]:
    if _is_absent(path):
        return
    remedy = fix.format(path=path)
    if not os.access(path, os.R_OK | os.W_OK):
        yield danger(
            check,
            f"{what} cannot be read and written by this user",
            endangers,
            f"run as the worker's user, or give it back: chown -R $(id -u) {path.parent}",
        )
        return
    try:
        with closing(sqlite3.connect(_address(path), uri=True, timeout=0.2)) as db:
            faults = faults_of(db)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in _HELD:
            yield fine(check, f"{what} is held by a running worker, which checked it at its start")
            return
        faults = [f"SQLite says {error.sqlite_errorname}"]
    if faults:
        shown = "; ".join(faults[:_SHOWN])
        yield danger(check, f"{what} is not as it must be: {shown}", endangers, remedy)
    else:
        yield fine(check, f"{what} is whole")


def _is_absent(path: Path) -> bool:
    """Whether it is certain that there is no file; a folder that is closed to us hides one."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _address(path: Path) -> str:
    """Read only; a file without a journal beside it is in nobody's use, and none is made for it."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    return f"{path.as_uri()}?{'mode=ro' if in_use else 'immutable=1'}"


def _ledger_faults(db: sqlite3.Connection, names: Names) -> list[str]:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != store.APPLICATION_ID:
        return ["it is no ledger of ours"]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > store.schema_version():
        return [f"schema version {version} is newer than {store.schema_version()}: upgrade first"]
    faults = integrity_faults(db)
    if version == store.schema_version():
        with closing(sqlite3.connect(":memory:")) as fresh:
            for statement in statements(store.schema_sql(PLANES)):
                fresh.execute(statement)
            faults += differences(read_shape(fresh), read_shape(db))
    if not faults:
        owner = db.execute("SELECT root, space FROM fold").fetchone()
        if owner != (names.root, names.space):
            faults.append(f"it belongs to {'.'.join(map(str, owner or ()))}, not {names.prefix}")
    return faults


def _mode_faults(path: Path) -> list[str]:
    """The journal mode as the header says it: a reader of a file at rest is not told."""
    with path.open("rb") as file:
        versions = file.read(20)[18:]
    return [] if versions == _WAL_VERSIONS else ["its journal mode is not wal"]


def _journal_faults(db: sqlite3.Connection) -> list[str]:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > journal.VERSION:
        return [f"version {version} is newer than {journal.VERSION}: upgrade first"]
    return integrity_faults(db)
