"""``tidegate adm`` as a shell would use it, on a real broker and worker."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import WorkerProcess, command, data_of, environment
from tests.support.space import Space
from worker.evidence.identity import identify
from worker.evidence.procfs import LinuxProc


class Shell:
    """Runs ``tidegate adm …`` as a user without any credentials would."""

    def __init__(self, space: Space, data_dir: Path) -> None:
        self.env = environment(
            nats_url=space.server.url,
            spaces=space.names.space,
            data_dir=data_dir,
            principal="conn",
            host="host-of-this-shell",
        )
        self.said = ""

    def run(self, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
        done = command(("adm", *arguments), self.env, stdin=stdin)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return done.stdout

    def json(self, *arguments: str, code: int = 0, stdin: str | None = None) -> dict[str, Any]:
        """A command\'s result, or what a query answers; the envelope is the same."""
        value: dict[str, Any] = json.loads(self.run(*arguments, "--json", code=code, stdin=stdin))
        answers = value["status"] == "ok" and "command_id" not in value
        return data_of(json.dumps(value)) if answers else value

    def enqueue(self, request: str, *more: str, code: int = 0) -> dict[str, Any]:
        fixed = ("--agent", f"agent-{request}", "--provider", "acme", "--model", "m1")
        return self.json("enqueue", request, *fixed, *more, code=code)


@pytest.fixture
def shell(space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path) -> Shell:
    process_worker(host="host-of-the-worker").wait_ready()
    return Shell(space, tmp_path / "user")


OP = ("--as", "_op.oooooooooooooooooooooooooo")


def test_a_turn_from_queue_to_end(shell: Shell) -> None:
    claimed = shell.json("policy", "--claim", "1", "--max-active-turns", "1", *OP)
    assert (claimed["outcome"], claimed["data"]["policy"]["max_active_turns"]) == ("claimed", 1)
    seated = shell.enqueue("r1", "--wait")["data"]
    assert (seated["state"], seated["lease"]["generation"]) == ("admitted", 1)
    assert shell.enqueue("r2")["outcome"] == "queued"
    assert shell.enqueue("r2")["outcome"] == "idempotent"
    other = shell.enqueue("r2", "--priority", "5", code=3)
    assert other["error"]["reason"] == "different-request"

    waiting = shell.json("show", "r2")["place"]
    assert (waiting["position"], waiting["blocks"]) == (1, ["seats"])
    assert shell.json("queue")["turns"][0]["request_id"] == "r2"

    assert shell.json("start", "r1")["outcome"] == "starting"
    me = str(os.getpid())
    child = json.dumps({**identity_of(me), "pid": 4_000_000, "pgrp": 4_000_000})
    intent = ("intent", "r1", "--connector", me, "--child", child)
    assert shell.json(*intent)["outcome"] == "dispatch_intent"
    assert shell.json(*intent)["outcome"] == "idempotent"
    assert shell.json(*intent, "--channel", "stdin", code=3)["outcome"] == "different-intent"
    (seat,) = shell.json("leases", *OP)["leases"]
    assert seat["frees"] == ["owner", "connector-gone", "child-gone", "group-empty"]
    assert shell.json("active", "r1")["outcome"] == "active"
    done = shell.json(
        *("complete", "r1", "--outcome", "failed", "--failure", "provider_capacity"),
        *("--http-status", "529", "--retry-after", "2m"),
    )
    assert done["outcome"] == "failed"
    fenced = shell.json("complete", "r1", code=3)
    assert fenced["error"]["code"] == "fenced"

    resting = shell.json("show", "r2")["place"]
    assert resting["blocks"] == ["cooldown"]
    assert shell.json("cancel", "r2")["outcome"] == "cancelled"
    assert shell.json("cancel", "r2", code=3)["data"]["state"] == "cancelled"


def identity_of(pid: str) -> dict[str, Any]:
    """The identity that the shell's commands find out for a process."""
    return identify(int(pid), host="host-of-this-shell", reader=LinuxProc()).to_object()


