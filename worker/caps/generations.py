"""Generations: a Stop or a bump raises a person's; what was reserved before is over."""

import sqlite3

from worker.caps.records import Corrupt

_READ = "SELECT generation, complement FROM revoke_generations WHERE user = ?"
_SET = """
INSERT INTO revoke_generations VALUES (?, ?, ?)
ON CONFLICT (user) DO UPDATE SET generation = excluded.generation, complement = excluded.complement
"""
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


def advance(db: sqlite3.Connection, user: str) -> int:
    """End the current generation; the new one, one higher.

    Raises:
        Corrupt: As ``current``; then nothing of this person is authorised either.
    """
    generation = (current(db, user) or 0) + 1
    _set(db, user, generation)
    return generation


def _set(db: sqlite3.Connection, user: str, generation: int) -> None:
    db.execute(_SET, (user, generation, -1 - generation))
