"""Recovery by evidence: what silence, proof and an operator's word do.

Silence blocks an owner's queued turns and decides nothing else. Before an intent nothing was
dispatched, so proof of the owner's end gives the seat back and queues the turn again. After an
intent only proof that connector, child and the child's whole process group are gone frees the
seat, and even then the turn stays ``recovery_required``: without an operator's word it is never run
again (spec/admission.md, Recovery).
"""

import json
import sqlite3
from typing import Final

from schemas import roles
from schemas.admission import BEFORE_INTENT, COMPLETED, QUEUED, RECOVERY_REQUIRED, LossReason
from schemas.codes import BadInput, Code
from schemas.commands.adm import Resolve
from schemas.commands.sys import Evidence, Fence, Liveness, ProcessIdentity, witness_of
from schemas.results import Accepted, Refusal, Verdict
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.admission import leases, limits, owners, passing, turns
from worker.admission.moves import SOURCES
from worker.admission.policy import no_key
from worker.admission.requests import request_key
from worker.admission.turns import FENCED, Lost, Turn
from worker.ledger import rulesets
from worker.ledger.tx import Tx

SAME: Final = ("host", "boot_id", "pid", "start_ticks", "pid_ns")
"""What makes a process the same; the rest of an identity are hints."""

_LEASES_OF: Final = turns.SELECT + (
    " WHERE l.principal = ? AND l.uid = ? AND l.start_deadline_at_ms IS NOT NULL"
    " ORDER BY l.request_id"
)
_SUSPECT: Final = (
    "UPDATE adm_leases SET suspect_at_ms = ? WHERE request_id = ? AND suspect_at_ms IS NULL"
)
_TRUST: Final = "UPDATE adm_leases SET suspect_at_ms = NULL WHERE request_id = ?"


def liveness(tx: Tx, key: tuple[str, ...], body: Liveness) -> Verdict:
    """An owner was not heard for too long, or was heard again."""
    no_key(key)
    principal, uid = body.owner.principal, body.owner.uid
    known = owners.last_seen(tx.db, principal, uid)
    if known is None:
        return Accepted("unknown", {})
    if body.state == "alive":
        cleared = owners.heard(tx, principal, uid, min(body.seen_at_ms, tx.now_ms))
        return Accepted("cleared" if cleared else "alive", {})
    seen_at_ms, silent_at_ms, _ = known
    if tx.now_ms - max(seen_at_ms, body.seen_at_ms) <= limits.read(tx.db).silence_ms:
        return Accepted("fresh", {})
    if silent_at_ms is not None:
        return Accepted("retained", {"suspect_since_ms": silent_at_ms})
    owners.silence(tx, principal, uid)
    return Accepted("suspected", {"suspect_since_ms": tx.now_ms})


def evidence(tx: Tx, key: tuple[str, ...], body: Evidence) -> Verdict:
    """What an observer on the processes' own host saw.

    Outcomes: ``released`` (the seat is free), ``marked`` (now a debt, or the owner is known to be
    dead), ``suspected``, ``retained`` (nothing changed).
    """
    no_key(key)
    turn = passing.current(tx, body.request_id)
    if turn is None:
        return turns.not_found()
    if body.fence is None:
        if turn.state != QUEUED:
            return FENCED
        known_as, child = turn.identity, None
    else:
        if not _is_fence_of(turn, body.fence):
            return FENCED
        known_as, child = turn.connector, turn.child
    refused = _not_evidence(tx.speaker, body, known_as, child)
    if refused is not None:
        return refused
    if turn.state == QUEUED:
        return _on_queued(tx, turn, body)
    if turn.state in BEFORE_INTENT:
        return _on_unstarted(tx, turn, body)
    return _on_dispatched(tx, turn, body)


def resolve(tx: Tx, key: tuple[str, ...], body: Resolve) -> Verdict:
    """An operator's word about a debt; the only way back to the queue after an intent.

    A turn past its intent whose owner is suspect counts as a debt here, so that a host that never
    comes back holds no seat for ever.
    """
    turn = passing.current(tx, request_key(key))
    if turn is None:
        return turns.not_found()
    if turn.lease_id is None:
        return turns.wrong_state(turn)
    if turn.state not in SOURCES["resolve"]:
        if turn.state in BEFORE_INTENT or not _is_suspect(tx.db, turn):
            return turns.wrong_state(turn)
        leases.owe(tx, turn)
    lost, reason = Lost.of(turn), _WHY_LOST[body.resolution]
    match body.resolution:
        case "confirmed_completed":
            turns.settle(tx, turn, "request_resolved", COMPLETED, reason="resolved")
        case "confirmed_not_dispatched":
            turns.move(tx, turn, "request_resolved", RECOVERY_REQUIRED)
            _run_again(tx, turn)
        case "acknowledged_unknown":
            turns.move(tx, turn, "request_resolved", RECOVERY_REQUIRED)
            turns.free_debt(tx, turn, "acknowledged-unknown")
    turns.say_lost(tx, turn, lost, reason)
    return Accepted(turn.state if turn.state != QUEUED else "requeued", turn.outcome())


_WHY_LOST: Final[dict[str, LossReason]] = {
    "confirmed_completed": "confirmed-completed",
    "confirmed_not_dispatched": "confirmed-not-dispatched",
    "acknowledged_unknown": "acknowledged-unknown",
}


def suspicion(db: sqlite3.Connection, turn: Turn) -> tuple[int, str] | None:
    """Since when a lease's owner is suspect, and why."""
    known = owners.last_seen(db, turn.owner_principal or "", turn.owner_uid or "")
    found = []
    if known is not None and known[1] is not None:
        found.append((known[1], "heartbeat_expired"))
    if turn.suspect_at_ms is not None:
        found.append((turn.suspect_at_ms, "identity_unverifiable"))
    return min(found, default=None)


