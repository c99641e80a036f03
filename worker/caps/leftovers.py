"""Reads what a predecessor left in a folder: ``*.jsonl``, ``u/<user>/r/*.json`` and ``caps.db``.

Nothing there is changed; a database is read from a copy, with whatever its journal still holds.
"""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "userId": ("user_id",),
    "mintKey": ("mint_key",),
    "expiresAt": ("expires_at_ms", "expires_at"),
    "perSwapCapUsd": ("cap_usd", "per_swap_cap_usd"),
    "reservedAt": ("reserved_at_ms", "reserved_at"),
    "requiredVersion": ("required_version",),
}
"""What each field is called in a predecessor's database, the first one there is; ``userId`` and
``user_id`` are the same name."""

POINTERS: Final = frozenset({"active_grants"})
"""Tables that name keys and seconds of the reservations, and hold none of their own."""

ASIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database."""


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
        unread: Files and tables that may hold records in a form not known here, with the reason;
            there is no second import, so nothing is taken in while one is left.
    """

    records: list[JsonObject] = field(default_factory=list)
    files: int = 0
    malformed: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

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

    Returns:
        What it holds; see ``refuse_unread`` for what was left.

    Raises:
        BadLeftovers: If the folder or a file in it cannot be read, or holds nothing to import.
    """
    found, read = Leftovers(), set[Path]()
    if not folder.is_dir():
        raise BadLeftovers(f"{folder} is not a folder")
    try:
        for path in sorted(folder.rglob("*.jsonl")):
            _read_lines(found, path, folder)
            read.add(path)
        for path in sorted(folder.glob("u/*/r/*.json")):
            _read_one(found, path, folder)
            read.add(path)
        if (database := folder / DATABASE).is_file():
            _read_database(found, database)
            read |= {database, *(Path(f"{database}{ending}") for ending in ASIDE)}
        for path in sorted(set(folder.rglob("*")) - read):
            if path.is_file():
                found.unread[str(path.relative_to(folder))] = "neither *.jsonl nor u/USER/r/*.json"
    except OSError as error:
        raise BadLeftovers(f"{error.filename} cannot be read: {error.strerror}") from error
    if not found.records and not found.unread:
        what = f"; {len(found.malformed)} malformed" if found.malformed else ""
        raise BadLeftovers(f"{folder} holds no record to import{what}")
    return found


def refuse_unread(found: Leftovers, skip: Collection[str]) -> None:
    """Let nothing be taken in as long as something may hold records that were not read.

    Args:
        found: What was read.
        skip: Places that somebody looked at and wants left behind, as ``Leftovers.unread`` names
            them.

    Raises:
        BadLeftovers: Something else is left, or a place to skip is none.
    """
    if unknown := sorted(set(skip) - found.unread.keys()):
        raise BadLeftovers(f"{unknown[0]} is nothing that was left unread")
    left = [f"{place} ({why})" for place, why in found.unread.items() if place not in skip]
    if left:
        raise BadLeftovers(
            f"not read: {'; '.join(left)}; there is only one import, so look at it, and name what "
            "holds no record with --skip"
        )


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
    tables = [
        table
        for (table,) in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        )
    ]
    is_known = False
    for table in tables:
        names = [name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        columns = _columns(names)
        if columns.keys() >= NEEDED:
            is_known = True
            for number, row in enumerate(_rows(db, table, columns), start=1):
                _add(found, row, f"{DATABASE}:{table}:{number}")
        elif columns.keys() & {"mintKey", "expiresAt"} and table not in POINTERS:
            found.unread[f"{DATABASE}:{table}"] = f"unknown columns: {', '.join(names)}"
    if not is_known:
        found.unread[DATABASE] = f"no table of reservations among: {', '.join(tables) or 'none'}"


def _columns(names: Iterable[str]) -> dict[str, str]:
    """Field to column, whatever is written large or with an underscore."""
    plain = {name.replace("_", "").lower(): name for name in names}
    called = {
        field: [known.replace("_", "") for known in (*known_as, field.lower())]
        for field, known_as in COLUMNS.items()
    }
    return {
        field: plain[next(name for name in known if name in plain)]
        for field, known in called.items()
        if any(name in plain for name in known)
    }


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
