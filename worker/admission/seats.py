"""Seats: leases and every count that depends on them."""

from typing import Final

from schemas.admission import ADMITTED, STARTS
from schemas.subjects import Speaker
from worker.admission import heads
from worker.ledger.tx import Tx

_GIVE: Final = (
    "INSERT INTO adm_leases (request_id, lease_id, principal, uid, agent_id, admitted_at_ms, "
    "start_deadline_at_ms, connector) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_COUNT_GIVEN: Final = (
    "UPDATE adm_limits SET seats = seats + 1, starts = starts + 1, queued = queued - 1, "
    "admissions = admissions + 1, by_age = ?, paced_at_ms = ?"
)
_FREE: Final = "DELETE FROM adm_leases WHERE request_id = ?"
_COUNT_FREED: Final = (
    "UPDATE adm_limits SET seats = seats - 1, starts = starts - ?, "
    "kept_at_ms = max(coalesce(kept_at_ms, 0), ?)"
)
_COUNT_GIVEN_BACK: Final = (
    "UPDATE adm_limits SET seats = seats - 1, starts = starts - 1, paced_at_ms = nullif(max("
    "coalesce(kept_at_ms, -1), coalesce((SELECT max(admitted_at_ms) FROM adm_leases), -1)), -1)"
)
_TAKE_AGENT: Final = (
    "INSERT INTO adm_agents VALUES (?, 1) ON CONFLICT (agent_id) DO UPDATE SET seats = seats + 1"
)
_IDLE_AGENT: Final = "DELETE FROM adm_agents WHERE agent_id = ? AND seats = 1"
_LEAVE_AGENT: Final = "UPDATE adm_agents SET seats = seats - 1 WHERE agent_id = ?"
_STARTED: Final = "UPDATE adm_limits SET starts = starts - 1"
_QUEUED: Final = "UPDATE adm_limits SET queued = queued + ?"


def give(
    tx: Tx,
    request_id: str,
    agent_id: str,
    owner: Speaker,
    *,
    lease_id: str,
    start_deadline_at_ms: int,
    connector: str | None,
    by_age: bool,
) -> None:
    """Give a queued turn a seat, and count it.

    Args:
        tx: The transaction.
        request_id: The turn.
        agent_id: Whose turn it is.
        owner: Who runs it.
        lease_id: Names the lease for ever.
        start_deadline_at_ms: When it is taken back unless its intent was accepted.
        connector: JSON of the owner's process, if it is known.
        by_age: Whether the turn was chosen by age.
    """
    db, now_ms = tx.db, tx.now_ms
    db.execute(
        _GIVE,
        (
            request_id,
            lease_id,
            owner.principal,
            owner.uid,
            agent_id,
            now_ms,
            start_deadline_at_ms,
            connector,
        ),
    )
    db.execute(_TAKE_AGENT, (agent_id,))
    db.execute(_COUNT_GIVEN, (int(by_age), now_ms))


def free(tx: Tx, state: str, request_id: str, agent_id: str, admitted_at_ms: int) -> None:
    """End a lease, and count it; an admission that was never started gives its pacing slot back.

    Args:
        tx: The transaction.
        state: The turn's state while it still held the seat.
        request_id: The turn.
        agent_id: Whose turn it is.
        admitted_at_ms: When the seat was given.
    """
    db = tx.db
    db.execute(_FREE, (request_id,))
    if state == ADMITTED:
        db.execute(_COUNT_GIVEN_BACK)
    else:
        db.execute(_COUNT_FREED, (int(state in STARTS), admitted_at_ms))
    if db.execute(_IDLE_AGENT, (agent_id,)).rowcount:
        heads.unpark(db, heads.LINE, agent_id)
    else:
        db.execute(_LEAVE_AGENT, (agent_id,))


def count_started(tx: Tx) -> None:
    """A lease has left the states that ``max_concurrent_starts`` counts, and keeps its seat."""
    tx.db.execute(_STARTED)


def count_queued(tx: Tx, change: int) -> None:
    """A turn has joined or left the queue otherwise than by admission."""
    tx.db.execute(_QUEUED, (change,))
