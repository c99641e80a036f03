"""The ledger's file: settings that hold, one opener, and refusals that name the difference."""

import contextlib
import dataclasses
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.names import Names
from tests.ledgers import HOLDS
from worker.admission import plane as adm
from worker.ledger import rulesets, store
from worker.ledger.errors import FileLocked, FileRefused
from worker.ledger.inspection import differences, read_shape, statements
from worker.ledger.testing import NAMES, FoldDriver

T0 = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "space" / "ledger.db"
    store.open_ledger(made, NAMES, [HOLDS]).close()
    return made


def change(path: Path, *sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in sql:
            db.execute(statement)
        db.commit()


def refusal(path: Path) -> FileRefused:
    with pytest.raises(FileRefused) as refused:
        store.open_ledger(path, NAMES, [HOLDS])
    return refused.value


def test_settings_are_in_force_and_the_file_is_private(path: Path) -> None:
    with contextlib.closing(store.open_ledger(path, NAMES, [HOLDS])) as db:
        values = {
            name: db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("locking_mode", "journal_mode", "synchronous", "foreign_keys")
        }
        assert values == {
            "locking_mode": "exclusive",
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
        }
        assert db.execute("PRAGMA application_id").fetchone()[0] == store.APPLICATION_ID
        assert db.execute("PRAGMA user_version").fetchone()[0] == store.schema_version()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_every_table_is_strict(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = db.execute("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'")
        loose = [name for name, strict in tables if not strict and not name.startswith("sqlite_")]
    assert loose == []


def test_a_second_process_is_refused_at_once_and_gets_in_when_the_first_has_gone(
    path: Path,
) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.ledgers import HOLDS\n"
        "from worker.ledger import store\n"
        "from worker.ledger.testing import NAMES\n"
        "db = store.open_ledger(Path(sys.argv[1]), NAMES, [HOLDS])\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(FileLocked) as locked:
            store.open_ledger(path, NAMES, [HOLDS], busy_ms=50)
        assert "another process" in locked.value.message
        holder.kill()
        holder.wait(10)
        store.open_ledger(path, NAMES, [HOLDS]).close()
    finally:
        holder.kill()
        holder.wait(10)
        holder.stdin.close()
        holder.stdout.close()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("ALTER TABLE holds ADD COLUMN extra TEXT", "table holds: column extra does not belong"),
        ("ALTER TABLE holds DROP COLUMN changes", "table holds: column changes is missing"),
        ("DROP TABLE holds", "table holds is missing"),
        ("DROP INDEX holds_by_lapse", "index holds_by_lapse is missing"),
        ("CREATE INDEX more ON holds (cap)", "index more does not belong here"),
        ("CREATE TABLE foreign_one (x)", "table foreign_one does not belong here"),
        ("CREATE VIEW seen AS SELECT 1", "view seen does not belong here"),
        (
            "CREATE TRIGGER sly AFTER INSERT ON holds BEGIN DELETE FROM outbox; END",
            "trigger sly does not belong here",
        ),
    ],
)
def test_a_changed_schema_is_refused_by_name(path: Path, sql: str, said: str) -> None:
    change(path, sql)
    before = path.read_bytes()
    refused = refusal(path)
    assert refused.reason == "schema-differs"
    assert said in refused.message
    assert path.read_bytes() == before, "a refused file is left as it was"


def test_a_changed_check_is_refused_by_its_clause(path: Path) -> None:
    change(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'CHECK (cap >= 1)', 'CHECK (cap >= 0)') "
        "WHERE name = 'holds'",
    )
    refused = refusal(path)
    assert "[cap INTEGER NOT NULL CHECK(cap >= 0)] does not belong here" in refused.message
    assert "[cap INTEGER NOT NULL CHECK(cap >= 1)] is missing" in refused.message


def test_a_row_that_breaks_a_check_is_damage(path: Path) -> None:
    change(
        path,
        "PRAGMA ignore_check_constraints = ON",
        "INSERT INTO holds VALUES ('u1', 'reserved', 0, 1, 5)",
    )
    refused = refusal(path)
    assert refused.reason == "damaged-file"
    assert "holds" in refused.message


def test_a_newer_file_is_refused(path: Path) -> None:
    change(path, f"PRAGMA user_version = {store.schema_version() + 1}")
    refused = refusal(path)
    assert refused.reason == "newer-file"
    assert "newer than" in refused.message


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    assert refusal(path).reason == "foreign-file"


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    change(path, "CREATE TABLE theirs (x)")
    refused = refusal(path)
    assert refused.reason == "foreign-file"
    assert "application id" in refused.message


