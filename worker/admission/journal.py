"""The journal: append-only, one row per move, named outside only by a keyed HMAC.

A row holds the request id; the HMAC is applied where a row leaves: by the publisher for the fact
``fact.adm.journal.<kind>``, by the query ``adm.events`` for a page. So the fold needs no key, and
its state stays a function of the log (spec/admission.md, Journal).
"""

import sqlite3
from dataclasses import dataclass

from worker.admission.moves import TRIPLES
from worker.ledger.tx import Origin, Tx

_APPEND = (
    "INSERT INTO adm_journal (kind, from_state, to_state, at_ms, request_id) VALUES (?, ?, ?, ?, ?)"
)
_PAGE = (
    "SELECT sequence, kind, from_state, to_state, at_ms, request_id FROM adm_journal "
    "WHERE sequence > ? ORDER BY sequence LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row.

    Attributes:
        sequence: Its place, without gaps from 1.
        kind: What happened.
        source: The state before.
        target: The state after.
        at_ms: Log time.
        request_id: Which turn; ``None`` for the policy's events.
    """

    sequence: int
    kind: str
    source: str | None
    target: str | None
    at_ms: int
    request_id: str | None


class Tampered(Exception):
    """A row of the journal is none that this plane writes.

    Attributes:
        sequence: Which.
    """

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        super().__init__(f"row {sequence} of the journal is damaged")


def append(tx: Tx, kind: str, source: str | None, target: str | None, about: Origin | None) -> None:
    """Write one row and say it.

    Args:
        tx: The transaction.
        kind: Of the row.
        source: The state before.
        target: The state after.
        about: The turn, if it is about one.

    Raises:
        ValueError: If the triple is not in the table: a defect, which stops the fold.
    """
    if (kind, source, target) not in TRIPLES:
        raise ValueError(f"no move {kind}: {source} to {target}")
    name = None if about is None else about[0]
    written = tx.db.execute(_APPEND, (kind, source, target, tx.now_ms, name))
    body: dict[str, object] = {"sequence": written.lastrowid, "kind": kind}
    if source is not None:
        body["from"] = source
    if target is not None:
        body["to"] = target
    tx.keyed_fact("adm", "journal", (kind,), body, about)


def page(db: sqlite3.Connection, after: int, limit: int) -> list[Entry]:
    """Read rows in order.

    Args:
        db: The connection.
        after: Sequence after which to begin.
        limit: How many at most.

    Raises:
        Tampered: If a row is missing or not one of the table's; no part of the page is returned.
    """
    entries = [Entry(*row) for row in db.execute(_PAGE, (after, limit))]
    for expected, entry in enumerate(entries, after + 1):
        about_policy = entry.kind.startswith("policy_")
        if (
            entry.sequence != expected
            or (entry.kind, entry.source, entry.target) not in TRIPLES
            or (entry.request_id is None) != about_policy
        ):
            raise Tampered(min(expected, entry.sequence))
    return entries
