"""The digest of the logical state: what two replicas must agree on, byte for byte.

Outbox rows, fingerprints of the log and other things of one replica are not part of it.
"""

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.strict_json import JsonObject
from schemas.system import DigestView
from worker.ledger.plane import Plane
from worker.ledger.store import LOGICAL_TABLES

_ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest at one sequence.

    Attributes:
        schema_version: Of the file.
        ruleset: In force.
        epoch: Of the log.
        watermark: Sequence reached.
        tables: Table to SHA-256 over its rows, in primary-key order.
        whole: SHA-256 over all of the above.
    """

    schema_version: int
    ruleset: int
    epoch: int
    watermark: int
    tables: dict[str, str]
    whole: str

    def to_object(self) -> JsonObject:
        """As JSON."""
        return DigestView(
            schema_version=self.schema_version,
            ruleset=self.ruleset,
            epoch=self.epoch,
            watermark=self.watermark,
            tables=dict(self.tables),
            digest=self.whole,
        ).to_object()


def compute(db: sqlite3.Connection, planes: Sequence[Plane]) -> Digest:
    """Digest the logical state, reading every row once and keeping none."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    epoch, watermark, ruleset = db.execute("SELECT epoch, watermark, ruleset FROM fold").fetchone()
    names = (*LOGICAL_TABLES, *(table for plane in planes for table in plane.tables))
    tables = {name: _table(db, name) for name in names}
    whole = hashlib.sha256(f"{version}\n{ruleset}\n".encode())
    for name, digest in tables.items():
        whole.update(f"{name} {digest}\n".encode())
    return Digest(version, ruleset, epoch, watermark, tables, whole.hexdigest())


def _table(db: sqlite3.Connection, table: str) -> str:
    columns = db.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
    key = [name for name, _ in sorted((c for c in columns if c[1]), key=lambda c: c[1])]
    shown = " || ',' || ".join(f'quote("{name}")' for name, _ in columns)
    order = ", ".join(f'"{name}"' for name in key)
    # Table and column names are those of our own schema.
    rows = db.execute(f'SELECT {shown} FROM "{table}" ORDER BY {order}')  # noqa: S608
    digest = hashlib.sha256()
    while chunk := rows.fetchmany(_ROWS_AT_ONCE):
        digest.update("".join(f"{row[0]}\n" for row in chunk).encode())
    return digest.hexdigest()
