"""One turn: its row, its lease, how it moves and how it ends.

A turn's state stands once, in its request; its lease's phase *is* that state, so the two cannot
differ at any commit.
"""

import json
import sqlite3
from dataclasses import dataclass
from typing import Final

from schemas.admission import (
    BEFORE_INTENT,
    FAILED,
    LEASE_LOST,
    QUEUE_TIMEOUT,
    QUEUED,
    RECOVERY_REQUIRED,
    LossReason,
)
from schemas.codes import Code
from schemas.results import Refusal
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker, payload_key
from worker.admission import heads, journal, limits, owners, seats
from worker.ledger import rulesets
from worker.ledger.tx import Origin, Tx

_COLUMNS: Final = (
    "r.request_id, r.state, r.generation, r.principal, r.uid, r.session_id, r.agent_id, "
    "r.fingerprint, r.provider, r.model, r.handing, r.priority, r.timeout_ms, r.enqueued_at_ms, "
    "r.deadline_at_ms, r.node, r.releases, r.identity, r.payload_fingerprint, "
    "r.payload_key_version, r.payload_generation, r.payload_revision, r.settled_at_ms, r.reason, "
    "r.failure, l.lease_id, l.principal, l.uid, l.admitted_at_ms, l.start_deadline_at_ms, "
    "l.connector, l.child, l.channel, l.debt_at_ms, l.suspect_at_ms, r.trace"
)
SELECT: Final = f"SELECT {_COLUMNS} FROM adm_requests r LEFT JOIN adm_leases l USING (request_id)"  # noqa: S608 - only names of our own columns
"""Reads turns; ``Turn(*row)`` takes a row."""

_FIND: Final = SELECT + " WHERE r.request_id = ?"
_MOVE: Final = "UPDATE adm_requests SET state = ? WHERE request_id = ?"
_SETTLE: Final = (
    "UPDATE adm_requests SET state = ?, settled_at_ms = ?, reason = ?, failure = ?, node = NULL, "
    "payload_revision = NULL WHERE request_id = ?"
)
_STAND: Final = "UPDATE adm_requests SET node = ?, aged = ? WHERE request_id = ?"
_STEP_OUT: Final = "UPDATE adm_requests SET node = NULL WHERE request_id = ?"
_REQUEUE: Final = (
    "UPDATE adm_requests SET state = 'queued', generation = ?, releases = ?, deadline_at_ms = ?, "
    "aged_at_ms = ? WHERE request_id = ?"
)
_FORGET_PAYLOAD: Final = "UPDATE adm_requests SET payload_revision = NULL WHERE request_id = ?"


@dataclass(slots=True)
class Turn:
    """A turn and, while it has one, its lease; fields as in ``schema.sql``.

    ``owner_principal`` and what follows it, save ``trace``, are the lease's, and ``None`` without
    one.
    """

    request_id: str
    state: str
    generation: int
    principal: str
    uid: str
    session_id: str
    agent_id: str
    fingerprint: str
    provider: str
    model: str
    handing: str
    priority: int
    timeout_ms: int | None
    enqueued_at_ms: int
    deadline_at_ms: int
    node: int | None
    releases: int
    identity: str | None
    payload_fingerprint: str | None
    payload_key_version: int | None
    payload_generation: int | None
    payload_revision: int | None
    settled_at_ms: int | None = None
    reason: str | None = None
    failure: str | None = None
    lease_id: str | None = None
    owner_principal: str | None = None
    owner_uid: str | None = None
    admitted_at_ms: int | None = None
    start_deadline_at_ms: int | None = None
    connector: str | None = None
    child: str | None = None
    channel: str | None = None
    debt_at_ms: int | None = None
    suspect_at_ms: int | None = None
    trace: str | None = None

    @property
    def origin(self) -> Origin:
        """It, and the trace context of the command that enqueued it."""
        return self.request_id, self.trace

    @property
    def awaits_payload(self) -> bool:
        """Whether it is queued but its prompt was destroyed and not sealed again yet."""
        return self.state == QUEUED and self.node is None

    @property
    def payload_key(self) -> str:
        """Key of its sealed prompt in the payload bucket."""
        return payload_key(self.principal, self.request_id, self.payload_generation or 1)

    def place(self) -> heads.Place:
        """Where it stands in the queue."""
        return heads.Place(
            heads.PUSH if self.handing == "push" else self.principal,
            self.priority,
            heads.model_key(self.provider, self.model),
            heads.owner_key(self.principal, self.uid),
            self.agent_id,
        )

    def outcome(self) -> JsonObject:
        """As ``schemas.admission.TurnOutcome``."""
        shown: JsonObject = {
            "request_id": self.request_id,
            "state": self.state,
            "generation": self.generation,
        }
        if self.state == QUEUED:
            shown["deadline_at_ms"] = self.deadline_at_ms
        return shown

    def lease(self) -> JsonObject:
        """As ``schemas.admission.LeaseView``; only with a lease."""
        shown: JsonObject = {
            "lease_id": self.lease_id,
            "generation": self.generation,
            "owner": {"principal": self.owner_principal, "uid": self.owner_uid},
            "admitted_at_ms": self.admitted_at_ms,
        }
        if self.start_deadline_at_ms is not None:
            shown["start_deadline_at_ms"] = self.start_deadline_at_ms
        return shown

    def view(self) -> JsonObject:
        """As ``schemas.admission.TurnView``."""
        optional: JsonObject = {
            "lease": self.lease() if self.lease_id is not None else None,
            "payload_key_version": self.payload_key_version,
            "awaits_payload": self.awaits_payload or None,
            "settled_at_ms": self.settled_at_ms,
            "reason": self.reason,
            "failure": json.loads(self.failure) if self.failure is not None else None,
        }
        return {
            "request_id": self.request_id,
            "state": self.state,
            "generation": self.generation,
            "owner": {"principal": self.principal, "uid": self.uid},
            "session_id": self.session_id,
            "agent_id": self.agent_id,
            "fingerprint": self.fingerprint,
            "provider": self.provider,
            "model": self.model,
            "grant": self.handing,
            "priority": self.priority,
            "enqueued_at_ms": self.enqueued_at_ms,
            "deadline_at_ms": self.deadline_at_ms,
            **{name: value for name, value in optional.items() if value is not None},
        }


