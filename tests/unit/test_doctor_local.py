"""What the doctor finds on this machine: each thing broken as it breaks, on real files."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from schemas.names import Names
from tests.support.doctor import of, provokes, read, the
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
    return filled(tmp_path / "data")


def filled(directory: Path) -> Path:
    """A worker's folder with everything in it, all in order."""
    directory.mkdir(mode=0o700)
    store.open_ledger(directory / "main" / "ledger.db", NAMES, PLANES).close()
    Journal(directory / "main" / "settled.db").close()
    KeyRing(directory / "keys").init()
    identity.init(directory, "maria", identity.new_uid())
    return directory


def examine(data_dir: Path, **settings: Any) -> list[Finding]:
    return local.examine(Settings(data_dir=data_dir, **settings), ())


def danger(check: Check, findings: list[Finding], *words: str) -> Finding:
    return the(check, findings, Severity.DANGER, *words)


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


@provokes((Check.SETTINGS, Severity.WARNING))
def test_a_misspelt_setting_is_named(data_dir: Path) -> None:
    findings = local.examine(Settings(data_dir=data_dir), ["TIDEGATE_NATS_ULR"])
    found = the(Check.SETTINGS, findings, Severity.WARNING, "TIDEGATE_NATS_ULR")
    assert "TIDEGATE_NATS_URL?" in found.fix


@provokes((Check.DATA_DIRECTORY, Severity.WARNING))
def test_a_folder_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    the(Check.DATA_DIRECTORY, examine(tmp_path / "nowhere"), Severity.WARNING)


@provokes((Check.DATA_DIRECTORY, Severity.DANGER))
def test_a_folder_that_others_may_enter_is_a_danger_until_it_is_fixed(data_dir: Path) -> None:
    data_dir.chmod(0o755)
    found = danger(Check.DATA_DIRECTORY, examine(data_dir), "0755")
    assert found.fix == f"chmod 700 {data_dir}"
    data_dir.chmod(0o700)
    the(Check.DATA_DIRECTORY, examine(data_dir), Severity.FINE)


