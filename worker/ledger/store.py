"""The ledger's file: one exclusive connection, its settings asserted, its schema proven.

One process holds one file; a second opener is refused. Nothing here repairs anything: a file that
is newer, foreign or damaged is refused, naming the difference (DESIGN section 5).
"""

import os
import sqlite3
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from schemas.names import Names
from worker.errors import TidegateError
from worker.ledger import rulesets
from worker.ledger.errors import FileLocked, FileRefused, StorageFull
from worker.ledger.inspection import differences, integrity_faults, read_shape, statements
from worker.ledger.plane import Plane

APPLICATION_ID: Final = 0x54644774
"""``TdGt`` in the file's header says whose file it is."""

_DRAINS_AND_AGES: Final = """
ALTER TABLE adm_limits ADD COLUMN drained_to INTEGER CHECK (drained_to >= 0);
ALTER TABLE adm_limits ADD COLUMN max_retry_after_ms INTEGER NOT NULL DEFAULT 86400000 CHECK (max_retry_after_ms >= 0);
ALTER TABLE adm_limits ADD COLUMN max_priority TEXT;
ALTER TABLE adm_heads ADD COLUMN by_age INTEGER NOT NULL DEFAULT 0 CHECK (by_age = 0 OR by_age = 1);
CREATE INDEX adm_owners_gone ON adm_owners (seen_at_ms)
    WHERE silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL;
CREATE INDEX adm_heads_parked ON adm_heads (parent) WHERE level = 3 AND parked = 1;
UPDATE adm_limits SET drained_to = nullif(
    seat_limit, coalesce(json_extract(next_policy, '$.max_active_turns'), max_active_turns));
"""  # noqa: E501 - the file keeps a column's definition as it is written here

MIGRATIONS: Final[tuple[str, ...]] = (_DRAINS_AND_AGES,)
"""SQL that takes a file of schema version ``n + 1`` to ``n + 2``, at index ``n``."""

NO_CHAIN: Final = "0" * 64
"""The chain value before the first result."""

LOGICAL_TABLES: Final = ("fold", "commands")
"""The fold's own tables that are logical state."""

_PRAGMAS: Final = (
    ("busy_timeout", None),
    ("locking_mode", "exclusive"),
    ("journal_mode", "wal"),
    ("synchronous", 2),
    ("foreign_keys", 1),
    ("temp_store", 2),
    ("cache_size", -65_536),
    ("wal_autocheckpoint", 8_192),
    ("trusted_schema", 0),
)
_CACHED_STATEMENTS: Final = 1024


def schema_version() -> int:
    """The schema version that this version of the worker writes."""
    return 1 + len(MIGRATIONS)


def schema_sql(planes: Sequence[Plane]) -> str:
    """The whole schema: the fold's own tables and those of every plane."""
    own = (resources.files("worker.ledger") / "schema.sql").read_text(encoding="utf-8")
    return "\n".join((own, *(plane.schema for plane in planes)))