def find(db: sqlite3.Connection, request_id: str) -> Turn | None:
    """Read a turn."""
    row = db.execute(_FIND, (request_id,)).fetchone()
    return None if row is None else Turn(*row)


def move(tx: Tx, turn: Turn, kind: str, target: str) -> None:
    """Move a turn and journal it; its lease and its place are the caller's business."""
    journal.append(tx, kind, turn.state, target, turn.origin)
    if target != turn.state:
        tx.db.execute(_MOVE, (target, turn.request_id))
        turn.state = target


def settle(
    tx: Tx,
    turn: Turn,
    kind: str,
    target: str,
    *,
    reason: str | None = None,
    failure: str | None = None,
) -> None:
    """End a turn for good: out of the queue or off its seat, its prompt destroyed."""
    journal.append(tx, kind, turn.state, target, turn.origin)
    if turn.lease_id is not None:
        _free_seat(tx, turn)
    _delete_payload(tx, turn)
    tx.db.execute(_SETTLE, (target, tx.now_ms, reason, failure, turn.request_id))
    if turn.state == QUEUED:
        seats.count_queued(tx, -1)
        leave_line(tx, turn)
    turn.state, turn.settled_at_ms, turn.reason, turn.lease_id = target, tx.now_ms, reason, None


def free_debt(tx: Tx, turn: Turn, reason: str) -> None:
    """Free the seat of a ``recovery_required`` turn, which stays what it is for ever."""
    settle(tx, turn, "request_recovery_seat_released", RECOVERY_REQUIRED, reason=reason)


def time_out(tx: Tx, turn: Turn) -> None:
    """End a queued turn whose deadline has passed."""
    settle(tx, turn, "request_queue_timed_out", QUEUE_TIMEOUT)


def may_stand(turn: Turn) -> bool:
    """Whether a queued turn has what it needs to be admitted: its prompt, if it has one."""
    return turn.payload_fingerprint is None or turn.payload_revision is not None


def stand_in_line(tx: Tx, turn: Turn) -> None:
    """Let a queued turn stand in its line."""
    aged = _aged_at_ms(turn) <= tx.now_ms
    turn.node = heads.enter(tx.db, turn.place(), turn.request_id, turn.enqueued_at_ms, aged=aged)
    tx.db.execute(_STAND, (turn.node, int(aged), turn.request_id))


def step_out(tx: Tx, turn: Turn) -> None:
    """Take a turn that stays queued out of its line."""
    if turn.node is not None:
        tx.db.execute(_STEP_OUT, (turn.request_id,))
        leave_line(tx, turn)


def leave_line(tx: Tx, turn: Turn) -> None:
    """Let the queue forget where a turn stood; its row no longer says that it stands there."""
    if turn.node is not None:
        heads.leave(tx.db, turn.node, turn.request_id)
        if tx.ruleset >= rulesets.MENDED:
            heads.clear(tx.db, turn.node)
        turn.node = None


