"""Where a turn stands in the queue, and what keeps it there."""

import sqlite3
from typing import Final

from schemas.admission import QUEUED
from schemas.strict_json import JsonObject
from worker.admission import heads, selection, turns
from worker.admission.limits import Limits
from worker.admission.turns import Turn

EXACT_TO: Final = 1_000
"""A position beyond this is shown as ``1000+``."""

_LISTING: Final = turns.SELECT + (
    " WHERE r.state = 'queued' ORDER BY r.priority DESC, r.enqueued_at_ms, r.request_id LIMIT ?"
)
_HIGHER: Final = """
SELECT count(*) FROM (
    SELECT 1 FROM adm_requests WHERE state = 'queued' AND priority > ? LIMIT ?)
"""
_EARLIER: Final = """
SELECT count(*) FROM (
    SELECT 1 FROM adm_requests WHERE state = 'queued' AND priority = ?
    AND (enqueued_at_ms, request_id) < (?, ?) LIMIT ?)
"""
_COOLING: Final = "SELECT provider, model FROM adm_cooldowns WHERE until_ms > ?"
_OWNERS: Final = """
SELECT owner.node, model.key, tier.priority FROM adm_heads tier
JOIN adm_heads model ON model.parent = tier.node
JOIN adm_heads owner ON owner.parent = model.node
LEFT JOIN adm_owners o ON o.principal = substr(owner.key, 1, instr(owner.key, '.') - 1)
AND o.uid = substr(owner.key, instr(owner.key, '.') + 1)
WHERE tier.parent = 0 AND tier.priority >= ? AND o.silent_at_ms IS NULL AND o.dead_at_ms IS NULL
"""
_AHEAD: Final = """
SELECT count(*) FROM (
    SELECT 1 FROM adm_heads line JOIN adm_requests r ON r.node = line.node
    WHERE line.parent = ?1 AND line.head_id IS NOT NULL
    AND (line.head_at_ms, line.head_id) < (?2, ?3)
    AND (r.enqueued_at_ms, r.request_id) < (?2, ?3) LIMIT ?4)
"""
_FOREVER: Final = 2**62


def place(db: sqlite3.Connection, held: Limits, turn: Turn, now_ms: int) -> JsonObject:
    """As ``schemas.admission.PlaceView``.

    Args:
        db: The connection.
        held: The limits.
        turn: Any turn; one that does not wait has no position.
        now_ms: The clock of the answer.
    """
    shown = _described(db, held, turn, now_ms)
    if turn.state == QUEUED:
        shown["position"] = _shown(_ahead(db, turn))
        if not {"cooldown", "silence", "payload"} & set(shown["blocks"]):
            shown["eligible_position"] = _shown(_eligible_ahead(db, turn, now_ms))
    return shown


def listing(db: sqlite3.Connection, held: Limits, now_ms: int, limit: int) -> list[JsonObject]:
    """The head of the queue in plain order: at most ``limit`` places, without eligible ones."""
    shown = []
    for position, row in enumerate(db.execute(_LISTING, (limit,)).fetchall(), 1):
        shown.append(_described(db, held, Turn(*row), now_ms))
        shown[-1]["position"] = position
    return shown


def _described(db: sqlite3.Connection, held: Limits, turn: Turn, now_ms: int) -> JsonObject:
    shown: JsonObject = {
        "request_id": turn.request_id,
        "state": turn.state,
        "priority": turn.priority,
        "agent_id": turn.agent_id,
        "provider": turn.provider,
        "model": turn.model,
        "blocks": [],
    }
    until_ms = selection.cooldown_until(db, turn, now_ms)
    if until_ms is not None:
        shown["cooldown_until_ms"] = until_ms
    if turn.state == QUEUED:
        shown["waited_ms"] = max(0, now_ms - turn.enqueued_at_ms)
        shown["deadline_at_ms"] = turn.deadline_at_ms
        shown["blocks"] = selection.blocks_of(db, held, turn, now_ms)
    return shown


def _ahead(db: sqlite3.Connection, turn: Turn) -> int:
    higher = int(db.execute(_HIGHER, (turn.priority, EXACT_TO)).fetchone()[0])
    at = (turn.priority, turn.enqueued_at_ms, turn.request_id, EXACT_TO - higher)
    return higher + int(db.execute(_EARLIER, at).fetchone()[0])


def _eligible_ahead(db: sqlite3.Connection, turn: Turn, now_ms: int) -> int:
    """Counts up to ``EXACT_TO``; models that cool down and silent owners are skipped whole."""
    cooling = {heads.model_key(*pair) for pair in db.execute(_COOLING, (now_ms,))}
    ahead = 0
    for node, model, priority in db.execute(_OWNERS, (turn.priority,)).fetchall():
        if model in cooling:
            continue
        before = (_FOREVER, "") if priority > turn.priority else _order(turn)
        room = EXACT_TO - ahead
        ahead += int(db.execute(_AHEAD, (node, *before, room)).fetchone()[0])
        if ahead >= EXACT_TO:
            break
    return ahead


def _order(turn: Turn) -> tuple[int, str]:
    return (turn.enqueued_at_ms, turn.request_id)


def _shown(ahead: int) -> int | str:
    return ahead + 1 if ahead < EXACT_TO else f"{EXACT_TO}+"
