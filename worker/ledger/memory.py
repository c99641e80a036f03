"""What the ledger remembers of commands: (principal, command id) to digest and verdict.

The same command again gets the recorded verdict under its own sequence; another body under the
same id is a conflict (DESIGN section 3). Rows are remembered for 30 days of log time. They are
kept in the order of their commands, so forgetting takes the oldest ones and costs O(log n).
"""

import hashlib
import sqlite3
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import rfc8785

from schemas import strict_json
from schemas.codes import BadInput, Code
from schemas.results import Accepted, Error, Refusal, Verdict
from worker.bus.octets import to_bytes

REMEMBERED_MS: Final = 30 * 24 * 3600 * 1000
"""How long a command id is remembered, in log time."""

FORGOTTEN_PER_COMMAND: Final = 2
"""Rows that one command forgets at most, so that a quiet month costs no long transaction."""

_FIND = "SELECT ordinal, at_ms, digest, verdict FROM commands WHERE key = ?"
_INSERT = "INSERT INTO commands VALUES (?, ?, ?, ?, ?)"
_OLDEST = "SELECT ordinal, at_ms FROM commands ORDER BY ordinal LIMIT 1"
_OLDEST_ROWS = "SELECT ordinal, at_ms FROM commands ORDER BY ordinal LIMIT ?"
_FORGET = "DELETE FROM commands WHERE ordinal = ?"
_FORGET_BEFORE = "DELETE FROM commands WHERE ordinal < ? AND at_ms < ?"
_NEVER: Final = 2**63


def digest_of(subject: str, body: bytes) -> bytes:
    """Digest of a command's subject and body: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(b"%b\0%b" % (to_bytes(subject), body), digest_size=16).digest()


def meaning_of(body: bytes) -> bytes:
    """The canonical JSON of a body (RFC 8785), the same for all that say the same.

    A body that is no JSON object of ours has none and stands for its own bytes.
    """
    try:
        return bytes(rfc8785.dumps(strict_json.loads(body)))
    except (BadInput, rfc8785.CanonicalizationError):
        return body


def key_of(principal: str, command_id: str) -> bytes:
    """What a command is remembered under: 16 bytes of BLAKE2b.

    A short key of fixed length keeps the one index that every command writes to small.
    """
    return hashlib.blake2b(f"{principal}\0{command_id}".encode(), digest_size=16).digest()


def verdict_of(db: sqlite3.Connection, key: bytes) -> Verdict | None:
    """The verdict that is remembered of a command; ``None`` if there is none."""
    row = db.execute(_FIND, (key,)).fetchone()
    return None if row is None else parsed(row[3])


def parsed(verdict: bytes) -> Verdict:
    """A verdict that is kept as the verdict part of its result's JSON."""
    whole = b"{%b}" % verdict
    # It is ours, and may be larger than a body: it tells a policy that came in one, and more.
    said = strict_json.loads(whole, max_bytes=len(whole))
    if said["status"] == "ok":
        return Accepted(said["outcome"], said["data"])
    error = Error.model_validate(said["error"])
    return Refusal(
        Code(error.code), error.reason, error.message, at_field=error.field, data=said["data"]
    )


@dataclass(frozen=True, slots=True)
class Remembered:
    """A command that was folded before.

    Attributes:
        digest: Of its subject and body.
        verdict: The verdict part of its result's JSON.
    """

    digest: bytes
    verdict: bytes


class Memory:
    """The remembered commands over an open transaction.

    New rows wait in memory and are written together by ``flush``, in the batch's transaction.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._cursor = db.cursor()
        self._pending: dict[bytes, tuple[int, int, bytearray, bytearray, bytearray]] = {}
        self._oldest_ms = _NEVER
        self.reload()

    def reload(self) -> None:
        """Forget what was not written and read the state of the tables again."""
        self._pending.clear()
        oldest = self._db.execute(_OLDEST).fetchone()
        self._oldest_ms = _NEVER if oldest is None else oldest[1]

    def find(self, key: bytes, now_ms: int) -> Remembered | None:
        """Look a command up; one older than 30 days is not remembered any more."""
        pending = self._pending.get(key)
        if pending is not None:
            if pending[1] <= now_ms - REMEMBERED_MS:
                # A log without a command for a month, folded as one batch.
                del self._pending[key]
                return None
            return Remembered(bytes(pending[3]), bytes(pending[4]))
        row = self._cursor.execute(_FIND, (bytearray(key),)).fetchone()
        if row is None:
            return None
        ordinal, at_ms, digest, verdict = row
        if at_ms <= now_ms - REMEMBERED_MS:
            self._db.execute(_FORGET, (ordinal,))
            return None
        return Remembered(digest, verdict)

    def add(self, ordinal: int, now_ms: int, key: bytes, digest: bytes, verdict: bytes) -> None:
        """Remember a command that ``find`` did not know."""
        # The driver asks every value of a type other than these few for an adapter.
        self._pending[key] = (
            ordinal,
            now_ms,
            bytearray(key),
            bytearray(digest),
            bytearray(verdict),
        )
        if now_ms < self._oldest_ms:
            self._oldest_ms = now_ms

    def forget_old(self, now_ms: int) -> None:
        """Drop the oldest rows that are past their 30 days, two at most."""
        if self._oldest_ms > now_ms - REMEMBERED_MS:
            return
        self.flush()
        for _ in range(FORGOTTEN_PER_COMMAND):
            oldest = self._db.execute(_OLDEST).fetchone()
            if oldest is None or oldest[1] > now_ms - REMEMBERED_MS:
                break
            self._db.execute(_FORGET, (oldest[0],))
        oldest = self._db.execute(_OLDEST).fetchone()
        self._oldest_ms = _NEVER if oldest is None else oldest[1]

    def forget_before(self, before_ms: int, ordinal: int) -> int:
        """Drop rows older than an instant, for ``sys.prune``; returns how many."""
        self.flush()
        count = self._db.execute(_FORGET_BEFORE, (ordinal, before_ms)).rowcount
        self.reload()
        return count

    def forget_some(self, before_ms: int, limit: int) -> int:
        """Drop so many of the oldest rows at most, if older than an instant; returns how many.

        The command that is being folded is not among them.
        """
        self.flush()
        oldest = self._db.execute(_OLDEST_ROWS, (limit,)).fetchall()
        old = [(ordinal,) for ordinal, _ in takewhile(lambda row: row[1] < before_ms, oldest)]
        self._db.executemany(_FORGET, old)
        self.reload()
        return len(old)

    def flush(self) -> None:
        """Write the waiting rows into the open transaction."""
        if self._pending:
            self._db.executemany(_INSERT, self._pending.values())
            self._pending.clear()
