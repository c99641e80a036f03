"""``tidegate ledger`` as an operator would use it, beside a worker and without one."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import WorkerProcess, command, data_of, space_environment
from tests.support.space import Space, speaker
from worker.spaces import LEDGER_FILE

HASH_CHARS = 64


class Shell:
    """Runs commands with the worker's credentials and data directory."""

    def __init__(self, space: Space) -> None:
        self.env = space_environment(space)
        self.said = ""

    def run(self, *arguments: str, code: int = 0) -> str:
        done = command(arguments, self.env)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return done.stdout

    def ledger(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return data_of(self.run("ledger", *arguments, "--json", code=code))

    def refusal(self, *arguments: str) -> str:
        """The reason for which a command is refused."""
        printed = json.loads(self.run("ledger", *arguments, "--json", code=3))
        return str(printed["error"]["reason"])


@pytest.fixture
def shell(space: Space) -> Shell:
    return Shell(space)


@pytest.fixture
def running(shell: Shell, process_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    """A worker with a few caps in its ledger."""
    worker = process_worker()
    worker.wait_ready()
    shell.run("cap", "minting", "on", "--as", "_op")
    for number in range(4):
        key = f"reservation-key-{number}"
        shell.run("cap", "reserve", "ann", key, "--cap", "10", "-x", "+1h", "--as", "delegate")
    return worker


@pytest.mark.usefixtures("running")
def test_the_log_folds_again_to_what_the_worker_has(shell: Shell, tmp_path: Path) -> None:
    said = shell.ledger("digest")
    assert said["watermark"] == 6
    assert len(said["digest"]) == len(said["tables"]["reservations"]) == HASH_CHARS
    file = tmp_path / "again.db"
    replayed = shell.ledger("replay", "--into", str(file))
    assert replayed["replayed"]["digest"] == said["digest"]
    assert replayed["replayed"]["tables"] == said["tables"]
    assert (replayed["folded"], replayed["snapshot"]) == (6, None)
    assert shell.ledger("digest", "--file", str(file))["digest"] == said["digest"]
    assert shell.ledger("verify")["equal"]
    shell.run("ledger", "replay", "--into", str(file), code=2)
    assert "again.db exists" in shell.said
    shell.run("ledger", "replay", "--into", str(tmp_path / "none" / "again.db"), code=2)
    assert "there is no folder" in shell.said


@pytest.mark.usefixtures("running")
def test_a_trimmed_log_is_verified_from_its_snapshot(shell: Shell) -> None:
    stored = shell.ledger("snapshot")
    assert stored["watermark"] == 6
    assert shell.ledger("snapshots")["snapshots"][0]["name"] == stored["name"]
    trimmed = shell.ledger("trim")
    assert trimmed["removed"] > 0
    shell.run("cap", "stop", "ann", "--as", "delegate")
    verified = shell.ledger("verify")
    assert verified["equal"]
    assert verified["snapshot"] == stored["name"]
    assert verified["folded"] == 1


@pytest.mark.usefixtures("running")
def test_pruning_is_a_command_that_every_replica_folds(shell: Shell) -> None:
    before = shell.ledger("digest")
    pruned = shell.ledger("prune", "--older-than", "1d")
    assert pruned["result"] == "pruned"
    nothing = dict.fromkeys(("turns", "lines", "connectors", "permits", "command_ids"), 0)
    assert pruned["result_data"] == nothing
    assert shell.ledger("digest")["watermark"] == before["watermark"] + 1
    assert shell.ledger("verify")["equal"]


@pytest.mark.usefixtures("running")
async def test_much_is_pruned_part_by_part_and_shown_as_it_goes(shell: Shell, space: Space) -> None:
    async with space.client(speaker("delegate"), timeout_ms=60_000) as client:
        for _ in range(11):
            await asyncio.gather(*(client.cap.stop("ann") for _ in range(100)))
    pruned = await asyncio.to_thread(shell.ledger, "prune", "--older-than", "0s")
    assert pruned["result"] == "pruned"
    assert pruned["result_data"]["command_ids"] >= 1_100
    assert "next" not in pruned["result_data"]
    assert shell.said.splitlines()[:2] == ["500 rows removed", "1000 rows removed"]
    assert (await asyncio.to_thread(shell.ledger, "verify"))["equal"]


@pytest.mark.usefixtures("running")
def test_a_command_that_the_fold_refuses_is_refused_here(shell: Shell) -> None:
    for more in ((), ("--force",)):
        assert shell.refusal("ruleset", "1", *more) == "ruleset-in-force-is-newer"


@pytest.mark.usefixtures("running")
def test_a_rebase_without_a_regression_is_refused(shell: Shell) -> None:
    assert shell.refusal("rebase") == "not-regressed"


def test_a_backup_is_restored_under_a_stopped_worker_only(
    shell: Shell, running: WorkerProcess, space: Space, tmp_path: Path
) -> None:
    file = tmp_path / "backup.db"
    taken = shell.ledger("backup", str(file))
    shell.run("cap", "stop", "ann", "--as", "delegate")
    later = shell.ledger("digest")
    shell.run("ledger", "restore", str(file), code=3)
    assert "--replace" in shell.said
    shell.run("ledger", "restore", str(file), "--replace", code=3)
    assert "another process" in shell.said
    assert running.terminate() == 0
    ledger = space.data_dir / space.names.space / LEDGER_FILE
    assert shell.ledger("digest", "--file", str(ledger))["digest"] == later["digest"]
    told = shell.run("ledger", "restore", str(file), "--replace")
    assert told == f"{ledger}: the ledger at 6, restored; start its worker\n"
    restored = shell.ledger("restore", str(file), "--replace")
    assert restored["digest"] == taken["digest"]
    assert restored["watermark"] == 6


def test_a_file_that_is_no_backup_is_refused_and_replaces_nothing(
    shell: Shell, space: Space, tmp_path: Path
) -> None:
    file = tmp_path / "backup.db"
    file.write_bytes(b"this is no database" * 100)
    shell.run("ledger", "restore", str(file), code=3)
    assert f"{file}: it is not a SQLite database" in shell.said
    assert not (space.data_dir / space.names.space / LEDGER_FILE).exists()
    shell.run("ledger", "restore", str(tmp_path / "none.db"), code=2)
    assert "none.db is no file" in shell.said
    shell.run("ledger", "backup", str(tmp_path / "none" / "b.db"), code=2)
    assert "there is no folder" in shell.said