def has_own_group(turn: Turn) -> bool:
    """Whether a lease's child leads or joined another process group than its connector's.

    Else the group's being empty proves nothing.
    """
    connector, child = json.loads(turn.connector or "{}"), json.loads(turn.child or "{}")
    return child.get("pgrp", 0) not in (0, connector.get("pgrp", 0))


def _on_queued(tx: Tx, turn: Turn, body: Evidence) -> Verdict:
    if body.connector_state != "gone":
        return Accepted("retained", turn.outcome())
    return Accepted("marked" if _bury(tx, turn.principal, turn.uid) else "retained", turn.outcome())


def _on_unstarted(tx: Tx, turn: Turn, body: Evidence) -> Verdict:
    match body.connector_state:
        case "gone":
            _bury(tx, turn.owner_principal or "", turn.owner_uid or "")
            now = turns.find(tx.db, turn.request_id)
            return Accepted("released", now.outcome() if now is not None else {})
        case "alive":
            return _trust(tx, turn)
        case "unverifiable":
            return _suspect(tx, turn)


def _on_dispatched(tx: Tx, turn: Turn, body: Evidence) -> Verdict:
    unsure = "unverifiable" in (body.child_state, body.group_state)
    match body.connector_state:
        case "alive" if unsure and tx.ruleset >= rulesets.MENDED:
            return _suspect(tx, turn)
        case "alive":
            return _trust(tx, turn)
        case "unverifiable":
            return _suspect(tx, turn)
    _bury(tx, turn.owner_principal or "", turn.owner_uid or "")
    lost, is_news = Lost.of(turn), turn.state != RECOVERY_REQUIRED
    if is_news:
        leases.owe(tx, turn)
    if turn.channel == "http" or (
        body.child_state == "gone" and body.group_state == "empty" and has_own_group(turn)
    ):
        turns.free_debt(tx, turn, "proven-gone")
        turns.say_lost(tx, turn, lost, "seat-released")
        return Accepted("released", turn.outcome())
    if is_news:
        turns.say_lost(tx, turn, lost, "recovery")
    if unsure:
        suspected = _suspect(tx, turn)
        return Accepted("marked", turn.outcome()) if is_news else suspected
    return Accepted("marked" if is_news else "retained", turn.outcome())


def _bury(tx: Tx, principal: str, uid: str) -> bool:
    """The owner is proven dead: its unstarted seats go back, its queued turns wait for adoption."""
    is_news = owners.bury(tx, principal, uid, limits.read(tx.db).adoption_timeout_ms)
    for row in tx.db.execute(_LEASES_OF, (principal, uid)).fetchall():
        turns.release(tx, Turn(*row), "owner-dead")
    return is_news


def _run_again(tx: Tx, turn: Turn) -> None:
    held = limits.read(tx.db)
    timeout_ms = min(turn.timeout_ms or held.queue_timeout_ms, held.queue_timeout_ms)
    turns.requeue(tx, turn, deadline_at_ms=tx.now_ms + timeout_ms, releases=turn.releases)
    owners.expect_adoption(tx, turn.principal, turn.uid, held.adoption_timeout_ms)


def _suspect(tx: Tx, turn: Turn) -> Verdict:
    is_news = tx.db.execute(_SUSPECT, (tx.now_ms, turn.request_id)).rowcount == 1
    return Accepted("suspected" if is_news else "retained", turn.outcome())


def _trust(tx: Tx, turn: Turn) -> Verdict:
    tx.db.execute(_TRUST, (turn.request_id,))
    return Accepted("retained", turn.outcome())


def _is_suspect(db: sqlite3.Connection, turn: Turn) -> bool:
    known = owners.last_seen(db, turn.owner_principal or "", turn.owner_uid or "")
    is_dead = known is not None and known[2] is not None
    return is_dead or suspicion(db, turn) is not None


def _is_fence_of(turn: Turn, fence: Fence) -> bool:
    owner = Speaker(fence.owner.principal, fence.owner.uid)
    return turn.request_id == fence.request_id and not turns.fenced(
        turn, fence.lease_id, fence.generation, owner
    )


def _not_evidence(
    speaker: Speaker, body: Evidence, known_as: str | None, child: str | None
) -> Refusal | None:
    """Why this is no evidence about these processes, if it is none."""
    if known_as is None:
        return Refusal(
            Code.FAILED_PRECONDITION, "no-identity", "no process of this turn's owner is known"
        )
    is_worker = speaker.principal.startswith(roles.WORKER_PREFIX)
    if not is_worker and speaker.principal != witness_of(body.host):
        return Refusal(
            Code.PERMISSION_DENIED, "other-host", "this witness does not speak for that host"
        )
    if not _is_same(json.loads(known_as), body.connector):
        return Refusal(Code.CONFLICT, "other-process", "another connector process was looked at")
    if body.child is not None and (child is None or not _is_same(json.loads(child), body.child)):
        return Refusal(Code.CONFLICT, "other-process", "another child process was looked at")
    if body.child_state == "gone" and body.child is None:
        raise BadInput("child", "missing-field", "field child is required to call it gone")
    if body.host != body.connector.host or (body.child and body.host != body.child.host):
        return Refusal(
            Code.PERMISSION_DENIED, "other-host", "only an observer of the same host is evidence"
        )
    return None


def _is_same(known_as: JsonObject, seen: ProcessIdentity) -> bool:
    return all(known_as[name] == getattr(seen, name) for name in SAME)
