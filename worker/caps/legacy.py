"""Taking in what a predecessor left: its records authorise nothing and hold their keys and seconds.

An import is a run of ``cap.import`` commands, so that replicas agree about it; the row that its
last chunk completes is the marker, and there is no second import.
"""

import sqlite3
from typing import Final, NamedTuple

from schemas.caps import LEGACY, LegacyRecord
from schemas.codes import BadInput, Code
from schemas.commands.cap import Import
from schemas.limits import MAX_SAFE_INTEGER
from schemas.results import Accepted, Refusal, Verdict
from schemas.strict_json import JsonObject
from worker.caps import generations, keys, records
from worker.caps.records import Corrupt, Record, floor_second
from worker.ledger import rulesets
from worker.ledger.tx import Tx

NOT_SAID: Final = 2
"""``required_version`` of a record that does not say: what the predecessor's records mean."""

NOT_SAID_BEFORE: Final = 1
"""The same before ``rulesets.MENDED``."""

STAND_IN: Final = "="
"""Begins the key of a row that only holds a second; no client can form such a key."""

_READ = (
    "SELECT import_id, chunks, of, imported, malformed, duplicates, shared_seconds, shared_keys, "
    "done_at_ms FROM imports"
)
_WRITE = "INSERT OR REPLACE INTO imports VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BY_KEY = (
    "SELECT expires_at_ms, latest_expires_at_ms FROM reservations WHERE user = ? AND mint_key = ?"
)
_BY_SECOND = "SELECT 1 FROM reservations WHERE user = ? AND expires_at_ms = ?"


class Progress(NamedTuple):
    """The row of ``imports``; fields are those of ``schemas.caps.ImportView``."""

    import_id: str
    chunks: int
    of: int
    imported: int = 0
    malformed: int = 0
    duplicates: int = 0
    shared_seconds: int = 0
    shared_keys: int = 0
    done_at_ms: int | None = None

    def shown(self) -> JsonObject:
        """It as an ``ImportView``."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def take_in(tx: Tx, key: tuple[str, ...], body: Import) -> Verdict:
    """Take in one chunk of an import.

    Chunks come in order, each once. An import that was broken off may be begun again, also under
    another name: what it took in stays and counts as duplicates the next time.

    Raises:
        BadInput: If ``chunk`` is beyond ``of``.
    """
    keys.none_of(key)
    if body.chunk > body.of:
        raise BadInput("chunk", "out-of-range", "field chunk must be at most field of")
    try:
        return _take_in(tx, body)
    except Corrupt as damage:
        return damage.refusal()


def _take_in(tx: Tx, body: Import) -> Verdict:
    progress = _progress(tx.db)
    if progress is not None and progress.done_at_ms is not None:
        return Refusal(
            Code.ALREADY_EXISTS,
            "already-imported",
            "an import was completed before, and there is no second one",
            data=progress.shown(),
        )
    if progress is None or (progress.import_id, progress.of) != (body.import_id, body.of):
        progress = Progress(body.import_id, 0, body.of)
    if body.chunk <= progress.chunks:
        return Accepted("already_taken_in", progress.shown())
    if body.chunk != progress.chunks + 1:
        return Refusal(
            Code.FAILED_PRECONDITION,
            "chunk-out-of-order",
            f"the next chunk of this import is {progress.chunks + 1}",
            data=progress.shown(),
        )
    for raw in body.records:
        progress = _hold(tx, progress, raw)
    is_last = body.chunk == body.of
    progress = progress._replace(chunks=body.chunk, done_at_ms=tx.now_ms if is_last else None)
    tx.db.execute(_WRITE, progress)
    return Accepted("imported" if is_last else "taken_in", progress.shown())


def _progress(db: sqlite3.Connection) -> Progress | None:
    row = db.execute(_READ).fetchone()
    if row is None:
        return None
    progress = Progress._make(row)
    counts = (progress.imported, progress.malformed, progress.duplicates)
    shared = (progress.shared_seconds, progress.shared_keys)
    is_done = progress.done_at_ms is not None
    if (
        min(*counts, *shared) < 0
        or max(*counts, *shared) > MAX_SAFE_INTEGER
        or not 0 <= progress.chunks <= progress.of
        or is_done != (progress.chunks == progress.of)
    ):
        raise Corrupt("imports: a damaged row")
    return progress


def _hold(tx: Tx, progress: Progress, raw: JsonObject) -> Progress:
    """Hold one record's key and second, as far as nothing holds them yet."""
    try:
        given = LegacyRecord.from_object(raw)
    except BadInput:
        return progress._replace(malformed=progress.malformed + 1)
    version = given.requiredVersion
    if version is None:
        version = NOT_SAID if tx.ruleset >= rulesets.MENDED else NOT_SAID_BEFORE
    db, user, second = tx.db, given.userId, floor_second(given.expiresAt)
    generations.begin(db, user)
    row = db.execute(_BY_KEY, (user, given.mintKey)).fetchone()
    is_taken = db.execute(_BY_SECOND, (user, second)).fetchone() is not None
    match row, is_taken:
        case None, False:
            records.insert(db, user, _record(given, given.mintKey, second, version))
            return progress._replace(imported=progress.imported + 1)
        case None, True:
            records.insert(db, user, _record(given, given.mintKey, None, version))
            return progress._replace(
                imported=progress.imported + 1, shared_seconds=progress.shared_seconds + 1
            )
        case _, False if not _names(row, second):
            records.insert(db, user, _record(given, f"{STAND_IN}{second}", second, version))
            return progress._replace(
                imported=progress.imported + 1, shared_keys=progress.shared_keys + 1
            )
        case _:
            return progress._replace(duplicates=progress.duplicates + 1)


def _names(row: tuple[int | None, int], second: int) -> bool:
    """Whether a row already names a second, be it one that another row holds."""
    return second in (row[0], floor_second(row[1]))


def _record(given: LegacyRecord, mint_key: str, second: int | None, version: int) -> Record:
    return Record(
        mint_key=mint_key,
        expires_at_ms=second,
        latest_expires_at_ms=given.expiresAt,
        cap=given.perSwapCapUsd,
        required_version=version,
        generation=None,
        reserved_at_ms=given.reservedAt,
        state=LEGACY,
        confirmed_at_ms=None,
        ended_at_ms=None,
    )
