"""What the doctor finds on this machine: each thing broken as it breaks, on real files."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from schemas.names import Names
from worker import identity
from worker.checkpoints.journal import Journal
from worker.doctor import databases, local
from worker.doctor.findings import Check, Finding, Severity
from worker.ledger import store
from worker.planes import PLANES
from worker.sealing.keyring import KeyRing
from worker.settings import Settings

NAMES = Names("tidegate", "main")
MIB = 1024**2


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A worker's folder with everything in it, all in order."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    store.open_ledger(directory / "main" / "ledger.db", NAMES, PLANES).close()
    Journal(directory / "main" / "settled.db").close()
    KeyRing(directory / "keys").init()
    identity.init(directory, "maria", identity.new_uid())
    return directory


def examine(data_dir: Path, **settings: Any) -> list[Finding]:
    return local.examine(Settings(data_dir=data_dir, **settings), ())


def the(check: Check, findings: list[Finding]) -> Finding:
    """The one finding of a check."""
    (found,) = [finding for finding in findings if finding.check is check]
    return found


def danger(check: Check, findings: list[Finding], *words: str) -> Finding:
    found = the(check, findings)
    assert found.severity is Severity.DANGER, found
    assert found.endangers
    assert found.fix
    for word in words:
        assert word in f"{found.found} {found.fix}", found
    return found


def test_nothing_is_wrong_with_what_is_in_order(data_dir: Path) -> None:
    findings = examine(data_dir)
    assert {finding.severity for finding in findings} == {Severity.FINE}, findings
    looked = {finding.check for finding in findings}
    assert looked >= {Check.LEDGER_FILE, Check.JOURNAL_FILE, Check.KEY_FILES, Check.PRIVATE_FILES}


def test_looking_changes_nothing(data_dir: Path) -> None:
    def everything() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in data_dir.rglob("*")
            if path.is_file() and path.suffix != ".db-shm"
        }

    before = everything()
    examine(data_dir)
    after = everything()
    assert after == before


def test_a_misspelt_setting_is_named(data_dir: Path) -> None:
    found = the(Check.SETTINGS, local.examine(Settings(data_dir=data_dir), ["TIDEGATE_NATS_ULR"]))
    assert found.severity is Severity.WARNING
    assert "TIDEGATE_NATS_ULR" in found.found


def test_a_folder_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    found = the(Check.DATA_DIRECTORY, examine(tmp_path / "nowhere"))
    assert found.severity is Severity.WARNING


def test_a_folder_that_others_may_enter_is_a_danger_until_it_is_fixed(data_dir: Path) -> None:
    data_dir.chmod(0o755)
    found = danger(Check.DATA_DIRECTORY, examine(data_dir), "0755")
    assert found.fix == f"chmod 700 {data_dir}"
    data_dir.chmod(0o700)
    assert the(Check.DATA_DIRECTORY, examine(data_dir)).severity is Severity.FINE


def test_a_folder_that_cannot_be_written_is_a_danger(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    place.chmod(0o600)
    danger(Check.DATA_DIRECTORY, examine(place), "cannot be written")


@pytest.mark.parametrize(
    ("free", "total", "severity"),
    [
        (100 * MIB, 10_000 * MIB, Severity.DANGER),
        (900 * MIB, 10_000 * MIB, Severity.WARNING),
        (2_000 * MIB, 100_000 * MIB, Severity.WARNING),
        (20_000 * MIB, 100_000 * MIB, Severity.FINE),
    ],
)
def test_a_disk_is_judged_by_what_is_left(free: int, total: int, severity: Severity) -> None:
    assert local.judge_disk(free, total, "here").severity is severity


def test_a_small_disk_is_seen(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)
    found = the(Check.DISK_SPACE, examine(tmp_path / "deep" / "down"))
    assert str(usage.f_frsize * usage.f_bavail // MIB)[:2] in found.found


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE notes (x)", "notes"),
        (
            "CREATE TRIGGER meddle AFTER INSERT ON adm_used BEGIN DELETE FROM adm_used; END",
            "meddle",
        ),
        ("DROP INDEX adm_leases_owner", "adm_leases_owner"),
        ("PRAGMA user_version = 99", "newer"),
        ("PRAGMA application_id = 7", "no ledger of ours"),
        ("UPDATE fold SET space = 'other'", "belongs to tidegate.other"),
        ("PRAGMA journal_mode = DELETE", "journal mode is not wal"),
    ],
)
def test_a_ledger_that_was_meddled_with_is_a_danger(
    data_dir: Path, statement: str, words: str
) -> None:
    path = data_dir / "main" / "ledger.db"
    edit(path, statement)
    found = danger(Check.LEDGER_FILE, examine(data_dir), words)
    assert str(path) in found.fix


def damage_pages(path: Path) -> None:
    """As a disk does: whole pages of something else in the middle of the file."""
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xa5" * 4096 * 3)


def not_a_database(path: Path) -> None:
    path.write_bytes(b"this is not a database, whatever its name says" * 100)


@pytest.mark.parametrize("spoil", [damage_pages, not_a_database])
@pytest.mark.parametrize(
    ("name", "check"),
    [("ledger.db", Check.LEDGER_FILE), ("settled.db", Check.JOURNAL_FILE)],
)
def test_a_damaged_database_is_a_danger_and_moving_it_away_cures_it(
    data_dir: Path, spoil: Callable[[Path], None], name: str, check: Check
) -> None:
    path = data_dir / "main" / name
    spoil(path)
    found = danger(check, examine(data_dir), str(path))
    assert "move" in found.fix
    for part in path.parent.glob(f"{name}*"):
        part.unlink()
    assert not [one for one in examine(data_dir) if one.check is check]


def test_a_newer_journal_is_a_danger(data_dir: Path) -> None:
    edit(data_dir / "main" / "settled.db", "PRAGMA user_version = 99")
    danger(Check.JOURNAL_FILE, examine(data_dir), "upgrade first")


def test_a_database_in_use_is_left_to_its_worker(data_dir: Path) -> None:
    with closing(store.open_ledger(data_dir / "main" / "ledger.db", NAMES, PLANES)):
        found = the(Check.LEDGER_FILE, databases.examine(data_dir / "main", NAMES)[:1])
    assert found.severity is Severity.FINE
    assert "running worker" in found.found


def key_file(data_dir: Path) -> Path:
    return data_dir / "keys" / "payload-1.key"


def open_to_others(data_dir: Path) -> None:
    key_file(data_dir).chmod(0o644)


def cut_short(data_dir: Path) -> None:
    key_file(data_dir).write_bytes(b"short")


def linked(data_dir: Path) -> None:
    os.link(key_file(data_dir), data_dir / "copy")


def a_link(data_dir: Path) -> None:
    key_file(data_dir).rename(data_dir / "elsewhere")
    key_file(data_dir).symlink_to(data_dir / "elsewhere")


def zeroed(data_dir: Path) -> None:
    key_file(data_dir).write_bytes(bytes(32))


def open_folder(data_dir: Path) -> None:
    (data_dir / "keys").chmod(0o755)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (open_to_others, "0644"),
        (cut_short, "5 bytes"),
        (linked, "hard link"),
        (a_link, "symbolic link"),
        (zeroed, "one byte repeated"),
        (open_folder, "0755"),
    ],
)
def test_a_key_that_cannot_be_trusted_is_a_danger(
    data_dir: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(data_dir)
    danger(Check.KEY_FILES, examine(data_dir), words)


def test_an_identity_that_others_may_read_is_a_danger(data_dir: Path) -> None:
    (path,) = data_dir.rglob("*.json")
    path.chmod(0o640)
    found = danger(Check.PRIVATE_FILES, examine(data_dir), str(path), "0640")
    assert f"chmod 600 {path}" in found.fix


def test_a_broker_password_that_others_may_read_is_a_danger(data_dir: Path) -> None:
    (data_dir / "broker.json").write_text("{}")
    (data_dir / "broker.json").chmod(0o644)
    danger(Check.PRIVATE_FILES, examine(data_dir), "broker.json")
