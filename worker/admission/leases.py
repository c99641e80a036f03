"""The seat's verbs: start, intent, active, ambiguous, complete, abandon, recover.

Each is under the fence: lease id, request id, generation and owner. A wrong one, and a missing
lease, is refused as ``fenced`` before anything else is looked at.
"""

from typing import Final

from schemas.admission import (
    ACTIVE,
    DISPATCH_AMBIGUOUS,
    DISPATCH_INTENT,
    RECOVERY_REQUIRED,
    STARTING,
    STARTS,
)
from schemas.codes import Code
from schemas.commands.adm import (
    Abandon,
    Active,
    Ambiguous,
    Complete,
    Fenced,
    Intent,
    Recover,
    Start,
)
from schemas.results import Accepted, Refusal, Verdict
from worker.admission import passing, policy, seats, turns
from worker.admission.limits import read as read_limits
from worker.admission.moves import SOURCES
from worker.admission.requests import request_key, stored
from worker.admission.turns import FENCED, Turn
from worker.ledger import rulesets
from worker.ledger.tx import Tx

_INTEND: Final = (
    "UPDATE adm_leases SET start_deadline_at_ms = NULL, connector = ?, child = ?, channel = ? "
    "WHERE request_id = ?"
)
_OWE: Final = (
    "UPDATE adm_leases SET debt_at_ms = ?, start_deadline_at_ms = NULL "
    "WHERE request_id = ? AND debt_at_ms IS NULL"
)


def start(tx: Tx, key: tuple[str, ...], body: Start) -> Verdict:
    """The turn is being prepared."""
    turn = _held(tx, key, body, "start", also=_if_repeated(tx, STARTING))
    if isinstance(turn, Refusal):
        return turn
    if turn.state != STARTING:
        turns.move(tx, turn, "request_starting", STARTING)
    return Accepted(STARTING, turn.outcome())


def intent(tx: Tx, key: tuple[str, ...], body: Intent) -> Verdict:
    """About to write to the provider: from here on the turn may have been dispatched."""
    turn = _held(tx, key, body, "intent", also=DISPATCH_INTENT)
    if isinstance(turn, Refusal):
        return turn
    identity = (stored(body.identity.connector), stored(body.identity.child), body.channel)
    if turn.state == DISPATCH_INTENT:
        if identity == (turn.connector, turn.child, turn.channel):
            return Accepted(
                "idempotent" if tx.before is None else tx.before.outcome, turn.outcome()
            )
        return Refusal(
            Code.CONFLICT,
            "different-intent",
            "this lease's intent names other processes or another channel",
            data=turn.outcome(),
        )
    tx.db.execute(_INTEND, (*identity, turn.request_id))
    turns.move(tx, turn, "request_dispatch_intent", DISPATCH_INTENT)
    return Accepted(DISPATCH_INTENT, turn.outcome())


def active(tx: Tx, key: tuple[str, ...], body: Active) -> Verdict:
    """The provider has the turn."""
    turn = _held(tx, key, body, "active", also=_if_repeated(tx, ACTIVE))
    if isinstance(turn, Refusal):
        return turn
    if turn.state == ACTIVE:
        return Accepted(ACTIVE, turn.outcome())
    turns.move(tx, turn, "request_active", ACTIVE)
    seats.count_started(tx)
    turns.destroy_payload(tx, turn)
    return Accepted(ACTIVE, turn.outcome())


def ambiguous(tx: Tx, key: tuple[str, ...], body: Ambiguous) -> Verdict:
    """Nobody knows whether the provider has the turn: a debt."""
    turn = _held(tx, key, body, "ambiguous")
    if isinstance(turn, Refusal):
        return turn
    tx.db.execute(_OWE, (tx.now_ms, turn.request_id))
    turns.move(tx, turn, "request_dispatch_ambiguous", DISPATCH_AMBIGUOUS)
    seats.count_started(tx)
    turns.destroy_payload(tx, turn)
    return Accepted(DISPATCH_AMBIGUOUS, turn.outcome())


def complete(tx: Tx, key: tuple[str, ...], body: Complete) -> Verdict:
    """The turn is over; a capacity failure lets its model rest."""
    turn = _held(tx, key, body, "complete")
    if isinstance(turn, Refusal):
        return turn
    if body.failure is not None and body.failure.category == "provider_capacity":
        held = read_limits(tx.db)
        wish_ms = body.retry_after_ms or 0
        if tx.ruleset >= rulesets.MENDED:
            wish_ms = min(wish_ms, held.max_retry_after_ms)
        rest_ms = max(held.capacity_cooldown_ms, wish_ms)
        policy.cool(tx, turn.provider, turn.model, tx.now_ms + rest_ms)
    turns.settle(tx, turn, "request_provider_terminal", body.outcome, failure=stored(body.failure))
    return Accepted(body.outcome, turn.outcome())


def abandon(tx: Tx, key: tuple[str, ...], body: Abandon) -> Verdict:
    """The owner's word that nothing was written: over, and never queued again."""
    turn = _held(tx, key, body, "abandon")
    if isinstance(turn, Refusal):
        return turn
    turns.settle(tx, turn, "request_abandoned", body.outcome, reason="abandoned")
    return Accepted(body.outcome, turn.outcome())


def recover(tx: Tx, key: tuple[str, ...], body: Recover) -> Verdict:
    """The owner cannot say how the turn ended: a debt that keeps its seat."""
    turn = _held(tx, key, body, "recover", also=RECOVERY_REQUIRED)
    if isinstance(turn, Refusal):
        return turn
    if turn.state != RECOVERY_REQUIRED:
        owe(tx, turn)
    return Accepted(RECOVERY_REQUIRED, turn.outcome())


def owe(tx: Tx, turn: Turn) -> None:
    """Make a turn a debt that keeps its seat; nothing will ever dispatch it again by itself."""
    if turn.state in STARTS:
        seats.count_started(tx)
    tx.db.execute(_OWE, (tx.now_ms, turn.request_id))
    turns.move(tx, turn, "request_recovery_required", RECOVERY_REQUIRED)
    turns.destroy_payload(tx, turn)


def _if_repeated(tx: Tx, state: str) -> str | None:
    """The state that this very command led to: while the turn is there, its ``ok`` is true."""
    return None if tx.before is None else state


def _held(
    tx: Tx, key: tuple[str, ...], body: Fenced, verb: str, *, also: str | None = None
) -> Turn | Refusal:
    """The turn whose fence this is, in a state that the verb moves it out of, or in ``also``."""
    turn = passing.current(tx, request_key(key))
    if turn is None or turns.fenced(turn, body.lease_id, body.generation, tx.speaker):
        return FENCED
    if turn.state not in SOURCES[verb] and turn.state != also:
        return turns.wrong_state(turn)
    return turn
