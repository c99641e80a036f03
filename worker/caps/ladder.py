"""The ladder: the requested second, or the nearest earlier one that is still free."""

import sqlite3
from typing import Final

from schemas.limits import ONE_SECOND_MS

CANDIDATES: Final = 300
"""The requested second, and 299 earlier ones."""

_TAKEN = """
SELECT expires_at_ms FROM reservations
WHERE user = ? AND expires_at_ms BETWEEN ? AND ? ORDER BY expires_at_ms DESC
"""


def first_free(db: sqlite3.Connection, user: str, asked_ms: int, now_ms: int) -> int | None:
    """The highest free second of a person's ladder that lies in the future.

    One range scan of the unique index reads the seconds that are taken, in the ladder's order; the
    first rung it does not hold is free.

    Args:
        db: The open transaction.
        user: Whose seconds.
        asked_ms: The requested second.
        now_ms: Log time.

    Returns:
        The second, or ``None`` if none of the candidates after ``now_ms`` is free.
    """
    lowest = asked_ms - (CANDIDATES - 1) * ONE_SECOND_MS
    candidate = asked_ms
    for (taken,) in db.execute(_TAKEN, (user, lowest, asked_ms)).fetchall():
        if taken != candidate:
            break
        candidate -= ONE_SECOND_MS
    return candidate if candidate >= lowest and candidate > now_ms else None
