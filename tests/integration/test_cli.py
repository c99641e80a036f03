"""The command line against a real broker and a real worker, as a shell would use it."""

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import WorkerProcess, command, data_of, environment, space_environment
from tests.support.running import running
from tests.support.space import Space
from worker.bus.jetstream import JetStream


class Shell:
    """Runs commands as a user without any credentials would."""

    def __init__(self, space: Space, data_dir: Path) -> None:
        self.env = environment(
            nats_url=space.server.url, spaces=space.names.space, data_dir=data_dir
        )

    def run(self, *arguments: str, stdin: str | None = None, code: int = 0) -> str:
        done = command(arguments, self.env, stdin=stdin)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return done.stdout

    def json(self, *arguments: str, stdin: str | None = None, code: int = 0) -> dict[str, Any]:
        """A command\'s result, or what a query answers; the envelope is the same."""
        printed = self.run(*arguments, "--json", stdin=stdin, code=code)
        value: dict[str, Any] = json.loads(printed)
        answers = value["status"] == "ok" and "command_id" not in value
        return data_of(json.dumps(value)) if answers else value


@pytest.fixture
def shell(space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path) -> Shell:
    process_worker().wait_ready()
    return Shell(space, tmp_path / "user")


def test_a_run_pauses_and_is_resumed(shell: Shell) -> None:
    minted = shell.json(
        "cp",
        "mint",
        "deploy.shop",
        "one",
        "-d",
        "+1h",
        "--title",
        "Ship?",
        "--choice",
        "yes",
        "--choice",
        "no",
        "--text",
        "-",
        stdin="**Really**?",
    )
    assert "made an identity" in shell.said
    assert minted["status"] == "ok"
    assert minted["outcome"] == "minted"

    shown = shell.json("cp", "show", "deploy.shop", "one")
    assert shown["prompt"]["body"] == "**Really**?"
    assert shown["checkpoint"]["holder"] == minted["data"]["holder"]

    listed = shell.json("cp", "list", "--endpoint", "deploy.shop", "--due", "+2h")
    assert [item["token"] for item in listed["items"]] == ["one"]

    moved = shell.json("cp", "heartbeat", "deploy.shop", "one", "-d", "+2h")
    assert moved["data"]["generation"] == 2

    wrong = shell.json("cp", "resume", "deploy.shop", "one", "--as", "mallory", code=3)
    assert wrong["error"]["reason"] == "not-the-holder"
    other = shell.json("cp", "resume", "deploy.shop", "one", "--answer", "maybe", code=3)
    assert other["error"]["field"] == "answer"
    resumed = shell.json("cp", "resume", "deploy.shop", "one", "--answer", "yes",
                         "--prompt-digest", shown["prompt_digest"])  # fmt: skip
    assert resumed["outcome"] == "resumed"
    again = shell.json("cp", "resume", "deploy.shop", "one", "--answer", "yes", code=3)
    assert again["data"]["state"] == "resumed"

    waited = shell.json("cp", "wait", "deploy.shop", "one")
    assert waited["state"] == "resumed"
    assert waited["answer"]["value"] == "yes"
    assert shell.json("cp", "repair", "deploy.shop", "one")["outcome"] == "nothing_to_repair"
    assert shell.json("cp", "list")["items"] == []


def test_text_output_keeps_data_and_words_apart(shell: Shell) -> None:
    printed = shell.run("cp", "mint", "build", "one", "-d", "+1h")
    lines = dict(line.split(None, 1) for line in printed.splitlines())
    assert lines["outcome"] == "minted"
    assert lines["checkpoint"] == "build one"
    assert lines["state"] == "waiting"
    table = shell.run("cp", "list").splitlines()
    assert table[0].split()[:3] == ["ENDPOINT", "TOKEN", "STATE"]
    assert table[1].split()[:3] == ["build", "one", "waiting"]
    assert shell.run("cp", "show", "build", "two", code=3) == ""
    assert shell.said == "tidegate: there is no checkpoint of this token\n"


def test_waiting_tells_a_resumption_from_an_expiry_by_the_exit_code(shell: Shell) -> None:
    expired = shell.json("cp", "mint", "build", "-d", "+4s", "--wait", code=3)
    assert expired["data"]["state"] == "expired"
    assert expired["outcome"] == "minted", "the shape is that of the command without --wait"
    shell.run("cp", "mint", "build", "one", "-d", "+1h")
    shell.run("cp", "wait", "build", "one", "--wait-timeout", "300ms", code=124)
    not_due = shell.json("cp", "expire", "build", "one", code=3)
    assert not_due["error"]["reason"] == "not-due"


