"""``tidegate cap`` as a shell would use it, and the client below it, on a real broker."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.caps import CapSettings
from schemas.codes import BadInput, Code
from tests.support.caps_steps import legacy
from tests.support.process import WorkerProcess, command, data_of, environment
from tests.support.running import RunningWorker
from tests.support.space import Space
from worker.client import Refused
from worker.client.caps import PERMIT_LAPSED, UNANSWERED, Caps

HOUR_MS = 3_600_000
KEY = "key-of-the-first-cap"


class Shell:
    """Runs ``tidegate cap …`` as a user without any credentials would."""

    def __init__(self, space: Space, data_dir: Path) -> None:
        self.env = environment(
            nats_url=space.server.url, spaces=space.names.space, data_dir=data_dir
        )
        self.said = ""

    def run(self, *arguments: str, code: int = 0) -> str:
        done = command(("cap", *arguments), self.env)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return done.stdout

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """A command\'s result, or what a query answers; the envelope is the same."""
        value: dict[str, Any] = json.loads(self.run(*arguments, "--json", code=code))
        answers = value["status"] == "ok" and "command_id" not in value
        return data_of(json.dumps(value)) if answers else value


@pytest.fixture
def shell(space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path) -> Shell:
    process_worker().wait_ready()
    return Shell(space, tmp_path / "user")


def test_a_cap_lives_and_is_stopped(shell: Shell) -> None:
    paused = shell.json("reserve", "ann", "-x", "+1h", "--cap", "10", code=3)
    assert paused["error"]["reason"] == "minting-paused"
    on = shell.json("minting", "on", "--permit", "1500ms")
    assert (on["outcome"], on["data"]) == ("minting_enabled", {"enabled": True, "permit_ms": 1_500})

    reserved = shell.json("reserve", "ann", KEY, "-x", "+1h", "--cap", "10")
    second = str(reserved["data"]["expires_at_ms"])
    wire = reserved["data"]["wire_expires_at"]
    assert wire.endswith(".001Z")
    wrong = shell.json("confirm", "ann", KEY, "-x", wire, code=3)
    assert wrong["error"]["reason"] == "expiry-mismatch"
    assert wrong["data"]["state"] == "reserved"
    confirmed = shell.json("confirm", "ann", KEY, "-x", wire.replace(".001Z", "Z"))
    assert confirmed["data"]["state"] == "confirmed_active"

    allowed = shell.json("authorize", "ann", "--amount", "10", "-x", second)
    assert allowed["data"]["valid_for_ms"] == 1_500
    over = shell.json("authorize", "ann", "--amount", "11", "-x", second, code=3)
    assert over["error"]["reason"] == "over-cap"

    shown = shell.json("show", "ann", "--key", KEY, "--after", over["id"])
    assert shown["authority"] == {"authorizes": True, "cap": 10, "expires_at_ms": int(second)}
    assert shown["reservation"]["state"] == "confirmed_active"

    listed = shell.json("list", "--all")
    assert [(one["cap"]["user"], one["stopped"]) for one in listed["caps"]] == [("ann", False)]
    assert shell.json("list", "--ended")["caps"] == []

    stopped = shell.json("stop", "ann", "--command-id", "the-one-stop-of-ann")
    assert stopped["data"]["generation"] == 1
    assert stopped["data"]["expires_at_ms"] == int(second)
    again = shell.json("stop", "ann", "--command-id", "the-one-stop-of-ann")
    assert again["data"] == stopped["data"]
    refused = shell.json("authorize", "ann", "--amount", "1", "-x", second, code=3)
    assert refused["error"]["reason"] == "stopped"
    assert shell.json("revoke", "ann", "-x", second)["outcome"] == "nothing-to-revoke"
    assert shell.json("bump", "ann")["data"] == {"generation": 2, "known": True}
    assert shell.json("minting", "off")["outcome"] == "minting_paused"


def test_people_are_shown_words(shell: Shell) -> None:
    assert "minting_enabled" in shell.run("minting", "on")
    text = shell.run("reserve", "ann", "-x", "+1h", "--cap", "10")
    lines = dict(line.split("  ", 1) for line in text.splitlines())
    name = lines["mint key"].strip()
    expires = lines["expires"].strip().split(" ")[0]
    assert lines["mint with expiry"].strip().endswith(".001Z")
    assert "confirmed_active" in shell.run("confirm", "ann", name, "-x", expires)
    assert "more" in shell.run("authorize", "ann", "--amount", "3", "-x", expires)
    header, row = shell.run("list").splitlines()
    assert header.split() == ["USER", "CAP", "STATE", "EXPIRES", "IN"]
    assert row.split()[:3] == ["ann", "10", "confirmed_active"]
    assert "authorizes  yes" in shell.run("show", "ann")
    assert "different-reservation" in shell.run("reserve", "ann", name, "-x", "+1h", "--cap", "11",
                                                code=3) + shell.said  # fmt: skip
    assert "ended grant of" in shell.run("stop", "ann")
    assert len(shell.run("list").splitlines()) == 1
    assert shell.run("list", "--ended").splitlines()[1].split()[::2][:2] == ["ann", "stopped"]
    assert "no: stopped" in shell.run("show", "ann", "--key", name)


