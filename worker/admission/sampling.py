"""Admission's state in a few numbers, for metrics; nothing here names a turn or an owner."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas.admission import ACTIVE, DEBT, Block
from worker.admission import limits

Phase = Literal["starting", "active", "debt"]
PHASES: Final[tuple[Phase, ...]] = ("starting", "active", "debt")
BLOCKS: Final[tuple[Block, ...]] = (
    "seats",
    "starts",
    "pacing",
    "drain",
    "cooldown",
    "silence",
    "payload",
)
"""Blocks that a turn can be counted under; ``order`` and ``empty`` keep nobody by themselves."""

MOST_COUNTED: Final = 10_000
"""Turns at the head of the queue that are looked at one by one, since the fold waits meanwhile."""

_SEATS: Final = """
SELECT r.state, count(*), min(l.debt_at_ms)
FROM adm_leases l JOIN adm_requests r ON r.request_id = l.request_id GROUP BY r.state
"""
_HEAD: Final = """
(SELECT provider, model, principal, uid FROM adm_requests WHERE state = 'queued'
 ORDER BY priority DESC, enqueued_at_ms, request_id LIMIT ?)
"""
_COOLING: Final = f"""
SELECT count(*) FROM {_HEAD} r
JOIN adm_cooldowns c ON (c.provider, c.model) = (r.provider, r.model) WHERE c.until_ms > ?
"""  # noqa: S608 - the line above
_SILENT: Final = f"""
SELECT count(*) FROM {_HEAD} r
JOIN adm_owners o ON (o.principal, o.uid) = (r.principal, r.uid)
WHERE o.silent_at_ms IS NOT NULL OR o.dead_at_ms IS NOT NULL
"""  # noqa: S608 - the line above
_UNSEALED: Final = """
SELECT count(*) FROM adm_requests INDEXED BY adm_requests_unsealed
WHERE state = 'queued' AND node IS NULL
"""
_ANY_COOLING: Final = "SELECT EXISTS (SELECT 1 FROM adm_cooldowns WHERE until_ms > ?)"
_ANY_SILENT: Final = """
SELECT EXISTS (
    SELECT 1 FROM adm_owners WHERE silent_at_ms IS NOT NULL OR dead_at_ms IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The plane at one instant.

    Attributes:
        seats: Seats held, by phase.
        seat_limit: Seats that may be held.
        queued: Turns that wait.
        blocked: Turns that each block keeps waiting; a turn may count for several. Cooldown and
            silence are counted among the first 10,000.
        oldest_debt_ms: How long the oldest debt has lasted; 0 if there is none.
    """

    seats: Mapping[Phase, int]
    seat_limit: int
    queued: int
    blocked: Mapping[Block, int]
    oldest_debt_ms: int


def read(db: sqlite3.Connection, now_ms: int) -> Sample:
    """Count; nothing is written.

    Args:
        db: The ledger, between two batches.
        now_ms: The clock of the answer.
    """
    held = limits.read(db)
    seats: dict[Phase, int] = dict.fromkeys(PHASES, 0)
    debts = []
    for state, count, debt_at_ms in db.execute(_SEATS).fetchall():
        phase: Phase = "debt" if state in DEBT else "active" if state == ACTIVE else "starting"
        seats[phase] += count
        if debt_at_ms is not None:
            debts.append(debt_at_ms)
    return Sample(
        seats,
        held.seat_limit,
        held.queued,
        _blocked(db, held, now_ms) if held.queued else dict.fromkeys(BLOCKS, 0),
        max(0, now_ms - min(debts)) if debts else 0,
    )


def _blocked(db: sqlite3.Connection, held: limits.Limits, now_ms: int) -> dict[Block, int]:
    blocked: dict[Block, int] = dict.fromkeys(BLOCKS, 0)
    for block in held.blocks(now_ms):
        blocked[block] = held.queued
    if _number(db, _ANY_COOLING, now_ms):
        blocked["cooldown"] = _number(db, _COOLING, MOST_COUNTED, now_ms)
    if _number(db, _ANY_SILENT):
        blocked["silence"] = _number(db, _SILENT, MOST_COUNTED)
    blocked["payload"] = _number(db, _UNSEALED)
    return blocked


def _number(db: sqlite3.Connection, sql: str, *arguments: int) -> int:
    return int(db.execute(sql, arguments).fetchone()[0])
