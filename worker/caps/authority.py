"""Who may spend: the one function that judges, for ``authorize`` and for ``cap.show`` alike.

It reads everything that stands for a person in one statement and proves that it fits together. Any
damage is ``Corrupt``, so that a doubt never authorises.
"""

import sqlite3
from typing import Any, NamedTuple

from schemas.caps import (
    ACTIVE,
    LAPSED,
    MISMATCH,
    NONE_ACTIVE,
    OVER_CAP,
    REVOKED,
    STOPPED,
    TOO_NEW,
)
from worker.caps import generations, records
from worker.caps.records import COLUMNS, Corrupt, Record

_STANDING = f"""
SELECT counter.generation, counter.complement, pointer.mint_key, active.mint_key,
    {", ".join(f"pointed.{column}" for column in COLUMNS.split(", "))}
FROM (SELECT ? AS user) AS person
LEFT JOIN revoke_generations AS counter ON counter.user = person.user
LEFT JOIN active_grants AS pointer ON pointer.user = person.user
LEFT JOIN reservations AS pointed
    ON pointed.user = pointer.user AND pointed.mint_key = pointer.mint_key
LEFT JOIN reservations AS active INDEXED BY reservations_active
    ON active.user = person.user AND active.state = 'confirmed_active'
"""  # noqa: S608 - the names are those of our own columns


class Standing(NamedTuple):
    """How a person's rows stand to each other.

    Attributes:
        generation: The current one.
        pointer: Key of the grant confirmed last.
        active: Key of the row whose state is active.
        row: The row the pointer names, as it was read.
    """

    generation: int
    pointer: str | None
    active: str | None
    row: tuple[Any, ...]

    def grant(self) -> Record | None:
        """The grant confirmed last: active, or revoked; ``None`` if there never was one.

        Raises:
            Corrupt: If pointer, rows and counter do not fit together.
        """
        if self.pointer is None:
            if self.active is not None:
                raise Corrupt("active_grants: an active grant has no pointer")
            return None
        if self.row[0] is None:
            raise Corrupt("active_grants: the pointer names nothing")
        grant = records.proven(self.row)
        if grant.state not in (ACTIVE, REVOKED):
            raise Corrupt("active_grants: the pointer names what is not a confirmed grant")
        if self.active != (self.pointer if grant.state == ACTIVE else None):
            raise Corrupt("active_grants: the pointer is not where the active grant is")
        return grant

    def is_stale(self, record: Record) -> bool:
        """Whether a Stop or a bump came after a reservation.

        Raises:
            Corrupt: If the reservation is from a generation that never was.
        """
        if record.generation is None or record.generation > self.generation:
            raise Corrupt("revoke_generations: the counter is behind a reservation")
        return record.generation < self.generation


class Judgement(NamedTuple):
    """What was found.

    Attributes:
        reason: Why nothing is authorised; ``None`` if it is.
        grant: The grant that is active, if one is.
        generation: The current one.
    """

    reason: str | None
    grant: Record | None
    generation: int


def standing_of(db: sqlite3.Connection, user: str) -> Standing:
    """Read how a person stands.

    Raises:
        Corrupt: If the counter is damaged.
    """
    counter, complement, pointer, active, *row = db.execute(_STANDING, (user,)).fetchone()
    generation = generations.proven(counter, complement)
    if generation is None:
        if pointer is not None or active is not None:
            raise Corrupt("revoke_generations: the counter of somebody with a grant is gone")
        generation = 0
    return Standing(generation, pointer, active, tuple(row))


def judge(
    db: sqlite3.Connection,
    user: str,
    *,
    now_ms: int,
    ruleset: int,
    expires_at_ms: int | None = None,
    amount: int | None = None,
) -> Judgement:
    """Judge whether a person's grant authorises an action.

    Args:
        db: The connection.
        user: Whose grant.
        now_ms: When.
        ruleset: The ruleset in force.
        expires_at_ms: The live grant's second; not looked at if absent.
        amount: What the action costs; not looked at if absent.

    Raises:
        Corrupt: If the person's rows are damaged; then nothing is authorised.
    """
    standing = standing_of(db, user)
    grant = standing.grant()
    active = grant if grant is not None and grant.state == ACTIVE else None
    reason = _why_not(standing, grant, now_ms, ruleset, expires_at_ms, amount)
    return Judgement(reason, active, standing.generation)


def _why_not(
    standing: Standing,
    grant: Record | None,
    now_ms: int,
    ruleset: int,
    expires_at_ms: int | None,
    amount: int | None,
) -> str | None:
    if grant is None:
        return NONE_ACTIVE
    if standing.is_stale(grant):
        return STOPPED
    if grant.state != ACTIVE:
        return NONE_ACTIVE
    if grant.second_ms <= now_ms:
        return LAPSED
    if expires_at_ms is not None and expires_at_ms != grant.second_ms:
        return MISMATCH
    if amount is not None and not 0 < amount <= grant.cap:
        return OVER_CAP
    if grant.required_version > ruleset:
        return TOO_NEW
    return None
