"""Reads what a predecessor left in a folder: ``*.jsonl``, ``u/<user>/r/*.json`` and ``caps.db``.

Nothing there is changed; a database is read from a copy, with whatever its journal still holds.
"""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas import strict_json
from schemas.caps import LegacyRecord
from schemas.codes import BadInput, Code
from schemas.commands.cap import MAX_IMPORT_RECORDS
from schemas.limits import MAX_BODY_BYTES, MAX_SAFE_INTEGER
from schemas.strict_json import JsonObject
from worker.errors import TidegateError

DATABASE: Final = "caps.db"
FIELDS: Final = tuple(LegacyRecord.model_fields)
NEEDED: Final = frozenset(FIELDS) - {"requiredVersion"}
CHUNK_BYTES: Final = MAX_BODY_BYTES * 3 // 4
"""Records of one chunk, as JSON; the rest of the body is left for its other fields."""

MAX_FILE_BYTES: Final = MAX_BODY_BYTES
"""A file that should hold one record and is larger does not hold one."""

_BY_PLAIN_NAME: Final = {name.lower(): name for name in FIELDS}


class BadLeftovers(TidegateError):
    """A folder that cannot be imported."""

    code = Code.BAD_REQUEST
    reason = "bad-leftovers"


@dataclass(slots=True)
class Leftovers:
    """What a folder holds.

    Attributes:
        records: Bodies of its records, as ``schemas.caps.LegacyRecord`` reads them.
        files: How many files were read.
        malformed: Where something lies that is no record: ``<file>:<line or row>``.
    """

    records: list[JsonObject] = field(default_factory=list)
    files: int = 0
    malformed: list[str] = field(default_factory=list)

    @property
    def import_id(self) -> str:
        """Names the import after its content, so that one that broke off goes on."""
        digest = hashlib.sha256()
        for record in self.records:
            digest.update(strict_json.dumps(record) + b"\n")
        return f"import-{digest.hexdigest()[:32]}"

    def chunks(self) -> list[list[JsonObject]]:
        """The records in runs that each fit into one command."""
        chunks: list[list[JsonObject]] = []
        size = CHUNK_BYTES
        for record in self.records:
            length = len(strict_json.dumps(record)) + 1
            if size + length > CHUNK_BYTES or len(chunks[-1]) == MAX_IMPORT_RECORDS:
                chunks.append([])
                size = 0
            chunks[-1].append(record)
            size += length
        return chunks


def read(folder: Path) -> Leftovers:
    """Read everything in a folder, in a fixed order.

    Args:
        folder: The predecessor's.

    Raises:
        BadLeftovers: If the folder or a file in it cannot be read, or holds nothing to import.
    """
    found = Leftovers()
    if not folder.is_dir():
        raise BadLeftovers(f"{folder} is not a folder")
    try:
        for path in sorted(folder.rglob("*.jsonl")):
            _read_lines(found, path, folder)
        for path in sorted(folder.glob("u/*/r/*.json")):
            _read_one(found, path, folder)
        if (database := folder / DATABASE).is_file():
            _read_database(found, database)
    except OSError as error:
        raise BadLeftovers(f"{error.filename} cannot be read: {error.strerror}") from error
    if not found.records:
        what = f"; {len(found.malformed)} malformed" if found.malformed else ""
        raise BadLeftovers(f"{folder} holds no record to import{what}")
    return found


def _read_lines(found: Leftovers, path: Path, folder: Path) -> None:
    found.files += 1
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                _add(found, _parsed(line), f"{path.relative_to(folder)}:{number}")


def _read_one(found: Leftovers, path: Path, folder: Path) -> None:
    found.files += 1
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    _add(found, _parsed(raw), str(path.relative_to(folder)))


def _read_database(found: Leftovers, path: Path) -> None:
    found.files += 1
    with tempfile.TemporaryDirectory(prefix="tidegate-import-") as copy:
        for suffix in ("", "-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", Path(copy) / f"{DATABASE}{suffix}")
        try:
            with contextlib.closing(sqlite3.connect(Path(copy) / DATABASE)) as db:
                _read_tables(found, db)
        except sqlite3.DatabaseError as error:
            raise BadLeftovers(
                f"{path} cannot be read as a SQLite file: {error.sqlite_errorname}"
            ) from error


def _read_tables(found: Leftovers, db: sqlite3.Connection) -> None:
    tables = db.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    ).fetchall()
    for (table,) in tables:
        columns = _columns(db, table)
        if columns.keys() >= NEEDED:
            for number, row in enumerate(_rows(db, table, columns), start=1):
                _add(found, row, f"{DATABASE}:{table}:{number}")


def _columns(db: sqlite3.Connection, table: str) -> dict[str, str]:
    """Field to column; ``user_id`` and ``userId`` name the same field."""
    names = db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    plain = {name.replace("_", "").lower(): name for (name,) in names}
    return {_BY_PLAIN_NAME[key]: name for key, name in plain.items() if key in _BY_PLAIN_NAME}


def _rows(
    db: sqlite3.Connection, table: str, columns: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    shown = ", ".join(_quoted(column) for column in columns.values())
    order = ", ".join(str(n) for n in range(1, len(columns) + 1))
    # Names come from the file and are quoted as SQLite's identifiers.
    statement = f"SELECT {shown} FROM {_quoted(table)} ORDER BY {order}"  # noqa: S608
    for row in db.execute(statement):
        yield {name: value for name, value in zip(columns, row, strict=True) if value is not None}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _add(found: Leftovers, value: Any, where: str) -> None:
    record = _record(value)
    if record is None:
        found.malformed.append(where)
    else:
        found.records.append(record)


def _record(value: Any) -> JsonObject | None:
    """The fields of a record, if it is one; a cap too large for any command is cut off."""
    if not isinstance(value, Mapping):
        return None
    given = {name: value[name] for name in FIELDS if value.get(name) is not None}
    cap = given.get("perSwapCapUsd")
    if type(cap) is int:
        given["perSwapCapUsd"] = min(max(cap, -MAX_SAFE_INTEGER), MAX_SAFE_INTEGER)
    try:
        return LegacyRecord.from_object(given).to_object()
    except BadInput:
        return None


def summary(found: Leftovers, most: int = 5) -> Sequence[str]:
    """Where malformed records lie, for a person; the first few."""
    lines = list(found.malformed[:most])
    if len(found.malformed) > most:
        lines.append(f"and {len(found.malformed) - most} more")
    return lines
