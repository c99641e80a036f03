"""``tidegate top``: what is shown is what is so, on any terminal and with any credential."""

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from schemas.records import PromptRecord
from schemas.roles import Role
from tests.support.cp import until
from tests.support.process import WorkerProcess, command, data_of, environment
from tests.support.production import NAMES, Production
from tests.support.running import RunningWorker, running
from tests.support.space import Space, speaker
from worker import identity
from worker.client import Client
from worker.top import judging, plain, screen
from worker.top.gathering import Gatherer
from worker.top.look import Look

KEY = "key-number-000001"
MINUTE_MS = 60_000
SIZES = [(80, 24), (80, 50), (100, 30), (160, 45), (220, 60), (40, 10)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def speaking(space: Space, principal: str) -> AsyncIterator[Client]:
    async with space.client(speaker(principal)) as one:
        yield one


async def fill(space: Space) -> None:
    """Something of everything: runs that wait, seats, a queue, a debt, caps, a Stop."""
    async with (
        speaking(space, "maria") as maria,
        speaking(space, "_op") as op,
        speaking(space, "conn") as conn,
    ):
        prompt = PromptRecord.from_object({"v": 1, "title": "Deploy build 42?\x1b[31m"})
        start = now_ms()
        await maria.cp.mint("runs.nightly", "one", deadline_at_ms=start + 50_000, prompt=prompt)
        await maria.cp.mint("runs.nightly", "two", deadline_at_ms=start + 90 * MINUTE_MS)
        await op.adm.claim_policy(1, max_active_turns=2)
        for number in range(5):
            agent = f"agent-{number % 2}"
            await conn.adm.enqueue(
                f"r{number}", session_id="s", agent_id=agent, fingerprint=f"f{number}",
                provider="acme", model="m1",
            )  # fmt: skip
        lease = (await op.adm.leases()).leases[0]
        fence = {"lease_id": lease.lease_id, "generation": lease.generation}
        await conn.send("adm", "start", (lease.request_id,), fence)
        await conn.send("adm", "recover", (lease.request_id,), fence)
        await op.send("cap", "minting", (), {"enabled": True})
        for user in ("ann", "bob"):
            body = {"latest_expires_at_ms": start + 60 * MINUTE_MS, "cap": 50}
            reserved = await conn.send("cap", "reserve", (user, KEY), body)
            second = {"grant_expires_at_ms": reserved.data["expires_at_ms"]}
            await conn.send("cap", "confirm", (user, KEY), second)
        await conn.send("cap", "stop", ("bob",), {})


async def look_as(space: Space, principal: str, **options: Any) -> Look:
    async with speaking(space, principal) as client:
        return await Gatherer(client, now_ms, rows=options.get("rows", 100)).look()


@pytest.fixture
async def filled(space: Space, worker: RunningWorker) -> Space:
    await fill(space)
    return space


async def test_an_operator_sees_everything(filled: Space) -> None:
    look = await look_as(filled, "_op")
    assert look.unseen == {}
    assert look.status is not None
    assert [(one.view.token, one.title) for one in look.waiting] == [
        ("one", "Deploy build 42?\x1b[31m"),
        ("two", ""),
    ]
    assert look.policy is not None
    assert (look.policy.seats, look.policy.queued) == (2, 3)
    assert sorted(seat.state for seat in look.seats) == ["admitted", "recovery_required"]
    assert look.queue is not None
    assert {block for turn in look.queue.turns for block in turn.blocks} == {"seats"}
    assert [one.cap.user for one in look.active_caps or ()] == ["ann"]
    assert [(one.cap.user, one.stopped) for one in look.ended_caps] == [("bob", True)]
    told = judging.warnings(look, look.at_ms)
    assert [sentence for sentence in told if "debt" in sentence], told
    shown = look.to_object()
    assert json.loads(json.dumps(shown)) == shown


async def test_who_may_not_read_a_prompt_sees_no_title(filled: Space) -> None:
    look = await look_as(filled, "curious")
    assert [one.title for one in look.waiting] == ["", ""]


async def test_pages_say_that_there_is_more(filled: Space) -> None:
    look = await look_as(filled, "_op", rows=1)
    assert len(look.waiting) == 1
    assert look.more_waiting
    assert "1+ waiting" in "\n".join(plain.lines(look, look.at_ms))


async def test_rates_come_from_two_looks(filled: Space) -> None:
    async with speaking(filled, "_op") as op:
        gatherer = Gatherer(op, now_ms, rows=10)
        first = await gatherer.look()
        assert first.rates.folded is None
        for number in range(5):
            await op.send("adm", "cancel", (f"none-{number}",), {})
        await op.cp.repair("runs.nightly", "one")

        async def rated() -> bool:
            rates = (await gatherer.look()).rates
            known = (rates.folded, rates.published, rates.checkpoint_commands)
            seen.append(known)
            return all(any(look[n] for look in seen) for n in range(3))

        seen: list[tuple[float | None, ...]] = []
        await until(rated)
    assert all(rate is not None and rate >= 0 for look in seen for rate in look)


async def test_an_overdue_deadline_and_a_worker_that_is_gone_are_warned_of(space: Space) -> None:
    async with running(space.settings()):
        async with speaking(space, "maria") as maria:
            await maria.cp.mint("runs", "one", deadline_at_ms=now_ms() + 30 * MINUTE_MS)
        look = await look_as(space, "_op")
        assert judging.warnings(look, look.at_ms) == []
        later = judging.warnings(look, look.at_ms + 31 * MINUTE_MS)
        assert later[0].startswith("a deadline has passed without an expiry")
    gone = await look_as(space, "_op")
    assert gone.status is None
    assert judging.warnings(gone, now_ms())
    assert "no run waits" not in "\n".join(plain.lines(gone, now_ms()))


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_the_screen_fits_and_obeys_nobody(filled: Space, width: int, height: int) -> None:
    look = await look_as(filled, "_op")
    lines = drawn(look, width, height)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "\x1b" not in text
    if height >= 24:
        assert len(lines) <= height
        for name in ("CHECKPOINTS", "SEATS", "CAPS", "ENDED CAPS"):
            assert name in text
        for word in ("runs.nightly", "acme", "agent-0", "seats", "ann", "stopped", "Deploy"):
            assert word in text, text
        assert re.search(r"\b4[0-9]s\b|\b50s\b", text), text


@pytest.mark.parametrize("width", [80, 160])
async def test_long_names_leave_room_for_countdown_holder_and_title(
    space: Space, width: int
) -> None:
    prompt = PromptRecord.from_object({"v": 1, "title": "日Deploy it?"})
    async with running(space.settings()):
        async with speaking(space, "maria") as maria:
            deadline = now_ms() + 90 * MINUTE_MS
            await maria.cp.mint(
                "runs." + "e" * 40, "t" * 60, deadline_at_ms=deadline, prompt=prompt
            )
        look = await look_as(space, "_op")
    lines = drawn(look, width, 24)
    head, row = (line.split() for line in lines[4:6])
    assert head[:5] == ["DUE", "ENDPOINT", "TOKEN", "HOLDER", "TITLE"]
    assert row[0] in ("1h29m", "1h30m")
    assert row[1].startswith("runs.eeee")
    assert row[2].startswith("tttt")
    assert row[3] == "maria"
    assert " ".join(row[4:6]).endswith("Deploy it?")


async def test_many_rows_share_what_room_there_is(space: Space) -> None:
    async with running(space.settings()):
        async with speaking(space, "maria") as maria:
            await asyncio.gather(
                *(
                    maria.cp.mint("runs", f"t{n:03d}", deadline_at_ms=now_ms() + MINUTE_MS * 60)
                    for n in range(120)
                )
            )
        look = await look_as(space, "_op")
        lines = drawn(look, 100, 40)
    assert len(lines) <= 40
    assert any("+ more" in line for line in lines)
    assert len([line for line in lines if " t0" in line]) > 15


def drawn(look: Look, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(screen.draw(look, look.at_ms, width, height))
    return captured.get().rstrip("\n").split("\n")


# With the credentials of a production broker.


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    one = Production(tmp_path_factory.mktemp("top") / "broker")
    yield one
    one.stop()


@pytest.mark.parametrize(
    ("role", "unseen"),
    [
        (Role.OPERATOR, set()),
        (Role.OBSERVER, set()),
        (Role.HOLDER, {"policy", "queue", "seats", "caps", "ended caps"}),
        (Role.CONNECTOR, {"checkpoints", "seats", "caps", "ended caps"}),
    ],
)
async def test_each_role_sees_what_is_its_to_see(
    production: Production, role: Role, unseen: set[str]
) -> None:
    async with production.client(role, identity.new_uid()) as client:
        gatherer = Gatherer(client, now_ms, rows=10)
        look = await gatherer.look()
        assert set(look.unseen) == unseen
        assert look.status is not None
        again = await gatherer.look()
        assert set(again.unseen) == unseen


def test_the_command_finds_out_as_whom_it_may_ask(production: Production) -> None:
    from tests.support.production import GRANTS, PASSWORDS

    for role in (Role.OPERATOR, Role.OBSERVER):
        grant = GRANTS[role]
        env = environment(
            nats_url=production.url,
            nats_user=grant.name,
            nats_password=PASSWORDS[grant.variable],
            spaces=NAMES.space,
        )
        done = command(["top", "--json"], env)
        assert done.returncode == 0, done.stderr
        assert data_of(done.stdout)["unseen"] == {}


# The command in a shell and on a terminal.


def shell(space: Space, data_dir: Path) -> dict[str, str]:
    return environment(nats_url=space.server.url, spaces=space.names.space, data_dir=data_dir)


async def test_once_prints_it_plainly_and_says_if_nobody_is_there(
    space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    env = shell(space, tmp_path / "user")
    worker = process_worker()
    await asyncio.to_thread(worker.wait_ready)
    await fill(space)
    done = await asyncio.to_thread(command, ["top", "--once"], env)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith(f"{space.names.space}: ready")
    assert "fold" in second
    assert "Deploy build 42?" in done.stdout
    assert not (tmp_path / "user").exists(), "looking leaves no identity behind"
    worker.kill()
    nobody = await asyncio.to_thread(command, ["top", "--once"], env)
    assert nobody.returncode == 1
    assert "no answer" in nobody.stdout
    assert nobody.stdout.count("nobody takes this") == 1
    assert nobody.stdout.count("not seen") == 5


class Terminal:
    """A real terminal with ``tidegate top`` in it."""

    def __init__(self, env: dict[str, str], width: int, height: int) -> None:
        self.descriptor, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._inner = inner
        self.before = termios.tcgetattr(inner)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "worker.cli.main", "top", "--interval", "200ms"],
            env={**env, "TERM": "xterm-256color"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        self.seen = b""

    def until(self, wanted: bytes, limit_s: float = 20) -> None:
        end = time.monotonic() + limit_s
        while wanted not in self.seen:
            assert time.monotonic() < end, self.seen[-3000:]
            self._read()

    def press(self, key: bytes) -> None:
        os.write(self.descriptor, key)

    def end(self) -> int:
        """Wait for its end; its exit code. The terminal must be as it was."""
        end = time.monotonic() + 20
        while self._process.poll() is None:
            assert time.monotonic() < end, self.seen[-3000:]
            self._read()
        self._read()
        assert termios.tcgetattr(self._inner) == self.before
        for descriptor in (self.descriptor, self._inner):
            os.close(descriptor)
        return self._process.returncode

    def close(self) -> None:
        """Take the terminal away, and wait until what ran in it has noticed."""
        os.close(self.descriptor)
        os.close(self._inner)
        try:
            self._process.wait(10)
        finally:
            self._process.kill()

    def _read(self) -> None:
        ready, _, _ = select.select([self.descriptor], [], [], 0.1)
        if ready:
            self.seen += os.read(self.descriptor, 65_536)


@pytest.mark.parametrize("size", [(80, 24), (160, 40)])
async def test_on_a_terminal_it_lives_until_q_and_leaves_no_trace(
    filled: Space, tmp_path: Path, size: tuple[int, int]
) -> None:
    def use() -> Terminal:
        terminal = Terminal(shell(filled, tmp_path / "user"), *size)
        terminal.until(b"Deploy build 42?")
        for word in (b"\x1b[?1049h", b"CHECKPOINTS", b"acme", b"stopped"):
            terminal.until(word)
        terminal.press(b"x")
        terminal.until(b"q quit")
        terminal.press(b"\tt")
        for word in (b"TURNS", b"r0", b"freed by"):
            terminal.until(word)
        terminal.press(b"q")
        assert terminal.end() == 0
        return terminal

    seen = (await asyncio.to_thread(use)).seen
    assert b"\x1b[?1049l" in seen, "the screen before it comes back"
    assert b"Traceback" not in seen


async def test_what_was_typed_before_the_screen_is_there_counts(
    filled: Space, tmp_path: Path
) -> None:
    def use() -> int:
        terminal = Terminal(shell(filled, tmp_path / "user"), 80, 24)
        terminal.press(b"q")
        return terminal.end()

    assert await asyncio.to_thread(use) == 0


async def test_it_ends_with_its_terminal(filled: Space, tmp_path: Path) -> None:
    def use() -> None:
        terminal = Terminal(shell(filled, tmp_path / "user"), 80, 24)
        terminal.until(b"CHECKPOINTS")
        terminal.close()

    await asyncio.to_thread(use)
