"""A disposable local index of waiting checkpoints, fed from the streams' positions.

It tells the wheel what is near, the sweep what is overdue and ``cp.list`` what waits. It never
decides anything: whatever it says is read again at the leader and judged by a compare-and-set. If
the file is damaged, whenever that is met, or belongs to another stream it is thrown away and built
again.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from schemas.records import Holder
from schemas.subjects import Checkpoint
from worker.checkpoints.local import closed_on_failure, is_full, transaction
from worker.errors import StartRefused

VERSION = 2


@dataclass(frozen=True, slots=True)
class SpecSeen:
    """A spec passed by in the records stream."""

    target: Checkpoint
    holder: Holder


@dataclass(frozen=True, slots=True)
class WaitingSeen:
    """A waiting status passed by."""

    target: Checkpoint
    generation: int
    deadline_ms: int
    revision: int
    spec_revision: int


@dataclass(frozen=True, slots=True)
class SettledSeen:
    """A settled status (or a deletion) passed by.

    Attributes:
        target: Which checkpoint.
        proven: Whether its settle fact need not be looked for.
        deleted: Whether a record was deleted, which closes the token.
    """

    target: Checkpoint
    proven: bool
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class FactSeen:
    """A settle fact passed by."""

    target: Checkpoint


Change = SpecSeen | WaitingSeen | SettledSeen | FactSeen


@dataclass(frozen=True, slots=True)
class Pending:
    """A waiting checkpoint as the index knows it."""

    target: Checkpoint
    holder: Holder | None
    generation: int
    deadline_ms: int
    revision: int
    spec_revision: int
    timer_known: bool
    seen_at_ms: int

    @property
    def position(self) -> tuple[int, str, str]:
        """Where it stands in the order of lists: deadline, endpoint, token."""
        return (self.deadline_ms, self.target.endpoint, self.target.token)


@dataclass(frozen=True, slots=True)
class Filter:
    """What to list.

    Attributes:
        endpoint: Only this endpoint.
        holder: Only this principal.
        before_ms: Only deadlines before this.
        after: Position behind which to go on: deadline, endpoint, token.
    """

    endpoint: str | None = None
    holder: str | None = None
    before_ms: int | None = None
    after: tuple[int, str, str] | None = None


class Index:
    """The index file; every method runs in the one thread that owns it.

    Args:
        path: Where the file lies; it is created, or replaced if it is not usable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = _open(path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def mark(self, name: str) -> int | None:
        """A remembered number: a stream's position or its created time."""
        row = self._db.execute("SELECT value FROM mark WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def reset(self, marks: dict[str, int]) -> None:
        """Forget everything and start anew with these marks."""
        with transaction(self._db):
            for table in ("mark", "pending", "unproven"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - names from the line above
            self._db.executemany("INSERT INTO mark VALUES (?, ?)", marks.items())

    def apply(self, changes: Sequence[Change], marks: dict[str, int], now_ms: int) -> None:
        """Apply changes in order and remember the positions, in one transaction."""
        with transaction(self._db):
            for change in changes:
                self._apply(change, now_ms)
            self._db.executemany(
                "INSERT INTO mark VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2",
                marks.items(),
            )

    def find(self, wanted: Filter, limit: int) -> list[Pending]:
        """Waiting checkpoints by deadline, endpoint and token; one page."""
        statement, arguments = page(wanted, limit)
        rows = self._db.execute(statement, arguments).fetchall()
        return [_pending(row) for row in rows]

    def unknown(self, rows: Sequence[Pending]) -> list[Pending]:
        """Those of which this file has neither the same generation nor a later one."""
        return [
            row
            for row in rows
            if self._db.execute(
                "SELECT 1 FROM pending WHERE endpoint = ? AND token = ? AND generation >= ?",
                (row.target.endpoint, row.target.token, row.generation),
            ).fetchone()
            is None
        ]

    def specless(self, before_ms: int, limit: int) -> list[Checkpoint]:
        """What was due before an instant, still waits, and has no spec that could be read."""
        rows = self._db.execute(
            "SELECT endpoint, token FROM pending WHERE deadline < ? AND holder_id IS NULL"
            " ORDER BY deadline LIMIT ?",
            (before_ms, limit),
        ).fetchall()
        return [Checkpoint(endpoint, token) for endpoint, token in rows]

    def note_timers(self, rows: Sequence[Pending]) -> None:
        """Remember that the timers of these generations were seen armed."""
        with transaction(self._db):
            self._db.executemany(
                "UPDATE pending SET timer_known = 1"
                " WHERE endpoint = ? AND token = ? AND generation = ?",
                [(row.target.endpoint, row.target.token, row.generation) for row in rows],
            )

    def unproven(self, before_ms: int, limit: int) -> list[Checkpoint]:
        """Settled checkpoints whose fact has not been seen, older than an instant."""
        rows = self._db.execute(
            "SELECT endpoint, token FROM unproven WHERE seen_at_ms < ? ORDER BY seen_at_ms LIMIT ?",
            (before_ms, limit),
        ).fetchall()
        return [Checkpoint(endpoint, token) for endpoint, token in rows]

    def prove(self, target: Checkpoint) -> None:
        """Remember that a settlement's fact exists."""
        self._apply(FactSeen(target), 0)

    def count(self) -> int:
        """How many checkpoints wait."""
        row = self._db.execute("SELECT count(*) FROM pending WHERE deadline IS NOT NULL").fetchone()
        return int(row[0])

    def audit_begin(self) -> None:
        """Begin to compare the timers that stand with the checkpoints that wait."""
        self._db.execute("DROP TABLE IF EXISTS temp.armed")
        self._db.execute(
            "CREATE TEMP TABLE armed"
            " (endpoint TEXT, token TEXT, PRIMARY KEY (endpoint, token)) WITHOUT ROWID"
        )

    def audit_add(self, armed: Sequence[Checkpoint]) -> None:
        """One page of checkpoints that have a timer."""
        self._db.executemany(
            "INSERT OR IGNORE INTO temp.armed VALUES (?, ?)",
            [(target.endpoint, target.token) for target in armed],
        )

    def audit_end(
        self, seen_before_ms: int, limit: int
    ) -> tuple[list[Checkpoint], list[Checkpoint]]:
        """What does not fit.

        Args:
            seen_before_ms: Younger rows are left alone: their timer may just be being armed.
            limit: How many of each to answer.

        Returns:
            Waiting checkpoints without a timer, and timers of nothing that waits.
        """
        missing = self._db.execute(
            "SELECT endpoint, token FROM pending WHERE deadline IS NOT NULL AND seen_at_ms < ?"
            " AND (endpoint, token) NOT IN (SELECT endpoint, token FROM temp.armed) LIMIT ?",
            (seen_before_ms, limit),
        ).fetchall()
        left = self._db.execute(
            "SELECT endpoint, token FROM temp.armed"
            " WHERE (endpoint, token) NOT IN (SELECT endpoint, token FROM pending) LIMIT ?",
            (limit,),
        ).fetchall()
        self._db.execute("DROP TABLE temp.armed")
        return [Checkpoint(*row) for row in missing], [Checkpoint(*row) for row in left]

    def _apply(self, change: Change, now_ms: int) -> None:
        key = (change.target.endpoint, change.target.token)
        match change:
            case SpecSeen(holder=holder):
                self._db.execute(
                    "INSERT INTO pending (endpoint, token, holder_id, holder_uid, seen_at_ms)"
                    " VALUES (?1, ?2, ?3, ?4, ?5)"
                    " ON CONFLICT DO UPDATE SET holder_id = ?3, holder_uid = ?4",
                    (*key, holder.id, holder.lifecycleUid, now_ms),
                )
            case WaitingSeen():
                self._db.execute(
                    "INSERT INTO pending (endpoint, token, generation, deadline, revision,"
                    " spec_revision, seen_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
                    " ON CONFLICT DO UPDATE SET generation = ?3, deadline = ?4, revision = ?5,"
                    " spec_revision = ?6, seen_at_ms = ?7, timer_known = 0",
                    (
                        *key,
                        change.generation,
                        change.deadline_ms,
                        change.revision,
                        change.spec_revision,
                        now_ms,
                    ),
                )
            case SettledSeen(proven=proven):
                self._db.execute("DELETE FROM pending WHERE endpoint = ? AND token = ?", key)
                if not proven:
                    self._db.execute(
                        "INSERT OR IGNORE INTO unproven VALUES (?, ?, ?)", (*key, now_ms)
                    )
            case FactSeen():
                self._db.execute("DELETE FROM unproven WHERE endpoint = ? AND token = ?", key)


def page(wanted: Filter, limit: int) -> tuple[str, tuple[object, ...]]:
    """The statement for one page, and its arguments.

    It walks an index in the order of the page and begins behind the page before: what a page costs
    does not depend on how many checkpoints wait.
    """
    conditions: dict[str, tuple[object, ...]] = {"deadline IS NOT NULL": ()}
    in_endpoint = wanted.endpoint is not None and wanted.holder is None
    if wanted.endpoint is not None:
        # The + keeps the holder's index in use, where both are given: a holder has fewer.
        conditions["endpoint = ?" if in_endpoint else "+endpoint = ?"] = (wanted.endpoint,)
    if wanted.holder is not None:
        conditions["holder_id = ?"] = (wanted.holder,)
    if wanted.before_ms is not None:
        conditions["deadline < ?"] = (wanted.before_ms,)
    if wanted.after is not None:
        deadline, endpoint, token = wanted.after
        if not in_endpoint:
            conditions["(deadline, endpoint, token) > (?, ?, ?)"] = wanted.after
        elif endpoint == wanted.endpoint:
            conditions["(deadline, token) > (?, ?)"] = (deadline, token)
        else:
            is_behind = str(wanted.endpoint) > endpoint
            conditions[f"deadline {'>=' if is_behind else '>'} ?"] = (deadline,)
    statement = (
        "SELECT endpoint, token, holder_id, holder_uid, generation, deadline, revision,"  # noqa: S608 - only fixed fragments
        f" spec_revision, timer_known, seen_at_ms FROM pending WHERE {' AND '.join(conditions)}"
        " ORDER BY deadline, endpoint, token LIMIT ?"
    )
    return statement, (*(value for values in conditions.values() for value in values), limit)


def _pending(row: tuple[object, ...]) -> Pending:
    endpoint, token, holder_id, holder_uid, generation, deadline, revision, spec, timer, seen = row
    holder = (
        Holder(id=str(holder_id), lifecycleUid=str(holder_uid)) if holder_id is not None else None
    )
    return Pending(
        Checkpoint(str(endpoint), str(token)),
        holder,
        _int(generation),
        _int(deadline),
        _int(revision),
        _int(spec),
        bool(timer),
        _int(seen),
    )


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise sqlite3.DataError("the index holds a row of another shape")
    return value


def throw_away(path: Path) -> None:
    """Remove an index file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _open(path: Path) -> sqlite3.Connection:
    try:
        db = _connect(path)
        if db.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            return db
        db.close()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StartRefused(
                f"{path} is in use by another process; give each worker its own data directory"
            ) from error
        if is_full(error):
            raise
    throw_away(path)
    db = _connect(path)
    with closed_on_failure(db), transaction(db):
        for statement in resources.files(__package__).joinpath("index.sql").read_text().split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    return db


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with closed_on_failure(db):
        db.execute("PRAGMA busy_timeout = 1000")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        # Whatever a power cut takes from this file is read again from the stream.
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -8192")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return db
