"""Fingerprints of the messages that were folded, to recognise the log again.

A broker's store may be replaced by an older copy of itself. The file therefore remembers what the
log said: eight bytes for each of the latest messages, and one for every thousand before them
(DESIGN section 5, Log regression). They belong to this replica and are not part of the digest.
"""

import hashlib
import sqlite3
from typing import TYPE_CHECKING, Final

from worker.ledger import memory

if TYPE_CHECKING:
    from worker.ledger.fold import LogMessage

PRINT_BYTES: Final = 8

_PUT = "INSERT INTO log_marks VALUES (?, ?, ?)"


def fingerprint(message: "LogMessage", digest: bytes | None = None) -> bytes:
    """Eight bytes over a message's subject, body, timestamp and headers.

    Args:
        message: A stored message.
        digest: ``memory.digest_of`` its subject and body, if it is at hand.
    """
    if digest is None:
        digest = memory.digest_of(message.subject, message.data)
    rest = f"{message.time_ms}{list(message.headers.items())}".encode()
    return hashlib.blake2b(digest + rest, digest_size=PRINT_BYTES).digest()


class LogMarks:
    """Collects fingerprints of one batch and writes them as one row."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._first = 0
        self._prints: list[bytes] = []

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
        if self._prints:
            last = self._first + len(self._prints) - 1
            self._db.execute(_PUT, (self._first, last, b"".join(self._prints)))
            self._prints.clear()