def test_damaged_pages_are_refused(path: Path) -> None:
    driver = FoldDriver(path, [HOLDS])
    for number in range(300):
        driver.send(
            "alice",
            "cap",
            "reserve",
            f"user-{number}",
            "mintkey-00000001",
            body={"latest_expires_at_ms": T0, "cap": 5},
            at_ms=T0,
        )
    driver.close()
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for offset in range(4096 * 8, size, 4096 * 2):
            file.seek(offset)
            file.write(b"\xa5" * 600)
    assert refusal(path).reason == "damaged-file"


def test_the_ledger_of_another_space_is_refused(path: Path) -> None:
    with pytest.raises(FileRefused) as refused:
        store.open_ledger(path, Names("tidegate", "other"), [HOLDS])
    assert refused.value.reason == "other-space"


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.mkdir()
    with pytest.raises(FileRefused) as refused:
        store.open_ledger(path, NAMES, [HOLDS])
    assert refused.value.reason == "not-writable"


def test_migrations_bring_an_older_file_up_in_one_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FoldDriver(path, [HOLDS])
    driver.send(
        "alice",
        "cap",
        "reserve",
        "u1",
        "mintkey-00000001",
        body={"latest_expires_at_ms": T0, "cap": 5},
        at_ms=T0,
    )
    driver.close()
    grown = HOLDS.schema.replace("lapses_at_ms INTEGER\n", "lapses_at_ms INTEGER, note TEXT\n")
    newer = dataclasses.replace(HOLDS, schema=grown)
    before = store.schema_version()
    steps = (*store.MIGRATIONS, "ALTER TABLE holds ADD COLUMN note TEXT;")
    monkeypatch.setattr(store, "MIGRATIONS", steps)
    with contextlib.closing(store.open_ledger(path, NAMES, [newer])) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (before + 1,)
        assert db.execute("SELECT user, note FROM holds").fetchall() == [("u1", None)]


def test_a_migration_that_does_not_lead_to_the_schema_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.open_ledger(path, NAMES, [HOLDS]).close()
    steps = (*store.MIGRATIONS, "ALTER TABLE holds ADD COLUMN wrong TEXT;")
    monkeypatch.setattr(store, "MIGRATIONS", steps)
    refused = refusal(path)
    assert "column wrong does not belong here" in refused.message
    monkeypatch.undo()
    store.open_ledger(path, NAMES, [HOLDS]).close()


def test_statements_are_split_as_sqlite_reads_them() -> None:
    sql = """
    -- a comment; with a semicolon
    CREATE TABLE a (x TEXT CHECK (x != ';')) STRICT;
    CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; SELECT 1; END;
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        found = list(statements(sql))
        for statement in found:
            db.execute(statement)
        assert len(found) == 2
        assert differences(read_shape(db), read_shape(db)) == []


def test_a_new_file_goes_in_place_of_a_closed_one(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    driver = FoldDriver(other, [HOLDS])
    driver.tick(at_ms=T0)
    digest = driver.digest()
    driver.close()
    store.put_in_place(other, path)
    assert not other.exists()
    replaced = FoldDriver(path, [HOLDS])
    assert replaced.digest() == digest
    replaced.close()


FIRST_SCHEMA = """
ALTER TABLE adm_limits DROP COLUMN drained_to;
ALTER TABLE adm_limits DROP COLUMN max_retry_after_ms;
ALTER TABLE adm_limits DROP COLUMN max_priority;
ALTER TABLE adm_heads DROP COLUMN by_age;
DROP INDEX adm_owners_gone;
DROP INDEX adm_heads_parked;
PRAGMA user_version = 1;
"""
"""Takes a file back to the schema that the first version wrote."""


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [("drain", {"to": 3})],
        [("policy", {"epoch": 1, "max_active_turns": 3}), ("drain", {"to": 0})],
        [("drain", {"to": 0}), ("policy", {"epoch": 1, "max_active_turns": 3})],
        [("drain", {"to": 3}), ("drain", {"to": 8})],
    ],
)
def test_a_file_of_the_first_schema_becomes_what_its_log_leads_to(
    tmp_path: Path, steps: list[tuple[str, dict[str, int]]]
) -> None:
    planes = [adm.PLANE]
    driver = FoldDriver(tmp_path / "ledger.db", planes, ruleset=rulesets.FIRST)
    for verb, body in steps:
        driver.send("_op", "adm", verb, body=body, at_ms=T0)
    digest = driver.digest()
    driver.db.executescript(FIRST_SCHEMA)
    driver.reopen()
    assert driver.digest() == digest
    driver.close()