def test_a_stop_of_nobody_says_so_and_names_who_may_be_meant(shell: Shell) -> None:
    shell.run("minting", "on")
    second = str(
        shell.json("reserve", "carol", KEY, "-x", "+1h", "--cap", "10")["data"]["expires_at_ms"]
    )
    shell.run("confirm", "carol", KEY, "-x", second)
    for verb in ("stop", "bump"):
        said = shell.run(verb, "Carol")
        assert "nobody ever had a cap under this name; the barrier stands" in said
        assert "did you mean carol?" in said
        machine = shell.json(verb, "Carol")
        assert (machine["status"], machine["data"]["known"]) == ("ok", False)
    assert shell.json("stop", "Carol")["data"]["generation"] == 5
    assert shell.json("authorize", "carol", "--amount", "1", "-x", second)["outcome"] == "allowed"
    stopped = shell.run("stop", "carol")
    assert "ended grant of" in stopped
    again = shell.run("stop", "carol")
    assert "nothing was active" in again
    for said in (stopped, again):
        assert "did you mean" not in said
        assert "nobody" not in said


def test_wrong_usage_is_told_before_anything_is_sent(shell: Shell) -> None:
    for arguments in (
        ("stop", "a_b"),
        ("confirm", "ann", "short", "-x", "+1h"),
        ("reserve", "ann", "-x", "soon", "--cap", "10"),
        ("minting", "perhaps"),
        ("minting", "on", "--permit", "long"),
        ("import", "/does/not/exist"),
    ):
        shell.run(*arguments, code=2)
    refused = shell.json("reserve", "ann", "-x", "+1h", "--cap", "9" * 18, code=2)
    assert (refused["error"]["code"], refused["error"]["field"]) == ("bad-request", "cap")
    mine = shell.json("minting", "on", "--as", "mallory", code=3)
    assert mine["error"]["code"] == "permission-denied"


