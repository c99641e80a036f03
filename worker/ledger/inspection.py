"""Compares the schema a file has with the one this version makes, and says what differs."""

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

_OBJECTS = "SELECT type, name, sql FROM sqlite_schema WHERE substr(name, 1, 7) != 'sqlite_'"


@dataclass(frozen=True, slots=True)
class Shape:
    """The schema of one database.

    Attributes:
        objects: (type, name) of every table, index, trigger and view to its normalised SQL.
        columns: Table to column name to (type, not null, default, key position, hidden).
        indexes: Table to index name to (unique, origin, partial, columns in order), those that a
            constraint made included.
        foreign_keys: Table to its references.
    """

    objects: dict[tuple[str, str], str]
    columns: dict[str, dict[str, tuple[object, ...]]]
    indexes: dict[str, dict[str, tuple[object, ...]]]
    foreign_keys: dict[str, tuple[tuple[object, ...], ...]]


def read_shape(db: sqlite3.Connection) -> Shape:
    """Read everything that can be declared in a database."""
    objects: dict[tuple[str, str], str] = {}
    shape = Shape(objects, {}, {}, {})
    for kind, name, sql in db.execute(_OBJECTS).fetchall():
        objects[kind, name] = _normalised(sql or "")
        if kind == "table":
            shape.columns[name] = {
                row[1]: row[2:]
                for row in db.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
            }
            shape.indexes[name] = dict(_indexes_of(db, name))
            shape.foreign_keys[name] = tuple(
                db.execute("SELECT * FROM pragma_foreign_key_list(?)", (name,)).fetchall()
            )
    return shape


def differences(expected: Shape, found: Shape) -> list[str]:
    """What differs, one sentence each, naming table, column, index, trigger, view or constraint."""
    found_by = list(_objects_differ(expected, found))
    for table in sorted(expected.columns.keys() & found.columns.keys()):
        found_by.extend(_table_differs(table, expected, found))
    return found_by


def integrity_faults(db: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the pages, the CHECKs and the references of a file."""
    faults = [f"damaged: {row[0]}" for row in db.execute("PRAGMA integrity_check(8)")]
    if faults == ["damaged: ok"]:
        faults = []
    for table, rowid, parent, _ in db.execute("PRAGMA foreign_key_check").fetchmany(8):
        faults.append(f"table {table}: row {rowid} refers to nothing in {parent}")
    return faults


def statements(sql: str) -> Iterator[str]:
    """Split SQL text into statements, so that a script can run inside an open transaction."""
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if _normalised(pending):
        yield pending.strip()


def _indexes_of(db: sqlite3.Connection, table: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    for _, name, unique, origin, partial in db.execute(
        "SELECT * FROM pragma_index_list(?)", (table,)
    ).fetchall():
        columns = db.execute(
            'SELECT name, "desc", coll FROM pragma_index_xinfo(?) WHERE key = 1', (name,)
        ).fetchall()
        yield name, (unique, origin, partial, *columns)


def _objects_differ(expected: Shape, found: Shape) -> Iterator[str]:
    for kind, name in sorted(expected.objects.keys() - found.objects.keys()):
        yield f"{kind} {name} is missing"
    for kind, name in sorted(found.objects.keys() - expected.objects.keys()):
        yield f"{kind} {name} does not belong here"
    for kind, name in sorted(expected.objects.keys() & found.objects.keys()):
        ours, theirs = expected.objects[kind, name], found.objects[kind, name]
        if kind != "table" and ours != theirs:
            yield f"{kind} {name} is [{theirs}], expected [{ours}]"


def _table_differs(table: str, expected: Shape, found: Shape) -> Iterator[str]:
    before = 0
    for what, ours, theirs in (
        ("column", expected.columns[table], found.columns[table]),
        ("index", expected.indexes[table], found.indexes[table]),
    ):
        for name in ours.keys() - theirs.keys():
            before += 1
            yield f"table {table}: {what} {name} is missing"
        for name in theirs.keys() - ours.keys():
            before += 1
            yield f"table {table}: {what} {name} does not belong here"
        for name in (n for n in ours if n in theirs and ours[n] != theirs[n]):
            before += 1
            yield f"table {table}: {what} {name} is {theirs[name]}, expected {ours[name]}"
    if expected.foreign_keys[table] != found.foreign_keys[table]:
        before += 1
        yield f"table {table}: references differ"
    if before:
        return
    ours_sql, theirs_sql = expected.objects["table", table], found.objects["table", table]
    if ours_sql == theirs_sql:
        return
    ours_parts, theirs_parts = _clauses(ours_sql), _clauses(theirs_sql)
    for part in theirs_parts:
        if part not in ours_parts:
            yield f"table {table}: [{part}] does not belong here"
    for part in ours_parts:
        if part not in theirs_parts:
            yield f"table {table}: [{part}] is missing"


def _clauses(sql: str) -> list[str]:
    """The clauses of a CREATE TABLE: what stands before the parenthesis, in it, and after it."""
    opening, closing = sql.find("("), sql.rfind(")")
    parts, depth, start = [sql[:opening].strip(), sql[closing + 1 :].strip()], 0, opening + 1
    for index in range(opening + 1, closing):
        if sql[index] == "(":
            depth += 1
        elif sql[index] == ")":
            depth -= 1
        elif sql[index] == "," and depth == 0:
            parts.append(sql[start:index].strip())
            start = index + 1
    parts.append(sql[start:closing].strip())
    return parts


def _normalised(sql: str) -> str:
    without_comments = re.sub(r"--[^\n]*", " ", sql)
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", without_comments)).strip(" ;")
