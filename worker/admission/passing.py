"""What time alone decides: deadlines, start timeouts, adoption, cooldown ends, ageing, pruning.

Every command lets time pass first, so its rules see no turn that should have ended before. One
command ends at most ``AT_ONCE`` things of a kind; the next tick goes on, and a turn that a command
is about is always brought up to date by itself. Whatever instant is reached has passed: a deadline
equal to now is over, and so is a cooldown.
"""

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from schemas.admission import BEFORE_INTENT, CANCELLED, QUEUED
from worker.admission import heads, limits, owners, turns
from worker.admission.turns import Turn
from worker.ledger.plane import Sweep, Swept
from worker.ledger.tx import Tx

AT_ONCE: Final = 256
"""Turns of one kind that one command ends at most, so that no command takes long."""

_EARLIEST: Final = """
SELECT
(SELECT min(start_deadline_at_ms) FROM adm_leases WHERE start_deadline_at_ms IS NOT NULL),
(SELECT min(adoption_due_at_ms) FROM adm_owners WHERE adoption_due_at_ms IS NOT NULL),
(SELECT min(deadline_at_ms) FROM adm_requests WHERE state = 'queued'),
(SELECT min(until_ms) FROM adm_cooldowns),
(SELECT min(aged_at_ms) FROM adm_requests WHERE node IS NOT NULL AND aged = 0)
"""
_OVERDUE_STARTS: Final = turns.SELECT + (
    " WHERE l.start_deadline_at_ms <= ? AND l.start_deadline_at_ms IS NOT NULL"
    " ORDER BY l.start_deadline_at_ms, l.request_id LIMIT ?"
)
_OVERDUE: Final = turns.SELECT + (
    " WHERE r.state = 'queued' AND r.deadline_at_ms <= ?"
    " ORDER BY r.deadline_at_ms, r.request_id LIMIT ?"
)
_UNADOPTED: Final = """
SELECT principal, uid FROM adm_owners WHERE adoption_due_at_ms <= ?
ORDER BY adoption_due_at_ms, principal, uid LIMIT 1
"""
_QUEUED_OF: Final = """
SELECT q.request_id FROM adm_heads owner
JOIN adm_heads line ON line.parent = owner.node
JOIN adm_requests q ON q.node = line.node
WHERE owner.level = 3 AND owner.key = ?
ORDER BY owner.node, line.key, line.priority, q.enqueued_at_ms, q.request_id LIMIT ?
"""
_UNSEALED_OF: Final = """
SELECT request_id FROM adm_requests
WHERE state = 'queued' AND node IS NULL AND principal = ? AND uid = ? ORDER BY request_id LIMIT ?
"""
_COOLED: Final = "DELETE FROM adm_cooldowns WHERE until_ms <= ? RETURNING provider, model"
_OFFERED: Final = """
SELECT EXISTS (SELECT 1 FROM adm_heads INDEXED BY adm_heads_tier
    WHERE parent = 0 AND key = ? AND head_id IS NOT NULL)
"""
_USE_UP: Final = "INSERT INTO adm_used SELECT request_id FROM adm_requests WHERE settled_at_ms < ?"
_SETTLED: Final = (
    "SELECT request_id FROM adm_requests WHERE settled_at_ms < ? "
    "ORDER BY settled_at_ms, request_id LIMIT ?"
)
_USE_UP_ONE: Final = "INSERT INTO adm_used VALUES (?)"
_PRUNE_ONE: Final = "DELETE FROM adm_requests WHERE request_id = ?"
_PRUNE: Final = "DELETE FROM adm_requests WHERE settled_at_ms < ?"


def tick(tx: Tx) -> None:
    """Let time pass up to this command's instant."""
    db, now_ms = tx.db, tx.now_ms
    starts, adoption, deadlines, cooled, ageing = db.execute(_EARLIEST).fetchone()
    if starts is not None and starts <= now_ms:
        _end_starts(tx)
    if adoption is not None and adoption <= now_ms:
        _end_adoptions(tx)
    if deadlines is not None and deadlines <= now_ms:
        _end_waiting(tx)
    if cooled is not None and cooled <= now_ms:
        for provider, model in sorted(db.execute(_COOLED, (now_ms,)).fetchall()):
            heads.unpark(db, heads.MODEL, heads.model_key(provider, model))
    if ageing is not None and ageing <= now_ms:
        heads.age(db, now_ms, AT_ONCE)


