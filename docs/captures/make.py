"""Makes the pictures of this folder: real commands on a real terminal, without a screen.

    python docs/captures/make.py

It starts a worker with a broker of its own in a temporary folder, gives it something to show, runs
``tidegate top`` and ``tidegate demo`` in pseudo-terminals and writes what they drew as SVG.
"""

import asyncio
import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from schemas.commands.sys import ProcessIdentity
from schemas.records import PromptRecord
from schemas.subjects import Speaker
from worker import broker, identity
from worker.client import Client
from worker.settings import Settings

HERE = Path(__file__).parent
TIDEGATE = [sys.executable, "-m", "worker.cli.main"]
HOME = b"\x1b[H"
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

RUNS = (
    ("runs.nightly", "build-42", 45 * SECOND, "Deploy build 42 to production?"),
    ("support.mail", "case-1187", 4 * MINUTE, "Send this answer to the customer?"),
    ("runs.cleanup", "sweep-7", 11 * MINUTE, "Delete 1,204 stale branches?"),
    ("legal.review", "acme-2030", 3 * HOUR, "Sign the renewal with Acme for three more years?"),
    ("research.agent", "trip-3", 26 * HOUR, "Book the flight for 840?"),
)


async def fill(settings: Settings) -> None:
    """Runs that wait, seats and a queue, a debt, caps, a Stop."""
    now_ms = time.time_ns() // 1_000_000

    def client(principal: str) -> Client:
        who = Speaker(principal, identity.new_uid())
        return Client(broker.client_options(settings), who)

    async with (
        client("maria") as maria,
        client("_op") as op,
        client("conn") as conn,
        client("desk") as desk,
    ):
        for endpoint, token, in_ms, title in RUNS:
            prompt = PromptRecord.from_object({"v": 1, "title": title})
            await maria.cp.mint(endpoint, token, deadline_at_ms=now_ms + in_ms, prompt=prompt)
        await op.adm.claim_policy(1, max_active_turns=4)
        for number in range(9):
            provider, model = ("openai", "small") if number % 4 == 3 else ("anthropic", "large")
            await conn.adm.enqueue(
                f"turn-{number}",
                session_id=f"session-{number}",
                agent_id=("planner", "writer", "critic")[number % 3],
                fingerprint=f"print-{number}",
                provider=provider,
                model=model,
            )
        await run_turns(op, conn)
        rest = {"provider": "openai", "model": "small", "not_before_ms": now_ms + 2 * MINUTE}
        await op.send("adm", "cooldown", (), rest)
        await op.send("cap", "minting", (), {"enabled": True})
        for number, person in enumerate(("anna", "bela", "carla")):
            await give_cap(desk, person, 50 * (number + 1), now_ms + (number + 1) * HOUR)
        await desk.cap.stop("bela")


async def run_turns(op: Client, conn: Client) -> None:
    """Dispatch two turns, and lose track of one of them."""
    process = ProcessIdentity.from_object(
        {
            "host": "host-1", "boot_id": "boot-1", "pid": 10, "start_ticks": 10, "pid_ns": 1,
            "ppid": 1, "pgrp": 10, "session": 10,
        }
    )  # fmt: skip
    for number, lease in enumerate((await op.adm.leases()).leases[:2]):
        key = (lease.request_id,)
        fence = {"lease_id": lease.lease_id, "generation": lease.generation}
        await conn.send("adm", "start", key, fence)
        intent = {"channel": "http", "identity": {"connector": process.to_object()}}
        await conn.send("adm", "intent", key, {**fence, **intent})
        await conn.send("adm", "active", key, fence)
        if number == 0:
            await conn.send("adm", "recover", key, fence)


async def give_cap(desk: Client, person: str, cap: int, expires_ms: int) -> None:
    """Reserve and confirm."""
    key = (person, f"key-of-{person}-000001")
    body = {"latest_expires_at_ms": expires_ms, "cap": cap}
    reserved = await desk.send("cap", "reserve", key, body)
    second = {"grant_expires_at_ms": reserved.data["expires_at_ms"]}
    await desk.send("cap", "confirm", key, second)


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, arguments: list[str], env: dict[str, str], width: int, height: int) -> None:
        self._outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [*TIDEGATE, *arguments],
            env={**env, "TERM": "xterm-256color", "COLUMNS": str(width), "LINES": str(height)},
            stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
        )  # fmt: skip
        os.close(inner)

    def read(self, for_s: float) -> bytes:
        """What it says in so many seconds, or until it ends."""
        said, end = b"", time.monotonic() + for_s
        while time.monotonic() < end:
            if select.select([self._outer], [], [], 0.1)[0]:
                try:
                    said += os.read(self._outer, 65_536)
                except OSError:
                    break
        return said

    def quit(self) -> None:
        """Press q and wait."""
        os.write(self._outer, b"q")
        self.read(10)
        self._process.wait(10)


def last_frame(said: bytes) -> str:
    """The last whole screen: what stands between the last two times the cursor went home."""
    return said.split(HOME)[-2].decode()


def save(text: str, width: int, title: str, path: Path) -> None:
    """Write coloured terminal text as a picture."""
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    lines = [line.rstrip("\r") for line in text.rstrip().split("\n")]
    console.print(Text.from_ansi("\n".join(lines)), no_wrap=False)
    path.write_text(console.export_svg(title=title), encoding="utf-8")


def wait_ready(env: dict[str, str]) -> None:
    """Wait until the worker says that it is ready."""
    for _ in range(100):
        done = subprocess.run(  # noqa: S603 - our own command
            [*TIDEGATE, "status", "--json"], env=env, capture_output=True, check=False
        )
        if done.returncode == 0 and json.loads(done.stdout)["data"]["ready"]:
            return
        time.sleep(0.2)
    raise SystemExit("the worker did not get ready")


def main() -> None:
    """Make every picture."""
    kept: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
    with tempfile.TemporaryDirectory() as folder:
        env = {**kept, "TIDEGATE_DATA_DIR": f"{folder}/data"}
        worker = subprocess.Popen(  # noqa: S603 - our own command
            [*TIDEGATE, "run"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_ready(env)
            asyncio.run(fill(Settings(data_dir=Path(folder) / "data")))
            for width, height in ((80, 38), (160, 24)):
                top = Terminal(["top", "--interval", "1s"], env, width, height)
                frame = last_frame(top.read(6))
                top.quit()
                save(frame, width, "tidegate top", HERE / f"top-{width}.svg")
        finally:
            worker.terminate()
            worker.wait(15)
        demo = Terminal(["demo"], kept, 100, 50)
        save(demo.read(60).decode(), 100, "tidegate demo", HERE / "demo.svg")


if __name__ == "__main__":
    main()