def connect(path: Path, *, busy_ms: int = 1_000) -> sqlite3.Connection:
    """Open the file exclusively and assert every setting by reading it back.

    Args:
        path: The file; it and its directory are made, readable by us alone, if they are missing.
        busy_ms: How long to wait for another process to let go.

    Raises:
        FileLocked: If another process holds it.
        FileRefused: If it is not a SQLite database, or a setting does not hold.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        db = sqlite3.connect(
            path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
            timeout=busy_ms / 1000,
        )
    except sqlite3.DatabaseError as error:
        raise _refused(path, error) from error
    except OSError as error:
        why = f"it cannot be made: {os.strerror(error.errno or 0)}"
        raise FileRefused(path, (why,), reason="not-writable") from error
    try:
        _settle(db, path, busy_ms)
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, names: Names, planes: Sequence[Plane]) -> None:
    """Make the schema in an empty file, or bring an older one up, or prove that it is ours.

    One transaction; the whole schema and every page are checked before it commits, so a refused
    file is left exactly as it was.

    Raises:
        FileRefused: Naming each difference; reasons ``foreign-file``, ``newer-file``,
            ``damaged-file``, ``schema-differs``, ``other-space``.
    """
    path = _path_of(db)
    try:
        db.execute("BEGIN EXCLUSIVE")
        _bring_up(db, path, names, planes)
        _prove(db, path, names, planes)
        db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise _refused(path, error) from error
    finally:
        if db.in_transaction:
            db.rollback()


def open_ledger(
    path: Path, names: Names, planes: Sequence[Plane], *, busy_ms: int = 1_000
) -> sqlite3.Connection:
    """``connect`` and ``prepare``; the connection is closed again if the file is refused."""
    db = connect(path, busy_ms=busy_ms)
    try:
        prepare(db, names, planes)
    except BaseException:
        db.close()
        raise
    return db


def sqlite_version() -> str:
    """Version of the SQLite library in this process."""
    return sqlite3.sqlite_version


def local(db: sqlite3.Connection, name: str) -> str:
    """What this replica noted for itself under a name; empty if nothing."""
    row = db.execute("SELECT value FROM local WHERE name = ?", (name,)).fetchone()
    return "" if row is None else str(row[0])


def put_in_place(source: Path, path: Path) -> None:
    """Move a closed, complete file to where a ledger lies, replacing the one that was there.

    After a crash there is the old ledger or the new one. The old one must be closed.
    """
    with source.open("rb+") as file:
        os.fsync(file.fileno())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source.chmod(0o600)
    # What an unclean end left of the old file's log must not be read into the new one.
    for leftover in ("-wal", "-shm"):
        path.with_name(path.name + leftover).unlink(missing_ok=True)
    source.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _settle(db: sqlite3.Connection, path: Path, busy_ms: int) -> None:
    try:
        for name, value in _PRAGMAS:
            wanted = busy_ms if value is None else value
            db.execute(f"PRAGMA {name} = {wanted}")
        # In WAL mode an exclusive lock is only taken by the first write transaction.
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
        for name, value in _PRAGMAS:
            wanted = busy_ms if value is None else value
            found = db.execute(f"PRAGMA {name}").fetchone()[0]
            if found != wanted:
                raise FileRefused(
                    path,
                    (f"setting {name} is {found}, expected {wanted}",),
                    reason="setting-not-held",
                )
    except sqlite3.DatabaseError as error:
        raise _refused(path, error) from error


def _bring_up(db: sqlite3.Connection, path: str, names: Names, planes: Sequence[Plane]) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    empty = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if empty and application == 0 and version == 0:
        _create(db, names, planes)
        return
    if application != APPLICATION_ID:
        raise FileRefused(
            path,
            (f"application id is {application:#x}, a ledger's is {APPLICATION_ID:#x}",),
            reason="foreign-file",
        )
    if version > schema_version():
        raise FileRefused(
            path,
            (f"schema version {version} is newer than {schema_version()}",),
            reason="newer-file",
        )
    for step in MIGRATIONS[version - 1 :]:
        for statement in statements(step):
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {schema_version()}")


def _create(db: sqlite3.Connection, names: Names, planes: Sequence[Plane]) -> None:
    for statement in statements(schema_sql(planes)):
        db.execute(statement)
    db.execute(
        "INSERT INTO fold VALUES (1, ?, ?, 1, 0, 0, ?, ?, 0)",
        (names.root, names.space, NO_CHAIN, rulesets.FIRST),
    )
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {schema_version()}")


def _prove(db: sqlite3.Connection, path: str, names: Names, planes: Sequence[Plane]) -> None:
    faults = integrity_faults(db)
    if faults:
        raise FileRefused(path, tuple(faults), reason="damaged-file")
    with sqlite3.connect(":memory:", isolation_level=None) as fresh:
        for statement in statements(schema_sql(planes)):
            fresh.execute(statement)
        expected = read_shape(fresh)
    fresh.close()
    found = differences(expected, read_shape(db))
    if found:
        raise FileRefused(path, tuple(found), reason="schema-differs")
    rows = db.execute("SELECT root, space FROM fold").fetchall()
    if rows != [(names.root, names.space)]:
        raise FileRefused(
            path,
            (f"it belongs to {rows}, expected {names.prefix}",),
            reason="other-space",
        )


def _path_of(db: sqlite3.Connection) -> str:
    return str(db.execute("PRAGMA database_list").fetchone()[2])


def _refused(path: Path | str, error: sqlite3.DatabaseError) -> TidegateError:
    match error.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return FileLocked(path)
        case sqlite3.SQLITE_FULL:
            return StorageFull(f"{path}: the disk is full")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return FileRefused(path, ("it cannot be opened for writing",), reason="not-writable")
        case sqlite3.SQLITE_NOTADB:
            return FileRefused(path, ("it is not a SQLite database",), reason="foreign-file")
        case _:
            return FileRefused(
                path, (f"SQLite says {error.sqlite_errorname}",), reason="damaged-file"
            )
