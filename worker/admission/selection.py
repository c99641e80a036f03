"""The choice: which queued turn gets the next seat (spec/admission.md, Capacity)."""

import sqlite3
from typing import Final, NamedTuple

from schemas.admission import ADMITTED, QUEUED, Block
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import metrics
from worker.admission import heads, journal, limits, policy, seats, turns
from worker.admission.limits import Limits
from worker.admission.turns import Turn
from worker.ledger import rulesets
from worker.ledger.tx import Tx

_STANDING: Final = """
SELECT owner.node, owner.parent,
EXISTS (SELECT 1 FROM adm_cooldowns WHERE provider = ? AND model = ? AND until_ms > ?),
EXISTS (SELECT 1 FROM adm_owners WHERE principal = ? AND uid = ?
    AND (silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL)),
EXISTS (SELECT 1 FROM adm_agents WHERE agent_id = ?)
FROM adm_heads line JOIN adm_heads owner ON owner.node = line.parent WHERE line.node = ?
"""
_MAY_ADMIT: Final = """
SELECT 1 FROM adm_limits WHERE draining = 1 OR (queued > 0 AND seats < seat_limit
AND starts < max_concurrent_starts AND coalesce(paced_at_ms + min_start_interval_ms, 0) <= ?)
"""
_ADMIT: Final = "UPDATE adm_requests SET state = 'admitted', node = NULL WHERE request_id = ?"
_PULL: Final = (
    "UPDATE adm_requests SET state = 'admitted', uid = ?, node = NULL WHERE request_id = ?"
)


def _waits_under(parked: str) -> str:
    return f"""
SELECT EXISTS (
    SELECT 1 FROM adm_heads tier
    JOIN adm_heads model ON model.parent = tier.node
    JOIN adm_heads owner ON owner.parent = model.node
    WHERE tier.parent = 0 AND tier.key = ? AND {parked} AND EXISTS (
        SELECT 1 FROM adm_heads line WHERE line.parent = owner.node AND line.head_id IS NOT NULL))
"""  # noqa: S608 - one of the two below


_RESTING: Final = _waits_under("model.parked = 1")
_SILENT: Final = _waits_under("model.parked = 0 AND owner.level = 3 AND owner.parked = 1")
_UNSEALED: Final = (
    "SELECT 1 FROM adm_requests WHERE state = 'queued' AND node IS NULL AND principal = ? "
    "AND handing IN ('pull', ?) LIMIT 1"
)
_COOLDOWN: Final = "SELECT until_ms FROM adm_cooldowns WHERE (provider, model) = (?, ?)"
_BLOCKED_OWNER: Final = """
SELECT 1 FROM adm_owners WHERE (principal, uid) = (?, ?)
AND (silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL)
"""


class Choice(NamedTuple):
    """The next turn.

    Attributes:
        turn: Queued, eligible and chosen.
        by_age: Whether it was taken in plain order because it had aged.
        tier: Node of the tier it was chosen from.
    """

    turn: Turn
    by_age: bool
    tier: int


def choose(tx: Tx, tier: str, held: Limits) -> Choice | None:
    """Choose among the push turns, or among one principal's pull turns.

    Within the highest priority that has an eligible turn: the first aged one, unless the last
    admission of this priority went by age (before ``MENDED``: the last of all); else the first
    whose agent holds no seat; else the first. A turn met on the way whose deadline has passed is
    ended; a node found blocked is parked.

    Args:
        tx: The transaction.
        tier: ``heads.PUSH`` or a principal.
        held: The limits.
    """
    db, now_ms, mended = tx.db, tx.now_ms, tx.ruleset >= rulesets.MENDED
    while (offer := heads.best(db, tier)) is not None:
        went_by_age = offer.by_age if mended else held.by_age
        by_age = not went_by_age and offer.aged_id is not None
        by_idleness = not by_age and offer.idle_id is not None
        turn = _offered(db, (by_age and offer.aged_id) or offer.idle_id or offer.head_id)
        line = turn.node or 0
        owner, model, cooling, silent, busy = db.execute(
            _STANDING,
            (
                turn.provider,
                turn.model,
                now_ms,
                turn.principal,
                turn.uid,
                turn.agent_id,
                line,
            ),
        ).fetchone()
        if turn.deadline_at_ms <= now_ms:
            turns.time_out(tx, turn)
        elif cooling:
            heads.park(db, model, heads.MODEL)
        elif silent:
            heads.park(db, owner, heads.OWNER)
        elif by_idleness and busy:
            heads.park(db, line, heads.LINE)
        else:
            return Choice(turn, by_age, offer.tier)
    return None


