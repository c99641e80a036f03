"""What time alone does: a reservation that nobody confirmed in its window expires."""

import sqlite3
from typing import Final

from schemas.caps import EXPIRED, RESERVED
from worker.caps import facts, records
from worker.caps.records import COLUMNS, Record
from worker.ledger.tx import Tx

WINDOW_MS: Final = 600_000
"""A reservation of this age is still reserved; one millisecond older it is expired."""

EXPIRED_PER_TICK: Final = 1_000
"""Most reservations one tick expires; what is left keeps the next tick due."""

_WAITING: Final = """
FROM reservations INDEXED BY reservations_waiting
WHERE state = 'reserved' AND generation IS NOT NULL
    AND confirmed_at_ms IS NULL AND ended_at_ms IS NULL
"""
_FIRST = f"SELECT reserved_at_ms {_WAITING} ORDER BY reserved_at_ms LIMIT 1"
_OVERDUE = f"""
SELECT user, {COLUMNS} {_WAITING} AND reserved_at_ms < ?
ORDER BY reserved_at_ms, user, mint_key LIMIT ?
"""


def is_over(record: Record, now_ms: int) -> bool:
    """Whether a reservation has been waiting longer than its window."""
    return record.state == RESERVED and now_ms - record.reserved_at_ms > WINDOW_MS


def observe(tx: Tx, user: str, record: Record) -> Record:
    """The reservation as it is now; written as expired if its window is over."""
    return expire(tx, user, record) if is_over(record, tx.now_ms) else record


def expire(tx: Tx, user: str, record: Record) -> Record:
    """Write that a reservation's window is over."""
    expired = records.move(tx.db, user, record, EXPIRED, tx.now_ms)
    facts.of_grant(tx, "expired", user, expired)
    return expired


def tick(tx: Tx) -> None:
    """Expire reservations whose window is over, the oldest first."""
    rows = tx.db.execute(_OVERDUE, (tx.now_ms - WINDOW_MS, EXPIRED_PER_TICK)).fetchall()
    for user, *row in rows:
        expire(tx, user, Record._make(row))


def due_at(db: sqlite3.Connection) -> int | None:
    """The first instant at which the oldest reservation's window is over."""
    row = db.execute(_FIRST).fetchone()
    return None if row is None else row[0] + WINDOW_MS + 1
