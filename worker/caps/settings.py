"""The plane's durable settings: whether new caps are minted, and how long a permit is valid."""

import sqlite3
from typing import NamedTuple

from schemas.commands.cap import MAX_PERMIT_MS
from schemas.strict_json import JsonObject
from worker.caps.records import Corrupt

_READ = "SELECT minting, permit_ms FROM settings"
_WRITE = "INSERT OR REPLACE INTO settings VALUES (1, ?, ?)"


class Settings(NamedTuple):
    """The one row.

    Attributes:
        enabled: Whether ``reserve`` is served.
        permit_ms: How long a permit is valid at most.
    """

    enabled: bool
    permit_ms: int

    def shown(self) -> JsonObject:
        """It as a ``schemas.caps.CapSettings``."""
        return {"enabled": self.enabled, "permit_ms": self.permit_ms}


def read(db: sqlite3.Connection) -> Settings:
    """The settings in force.

    Raises:
        Corrupt: If the row is missing or damaged.
    """
    row = db.execute(_READ).fetchone()
    if row is None or row[0] not in (0, 1) or not 1 <= row[1] <= MAX_PERMIT_MS:
        raise Corrupt("settings: the row is missing or out of range")
    return Settings(row[0] == 1, row[1])


def write(db: sqlite3.Connection, settings: Settings) -> None:
    """Put other settings in force."""
    db.execute(_WRITE, (int(settings.enabled), settings.permit_ms))
