"""Owners: connector processes that have spoken, and what is known against them.

Silence and death only block an owner's queued turns; what they mean for its leases is decided in
``recovery`` (spec/admission.md, Recovery).
"""

import sqlite3
from typing import Final

from worker.admission import heads
from worker.ledger import rulesets
from worker.ledger.plane import Swept
from worker.ledger.tx import Tx

_MEET: Final = "INSERT INTO adm_owners (principal, uid, seen_at_ms) VALUES (?, ?, ?)"
_HEARD: Final = "UPDATE adm_owners SET seen_at_ms = ? WHERE principal = ? AND uid = ?"
_CLEAR: Final = (
    "UPDATE adm_owners SET silent_at_ms = NULL, dead_at_ms = NULL, adoption_due_at_ms = NULL "
    "WHERE principal = ? AND uid = ?"
)
_SEEN: Final = (
    "SELECT seen_at_ms, silent_at_ms, dead_at_ms FROM adm_owners WHERE (principal, uid) = (?, ?)"
)
_SILENCE: Final = (
    "UPDATE adm_owners SET silent_at_ms = ? "
    "WHERE (principal, uid) = (?, ?) AND silent_at_ms IS NULL"
)
_BURY: Final = (
    "INSERT INTO adm_owners (principal, uid, seen_at_ms, dead_at_ms, adoption_due_at_ms) "
    "VALUES (?1, ?2, 0, ?3, ?4) ON CONFLICT (principal, uid) DO UPDATE "
    "SET dead_at_ms = ?3, adoption_due_at_ms = ?4 WHERE dead_at_ms IS NULL"
)
_EXPECT: Final = (
    "UPDATE adm_owners SET adoption_due_at_ms = ? WHERE (principal, uid) = (?, ?) "
    "AND dead_at_ms IS NOT NULL AND adoption_due_at_ms IS NULL"
)
_ADOPTION_OVER: Final = (
    "UPDATE adm_owners SET adoption_due_at_ms = NULL WHERE (principal, uid) = (?, ?)"
)
_SILENT_AND_QUEUED: Final = """
SELECT DISTINCT h.key FROM adm_heads h JOIN adm_owners o
ON o.principal = substr(h.key, 1, instr(h.key, '.') - 1)
AND o.uid = substr(h.key, instr(h.key, '.') + 1)
WHERE h.level = 3 AND o.silent_at_ms IS NOT NULL AND o.dead_at_ms IS NULL ORDER BY h.key
"""
_OWNS_NOTHING: Final = """
adoption_due_at_ms IS NULL
AND NOT EXISTS (SELECT 1 FROM adm_leases l
    WHERE l.principal = adm_owners.principal AND l.uid = adm_owners.uid)
AND NOT EXISTS (SELECT 1 FROM adm_heads h
    WHERE h.level = 3 AND h.key = adm_owners.principal || '.' || adm_owners.uid)
"""
_PRUNE: Final = f"DELETE FROM adm_owners WHERE seen_at_ms < ? AND {_OWNS_NOTHING}"  # noqa: S608 - above
_PRUNE_ONE: Final = f"{_PRUNE} AND principal = ? AND uid = ?"
_NEXT: Final = (
    "SELECT principal, uid FROM adm_owners WHERE (principal, uid) > (?, ?) "
    "ORDER BY principal, uid LIMIT ?"
)
_FORGET: Final = f"""
DELETE FROM adm_owners WHERE (principal, uid) IN (
    SELECT principal, uid FROM adm_owners INDEXED BY adm_owners_gone
    WHERE (silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL)
    AND seen_at_ms < ? AND {_OWNS_NOTHING} ORDER BY seen_at_ms, principal, uid LIMIT ?)
"""  # noqa: S608 - above

REMEMBERED_MS: Final = 24 * 3600 * 1000
"""How long a life that is suspect or dead, and owns nothing, is remembered, in log time."""

FORGOTTEN_AT_ONCE: Final = 2
"""So many old lives are forgotten when a new one is met, so that they never pile up."""


def heard(tx: Tx, principal: str, uid: str, seen_at_ms: int) -> bool:
    """Note that an owner was alive at an instant; whoever was suspect or dead is so no more.

    Returns:
        Whether anything was held against it.
    """
    known = last_seen(tx.db, principal, uid)
    if known is None:
        tx.db.execute(_MEET, (principal, uid, seen_at_ms))
        if tx.ruleset >= rulesets.MENDED:
            tx.db.execute(_FORGET, (tx.now_ms - REMEMBERED_MS, FORGOTTEN_AT_ONCE))
        return False
    last_ms, silent, dead = known
    if seen_at_ms > last_ms:
        tx.db.execute(_HEARD, (seen_at_ms, principal, uid))
    if silent is None and dead is None:
        return False
    tx.db.execute(_CLEAR, (principal, uid))
    heads.unpark(tx.db, heads.OWNER, heads.owner_key(principal, uid))
    return True


def last_seen(
    db: sqlite3.Connection, principal: str, uid: str
) -> tuple[int, int | None, int | None] | None:
    """When an owner was last heard, since when it is silent, and since when it is dead."""
    row: tuple[int, int | None, int | None] | None = db.execute(_SEEN, (principal, uid)).fetchone()
    return row


def silence(tx: Tx, principal: str, uid: str) -> None:
    """Hold silence against an owner, since the first time."""
    tx.db.execute(_SILENCE, (tx.now_ms, principal, uid))


def bury(tx: Tx, principal: str, uid: str, adoption_timeout_ms: int) -> bool:
    """Note that an owner is proven dead; what it queued waits for adoption.

    Returns:
        Whether this is news.
    """
    due_at_ms = tx.now_ms + adoption_timeout_ms
    return tx.db.execute(_BURY, (principal, uid, tx.now_ms, due_at_ms)).rowcount == 1


def expect_adoption(tx: Tx, principal: str, uid: str, adoption_timeout_ms: int) -> None:
    """If an owner is dead, let what was just queued for it wait for adoption too."""
    tx.db.execute(_EXPECT, (tx.now_ms + adoption_timeout_ms, principal, uid))


def end_adoption(tx: Tx, principal: str, uid: str) -> None:
    """Wait no longer for a new life of a dead owner's turns."""
    tx.db.execute(_ADOPTION_OVER, (principal, uid))


def silent_and_queued(db: sqlite3.Connection) -> list[str]:
    """Keys of owners that are silent, not proven dead, and have turns in the queue."""
    return [key for (key,) in db.execute(_SILENT_AND_QUEUED).fetchall()]


def prune(db: sqlite3.Connection, before_ms: int) -> None:
    """Forget owners that were last heard before an instant and own nothing."""
    db.execute(_PRUNE, (before_ms,))


def sweep_some(db: sqlite3.Connection, before_ms: int, after: str, room: int) -> Swept:
    """As ``prune``, for so many owners after one (``<principal>.<uid>``) in the order of keys."""
    principal, _, uid = after.partition(".")
    looked = db.execute(_NEXT, (principal, uid, room)).fetchall()
    removed = sum(db.execute(_PRUNE_ONE, (before_ms, *owner)).rowcount for owner in looked)
    return Swept(removed, len(looked), ".".join(looked[-1]) if len(looked) == room else None)
