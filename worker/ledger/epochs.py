"""How an epoch begins: with a command in the log, and with one replica's file for all of them.

An epoch is begun where a person, or a lone replica, had to say which state goes on: after the log
went back, after replicas differed, and after the broker stamped a command with an instant that its
own clock contradicts.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, Self

from worker.bus.messages import StreamInfo
from worker.ledger import rulesets
from worker.ledger.marks import forget_after
from worker.ledger.presence import PEERS
from worker.ledger.regression import CREATED, LAST_SEEN, Beginning

BOUND: Final = "stamp_bound"
"""Local note: the bound of the epoch's first stamps, ``<seq> <at_ms>``; the log decides it, so it
is the same in every replica."""

_SET = "UPDATE fold SET epoch = ?, watermark = ?"
_NOTE = "INSERT INTO local VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_BOUND = "SELECT value FROM local WHERE name = ?"


class Bound(NamedTuple):
    """What is known of the stamps before an epoch's beginning: none is later than its own.

    Attributes:
        seq: The beginning's sequence; 0 for an epoch that bounds nothing.
        at_ms: Its stamp.
    """

    seq: int = 0
    at_ms: int = 0

    @classmethod
    def read(cls, db: sqlite3.Connection) -> Self:
        """Read a file's."""
        row = db.execute(_BOUND, (BOUND,)).fetchone()
        return cls() if row is None else cls(*map(int, row[0].split()))

    def stamp_ms(self, seq: int, time_ms: int) -> int:
        """The timestamp to believe of a message."""
        return min(time_ms, self.at_ms) if seq <= self.seq else time_ms


UNBOUND: Final = Bound()
"""A log that was never rebased bounds nothing."""


def adjust(path: Path, info: StreamInfo | None = None, begun: Beginning | None = None) -> None:
    """Make another replica's copy our own, in one transaction.

    Args:
        path: The copy, closed.
        info: The log; needed with ``begun``.
        begun: The beginning of the epoch that the copy goes on in; its own epoch if absent.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM local WHERE name = ?", (PEERS,))
        if begun is not None:
            db.execute(_SET, (begun.rebase.epoch, begun.rebase.common))
            forget_after(db, begun.rebase.common)
            (ruleset,) = db.execute("SELECT ruleset FROM fold").fetchone()
            if ruleset >= rulesets.MENDED:
                db.execute(_NOTE, (BOUND, f"{begun.seq} {begun.at_ms}"))
        if begun is not None and info is not None:
            db.execute(_NOTE, (CREATED, info.created))
            db.execute(_NOTE, (LAST_SEEN, "0"))
        db.execute("COMMIT")
