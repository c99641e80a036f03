"""A user without a home, a folder that cannot be written to, a full disk: one sentence each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import environment

UNKNOWN_USER = 54321
WITHOUT_ROOM = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file may grow, as on a full disk
from worker.cli.main import run
run()
"""
AS_NOBODY_KNOWN = f"""
import os, sys
os.setreuid({UNKNOWN_USER}, 0)  # who we are has no entry among the users; files stay readable
from worker.cli.main import run
run()
"""
NOBODY_AT = ("--nats", "nats://127.0.0.1:1")


def tidegate(
    *arguments: str, env: dict[str, str], code: str | None = None, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    program = ["-m", "worker.cli.main"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        env=env,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    return done


def homeless(**settings: object) -> dict[str, str]:
    outer = environment(**settings)
    return {k: v for k, v in outer.items() if k not in {"HOME", "LOGNAME", "USER", "USERNAME"}}


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become a user that is not known")
def test_a_user_that_is_not_known_needs_only_a_folder(tmp_path: Path) -> None:
    named = homeless(data_dir=tmp_path)
    shown = tidegate("config", "show", env=named, code=AS_NOBODY_KNOWN)
    assert shown.returncode == 0, shown.stderr
    assert str(tmp_path) in shown.stdout
    looked = tidegate("cp", "list", *NOBODY_AT, env=named, code=AS_NOBODY_KNOWN)
    assert "cannot be reached" in looked.stderr
    for env in (homeless(), homeless(data_dir="~/state")):
        refused = tidegate("config", "show", env=env, code=AS_NOBODY_KNOWN)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "TIDEGATE_DATA_DIR" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", *NOBODY_AT), "cannot be reached"),
        (("cp", "list", *NOBODY_AT), "cannot be reached"),
        (("cp", "show", "runs", "one", *NOBODY_AT), "cannot be reached"),
        (("cp", "mint", "runs", "one", "-d", "+1h", *NOBODY_AT), "TIDEGATE_DATA_DIR"),
        (("identity", "init", "maria"), "TIDEGATE_DATA_DIR"),
    ],
    ids=["status", "list", "show", "mint", "init"],
)
def test_a_folder_that_cannot_be_written_to(arguments: tuple[str, ...], said: str) -> None:
    done = tidegate(*arguments, env=environment(data_dir="/proc/tidegate"))
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("identity", "init", "maria"), ("cp", "mint", "r", "-d", "+1h", *NOBODY_AT)]
)
def test_a_disk_without_room_for_an_identity(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = tidegate(*arguments, env=environment(data_dir=tmp_path), code=WITHOUT_ROOM)
    assert done.returncode == 1
    assert "an identity cannot be kept" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.rglob("*")) == [], "nothing half written is left"


def test_who_only_looks_leaves_no_identity(tmp_path: Path) -> None:
    tidegate("cp", "list", *NOBODY_AT, env=environment(data_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_who_is_named_for_one_command_does_not_become_the_default(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path)
    mint = ("cp", "mint", "runs", "one", "-d", "+1h", *NOBODY_AT)
    for _ in range(2):
        tidegate(*mint, "--as", "maria", env=env)
    kept = tidegate("identity", "show", "maria", env=env).stdout
    assert [path.name for path in tmp_path.rglob("*.json")] == ["maria.json"]
    assert tidegate("identity", "show", env=env).returncode == 1
    tidegate(*mint, env=env)
    assert not tidegate("identity", "show", env=env).stdout.startswith("maria.")
    assert tidegate("identity", "show", "maria", env=env).stdout == kept


@pytest.mark.parametrize("arguments", [("schema",), ("schema", "--names"), ("--version",)])
def test_a_full_disk_behind_standard_output(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = tidegate(*arguments, env=environment(data_dir=tmp_path), stdout=full.fileno())
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1