def requeue(tx: Tx, turn: Turn, *, deadline_at_ms: int, releases: int) -> None:
    """Take the seat back and queue the turn at its old place under the next generation.

    Args:
        tx: The transaction.
        turn: A turn that was certainly, or by an operator's word, not dispatched.
        deadline_at_ms: When waiting ends; if that is not in the future the turn ends here.
        releases: How often it has been released before its intent.
    """
    journal.append(tx, "request_requeued", turn.state, QUEUED, turn.origin)
    _free_seat(tx, turn)
    turn.state, turn.lease_id = QUEUED, None
    turn.generation += 1
    turn.releases, turn.deadline_at_ms = releases, deadline_at_ms
    aged_at = _aged_at_ms(turn)
    tx.db.execute(_REQUEUE, (turn.generation, releases, deadline_at_ms, aged_at, turn.request_id))
    seats.count_queued(tx, 1)
    if may_stand(turn):
        stand_in_line(tx, turn)
    if deadline_at_ms <= tx.now_ms:
        time_out(tx, turn)


def aged_at_ms(enqueued_at_ms: int, timeout_ms: int) -> int:
    """The first instant at which a turn is older than half its queue timeout."""
    return enqueued_at_ms + timeout_ms // 2 + 1


def _aged_at_ms(turn: Turn) -> int:
    return aged_at_ms(turn.enqueued_at_ms, turn.deadline_at_ms - turn.enqueued_at_ms)


def destroy_payload(tx: Tx, turn: Turn) -> None:
    """Delete exactly the revision of the prompt that was enqueued, after the commit."""
    if turn.payload_revision is not None:
        _delete_payload(tx, turn)
        tx.db.execute(_FORGET_PAYLOAD, (turn.request_id,))
        turn.payload_revision = None


def _free_seat(tx: Tx, turn: Turn) -> None:
    seats.free(tx, turn.state, turn.request_id, turn.agent_id, turn.admitted_at_ms or 0)


def _delete_payload(tx: Tx, turn: Turn) -> None:
    if turn.payload_revision is not None:
        tx.delete_payload(turn.payload_key, turn.payload_revision)


@dataclass(frozen=True, slots=True)
class Lost:
    """A lease as it was before it was lost."""

    lease_id: str
    generation: int
    owner: Speaker

    @classmethod
    def of(cls, turn: Turn) -> "Lost":
        """The lease that a turn has now."""
        owner = Speaker(turn.owner_principal or "", turn.owner_uid or "")
        return cls(turn.lease_id or "", turn.generation, owner)


def say_lost(tx: Tx, turn: Turn, lost: Lost, reason: LossReason) -> None:
    """Tell everyone, and the owner by name, that a lease is lost."""
    body: JsonObject = {
        "request_id": turn.request_id,
        "generation": lost.generation,
        "lease_id": lost.lease_id,
        "reason": reason,
        "state": turn.state,
    }
    tx.fact("adm", LEASE_LOST, (turn.request_id, str(lost.generation)), body, turn.origin)
    tx.message(lost.owner, "adm", LEASE_LOST, body, turn.origin)


def fenced(turn: Turn | None, lease_id: str, generation: int, owner: Speaker) -> bool:
    """Whether a fence (with the request it was looked up by: all four) is not the lease's."""
    return (
        turn is None
        or turn.lease_id is None
        or turn.lease_id != lease_id
        or turn.generation != generation
        or turn.owner_principal != owner.principal
        or turn.owner_uid != owner.uid
    )


def release(tx: Tx, turn: Turn, reason: LossReason) -> None:
    """Take back a seat before its intent: requeue, or fail the third time."""
    if turn.state not in BEFORE_INTENT:
        raise ValueError(f"a turn in {turn.state} may have been dispatched")
    lost, releases = Lost.of(turn), turn.releases + 1
    if releases < MAX_RELEASES:
        requeue(tx, turn, deadline_at_ms=turn.deadline_at_ms, releases=releases)
        if tx.ruleset >= rulesets.MENDED:
            # Whoever queued it may have died while another life had the seat.
            timeout_ms = limits.read(tx.db).adoption_timeout_ms
            owners.expect_adoption(tx, turn.principal, turn.uid, timeout_ms)
    else:
        settle(tx, turn, "request_released", FAILED, reason="start-timeout")
    say_lost(tx, turn, lost, reason)


MAX_RELEASES: Final = 3
"""After so many start timeouts (or dead owners) a turn fails."""

FENCED: Final = Refusal(
    Code.FENCED, "fenced", "this fence is not the lease's: the seat was given back or taken away"
)


def not_found() -> Refusal:
    """There is no such turn."""
    return Refusal(Code.NOT_FOUND, "no-such-request", "there is no such turn")


def wrong_state(turn: Turn) -> Refusal:
    """The turn is not where the verb moves it from."""
    return Refusal(
        Code.FAILED_PRECONDITION,
        "wrong-state",
        f"the turn is {turn.state}",
        data=turn.outcome(),
    )