@provokes((Check.DATA_DIRECTORY, Severity.DANGER))
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
    (found,) = of(Check.DISK_SPACE, examine(tmp_path / "deep" / "down"))
    free_mib = usage.f_frsize * usage.f_bavail // MIB
    assert str(free_mib if free_mib < 10_240 else free_mib // 1024)[:2] in found.found


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
@provokes((Check.LEDGER_FILE, Severity.DANGER))
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


@provokes((Check.JOURNAL_FILE, Severity.DANGER))
def test_a_newer_journal_is_a_danger(data_dir: Path) -> None:
    edit(data_dir / "main" / "settled.db", "PRAGMA user_version = 99")
    danger(Check.JOURNAL_FILE, examine(data_dir), "upgrade first")


def test_a_database_in_use_is_left_to_its_worker(data_dir: Path) -> None:
    with closing(store.open_ledger(data_dir / "main" / "ledger.db", NAMES, PLANES)):
        findings = databases.examine(data_dir / "main", NAMES)
    the(Check.LEDGER_FILE, findings, Severity.FINE, "running worker")


LOOK_AS_NOBODY = """
import json, os, sys
from pathlib import Path
from worker.doctor import local
from worker.settings import Settings
if os.geteuid() == 0:
    # Root may read everything, so there it is another user who asks.
    os.setgroups([]), os.setgid(65_534), os.setuid(65_534)
findings = local.examine(Settings(data_dir=Path(sys.argv[1])), ())
print(json.dumps([finding.to_object() for finding in findings]))
"""


@provokes(
    (Check.DATA_DIRECTORY, Severity.DANGER),
    (Check.LEDGER_FILE, Severity.DANGER),
    (Check.JOURNAL_FILE, Severity.DANGER),
    (Check.KEY_FILES, Severity.DANGER),
)
def test_a_folder_that_is_closed_to_whoever_asks_is_told_and_ends_nothing() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        data_dir = filled(Path(place) / "data")
        data_dir.chmod(0o700 if os.geteuid() == 0 else 0)
        done = subprocess.run(
            [sys.executable, "-c", LOOK_AS_NOBODY, str(data_dir)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        data_dir.chmod(0o700)
    assert done.returncode == 0, done.stderr
    findings = read(json.loads(done.stdout))
    for check in (Check.DATA_DIRECTORY, Check.LEDGER_FILE, Check.JOURNAL_FILE):
        danger(check, findings, "cannot be", "run as the worker's user")
    danger(Check.KEY_FILES, findings, "cannot be read")
    the(Check.DISK_SPACE, findings, Severity.FINE)


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
@provokes((Check.KEY_FILES, Severity.DANGER))
def test_a_key_that_cannot_be_trusted_is_a_danger(
    data_dir: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(data_dir)
    danger(Check.KEY_FILES, examine(data_dir), words)


@provokes((Check.PRIVATE_FILES, Severity.DANGER))
def test_an_identity_that_others_may_read_is_a_danger(data_dir: Path) -> None:
    (path,) = data_dir.rglob("*.json")
    path.chmod(0o640)
    found = danger(Check.PRIVATE_FILES, examine(data_dir), str(path), "0640")
    assert found.fix.startswith(f"chmod 600 {path}; ")
    assert found.fix.endswith(f": rm {path}")


@provokes((Check.PRIVATE_FILES, Severity.DANGER))
def test_a_fix_can_be_copied_where_a_folder_s_name_has_a_blank(tmp_path: Path) -> None:
    directory = tmp_path / "my state"
    kept = identity.init(directory, "maria", identity.new_uid())
    kept.path.chmod(0o640)
    found = danger(Check.PRIVATE_FILES, examine(directory), str(kept.path))
    subprocess.run(["/bin/sh", "-c", found.fix.partition(";")[0]], check=True)
    assert Check.IDENTITIES in {finding.check for finding in examine(directory)}
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["{", '{"v": 2}', '{"v": 1, "principal": "a b"}', "[]"])
@provokes((Check.IDENTITIES, Severity.DANGER))
def test_an_identity_that_is_none_is_a_danger_until_it_is_removed(
    data_dir: Path, content: str
) -> None:
    (path,) = data_dir.rglob("*.json")
    path.write_text(content)
    found = danger(Check.IDENTITIES, examine(data_dir), str(path))
    assert found.fix.startswith("put it back from a copy; without one: ")
    assert f"rm {path};" in found.fix
    assert "copy" not in found.found, "what to do is said once"
    path.unlink()
    assert Check.IDENTITIES not in {finding.check for finding in examine(data_dir)}


@provokes((Check.IDENTITIES, Severity.DANGER))
def test_an_identity_under_another_name_is_a_danger(data_dir: Path) -> None:
    kept = identity.init(data_dir, "second", identity.new_uid())
    kept.path.rename(kept.path.with_name("third.json"))
    danger(Check.IDENTITIES, examine(data_dir), "third.json", "second")


@provokes((Check.PRIVATE_FILES, Severity.DANGER))
def test_a_broker_password_that_others_may_read_is_a_danger(data_dir: Path) -> None:
    (data_dir / "broker.json").write_text("{}")
    (data_dir / "broker.json").chmod(0o644)
    found = danger(Check.PRIVATE_FILES, examine(data_dir), "broker.json")
    assert "start the worker again" in found.fix


@provokes((Check.CHECKPOINTS, Severity.WARNING))
def test_what_an_older_store_has_lost_is_told_until_the_note_is_removed(data_dir: Path) -> None:
    note = data_dir / "main" / "lost.jsonl"
    assert of(Check.CHECKPOINTS, examine(data_dir)) == []
    row = {
        "endpoint": "runs",
        "token": "a",
        "holder_id": "maria",
        "holder_uid": "u",
        "generation": 2,
        "deadline_at_ms": 1,
        "stands_at": 1,
        "noticed_at_ms": 1,
    }
    note.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'generation': 3})}\n" + '{"endpo')
    found = the(Check.CHECKPOINTS, examine(data_dir), Severity.WARNING, "1 mints", "cp lost")
    assert str(note) in found.fix
    note.write_bytes(b"\xff\x00 damaged")
    assert of(Check.CHECKPOINTS, examine(data_dir)) == []
