"""Fingerprints of the messages that were folded, to recognise the log again.

A broker's store may be replaced by an older copy of itself. The file therefore remembers what the
log said: eight bytes for each of the latest messages, and now and then one for those before them
(DESIGN section 5, Log regression). They belong to this replica and are not part of the digest.
"""

import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from worker.ledger import memory

if TYPE_CHECKING:
    from worker.ledger.fold import LogMessage

PRINT_BYTES: Final = 8

DENSE: Final = 262_144
"""So many of the latest messages have a fingerprint each: two megabytes."""

SPARSE: Final = 1_000
"""Before them, about one message of so many keeps its fingerprint."""

_THIN_EVERY: Final = 4_096

_PUT = "INSERT INTO log_marks VALUES (?, ?, ?)"
_DROP_BETWEEN = """
DELETE FROM log_marks
WHERE first_seq > ? AND first_seq <= ? AND last_seq / ? = (first_seq - 1) / ?
"""
_SHRINK_BETWEEN = f"""
UPDATE log_marks SET first_seq = last_seq, prints = substr(prints, -{PRINT_BYTES})
WHERE first_seq > ? AND first_seq <= ? AND first_seq < last_seq
"""  # noqa: S608 - a number of our own
_DROP_AFTER = "DELETE FROM log_marks WHERE first_seq > ?"
_CUT_AFTER = f"""
UPDATE log_marks SET last_seq = ?1, prints = substr(prints, 1, (?1 - first_seq + 1) * {PRINT_BYTES})
WHERE last_seq > ?1
"""  # noqa: S608 - a number of our own
_ALL = "SELECT first_seq, last_seq, prints FROM log_marks ORDER BY first_seq"


def fingerprint(message: "LogMessage", digest: bytes | None = None) -> bytes:
    """Eight bytes over a message's subject, body, timestamp and headers.

    They tell two copies of one log apart that went different ways, and need not withstand anybody:
    whoever can write to the broker's store can do worse.

    Args:
        message: A stored message.
        digest: ``memory.digest_of`` its subject and body, if it is at hand.
    """
    if digest is None:
        digest = memory.digest_of(message.subject, message.data)
    # repr() escapes the lone surrogates that stand for bytes which are not UTF-8.
    rest = zlib.crc32(f"{message.time_ms}{list(message.headers.items())}".encode())
    return digest[:4] + rest.to_bytes(4, "big")


class LogMarks:
    """Collects fingerprints of one batch and writes them as one row."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._first = 0
        self._prints: list[bytes] = []
        self._thinned_to = 0

    def reload(self) -> None:
        """Forget what was not written."""
        self._prints.clear()

    def add(self, message: "LogMessage", digest: bytes) -> None:
        """Note the next message."""
        if not self._prints:
            self._first = message.seq
        self._prints.append(fingerprint(message, digest))

    def flush(self) -> None:
        """Write the batch's row into the open transaction."""
        if not self._prints:
            return
        last = self._first + len(self._prints) - 1
        self._db.execute(_PUT, (self._first, last, b"".join(self._prints)))
        self._prints.clear()
        horizon = last - DENSE
        if horizon - self._thinned_to >= _THIN_EVERY:
            span = (self._thinned_to, horizon)
            self._db.execute(_DROP_BETWEEN, (*span, SPARSE, SPARSE))
            self._db.execute(_SHRINK_BETWEEN, span)
            self._thinned_to = horizon


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a file remembers of the log.

    Attributes:
        rows: First sequence, last sequence and fingerprints, in order.
    """

    rows: Sequence[tuple[int, int, bytes]]

    @classmethod
    def read(cls, db: sqlite3.Connection) -> "Remembered":
        """Read all of it: a few megabytes at most."""
        return cls(db.execute(_ALL).fetchall())

    def sequences(self, low: int, high: int) -> list[int]:
        """The sequences in ``low..high`` that have a fingerprint, in order."""
        return [
            seq
            for first, last, _ in self.rows
            if first <= high and last >= low
            for seq in range(max(first, low), min(last, high) + 1)
        ]

    def print_of(self, seq: int) -> bytes | None:
        """The fingerprint of one message, if it is remembered."""
        low, high = 0, len(self.rows)
        while low < high:
            middle = (low + high) // 2
            if self.rows[middle][1] < seq:
                low = middle + 1
            else:
                high = middle
        if low == len(self.rows) or self.rows[low][0] > seq:
            return None
        first, _, prints = self.rows[low]
        start = (seq - first) * PRINT_BYTES
        return prints[start : start + PRINT_BYTES]


def forget_after(db: sqlite3.Connection, seq: int) -> None:
    """Drop what is remembered of messages after ``seq``, which the log no longer holds."""
    db.execute(_DROP_AFTER, (seq,))
    db.execute(_CUT_AFTER, (seq,))
