"""A row of a stopped worker's ledger, changed by hand; which one and how, a seed decides."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

Value = int | str | bytes | float | None


def damage(path: Path, seed: str) -> str:
    """Change one value of one row that some table holds.

    Args:
        path: The ledger's file; nobody has it open.
        seed: Decides which, among the tables that hold anything.

    Returns:
        What was changed, for a person; empty if no change was to be had.
    """
    rng = random.Random(seed)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        tables = _filled(db)
        rng.shuffle(tables)
        for table in tables:
            done = _change(db, table, rng)
            if done:
                return done
    return ""


def _filled(db: sqlite3.Connection) -> list[str]:
    named = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    tables = [str(name) for (name,) in db.execute(f"{named} ORDER BY name")]
    return [name for name in tables if db.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone()]


def _change(db: sqlite3.Connection, table: str, rng: random.Random) -> str:
    columns = [(row[1], row[5]) for row in db.execute(f'PRAGMA table_info("{table}")')]
    keys = [name for name, key in columns if key] or ["rowid"]
    rest = [name for name, key in columns if not key]
    rng.shuffle(rest)
    shown = ", ".join(f'"{name}"' for name in keys)
    found = db.execute(f'SELECT {shown} FROM "{table}" ORDER BY {shown}').fetchall()
    row = rng.choice(found)
    where = " AND ".join(f'"{name}" IS ?' for name in keys)
    for column in rest:
        (old,) = db.execute(f'SELECT "{column}" FROM "{table}" WHERE {where}', row).fetchone()
        new = rng.choice(_others(old))
        try:
            db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', (new, *row))
        except sqlite3.Error:
            continue
        return f"{table}.{column} of {row}: {old!r} became {new!r}"
    return ""


def _others(value: Value) -> list[Value]:
    match value:
        case None:
            return [1, "x"]
        case int():
            return [value + 1, value - 1, -7, 0 if value else 2, 1 << 52]
        case str():
            return [value + "x", value[:-1], "", value.upper() + "\u00e9"]
        case bytes():
            return [value[:-1], value + b"\0", bytes(reversed(value))]
    return [0.0]
