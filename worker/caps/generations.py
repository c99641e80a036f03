"""Generations: a Stop or a bump raises a person's; what was reserved before is over."""

import sqlite3
from typing import Final

from schemas.limits import MAX_SAFE_INTEGER
from worker.caps.records import Corrupt

_READ = "SELECT generation, complement FROM revoke_generations WHERE user = ?"
_SET = """
INSERT INTO revoke_generations VALUES (?, ?, ?)
ON CONFLICT (user) DO UPDATE SET generation = excluded.generation, complement = excluded.complement
"""
_HIGHEST = "SELECT max(generation) FROM reservations WHERE user = ? AND generation < ?"
_NEVER_REACHED: Final = 2**52
"""A generation that no number of Stops leads to: a reservation of it is damaged, and stays so."""

_ANY = "SELECT 1 FROM reservations WHERE user = ? LIMIT 1"


def proven(generation: int | None, complement: int | None) -> int | None:
    """A counter as it was read; ``None`` if there is no row.

    Raises:
        Corrupt: If its two copies differ.
    """
    if generation is None:
        return None
    if generation < 0 or complement != -1 - generation:
        raise Corrupt("revoke_generations: a damaged counter")
    return generation


def current(db: sqlite3.Connection, user: str) -> int | None:
    """The current generation of a person; ``None`` for somebody who never had one.

    Raises:
        Corrupt: If the counter is damaged, or gone although there are reservations.
    """
    row = db.execute(_READ, (user,)).fetchone()
    if row is not None:
        return proven(*row)
    if db.execute(_ANY, (user,)).fetchone() is not None:
        raise Corrupt("revoke_generations: the counter of somebody with reservations is gone")
    return None


def has_reserved(db: sqlite3.Connection, user: str) -> bool:
    """Whether a person ever reserved a cap: whether anybody acts, or acted, under that name."""
    return db.execute(_ANY, (user,)).fetchone() is not None


def begin(db: sqlite3.Connection, user: str) -> int:
    """The current generation; a person who never had one begins with 0.

    Raises:
        Corrupt: As ``current``.
    """
    generation = current(db, user)
    if generation is None:
        _set(db, user, 0)
        return 0
    return generation


def advance(db: sqlite3.Connection, user: str, *, always: bool) -> int:
    """End the current generation; the new one, one higher.

    Args:
        db: The open transaction.
        user: Whose.
        always: Over damage, too: the new generation is higher than whatever is left of the counter
            and than that of any reservation, so that all of them are over.

    Raises:
        Corrupt: As ``current``, unless always; then nothing of this person is authorised either.
    """
    generation = _highest(db, user) if always else current(db, user) or 0
    _set(db, user, generation + 1)
    return generation + 1


def _highest(db: sqlite3.Connection, user: str) -> int:
    """The highest generation that anything left of a person's rows can be taken to say.

    A damaged reservation may be of one that is yet to come: it must not become the current one.
    """
    counter = db.execute(_READ, (user,)).fetchone()
    said = [] if counter is None else [counter[0], -1 - counter[1]]
    (reserved,) = db.execute(_HIGHEST, (user, _NEVER_REACHED)).fetchone()
    return max((one for one in (*said, reserved or 0) if 0 <= one < MAX_SAFE_INTEGER), default=0)


def _set(db: sqlite3.Connection, user: str, generation: int) -> None:
    db.execute(_SET, (user, generation, -1 - generation))
