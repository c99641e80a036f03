"""The command line: usage, output conventions and exit codes, without a broker."""

import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.codes import BadInput, Code
from schemas.commands import BODIES
from schemas.results import Error, Result
from tests.support.process import command, data_of, environment
from worker import logs, settings
from worker.bus.errors import Denied, Unavailable
from worker.cli import ending
from worker.client import CallTimeout, Failed, NobodyThere, QueryTimeout, Refused
from worker.errors import StartRefused, TidegateError
from worker.settings import BadSettings
from worker.showing.columns import columns


def result(status: str, code: str = "conflict") -> Result:
    return Result(
        v=1,
        command_id="c" * 16,
        id="7",
        at_ms=1,
        status=status,  # type: ignore[arg-type]  # given by the test's table
        outcome="word",
        data={},
        error=Error(code=code, reason="word", message="No.", retryable=False),
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(result("refused")), 3),
        (Failed(result("failed", "internal")), 1),
        (CallTimeout("c" * 16, stored=True), 124),
        (QueryTimeout(), 124),
        (StartRefused("no"), 3),
        (Denied("no"), 3),
        (BadSettings("no"), 2),
        (BadInput("token", "bad-token", "no"), 2),
        (NobodyThere("no"), 1),
        (Unavailable("no"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: TidegateError | BadInput, code: int) -> None:
    assert ending.exit_code(error) == code


def test_a_refusal_as_json_is_the_result_itself() -> None:
    refused = Refused(result("refused"))
    assert ending.error_object(refused) == refused.result.to_object()


def test_a_timeout_as_json_says_how_to_ask_again() -> None:
    shown = ending.error_object(CallTimeout("c" * 16, stored=False))
    assert shown["status"] == "failed"
    assert shown["command_id"] == "c" * 16
    assert shown["error"]["retryable"] is True
    assert shown["error"]["code"] == Code.DEADLINE_EXCEEDED


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = command(["--version"], environment(data_dir=tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("tidegate ")
    assert done.stdout.count(".") == 2


def test_help_is_fast_and_loads_nothing_heavy(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "worker.cli.main", "cp", "--help"],
        env=environment(data_dir=tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert time.monotonic() - began < 3
    assert "resume" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {
        "nats",
        "aiohttp",
        "cryptography",
        "rich",
        "pydantic_settings",
        "aiosqlite",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["cap", "authorize", "ann", "--amount", "1_0", "-x", "2030-01-31T12:00:00Z"],
        ["cap", "authorize", "ann", "--amount", "\u0661\u0660", "-x", "2030-01-31T12:00:00Z"],
        ["cap", "reserve", "ann", "--cap", "-5", "-x", "+1h"],
        ["cap", "reserve", "ann", "--cap", "9" * 18, "-x", "+1h"],
        ["adm", "drain", "1_0"],
        ["adm", "enqueue", "r", "--agent", " x", "--provider", "p", "--model", "m"],
        ["cp", "list", "--limit", "0"],
        ["soak", "--minutes", "1_0"],
        ["cp", "mint", "build"],
        ["cp", "mint", "build", "-d", "15m"],
        ["cp", "mint", "Build", "-d", "+15m"],
        ["cp", "mint", "build", "a.b", "-d", "+15m"],
        ["cp", "mint", "build", "a\n", "-d", "+15m"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--holder", "nobody-kept-here"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--holder", "a.b"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--holder", "no body"],
        ["cp", "list", "--as", "../x"],
        ["identity", "init", "no body"],
        ["identity", "show", "../x"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--choice", "yes"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--body", "[1]"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--body", "{"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--body", "@/does/not/exist"],
        ["cp", "mint", "build", "x", "-d", "+15m", "--command-id", "short"],
        ["cp", "resume", "build", "x", "--answer", '{"build": 43'],
        ["cp", "resume", "build", "x", "--answer", "[yes"],
        ["cp", "resume", "build", "x", "--prompt-digest", "00"],
        ["cp", "list", "--endpoint", "Build"],
        ["cp", "list", "--timeout", "0s"],
        ["cp", "list", "--timeout", ""],
        ["cp", "list", "--space", "a b"],
        ["cp", "list", "--as", "a.b"],
        ["cp", "list", "--as", "a b"],
        ["cp", "wait", "build", "x", "--wait-timeout", "soon"],
        ["config", "show", "--config", "/does/not/exist"],
        ["schema", "command.cp.nonsense"],
        ["identity", "show"],
    ],
)
def test_wrong_usage_exits_with_2_and_prints_no_data(tmp_path: Path, arguments: list[str]) -> None:
    done = command(arguments, environment(data_dir=tmp_path))
    expected = 1 if arguments == ["identity", "show"] else 2
    assert done.returncode == expected, done.stderr
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_is_none_is_refused_with_what_it_may_be(tmp_path: Path) -> None:
    said = command(
        ["cp", "mint", "build", "\uff41", "-d", "+15m"], environment(data_dir=tmp_path)
    ).stderr
    assert "TOKEN: a token matches [A-Za-z0-9_-]{1,64}" in said


def test_a_user_id_with_an_underscore_is_refused_with_the_reason(tmp_path: Path) -> None:
    said = command(["cap", "show", "ann_lee"], environment(data_dir=tmp_path)).stderr
    assert "a user id matches [A-Za-z0-9-]{1,100}; it has no _" in said
    other = command(["cap", "show", "ann lee"], environment(data_dir=tmp_path)).stderr
    assert "a user id matches" in other
    assert "it has no _" not in other


def test_config_show_lists_every_setting_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.env"
    file.write_text("TIDEGATE_ROOT=filed\n")
    env = environment(
        data_dir=tmp_path, nats_user="u", nats_password="sentinel", nats_ur="typo", config=file
    )
    done = command(["config", "show", "--json"], env)
    assert done.returncode == 0
    rows = {row["name"]: row for row in data_of(done.stdout)["settings"]}
    assert set(rows) == {settings.variable(name) for name in settings.Settings.model_fields}
    assert rows["TIDEGATE_ROOT"]["source"] == "file"
    assert rows["TIDEGATE_NATS_USER"]["source"] == "env"
    assert rows["TIDEGATE_REPLICAS"] == {
        "name": "TIDEGATE_REPLICAS",
        "value": "1",
        "source": "default",
        "default": "1",
        "description": "Replicas of each stream, 1 or 3; used by setup.",
    }
    assert "TIDEGATE_NATS_UR is not a setting; is TIDEGATE_NATS_URL meant?" in done.stderr
    plain = command(["config", "show"], env)
    lines = plain.stdout.splitlines()
    assert "TIDEGATE_ROOT=filed" in lines
    assert "# First token of every subject. (from: file; default: tidegate)" in lines
    assert "# TIDEGATE_REPLICAS=1" in lines
    assert "# TIDEGATE_NATS_PASSWORD=********" in lines
    assert max(map(len, lines)) <= 80 + len(str(tmp_path))
    copy = tmp_path / "copy.env"
    copy.write_text(plain.stdout)
    assert settings.load(config_file=copy).settings.root == "filed"
    assert "sentinel" not in done.stdout + done.stderr + plain.stdout + plain.stderr


def test_schema_prints_every_message(tmp_path: Path) -> None:
    done = command(["schema"], environment(data_dir=tmp_path))
    messages = json.loads(done.stdout)["messages"]
    assert {f"command.{plane}.{verb}" for plane, verb in BODIES} <= set(messages)
    for name, schema in messages.items():
        assert schema["type"] == "object", name
        assert schema["additionalProperties"] is False, name
        assert schema["description"], name
    one = command(["schema", "record.cp.status"], environment(data_dir=tmp_path))
    assert json.loads(one.stdout) == messages["record.cp.status"]
    names = command(["schema", "--names"], environment(data_dir=tmp_path))
    assert names.stdout.split() == list(messages)


def test_identity_init_and_show(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path)
    made = command(["identity", "init", "alice"], env)
    again = command(["identity", "init", "alice"], env)
    other = command(["identity", "init", "bob", "--json"], env)
    assert made.stdout == again.stdout
    assert made.stdout.startswith("alice.")
    assert command(["identity", "show"], env).stdout == made.stdout
    shown = json.loads(command(["identity", "show", "bob", "--json"], env).stdout)
    assert shown == json.loads(other.stdout)
    kept = command(["identity", "init", "bob", "--uid", "a" * 26], env)
    assert kept.returncode == 1
    assert "another uid" in kept.stderr


@pytest.mark.parametrize(
    "arguments", [("schema",), ("schema", "--names"), ("--version",), ("config", "show")]
)
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "worker.cli.main", *arguments],
        env=environment(data_dir=tmp_path),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
    assert done.returncode == 1


def test_an_interrupt_before_it_begins_leaves_nothing_to_warn_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        raise AssertionError("it never begins")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "configure", interrupted)
    begun = work()
    with pytest.raises(KeyboardInterrupt):
        ending.run_async(begun)
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


def test_columns_are_aligned() -> None:
    assert columns([("a", "b"), ("long", "c")]) == ["a     b", "long  c"]
    assert columns([]) == []


INTERRUPTED_WHILE_LOADING = """
import sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "worker.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from worker.cli.entry import run
run()
"""


def test_an_interrupt_while_it_loads_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