def test_pulling_a_debt_and_an_operators_word(shell: Shell) -> None:
    assert shell.json("admit", code=3)["data"] == {"blocks": ["empty"]}
    shell.enqueue("r1", "--grant", "pull")
    got = shell.json("admit", "r1")
    lease, generation = got["data"]["lease_id"], got["data"]["generation"]
    fence = ("--lease", lease, "--generation", str(generation))
    assert shell.json("start", "r1", *fence)["outcome"] == "starting"
    assert shell.json("recover", "r1", *fence)["outcome"] == "recovery_required"
    (debt,) = shell.json("recoverable", *OP)["turns"]
    assert debt["seat"]["frees"] == ["operator"]
    resolved = shell.json(
        *("resolve", "r1", "confirmed_not_dispatched", "--evidence", "nothing was sent", *OP)
    )
    assert (resolved["outcome"], resolved["data"]["generation"]) == ("requeued", 2)
    assert shell.json("start", "r1", *fence, code=3)["outcome"] == "fenced"
    shell.json("admit")
    assert shell.json("abandon", "r1", "--outcome", "failed")["data"]["state"] == "failed"
    kinds = [event["kind"] for event in shell.json("events", *OP)["events"]]
    assert kinds == [
        "request_enqueued",
        "request_admitted",
        "request_starting",
        "request_recovery_required",
        "request_resolved",
        "request_requeued",
        "request_admitted",
        "request_abandoned",
    ]
    assert len(shell.json("events", "--after", "6", *OP)["events"]) == 2


def test_operators_steer(shell: Shell) -> None:
    assert shell.json("policy")["epoch"] == 0
    assert shell.json("policy", "--assert", "--epoch", "0", *OP)["outcome"] == "match"
    assert shell.json("drain", "0", *OP)["outcome"] == "drained"
    shell.enqueue("r1")
    assert shell.json("queue")["blocks"] == ["drain"]
    cooled = shell.json("cooldown", "acme", "m1", "--until", "+1m", *OP)
    assert cooled["outcome"] == "cooling"
    differs = shell.json("policy", "--assert", "--silence", "1s", *OP, code=3)
    assert differs["error"]["reason"] == "policy-differs"
    mine = shell.json("drain", "8", "--as", "conn", code=3)
    assert mine["error"]["code"] == "permission-denied"


def test_people_are_shown_words(shell: Shell) -> None:
    assert "0 (defaults, not claimed)" in shell.run("policy")
    assert "nothing waits" in shell.run("queue")
    assert "no seat is held" in shell.run("leases", *OP)
    assert "nothing waits for evidence" in shell.run("recoverable", *OP)
    shell.run("drain", "0", *OP)
    fixed = ("--agent", "a", "--provider", "acme", "--model", "m1")
    assert "queued" in shell.run("enqueue", "r1", *fixed)
    assert "admission is drained" in shell.run("show", "r1")
    assert "admission is drained" in shell.run("queue")
    assert "0 held of 4 by a drain; the policy says 8" in shell.run("drain", "4", *OP)
    assert "admitted" in shell.run("show", "r1")
    assert "the start timeout" in shell.run("leases", *OP)
    shell.run("start", "r1")
    shell.run("recover", "r1")
    assert "an operator (resolve)" in shell.run("recoverable", *OP)
    assert "request_recovery_required" in shell.run("events", *OP)
    assert "the turn is recovery_required" in shell.run("active", "r1", code=3) + shell.said


def test_a_limit_is_told_with_whose_it_is(shell: Shell) -> None:
    assert "0 held of 99999 by a drain; the policy says 8" in shell.run("drain", "99999", *OP)
    claim = ("policy", "--claim", "1", "--max-active-turns", "5", "--max-priority", "*=0")
    shown = shell.run(*claim, *OP)
    assert "0 held of 5; a drain to 99999 stands" in shown
    assert "* 0" in shown
    again = ("policy", "--claim", "2", "--max-active-turns", "6", "--resume")
    assert "stands" not in shell.run(*again, *OP)


def test_a_rest_is_taken_back_and_a_turn_that_ended_waits_for_no_seat(shell: Shell) -> None:
    shell.run("cooldown", "acme", "m1", "--until", "+300d", *OP)
    shell.run("cooldown", "acme", "m1", "--until", "+0s", "--replace", *OP)
    shell.enqueue("r1", "--wait")
    shell.run("abandon", "r1", "--outcome", "failed")
    assert shell.enqueue("r1", "--wait", code=3)["data"]["state"] == "failed"
    assert "turn r1 has ended, it is failed" in shell.said


def test_the_journal_is_shown_by_a_worker_that_has_said_nothing_yet(
    space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    shell = Shell(space, tmp_path / "user")
    first = process_worker(host="host-of-the-worker").wait_ready()
    shell.enqueue("r1")
    first.terminate()
    process_worker(host="host-of-the-worker").wait_ready()
    assert "request_enqueued" in shell.run("events", *OP)
