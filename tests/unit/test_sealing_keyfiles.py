"""Key files: whole or absent, private, never silently repaired."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.sealing import keyfiles
from worker.sealing.errors import KeyRefused
from worker.sealing.keyring import KeyRing

KEY = bytes(range(32))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    assert keyfiles.create(folder, 1, KEY)
    return folder


def refusal(work: Callable[[], object]) -> KeyRefused:
    with pytest.raises(KeyRefused) as caught:
        work()
    return caught.value


def test_a_new_key_is_private_and_whole(folder: Path) -> None:
    file = folder / "payload-1.key"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_nlink == 1
    assert file.read_bytes() == KEY
    assert keyfiles.read(folder, 1) == KEY
    assert keyfiles.versions(folder) == (1,)


def test_modes_hold_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o377)
    try:
        assert keyfiles.create(tmp_path / "keys", 1, KEY)
    finally:
        os.umask(before)
    assert keyfiles.read(tmp_path / "keys", 1) == KEY


def test_an_existing_key_is_never_replaced(folder: Path) -> None:
    assert not keyfiles.create(folder, 1, bytes(reversed(KEY)))
    assert keyfiles.read(folder, 1) == KEY


def test_a_dangling_link_in_the_place_of_a_key_is_not_followed(folder: Path) -> None:
    outside = folder.parent / "outside"
    (folder / "payload-2.key").symlink_to(outside)
    assert not keyfiles.create(folder, 2, KEY)
    assert not outside.exists()
    assert refusal(lambda: keyfiles.read(folder, 2)).reason == "key-is-a-link"


def _open_to_group(file: Path) -> None:
    file.chmod(0o640)


def _read_only(file: Path) -> None:
    file.chmod(0o400)


def _linked(file: Path) -> None:
    os.link(file, file.parent.parent / "copy")


def _symlink(file: Path) -> None:
    file.replace(file.parent / "real")
    file.symlink_to("real")


def _short(file: Path) -> None:
    file.write_bytes(KEY[:31])


def _long(file: Path) -> None:
    file.write_bytes(KEY + b"\n")


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _zeros(file: Path) -> None:
    file.write_bytes(bytes(32))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir(0o600)


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def _gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("damage", "reason", "remedy"),
    [
        (_open_to_group, "key-wrong-mode", "chmod 600"),
        (_read_only, "key-wrong-mode", "chmod 600"),
        (_linked, "key-linked-twice", "-samefile"),
        (_symlink, "key-is-a-link", "name the real place"),
        (_short, "key-wrong-size", "tidegate keys rotate"),
        (_long, "key-wrong-size", "tidegate keys rotate"),
        (_empty, "key-wrong-size", "tidegate keys rotate"),
        (_zeros, "key-not-random", "tidegate keys rotate"),
        (_folder, "key-not-a-file", "tidegate keys rotate"),
        (_fifo, "key-not-a-file", "tidegate keys rotate"),
        (_gone, "key-missing", "tidegate keys init"),
    ],
)
def test_a_damaged_key_is_refused_with_its_remedy_and_left_alone(
    folder: Path, damage: Callable[[Path], None], reason: str, remedy: str
) -> None:
    file = folder / "payload-1.key"
    damage(file)
    before = file.lstat() if reason != "key-missing" else None
    refused = refusal(lambda: keyfiles.read(folder, 1))
    assert refused.reason == reason
    assert remedy in refused.message
    assert str(file) in refused.message
    assert refused.path == file
    if before is not None:
        after = file.lstat()
        assert (after.st_mode, after.st_ino, after.st_size) == (
            before.st_mode,
            before.st_ino,
            before.st_size,
        )


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o500])
def test_a_folder_with_another_mode_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    for work in (
        lambda: keyfiles.read(folder, 1),
        lambda: keyfiles.versions(folder),
        lambda: keyfiles.create(folder, 2, KEY),
    ):
        refused = refusal(work)
        assert refused.reason == "key-dir-wrong-mode"
        assert f"chmod 700 {folder}" in refused.message
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_a_folder_that_inherits_set_group_id_is_fine(tmp_path: Path) -> None:
    tmp_path.chmod(0o2700)
    assert keyfiles.create(tmp_path / "keys", 1, KEY)
    assert keyfiles.read(tmp_path / "keys", 1) == KEY


def test_a_linked_folder_is_refused(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert refusal(lambda: keyfiles.read(link, 1)).reason == "key-dir-is-a-link"
    assert refusal(lambda: keyfiles.create(link, 2, KEY)).reason == "key-dir-is-a-link"
    assert keyfiles.versions(folder) == (1,)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"")
    assert refusal(lambda: keyfiles.versions(tmp_path / "keys")).reason == "key-dir-not-a-dir"


def test_a_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    refused = refusal(lambda: keyfiles.versions(tmp_path / "keys"))
    assert refused.reason == "key-dir-missing"
    assert "tidegate keys init" in refused.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_keys_of_another_user_are_refused(folder: Path) -> None:
    os.chown(folder / "payload-1.key", 12_345, -1)
    assert refusal(lambda: keyfiles.read(folder, 1)).reason == "key-of-another-user"
    os.chown(folder, 12_345, -1)
    assert refusal(lambda: keyfiles.read(folder, 1)).reason == "key-dir-of-another-user"


def test_what_is_no_key_is_not_a_version(folder: Path) -> None:
    for name in ("payload-01.key", "payload-0.key", "payload-2.key.bak", "payload-9999999999.key"):
        (folder / name).write_bytes(KEY)
    keyfiles.create(folder, 10, KEY)
    keyfiles.create(folder, 2, KEY)
    assert keyfiles.versions(folder) == (1, 2, 10)


@pytest.mark.parametrize(("version", "key"), [(0, KEY), (2**31, KEY), (1, KEY[:31]), (1, b"")])
def test_only_a_key_of_a_possible_version_is_written(
    tmp_path: Path, version: int, key: bytes
) -> None:
    with pytest.raises(ValueError, match="a key has 32 bytes"):
        keyfiles.create(tmp_path / "keys", version, key)
    assert not (tmp_path / "keys").exists()


def test_a_lock_that_is_not_given_back_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyfiles, "_LOCK_WAIT_S", 0.05)
    with (folder / ".lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert refusal(lambda: keyfiles.create(folder, 2, KEY)).reason == "key-dir-busy"
    assert keyfiles.create(folder, 2, KEY)


DIES_BEFORE_THE_RENAME = """
import os, signal, sys
from pathlib import Path
from worker.sealing import keyfiles
os.rename = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
keyfiles.create(Path(sys.argv[1]), 1, bytes(range(32)))
"""


def test_a_creator_killed_before_the_end_leaves_no_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    died = subprocess.run([sys.executable, "-c", DIES_BEFORE_THE_RENAME, folder], check=False)
    assert died.returncode == -signal.SIGKILL
    assert [name.name.startswith(".payload-1.key.") for name in folder.glob(".p*")] == [True]
    assert keyfiles.versions(folder) == ()
    assert keyfiles.create(folder, 1, bytes(reversed(KEY)))
    assert keyfiles.read(folder, 1) == bytes(reversed(KEY))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "payload-1.key"]


WAITS_THEN_CREATES = """
import sys
from pathlib import Path
from worker.sealing.keyring import KeyRing
ring = KeyRing(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
made = ring.init() if sys.argv[2] == "init" else ring.rotate(1)
print(made.version, made.created, ring.current().key_id.hex())
"""


@pytest.mark.parametrize("what", ["init", "rotate"])
def test_sixteen_processes_at_once_end_with_one_key(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "deep" / "keys"
    if what == "rotate":
        KeyRing(folder).init()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WAITS_THEN_CREATES, folder, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    version = "1" if what == "init" else "2"
    assert {answer[0] for answer in answers} == {version}
    assert [answer[1] for answer in answers].count("True") == 1
    assert {answer[2] for answer in answers} == {KeyRing(folder).current().key_id.hex()}
    assert keyfiles.versions(folder) == tuple(range(1, int(version) + 1))