def current(tx: Tx, request_id: str) -> Turn | None:
    """Read a turn, brought up to date if time has already decided about it."""
    turn = turns.find(tx.db, request_id)
    if turn is None:
        return None
    if turn.state == QUEUED and turn.deadline_at_ms <= tx.now_ms:
        turns.time_out(tx, turn)
        return turns.find(tx.db, request_id)
    deadline = turn.start_deadline_at_ms
    if turn.state in BEFORE_INTENT and deadline is not None and deadline <= tx.now_ms:
        turns.release(tx, turn, "start-timeout")
        return turns.find(tx.db, request_id)
    return turn


def due_at(db: sqlite3.Connection) -> int | None:
    """The earliest instant at which a tick would change something."""
    # Ageing changes who is next, not whether anyone is: no tick is needed for it.
    *earliest, _ = db.execute(_EARLIEST).fetchone()
    instants = [instant for instant in earliest if instant is not None]
    held = limits.read(db)
    # Whatever else would block has been found free: only pacing waits for time.
    if held.queued and held.blocks(held.opens_at_ms - 1) == ["pacing"]:
        (waits,) = db.execute(_OFFERED, (heads.PUSH,)).fetchone()
        if waits:
            instants.append(held.opens_at_ms)
    return min(instants, default=None)


def prune(tx: Tx, before_at_ms: int) -> None:
    """Forget turns that settled before an instant, and everything only they needed.

    Their ids stay, for a request id is never used twice; so does the journal. Before ruleset 3.
    """
    tx.db.execute(_USE_UP, (before_at_ms,))
    tx.db.execute(_PRUNE, (before_at_ms,))
    heads.sweep(tx.db)
    owners.prune(tx.db, before_at_ms)


def _sweep_turns(tx: Tx, before_at_ms: int, _: str, room: int) -> Swept:
    settled = tx.db.execute(_SETTLED, (before_at_ms, room)).fetchall()
    tx.db.executemany(_USE_UP_ONE, settled)
    tx.db.executemany(_PRUNE_ONE, settled)
    return Swept(len(settled), len(settled), "" if len(settled) == room else None)


def _sweep_lines(tx: Tx, _: int, after: str, room: int) -> Swept:
    return heads.sweep_some(tx.db, after, room)


def _sweep_connectors(tx: Tx, before_at_ms: int, after: str, room: int) -> Swept:
    return owners.sweep_some(tx.db, before_at_ms, after, room)


SWEEPS: Final[Mapping[str, Sweep]] = MappingProxyType(
    {"turns": _sweep_turns, "lines": _sweep_lines, "connectors": _sweep_connectors}
)
"""As ``prune``, a part at a time."""


def _end_starts(tx: Tx) -> None:
    for row in tx.db.execute(_OVERDUE_STARTS, (tx.now_ms, AT_ONCE)).fetchall():
        turns.release(tx, Turn(*row), "start-timeout")


def _end_waiting(tx: Tx) -> None:
    for row in tx.db.execute(_OVERDUE, (tx.now_ms, AT_ONCE)).fetchall():
        turns.time_out(tx, Turn(*row))


def _end_adoptions(tx: Tx) -> None:
    """Cancel what dead owners left queued and nobody adopted in time."""
    room = AT_ONCE
    while room > 0:
        dead = tx.db.execute(_UNADOPTED, (tx.now_ms,)).fetchone()
        if dead is None:
            return
        rows = tx.db.execute(_QUEUED_OF, (heads.owner_key(*dead), room)).fetchall()
        rows = rows or tx.db.execute(_UNSEALED_OF, (*dead, room)).fetchall()
        if not rows:
            owners.end_adoption(tx, *dead)
        for (request_id,) in rows:
            turn = turns.find(tx.db, request_id)
            if turn is not None:
                turns.settle(tx, turn, "queued_owner_dead", CANCELLED, reason="owner-dead")
        room -= max(1, len(rows))
