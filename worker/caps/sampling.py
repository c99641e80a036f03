"""The cap plane's state in a few numbers, for metrics; nothing here names a person."""

import sqlite3
from dataclasses import dataclass
from typing import Final

_ACTIVE: Final = "SELECT count(*) FROM reservations WHERE state = 'confirmed_active'"


@dataclass(frozen=True, slots=True)
class Sample:
    """The plane at one instant.

    Attributes:
        active: Persons with a confirmed grant that was not ended; its second may have passed.
    """

    active: int


def read(db: sqlite3.Connection) -> Sample:
    """Count; nothing is written.

    Args:
        db: The ledger, between two batches.
    """
    return Sample(int(db.execute(_ACTIVE).fetchone()[0]))
