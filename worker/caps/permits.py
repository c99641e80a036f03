"""Permits: each allows one send begun at once; a Stop says when the last of them has ended."""

import sqlite3
from typing import Final

from schemas.commands.cap import MAX_PERMIT_MS
from worker.caps.records import Corrupt
from worker.ledger.plane import Swept

_GIVE = """
INSERT INTO permits VALUES (?, ?)
ON CONFLICT (user) DO UPDATE SET ends_at_ms = max(ends_at_ms, excluded.ends_at_ms)
"""
_LATEST = "SELECT ends_at_ms FROM permits WHERE user = ?"
_PRUNE = "DELETE FROM permits WHERE ends_at_ms < ?"
_PRUNE_ONE = f"{_PRUNE} AND user = ?"
_NEXT = "SELECT user FROM permits WHERE user > ? ORDER BY user LIMIT ?"
_NEVER: Final = 0


def give(db: sqlite3.Connection, user: str, ends_at_ms: int) -> None:
    """Note until when a permit that is being given is valid."""
    db.execute(_GIVE, (user, ends_at_ms))


def latest_end(db: sqlite3.Connection, user: str) -> int:
    """When the last permit given to a person ends, or ended; 0 if none was or all are forgotten.

    Raises:
        Corrupt: If the row is damaged.
    """
    row = db.execute(_LATEST, (user,)).fetchone()
    if row is None:
        return _NEVER
    if row[0] < 0:
        raise Corrupt("permits: an instant out of range")
    return int(row[0])


def quiet_after(db: sqlite3.Connection, user: str, now_ms: int) -> int:
    """When the last permit given to a person has ended; it does not depend on the row.

    No permit outlasts ``MAX_PERMIT_MS``, so one given by now has ended by then whatever a damaged
    row says.
    """
    try:
        latest_ms = latest_end(db, user)
    except Corrupt:
        return now_ms + MAX_PERMIT_MS
    return max(now_ms, min(latest_ms, now_ms + MAX_PERMIT_MS))


def prune(db: sqlite3.Connection, before_ms: int) -> None:
    """Forget permits that ended before an instant."""
    db.execute(_PRUNE, (before_ms,))


def sweep_some(db: sqlite3.Connection, before_ms: int, after: str, room: int) -> Swept:
    """As ``prune``, for so many persons after one."""
    looked = db.execute(_NEXT, (after, room)).fetchall()
    removed = sum(db.execute(_PRUNE_ONE, (before_ms, *one)).rowcount for one in looked)
    return Swept(removed, len(looked), looked[-1][0] if len(looked) == room else None)