def test_a_predecessors_folder_is_imported_once(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    second = time.time_ns() // 10**9 * 1000 + HOUR_MS
    records = [legacy(f"old-key-number-{n:04d}", second - 1000 * n, user="ann") for n in range(900)]
    lines = [json.dumps(record) for record in records]
    (folder / "caps.jsonl").write_text("\n".join([*lines, '{"userId":', lines[0]]))
    dry = shell.json("import", str(folder), "--dry-run")
    assert dry == {"read": {"records": 901, "files": 1, "malformed": ["caps.jsonl:901"]}}
    assert "records read        901" in shell.run("import", str(folder), "--dry-run")
    done = shell.json("import", str(folder))
    assert "caps.jsonl:901" in shell.said
    assert done["import"]["imported"] == 900
    assert done["import"]["duplicates"] == 1
    assert done["import"]["chunks"] > 1
    again = shell.json("import", str(folder), code=3)
    assert again["error"]["reason"] == "already-imported"
    shell.json("minting", "on")
    full = shell.json("reserve", "ann", "-x", str(second), "--cap", "10", code=3)
    assert full["error"]["reason"] == "no-free-second"


async def test_a_client_speaks_the_whole_plane(space: Space, worker: RunningWorker) -> None:
    second = (time.time_ns() // 10**9 + 3600) * 1000
    async with space.client("_op-otto") as operator, space.client("delia") as client:
        settings = await operator.cap.minting(True, permit_ms=900)
        assert settings == CapSettings(enabled=True, permit_ms=900)
        reserved = await client.cap.reserve("ann", KEY, latest_expires_at_ms=second + 7, cap=10)
        assert reserved.word == "reserved"
        assert reserved.cap is not None
        assert reserved.cap.expires_at_ms == second
        confirmed = await client.cap.confirm("ann", KEY, grant_expires_at_ms=second)
        assert confirmed.word == "confirmed"
        before = time.monotonic()
        allowed = await client.cap.authorize("ann", amount=10, grant_expires_at_ms=second)
        assert (allowed.allowed, allowed.reason) == (True, "")
        assert before + 0.9 <= allowed.ends_at_s <= time.monotonic() + 0.9
        over = await client.cap.authorize("ann", amount=11, grant_expires_at_ms=second)
        assert (over.allowed, over.reason, over.ends_at_s) == (False, "over-cap", 0.0)
        detail = await client.cap.show("ann", mint_key=KEY)
        assert detail.authority.authorizes
        assert detail.reservation == detail.active == confirmed.cap
        assert (await client.cap.bump("ann")).generation == 1
        with pytest.raises(Refused) as refused:
            await client.cap.confirm("ann", KEY, grant_expires_at_ms=second)
        assert (refused.value.code, refused.value.reason) == (Code.CANCELLED, "stopped")
        assert (await client.cap.revoke("ann", expires_at_ms=second)).word == "revoked"
        nothing = await client.cap.revoke("ann", expires_at_ms=second)
        assert (nothing.word, nothing.cap) == ("nothing-to-revoke", None)
        stopped = await client.cap.stop("ann")
        assert stopped.generation == 2
        assert stopped.expires_at_ms is None
        view = await operator.cap.take_in("one", 1, 1, [legacy("old-key-number-01", second)])
        assert (view.imported, view.done_at_ms is None) == (1, False)
        with pytest.raises(BadInput):
            await client.cap.authorize("ann", amount=0, grant_expires_at_ms=second)


async def test_an_authorization_that_nobody_answers_is_a_no(space: Space) -> None:
    async with space.client("delia", timeout_ms=300) as client:
        answer = await client.cap.authorize("ann", amount=1, grant_expires_at_ms=1_000)
    assert (answer.allowed, answer.reason, answer.result) == (False, UNANSWERED, None)


async def test_a_permit_counts_from_before_its_command_left(
    space: Space, worker: RunningWorker
) -> None:
    second = (time.time_ns() // 10**9 + 3600) * 1000
    async with space.client("_op-otto") as operator, space.client("delia") as client:
        await operator.cap.minting(True)
        await client.cap.reserve("ann", KEY, latest_expires_at_ms=second, cap=10)
        await client.cap.confirm("ann", KEY, grant_expires_at_ms=second)
        instants = itertools.chain([100.0], itertools.repeat(102.0))
        slow = Caps(client, monotonic=lambda: next(instants))
        answer = await slow.authorize("ann", amount=1, grant_expires_at_ms=second)
        assert (answer.allowed, answer.reason) == (False, PERMIT_LAPSED)
        assert not answer
        instants = itertools.chain([100.0], itertools.repeat(101.999))
        answer = await slow.authorize("ann", amount=1, grant_expires_at_ms=second)
        assert (answer.allowed, answer.ends_at_s) == (True, 102.0)
        assert answer
        instants = itertools.chain(itertools.repeat(102.0))
        assert not answer


async def test_the_easiest_question_spends_only_if_it_may(
    space: Space, worker: RunningWorker
) -> None:
    second = (time.time_ns() // 10**9 + 3600) * 1000
    async with space.client("_op-otto") as operator, space.client("delia") as client:
        await operator.cap.minting(True)
        await client.cap.reserve("ann", KEY, latest_expires_at_ms=second, cap=10)
        await client.cap.confirm("ann", KEY, grant_expires_at_ms=second)
        spent = []
        for amount in (10, 11):
            if await client.cap.authorize("ann", amount=amount, grant_expires_at_ms=second):
                spent.append(amount)
        await client.cap.stop("ann")
        if await client.cap.authorize("ann", amount=1, grant_expires_at_ms=second):
            spent.append(1)
        assert spent == [10]
        assert not await client.adm.admit(), "no seat is no seat"


async def test_stops_and_authorizations_at_once_agree_with_their_order(
    space: Space, worker: RunningWorker
) -> None:
    """Whatever the interleaving: after a Stop's sequence nothing is allowed."""
    second = (time.time_ns() // 10**9 + 3600) * 1000
    async with space.client("_op-otto") as operator, space.client("delia") as client:
        await operator.cap.minting(True)
        for round_ in range(10):
            user = f"user-{round_}"
            await client.cap.reserve(user, KEY, latest_expires_at_ms=second, cap=10)
            await client.cap.confirm(user, KEY, grant_expires_at_ms=second)
            body = {"amount": 1, "grant_expires_at_ms": second}
            sends = [client.send("cap", "authorize", (user,), body) for _ in range(20)]
            sends.insert(10, operator.send("cap", "stop", (user,), {}))
            results = await asyncio.gather(*sends)
            stopped_at = sequence(results[10].id)
            allowed = {sequence(one.id) for one in results if one.outcome == "allowed"}
            refused = {sequence(one.id) for one in results if one.outcome == "stopped"}
            refused.discard(stopped_at)
            assert len(allowed) + len(refused) == 20
            assert all(seq < stopped_at for seq in allowed)
            assert all(seq > stopped_at for seq in refused)


def sequence(result_id: str) -> int:
    return int(result_id.partition("-")[2])
