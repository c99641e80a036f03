"""A small plane over real tables, to test the fold without the rules of caps or admission."""

import sqlite3
from typing import Any

from schemas.codes import BadInput, Code
from schemas.results import Accepted, Refusal, Verdict
from worker.ledger.plane import Plane
from worker.ledger.tx import Tx

WINDOW_MS = 10_000
"""A reservation of the small plane lapses this long after it was made."""

SCHEMA = """
CREATE TABLE holds (
    user TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'confirmed', 'lapsed')),
    cap INTEGER NOT NULL CHECK (cap >= 1),
    changes INTEGER NOT NULL CHECK (changes >= 1),
    lapses_at_ms INTEGER
) STRICT;

CREATE INDEX holds_by_lapse ON holds (lapses_at_ms) WHERE lapses_at_ms IS NOT NULL;
"""

_RESERVE = """
INSERT INTO holds VALUES (?, 'reserved', ?, 1, ?)
ON CONFLICT (user) DO UPDATE SET state = 'reserved', cap = excluded.cap,
    changes = changes + 1, lapses_at_ms = excluded.lapses_at_ms
RETURNING changes
"""
_CONFIRM = """
UPDATE holds SET state = 'confirmed', changes = changes + 1, lapses_at_ms = NULL
WHERE user = ? AND state = 'reserved' RETURNING changes
"""
_LAPSE = """
UPDATE holds SET state = 'lapsed', changes = changes + 1, lapses_at_ms = NULL
WHERE lapses_at_ms <= ? RETURNING user
"""
_FIRST = "SELECT min(lapses_at_ms) FROM holds WHERE lapses_at_ms IS NOT NULL"


def reserve(tx: Tx, key: tuple[str, ...], body: Any) -> Verdict:
    """Count up; the cap 13 breaks, and the cap 14 writes before it finds its key bad."""
    (changes,) = tx.db.execute(_RESERVE, (key[0], body.cap, tx.now_ms + WINDOW_MS)).fetchone()
    if body.cap == 13:
        raise RuntimeError("a defect in a transition")
    if body.cap == 14:
        raise BadInput("subject", "bad-key", "found late")
    tx.fact("cap", "reserved", (key[0],), {"changes": changes})
    return Accepted("reserved", {"changes": changes, "cap": body.cap})


def confirm(tx: Tx, key: tuple[str, ...], body: Any) -> Verdict:
    """Confirm what is reserved."""
    row = tx.db.execute(_CONFIRM, (key[0],)).fetchone()
    if row is None:
        return Refusal(Code.NOT_FOUND, "unreserved", "nothing is reserved under this key")
    return Accepted("confirmed", {"changes": row[0]})


def authorize(tx: Tx, key: tuple[str, ...], body: Any) -> Verdict:
    """Allow what is confirmed."""
    row = tx.db.execute("SELECT state, changes FROM holds WHERE user = ?", (key[0],)).fetchone()
    if row is None or row[0] != "confirmed":
        return Refusal(Code.FAILED_PRECONDITION, "none-active", "nothing is active")
    return Accepted("allowed", {"changes": row[1]})


def stop(tx: Tx, key: tuple[str, ...], body: Any) -> Verdict:
    """End it."""
    tx.db.execute("DELETE FROM holds WHERE user = ?", (key[0],))
    tx.fact("cap", "stopped", (key[0],), {})
    return Accepted("stopped")


def tick(tx: Tx) -> None:
    """Lapse what was reserved too long ago."""
    for (user,) in tx.db.execute(_LAPSE, (tx.now_ms,)).fetchall():
        tx.fact("cap", "lapsed", (user,), {})


def due_at(db: sqlite3.Connection) -> int | None:
    """When the first reservation lapses."""
    found: int | None = db.execute(_FIRST).fetchone()[0]
    return found


HOLDS = Plane(
    name="cap",
    schema=SCHEMA,
    tables=("holds",),
    handlers={
        "reserve": reserve,
        "confirm": confirm,
        "authorize": authorize,
        "stop": stop,
        "revoke": stop,
        "bump": stop,
        "minting": stop,
        "import": stop,
    },
    tick=tick,
    due_at=due_at,
)
"""The small plane; it stands where ``cap`` would."""
