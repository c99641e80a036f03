"""What this worker saw settle, kept locally against a broker whose store went back in time.

A records stream that was created anew, or that ends before what this worker has already seen, has
lost settlements. The plane then stops until every settlement in this journal stands again: its fact
created if it is missing, its status settled if it reads waiting (spec/checkpoints.md, Verbs).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.records import SettleFact, StatusRecord
from schemas.subjects import Checkpoint
from worker.checkpoints.local import closed_on_failure, is_full, transaction
from worker.errors import StartRefused

VERSION = 1
KEEP_MS = 30 * 24 * 3600 * 1000

_SCHEMA = """
CREATE TABLE seen (
    stream  TEXT PRIMARY KEY,
    created TEXT NOT NULL,
    last    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE settled (
    endpoint TEXT NOT NULL,
    token    TEXT NOT NULL,
    status   BLOB NOT NULL,
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (endpoint, token)
) STRICT, WITHOUT ROWID;

CREATE INDEX settled_by_age ON settled (at_ms);
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a stream had come when it was last looked at.

    Attributes:
        created: Its created time, as the broker writes it.
        last: Its last sequence.
    """

    created: str
    last: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """One settlement as it was seen."""

    target: Checkpoint
    status: StatusRecord

    @property
    def fact(self) -> SettleFact:
        """The settle fact it entails."""
        record = self.status
        if record.state == "waiting" or record.settledTs is None:
            raise ValueError("a waiting status is no settlement")
        return SettleFact(
            v=1,
            token=self.target.token,
            settle=record.state,
            generation=record.deadlineGeneration,
            ts=record.settledTs,
            holder=record.settledHolder,
            answerId=record.settledAnswerId,
        )


class Journal:
    """The journal file; every method runs in the one thread that owns it.

    Args:
        path: Where the file lies; created if missing, never replaced.

    Raises:
        StartRefused: If it is damaged, newer or in use by another process.
        sqlite3.OperationalError: If there is no room to create it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = _open(path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def seen(self) -> dict[str, Seen]:
        """How far each stream had come."""
        with _named(self._path):
            rows = self._db.execute("SELECT stream, created, last FROM seen").fetchall()
        return {stream: Seen(created, last) for stream, created, last in rows}

    def note(self, settlements: Sequence[Settlement], seen: dict[str, Seen], now_ms: int) -> None:
        """Remember settlements and how far the streams have come, in one transaction."""
        with _named(self._path), transaction(self._db, "BEGIN IMMEDIATE"):
            self._db.executemany(
                "INSERT OR REPLACE INTO settled VALUES (?, ?, ?, ?)",
                [
                    (one.target.endpoint, one.target.token, one.status.to_bytes(), now_ms)
                    for one in settlements
                ],
            )
            self._db.executemany(
                "INSERT INTO seen VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE"
                " SET created = ?2, last = ?3",
                [(stream, one.created, one.last) for stream, one in seen.items()],
            )
            self._db.execute("DELETE FROM settled WHERE at_ms < ?", (now_ms - KEEP_MS,))

    def settlements(self) -> Iterator[Settlement]:
        """Everything remembered, in no particular order."""
        with _named(self._path):
            rows = self._db.execute("SELECT endpoint, token, status FROM settled").fetchall()
        for endpoint, token, status in rows:
            yield Settlement(Checkpoint(endpoint, token), StatusRecord.from_bytes(status))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file whose damage is met; a full disk is none."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if is_full(error):
            raise
        raise _damaged(path) from error


def _damaged(path: Path) -> StartRefused:
    return StartRefused(
        f"{path} cannot be read as a settlement journal; move it away to start without one"
    )


def _open(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with closed_on_failure(db):
            version = _ready(db, path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StartRefused(
                f"{path} is in use by another process; give each worker its own data directory"
            ) from error
        if is_full(error):
            raise
        raise _damaged(path) from error
    if version != VERSION:
        db.close()
        raise StartRefused(f"{path} was written by a newer Tidegate (version {version})")
    return db


def _ready(db: sqlite3.Connection, path: Path) -> int:
    """Make the file ours and sound; its version."""
    db.execute("PRAGMA busy_timeout = 1000")
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version == 0:
        with transaction(db, "BEGIN IMMEDIATE"):
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
        version = VERSION
    if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise _damaged(path)
    return version
