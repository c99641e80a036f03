"""Connectors, children and the worker are killed at random against three seats.

No prompt is dispatched twice or lies anywhere in the clear, seats come back as soon as the rules
allow, and the log folds again to what the worker has.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.admission import SeatView
from tests.support.process import WorkerProcess, command, data_of, space_environment
from tests.support.prompt_connector import HOST, SECRET
from tests.support.space import Space
from tests.support.turns import until
from worker.client import Client
from worker.errors import TidegateError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")

SEATS: Final = 3
CONNECTORS: Final = 5
PERIOD_MS: Final = 500
STUCK_S: Final = 2 * PERIOD_MS / 1_000 + 3.0
"""Two looks of the reaper, and some seconds for a busy machine."""

LIMIT_S: Final = 30.0
KINDS: Final = {"connector": 6, "child": 5, "worker": 2}
"""What is killed, and how often against each other."""

BEFORE_INTENT: Final = ("admitted", "starting")


@dataclass
class Provider:
    """The fake provider: it takes each prompt, and notes its counter.

    Attributes:
        port: Where it listens.
        seen: How often each counter was dispatched.
    """

    port: int = 0
    seen: Counter[str] = field(default_factory=Counter)

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            prompt = json.loads(await reader.readline())
            assert prompt["secret"] == SECRET
            self.seen[prompt["counter"]] += 1
            writer.write(b"ok\n")
            await writer.drain()
        writer.close()


@dataclass
class Slot:
    """One connector after another in one place."""

    number: int
    process: asyncio.subprocess.Process | None = None
    reading: asyncio.Task[None] | None = None
    uid: str = ""
    taken: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)


class Crowd:
    """Everything that runs, and everything that was killed.

    Attributes:
        dead: Uids of connectors that have ended.
        children: The last child of each turn.
        killed: How many of each kind.
        stuck: Since when each seat could be freed and is not, by the monotonic clock.
        worst_s: The longest that a seat was held for longer than needed.
    """

    def __init__(
        self,
        space: Space,
        folder: Path,
        provider: Provider,
        start_worker: Callable[[], WorkerProcess],
        rng: random.Random,
    ) -> None:
        self.space = space
        self.folder = folder
        self.provider = provider
        self.start_worker = start_worker
        self.rng = rng
        self.worker = start_worker()
        self.slots = [Slot(number) for number in range(CONNECTORS)]
        self.dead: set[str] = set()
        self.children: dict[str, int] = {}
        self.taken: set[str] = set()
        self.completed: set[str] = set()
        self.killed: Counter[str] = Counter()
        self.stuck: dict[tuple[str, int], float] = {}
        self.worst_s = 0.0

    async def start(self, slot: Slot) -> None:
        seed = str(self.rng.randrange(10**6))
        slot.up.clear()
        slot.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.prompt_connector"),
            *(self.space.server.url, self.space.names.space, str(slot.number), str(slot.taken)),
            *(seed, str(self.provider.port), str(self.folder / "keys")),
            stdout=asyncio.subprocess.PIPE,
        )
        slot.reading = asyncio.create_task(self._read(slot, slot.process))
        async with asyncio.timeout(LIMIT_S):
            await slot.up.wait()

    async def _read(self, slot: Slot, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        uid = ""
        async for line in process.stdout:
            with contextlib.suppress(ValueError):  # it was killed while it spoke
                what: dict[str, Any] = json.loads(line)
                if "up" in what:
                    slot.uid = uid = what["up"]
                    slot.up.set()
                elif "taken" in what:
                    slot.taken = what["taken"]
                    self.taken.add(what["request"])
                elif "child" in what:
                    self.children[what["of"]] = what["child"]
                elif "completed" in what:
                    self.completed.add(what["completed"])
        await process.wait()
        self.dead.add(uid)

    async def kill_something(self) -> None:
        # Each kind once, then at random.
        first = [kind for kind in KINDS if not self.killed[kind]]
        kind = first[0] if first else self.rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "connector":
            slot = self.rng.choice(self.slots)
            assert slot.process is not None
            assert slot.reading is not None
            slot.process.kill()
            await slot.reading
            await self.start(slot)
        elif kind == "child":
            await until(self.has_children, True, LIMIT_S, "whether a child lives")
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(self.rng.choice(self.living_children()), signal.SIGKILL)
        else:
            await asyncio.to_thread(self.worker.kill)
            self.stuck.clear()
            await asyncio.sleep(self.rng.random())
            self.worker = await asyncio.to_thread(self.start_worker)
        self.killed[kind] += 1

    def living_children(self) -> list[int]:
        return [pid for pid in self.children.values() if is_child(pid)]

    async def has_children(self) -> bool:
        return bool(self.living_children())

    async def look(self, operator: Client) -> bool:
        """Compare the held seats with who still lives; ``False`` if there is nobody to ask."""
        if await asyncio.to_thread(self.worker.readiness) != []:
            self.stuck.clear()
            return False
        try:
            seats = (await operator.adm.leases(limit=1000)).leases
        except TidegateError:
            self.stuck.clear()
            return False
        assert len(seats) <= SEATS
        now = time.monotonic()
        free = {(seat.request_id, seat.generation) for seat in seats if self.must_end(seat)}
        self.stuck = {key: self.stuck.get(key, now) for key in free}
        for key, since in self.stuck.items():
            self.worst_s = max(self.worst_s, now - since)
            assert now - since < STUCK_S, f"{key} holds its seat although nobody is left"
        return not seats

    def must_end(self, seat: SeatView) -> bool:
        """Whether nobody is left who could still work on a turn."""
        if seat.owner.uid not in self.dead:
            return False
        child = self.children.get(seat.request_id)
        return seat.state in BEFORE_INTENT or child is None or not is_child(child)

    async def stop(self) -> None:
        """Let all connectors end their turns."""
        for slot in self.slots:
            assert slot.process is not None
            slot.process.terminate()
        for slot in self.slots:
            assert slot.process is not None
            assert slot.reading is not None
            async with asyncio.timeout(LIMIT_S):
                await slot.reading
            assert slot.process.returncode == 0

    async def clear_away(self) -> None:
        for slot in self.slots:
            if slot.process is not None and slot.process.returncode is None:
                slot.process.kill()
            if slot.reading is not None:
                await slot.reading
        for pid in self.living_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_child(pid: int) -> bool:
    """Whether a process lives, and is one that talks to the provider."""
    try:
        return b"makefile" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
async def scene(
    space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> AsyncIterator[tuple[Space, Client, Callable[[], WorkerProcess]]]:
    def start() -> WorkerProcess:
        return process_worker(host=HOST, reaper_interval_ms=PERIOD_MS)

    first = await asyncio.to_thread(lambda: start().wait_ready())
    async with space.client("_op") as operator:
        await operator.adm.claim_policy(
            1, max_active_turns=SEATS, max_concurrent_starts=SEATS, start_timeout_ms=10_000
        )
        begun = [first]
        yield space, operator, lambda: begun.pop() if begun else start()


Scene = tuple[Space, Client, Callable[[], WorkerProcess]]


async def kill_at_random(scene: Scene, folder: Path, *, seconds: float, seed: int) -> Counter[str]:
    space, operator, start_worker = scene
    rng, provider = random.Random(seed), Provider()
    async with AsyncExitStack() as stack:
        server = await provider.listen()
        stack.callback(server.close)
        crowd = Crowd(space, folder, provider, start_worker, rng)
        stack.push_async_callback(crowd.clear_away)
        await asyncio.gather(*(crowd.start(slot) for slot in crowd.slots))

        async def kill() -> None:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                await asyncio.sleep(0.1 + 0.8 * rng.random())
                await crowd.kill_something()

        killing = asyncio.create_task(kill())
        try:
            while not killing.done():
                await crowd.look(operator)
                await asyncio.sleep(0.1)
            await killing
        finally:
            killing.cancel()
        await asyncio.to_thread(crowd.worker.wait_ready)
        await crowd.stop()
        await until(lambda: crowd.look(operator), True, LIMIT_S, "whether no seat is held")
        print(
            f"{len(provider.seen)} dispatched, {len(crowd.completed)} completed, "
            f"killed {dict(crowd.killed)}, a seat idle for at most {crowd.worst_s:.1f} s"
        )
        await check(crowd, operator)
        return crowd.killed


async def check(crowd: Crowd, operator: Client) -> None:
    seen = crowd.provider.seen
    assert seen
    assert max(seen.values()) == 1, seen.most_common(3)
    assert crowd.completed <= seen.keys()
    assert seen.keys() <= crowd.taken
    states = Counter([(await operator.adm.request(request)).state for request in seen])
    print(dict(states))
    assert states.keys() <= {"completed", "failed", "cancelled", "recovery_required"}
    env, folder = space_environment(crowd.space), crowd.folder
    for arguments in (
        ("verify", "--json"),
        ("snapshot",),
        ("replay", "--from-snapshot", "--into", str(folder / "snapshot.db")),
    ):
        done = await asyncio.to_thread(command, ["ledger", *arguments], env, timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert arguments[0] != "verify" or data_of(done.stdout)["equal"] is True
    places = [crowd.space.server.directory, crowd.space.data_dir, *folder.glob("worker-*.log")]
    some = next(iter(seen)).encode()
    for place in (*places[:2], folder / "snapshot.db"):
        assert holding([place], some), f"the search finds what lies in {place}"
    assert holding([*places, folder / "snapshot.db"], SECRET.encode()) == []


def holding(places: list[Path], needle: bytes) -> list[Path]:
    """Files in some places that hold some bytes."""
    files = [path for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return [path for path in files if needle in path.read_bytes()]


async def test_killed_at_random_nothing_is_dispatched_twice(scene: Scene, tmp_path: Path) -> None:
    killed = await kill_at_random(scene, tmp_path, seconds=18, seed=5)
    assert min(killed["connector"], killed["child"], killed["worker"]) >= 1, killed


@pytest.mark.long
@pytest.mark.timeout(2_400)
async def test_thirty_minutes_of_kills(scene: Scene, tmp_path: Path) -> None:
    killed = await kill_at_random(scene, tmp_path, seconds=1_800, seed=2_026)
    assert killed.total() > 500
