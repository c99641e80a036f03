"""What this worker saw settle, kept locally against a broker whose store went back in time.

A records stream that was created anew, or that ends before what this worker has already seen, has
lost settlements. The plane then stops until every settlement in this journal stands again: its fact
created if it is missing, its status settled if it reads waiting (spec/checkpoints.md, Verbs).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.records import SettleFact, StatusRecord
from schemas.subjects import Checkpoint
from worker.checkpoints.local import is_full, transaction
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
    """

    def __init__(self, path: Path) -> None:
        self._db = _open(path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def seen(self, stream: str) -> Seen | None:
        """How far a stream had come."""
        row = self._db.execute(
            "SELECT created, last FROM seen WHERE stream = ?", (stream,)
        ).fetchone()
        return None if row is None else Seen(row[0], row[1])

    def note(self, settlements: Sequence[Settlement], seen: dict[str, Seen], now_ms: int) -> None:
        """Remember settlements and how far the streams have come, in one transaction."""
        with transaction(self._db, "BEGIN IMMEDIATE"):
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
        rows = self._db.execute("SELECT endpoint, token, status FROM settled").fetchall()
        for endpoint, token, status in rows:
            yield Settlement(Checkpoint(endpoint, token), StatusRecord.from_bytes(status))


def _open(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA busy_timeout = 1000")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            db.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
            version = VERSION
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StartRefused(
                f"{path} is in use by another process; give each worker its own data directory"
            ) from error
        if is_full(error):
            raise StartRefused(f"{path} cannot be opened: the disk is full") from error
        raise StartRefused(
            f"{path} cannot be read as a settlement journal; move it away to start without one"
        ) from error
    if version != VERSION:
        raise StartRefused(f"{path} was written by a newer Tidegate (version {version})")
    return db