def admit(tx: Tx, held: Limits, choice: Choice, owner: Speaker) -> None:
    """Give the chosen turn its seat.

    Args:
        tx: The transaction.
        held: The limits, read after the last change.
        choice: As ``choose`` returned it.
        owner: Who runs it.
    """
    turn = choice.turn
    journal.append(tx, "request_admitted", QUEUED, ADMITTED, turn.origin)
    mended = tx.ruleset >= rulesets.MENDED
    if mended:
        tx.db.execute(_ADMIT, (turn.request_id,))
        heads.went(tx.db, choice.tier, by_age=choice.by_age)
    else:
        tx.db.execute(_PULL, (owner.uid, turn.request_id))
    turns.leave_line(tx, turn)
    lease_id = f"{tx.epoch}-{tx.seq}-{held.admissions + 1}"
    start_deadline_at_ms = tx.now_ms + held.start_timeout_ms
    seats.give(
        tx,
        turn.request_id,
        turn.agent_id,
        owner,
        lease_id=lease_id,
        start_deadline_at_ms=start_deadline_at_ms,
        connector=turn.identity if owner.uid == turn.uid else None,
        by_age=choice.by_age and not mended,
    )
    if not tx.outbox.muted:
        metrics.QUEUE_WAIT.observe((tx.now_ms - turn.enqueued_at_ms) / 1000)
    if not mended:
        turn.uid = owner.uid
    turn.state = ADMITTED
    turn.lease_id, turn.owner_principal, turn.owner_uid = lease_id, owner.principal, owner.uid
    turn.admitted_at_ms, turn.start_deadline_at_ms = tx.now_ms, start_deadline_at_ms


def admit_pushed(tx: Tx) -> None:
    """After a command: end a drain that is through, then admit every push turn there is room for.

    Each admission emits one grant, keyed by request and generation, to the turn's owner.
    """
    if tx.db.execute(_MAY_ADMIT, (tx.now_ms,)).fetchone() is None:
        return
    held = limits.read(tx.db)
    if held.draining and held.seats <= held.seat_limit:
        policy.end_drain(tx, held)
        held = limits.read(tx.db)
    while held.queued and not held.blocks(tx.now_ms):
        choice = choose(tx, heads.PUSH, held)
        if choice is None:
            return
        turn = choice.turn
        owner = Speaker(turn.principal, turn.uid)
        admit(tx, held, choice, owner)
        tx.grant(owner, turn.origin, turn.generation, grant(turn))
        held = limits.read(tx.db)


def grant(turn: Turn) -> JsonObject:
    """As ``schemas.admission.Grant``, without version and instant."""
    return {
        "request_id": turn.request_id,
        "generation": turn.generation,
        "lease_id": turn.lease_id,
        "session_id": turn.session_id,
        "agent_id": turn.agent_id,
        "provider": turn.provider,
        "model": turn.model,
        "start_deadline_at_ms": turn.start_deadline_at_ms,
        "payload": turn.payload_revision is not None,
    }


def blocks_of(db: sqlite3.Connection, held: Limits, turn: Turn, now_ms: int) -> list[Block]:
    """What keeps one queued turn waiting, apart from those before it."""
    blocks = held.blocks(now_ms)
    if cooldown_until(db, turn, now_ms) is not None:
        blocks.append("cooldown")
    if db.execute(_BLOCKED_OWNER, (turn.principal, turn.uid)).fetchone():
        blocks.append("silence")
    if turn.awaits_payload:
        blocks.append("payload")
    return blocks


def cooldown_until(db: sqlite3.Connection, turn: Turn, now_ms: int) -> int | None:
    """When the cooldown of a turn's model ends, if it lasts."""
    row = db.execute(_COOLDOWN, (turn.provider, turn.model)).fetchone()
    return int(row[0]) if row is not None and row[0] > now_ms else None


def blocks_of_tier(db: sqlite3.Connection, tier: str, ruleset: int) -> list[Block]:
    """What keeps all of one principal's pull turns waiting, once a choice has found none."""
    counted = "pull" if ruleset >= rulesets.MENDED else "push"  # before, every turn of it
    blocks: list[Block] = []
    if db.execute(_RESTING, (tier,)).fetchone()[0]:
        blocks.append("cooldown")
    if db.execute(_SILENT, (tier,)).fetchone()[0]:
        blocks.append("silence")
    if db.execute(_UNSEALED, (tier, counted)).fetchone():
        blocks.append("payload")
    return blocks or ["empty"]


def _offered(db: sqlite3.Connection, request_id: str) -> Turn:
    turn = turns.find(db, request_id)
    if turn is None or turn.node is None:
        raise ValueError(f"the queue offers {request_id}, which does not wait")
    return turn