def test_the_same_command_id_is_one_intent(shell: Shell) -> None:
    intent = "intent-0123456789"
    deadline = str(time.time_ns() // 1_000_000 + 3_600_000)
    shell.run("cp", "mint", "build", "one", "-d", deadline)
    first = shell.json("cp", "heartbeat", "build", "one", "-g", "1", "-d", deadline,
                       "--command-id", intent)  # fmt: skip
    second = shell.json("cp", "heartbeat", "build", "one", "-g", "1", "-d", deadline,
                        "--command-id", intent)  # fmt: skip
    assert first["command_id"] == second["command_id"] == intent
    assert first["data"] == second["data"]
    shell.run("cp", "expire", "build", "one", "--command-id", "short", code=2)


def test_another_holder_and_a_body_from_input(shell: Shell) -> None:
    maria = shell.run("identity", "init", "maria").strip()
    body = {"goal": {"caller": {"owner": "o", "actor": "a", "uid": "u"}, "goalId": "g"}}
    minted = shell.json("cp", "mint", "build", "one", "-d", "+1h", "--holder", "maria",
                        "--as", "agent", "--body", "-", stdin=json.dumps(body))  # fmt: skip
    holder = minted["data"]["holder"]
    assert f"{holder['id']}.{holder['lifecycleUid']}" == maria
    assert shell.json("cp", "show", "build", "one")["spec"]["goal"] == body["goal"]
    refused = shell.json("cp", "mint", "build", "two", "-d", "+1h", "--body", '{"x":1}', code=2)
    assert refused["error"]["field"] == "x"
    assert shell.json("cp", "resume", "build", "one", "--as", maria)["outcome"] == "resumed"


def test_no_worker_is_a_timeout_with_an_unknown_outcome(space: Space, tmp_path: Path) -> None:
    shell = Shell(space, tmp_path / "user")
    value = shell.json("cp", "mint", "build", "one", "-d", "+1h", "--timeout", "800ms", code=124)
    assert value["error"]["reason"] == "outcome-unknown"
    assert value["command_id"] in shell.said


@pytest.mark.parametrize(
    "arguments",
    [
        ("cp", "mint", "build", "-d", "+30m", "--title", "-d +30m, a 'quoted' title"),
        ("cap", "reserve", "ann", "--cap", "50", "--expires=+1h"),
        ("cap", "minting", "on"),
        ("adm", "cooldown", "acme", "large", "--until", "+5m"),
    ],
    ids=["mint", "reserve", "as-op", "cooldown"],
)
async def test_what_is_printed_to_repeat_is_the_same_command(
    space: Space, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    shell = Shell(space, tmp_path / "user")
    # It stands in the log before the others, whenever a worker comes to fold it.
    await asyncio.to_thread(shell.run, "cap", "minting", "on", "--timeout", "1s", code=124)
    value = await asyncio.to_thread(shell.json, *arguments, "--timeout", "1s", code=124)
    printed = next(line for line in shell.said.splitlines() if "tidegate " in line)
    words = shlex.split(printed[printed.index("tidegate ") :])
    assert words == value["repeat"]
    words[words.index("1s")] = "20s"
    async with running(space.settings()):
        first = await asyncio.to_thread(shell.json, *words[1:])
        second = await asyncio.to_thread(shell.json, *words[1:])
    assert first["status"] == second["status"] == "ok"
    assert first["command_id"] == second["command_id"] == value["command_id"]
    assert first["data"] == second["data"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_who_interrupts_a_command_is_told_how_to_learn_its_outcome(
    space: Space, tmp_path: Path, number: signal.Signals
) -> None:
    shell = Shell(space, tmp_path / "user")
    arguments = ["cp", "mint", "build", "-d", "+30m", "--timeout", "60s"]
    waiting = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "worker.cli.main", *arguments),
        env=shell.env,
        stderr=subprocess.PIPE,
        # Whoever runs this in the background has it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    conn = await space.connect()
    try:
        async with asyncio.timeout(60):
            while (await JetStream(conn).stream_info(space.names.cmd_stream)).messages == 0:
                assert waiting.returncode is None
                await asyncio.sleep(0.05)
    finally:
        await conn.close()
    waiting.send_signal(number)
    said = (await waiting.communicate())[1].decode()
    assert waiting.returncode in (130, 128 + signal.SIGTERM)
    assert "Traceback" not in said
    printed = next(line for line in said.splitlines() if "tidegate cp" in line)
    words = shlex.split(printed[printed.index("tidegate ") :])
    async with running(space.settings()):
        assert (await asyncio.to_thread(shell.json, *words[1:]))["outcome"] == "minted"


def test_no_broker_at_the_url_is_a_failure_at_once(space: Space, tmp_path: Path) -> None:
    shell = Shell(space, tmp_path / "user")
    shell.run("cp", "list", "--nats", "nats://127.0.0.1:1", code=1)
    assert "cannot be reached" in shell.said


def test_setup_creates_once_and_verifies_ever_after(bare_space: Space) -> None:
    env = space_environment(bare_space)
    missing = command(["setup"], env)
    assert missing.returncode == 3
    assert "is not set up" in missing.stderr
    made = command(["setup", "--new", "--json"], env)
    assert made.returncode == 0, made.stderr
    assert data_of(made.stdout)["spaces"][0]["created"] is True
    again = command(["setup", "--new"], env)
    assert again.returncode == 3
    assert "exists already" in again.stderr
    assert command(["setup"], env).returncode == 0


async def test_setup_names_what_could_lose_data(space: Space) -> None:
    conn = await space.connect()
    js = JetStream(conn)
    stream = space.names.epf_stream
    config = dict((await js.stream_info(stream)).config)
    await js.stream_update({**config, "max_msgs": 10, "discard": "old"})
    await conn.close()
    done = command(["setup"], space_environment(space))
    assert done.returncode == 3
    assert f"{stream}.max_msgs" in done.stdout
    assert "danger" in done.stdout


def test_setup_with_a_clients_rights_is_refused(space: Space, tmp_path: Path) -> None:
    shell = Shell(space, tmp_path / "user")
    shell.run("setup", code=3)
    assert "JetStream" in shell.said


def test_without_as_the_broker_user_speaks(space: Space, tmp_path: Path) -> None:
    env = space_environment(space, data_dir=tmp_path / "user")
    mint = ["cp", "mint", "runs", "-d", "+1h", "--timeout", "300ms"]
    named = command(mint, env)
    assert "made an identity for worker" in named.stderr
    env["TIDEGATE_PRINCIPAL"] = "maria"
    set_ = command(mint, env)
    assert "made an identity for maria" in set_.stderr
    env["TIDEGATE_PRINCIPAL"] = "_op"
    reserved = command(mint, env)
    assert "made an identity" not in reserved.stderr
    assert not list((tmp_path / "user").rglob("_op*"))
