"""Reservations as rows: read and proven, moved along the allowed transitions, shown.

A row that could not have been written by a transition is ``Corrupt``; nobody guesses what it meant.
"""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from schemas.caps import ACTIVE, EXPIRED, LEGACY, RESERVED, REVOKED, SUPERSEDED
from schemas.codes import Code
from schemas.commands.cap import LAST_EXPIRY_MS, MAX_CAP
from schemas.limits import ONE_SECOND_MS
from schemas.results import Refusal
from schemas.strict_json import JsonObject

WIRE_EXTRA_MS: Final = 1
"""The provider refuses ``.000`` and truncates, so a grant is minted with its second plus this."""

MOVES: Final = frozenset(
    {
        (RESERVED, ACTIVE),
        (RESERVED, EXPIRED),
        (ACTIVE, SUPERSEDED),
        (ACTIVE, REVOKED),
    }
)
"""Every transition there is (spec/caps.md); what no pair begins with is final."""

_CONFIRMED: Final = frozenset({ACTIVE, SUPERSEDED, REVOKED})
_ENDED: Final = frozenset({SUPERSEDED, REVOKED, EXPIRED})
_STATES: Final = _CONFIRMED | _ENDED | {RESERVED, LEGACY}

COLUMNS: Final = (
    "mint_key, expires_at_ms, latest_expires_at_ms, cap, required_version, generation, "
    "reserved_at_ms, state, confirmed_at_ms, ended_at_ms, trace"
)
_FIND = f"SELECT {COLUMNS} FROM reservations WHERE user = ? AND mint_key = ?"  # noqa: S608 - own names
_INSERT = f"INSERT INTO reservations (user, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - own names
_MOVE = """
UPDATE reservations SET state = ?, confirmed_at_ms = ?, ended_at_ms = ?
WHERE user = ? AND mint_key = ? AND state = ?
"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
"""All instants are UTC; without a zone they print faster."""


class Corrupt(Exception):
    """A row, a counter or the pointer is not what a transition would have written.

    Attributes:
        what: The table, and what is wrong there; no ids and no values.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def refusal(self) -> Refusal:
        """The refusal it leads to: nothing is allowed, nothing is taken for absent."""
        return Refusal(
            Code.INTERNAL,
            "internal",
            f"this person's caps are damaged and are not used: {self.what}",
        )


class Record(NamedTuple):
    """One row of ``reservations``, less its user; columns in the order of ``COLUMNS``."""

    mint_key: str
    expires_at_ms: int | None
    latest_expires_at_ms: int
    cap: int
    required_version: int
    generation: int | None
    reserved_at_ms: int
    state: str
    confirmed_at_ms: int | None
    ended_at_ms: int | None
    trace: str | None = None

    @property
    def asked_second_ms(self) -> int:
        """The second that was asked for."""
        return floor_second(self.latest_expires_at_ms)

    @property
    def second_ms(self) -> int:
        """The second that names it; several legacy records may share one that one of them holds."""
        return self.asked_second_ms if self.expires_at_ms is None else self.expires_at_ms

    def shown(self, user: str) -> JsonObject:
        """It as a ``schemas.caps.CapView``."""
        second = self.second_ms
        view: JsonObject = {
            "user": user,
            "mint_key": self.mint_key,
            "state": self.state,
            "expires_at_ms": second,
            "latest_expires_at_ms": self.latest_expires_at_ms,
            "wire_expires_at": rfc3339(second + WIRE_EXTRA_MS),
            "cap": self.cap,
            "required_version": self.required_version,
        }
        if self.generation is not None:
            view["generation"] = self.generation
        view["reserved_at_ms"] = self.reserved_at_ms
        if self.confirmed_at_ms is not None:
            view["confirmed_at_ms"] = self.confirmed_at_ms
        if self.ended_at_ms is not None:
            view["ended_at_ms"] = self.ended_at_ms
        return view


def find(db: sqlite3.Connection, user: str, mint_key: str) -> Record | None:
    """One reservation.

    Raises:
        Corrupt: If its row is damaged.
    """
    row = db.execute(_FIND, (user, mint_key)).fetchone()
    return None if row is None else proven(row)


def proven(row: Sequence[Any]) -> Record:
    """A row whose fields fit each other.

    Raises:
        Corrupt: If they do not.
    """
    record = Record._make(row)
    state, second = record.state, record.expires_at_ms
    if state not in _STATES:
        raise Corrupt("reservations: a state that does not exist")
    if (record.generation is None) != (state == LEGACY):
        raise Corrupt("reservations: a generation that does not fit the state")
    if (record.confirmed_at_ms is None) == (state in _CONFIRMED):
        raise Corrupt("reservations: an instant that does not fit the state")
    if (record.ended_at_ms is None) == (state in _ENDED):
        raise Corrupt("reservations: an instant that does not fit the state")
    if not 0 <= record.latest_expires_at_ms <= LAST_EXPIRY_MS:
        raise Corrupt("reservations: an expiry out of range")
    if second is not None and not 0 <= second <= LAST_EXPIRY_MS:
        raise Corrupt("reservations: an expiry out of range")
    if record.generation is None:
        return record
    if not 1 <= record.cap <= MAX_CAP:
        raise Corrupt("reservations: a cap out of range")
    if second is None or second % ONE_SECOND_MS or record.generation < 0:
        raise Corrupt("reservations: an expiry or a generation out of range")
    return record


def insert(db: sqlite3.Connection, user: str, record: Record) -> None:
    """Write a new reservation; its key and its second must be free."""
    db.execute(_INSERT, (user, *record))


def move(db: sqlite3.Connection, user: str, record: Record, state: str, now_ms: int) -> Record:
    """Take a reservation from its state to another one, which must be allowed.

    Raises:
        RuntimeError: If the transition does not exist, or the row is not in the state it was read
            in: a defect, on which the fold stops.
    """
    if (record.state, state) not in MOVES:
        raise RuntimeError(f"{record.state} never becomes {state}")
    moved = record._replace(
        state=state,
        confirmed_at_ms=now_ms if state == ACTIVE else record.confirmed_at_ms,
        ended_at_ms=None if state == ACTIVE else now_ms,
    )
    changed = db.execute(
        _MOVE,
        (state, moved.confirmed_at_ms, moved.ended_at_ms, user, record.mint_key, record.state),
    ).rowcount
    if changed != 1:
        raise RuntimeError("a reservation changed while it was judged")
    return moved


def floor_second(at_ms: int) -> int:
    """The whole second an instant lies in."""
    return at_ms - at_ms % ONE_SECOND_MS


def rfc3339(at_ms: int) -> str:
    """An instant with milliseconds, in UTC."""
    return (_EPOCH + timedelta(0, 0, 0, at_ms)).isoformat("T", "milliseconds") + "Z"
