"""What becomes of admission's instants where log time is set back.

What has happened has happened by now, or pacing, silence and ageing would wait until the wrong time
has come. What a turn or a seat still has to wait it goes on waiting, from now on. A cooldown keeps
its end, since it may be one that a person gave; an operator shortens it.
"""

import sqlite3
from typing import Final

from schemas.commands.adm import MAX_QUEUE_TIMEOUT_MS
from worker.admission import heads
from worker.ledger.tx import Tx

_PACING: Final = (
    "UPDATE adm_limits SET paced_at_ms = min(paced_at_ms, ?1), kept_at_ms = min(kept_at_ms, ?1)"
)
_WAITING: Final = f"""
UPDATE adm_requests SET (enqueued_at_ms, deadline_at_ms, aged_at_ms) = (
    SELECT since, until, since + (until - since) / 2 + 1 FROM (SELECT
        min(enqueued_at_ms, ?1) AS since,
        min(deadline_at_ms - max(enqueued_at_ms - ?1, 0), ?1 + {MAX_QUEUE_TIMEOUT_MS}) AS until))
WHERE settled_at_ms IS NULL
AND (enqueued_at_ms > ?1 OR deadline_at_ms > ?1 + {MAX_QUEUE_TIMEOUT_MS})
"""  # noqa: S608 - a number of our own
_SEATS: Final = """
UPDATE adm_leases SET
    start_deadline_at_ms = min(
        start_deadline_at_ms, ?1 + (SELECT start_timeout_ms FROM adm_limits)),
    admitted_at_ms = min(admitted_at_ms, ?1),
    debt_at_ms = min(debt_at_ms, ?1),
    suspect_at_ms = min(suspect_at_ms, ?1)
"""
_OWNERS: Final = """
UPDATE adm_owners SET
    seen_at_ms = min(seen_at_ms, ?1),
    silent_at_ms = min(silent_at_ms, ?1),
    dead_at_ms = min(dead_at_ms, ?1),
    adoption_due_at_ms = min(
        adoption_due_at_ms, ?1 + (SELECT adoption_timeout_ms FROM adm_limits))
"""


def rewind(tx: Tx) -> None:
    """Let nothing have happened later than now."""
    db: sqlite3.Connection = tx.db
    for statement in (_PACING, _SEATS, _OWNERS):
        db.execute(statement, (tx.now_ms,))
    if db.execute(_WAITING, (tx.now_ms,)).rowcount:
        heads.refresh_all(db)
