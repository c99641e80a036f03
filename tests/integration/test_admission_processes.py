"""Connectors as real processes against few seats: killed, replaced, and nobody starves."""

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.admission import SEATED, EventView
from tests.support.connector_process import AGENTS, HOST
from tests.support.running import RunningWorker, running
from tests.support.space import Space
from worker.bench import folds
from worker.bus.jetstream import JetStream
from worker.client import Client
from worker.client.errors import Refused
from worker.connector import Connector
from worker.ledger import digest, store
from worker.planes import PLANES
from worker.spaces import LEDGER_FILE, space_dir

SEATS = 3
CONNECTORS = 8
WORST_WAIT_MS = 20_000
LIMIT_S = 30.0


@dataclass
class Slot:
    """One connector after another in one place.

    Attributes:
        number: Which place.
        process: The one that lives.
        said: Everything that all of them said.
        taken: Number of the turn taken up last.
    """

    number: int
    process: asyncio.subprocess.Process | None = None
    said: list[dict[str, Any]] = field(default_factory=list)
    taken: int = 0
    reading: asyncio.Task[None] | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)


class Crowd:
    """Eight places, each with a connector process; killed ones are replaced.

    Args:
        space: Where.
        folder: Where the fake provider's file lies.
        seed: Of all chance.
    """

    def __init__(self, space: Space, folder: Path, seed: int) -> None:
        self.space = space
        self.provider = folder / "provider"
        self.seed = seed
        self.slots = [Slot(number) for number in range(CONNECTORS)]
        self.killed = 0

    async def start(self, slot: Slot) -> None:
        slot.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.connector_process"),
            *(self.space.server.url, self.space.names.space),
            *(str(slot.number), str(slot.taken), str(self.seed), str(self.provider)),
            stdout=asyncio.subprocess.PIPE,
        )
        slot.up.clear()
        slot.reading = asyncio.create_task(self.read(slot, slot.process))
        async with asyncio.timeout(LIMIT_S):
            await slot.up.wait()

    async def read(self, slot: Slot, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            what = json.loads(line)
            slot.said.append(what)
            slot.taken = what.get("taken", slot.taken)
            slot.up.set()

    async def kill_one(self, rng: random.Random) -> None:
        slot = rng.choice(self.slots)
        assert slot.process is not None
        slot.process.kill()
        await slot.process.wait()
        self.killed += 1
        await self.start(slot)

    async def stop(self) -> None:
        for slot in self.slots:
            if slot.process is not None and slot.process.returncode is None:
                slot.process.terminate()
        for slot in self.slots:
            if slot.process is not None:
                async with asyncio.timeout(LIMIT_S):
                    assert await slot.process.wait() == 0, slot.said[-3:]

    async def clear_away(self) -> None:
        for slot in self.slots:
            if slot.process is not None and slot.process.returncode is None:
                slot.process.kill()
                await slot.process.wait()
            if slot.reading is not None:
                await slot.reading

    def said(self, word: str) -> list[Any]:
        return [what[word] for slot in self.slots for what in slot.said if word in what]


@dataclass
class Scene:
    """A worker that sees the connectors' host, and an operator."""

    space: Space
    worker: RunningWorker
    operator: Client
    stack: AsyncExitStack

    async def settle_debts(self) -> None:
        """As an operator would who has looked."""
        for seat in (await self.operator.adm.leases(limit=1000)).leases:
            if seat.state in ("dispatch_ambiguous", "recovery_required"):
                # Evidence may be faster: then the turn is no debt any more.
                with contextlib.suppress(Refused):
                    await self.operator.adm.resolve(
                        seat.request_id, "acknowledged_unknown", "nobody knows"
                    )

    async def journal(self) -> list[EventView]:
        found: list[EventView] = []
        while True:
            page = await self.operator.adm.events(
                after=found[-1].sequence if found else 0, limit=1000
            )
            found += page.events
            if page.next_after is None:
                return found


@pytest.fixture
async def scene(space: Space) -> AsyncIterator[Scene]:
    settings = space.settings(host=HOST, reaper_interval_ms=500)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(running(settings))
        operator = await stack.enter_async_context(space.client("_op"))
        await operator.adm.claim_policy(
            1, max_active_turns=SEATS, max_concurrent_starts=SEATS, start_timeout_ms=5_000
        )
        yield Scene(space, worker, operator, stack)


async def work(scene: Scene, folder: Path, *, seconds: float, kill_every_s: float) -> Crowd:
    """Let the crowd work, kill some and replace them, then let all end their turns."""
    rng = random.Random(7)
    crowd = Crowd(scene.space, folder, seed=rng.randrange(10**6))
    scene.stack.push_async_callback(crowd.clear_away)
    await asyncio.gather(*(crowd.start(slot) for slot in crowd.slots))
    loop = asyncio.get_running_loop()
    ends, next_kill = loop.time() + seconds, loop.time() + kill_every_s
    while loop.time() < ends:
        await asyncio.sleep(0.2)
        await scene.settle_debts()
        if loop.time() >= next_kill:
            await crowd.kill_one(rng)
            next_kill += kill_every_s
    # A seat in debt is found to be so after its owner's death, and until then waited for.
    stopping = asyncio.create_task(crowd.stop())
    while not (await asyncio.wait({stopping}, timeout=0.2))[0]:
        await scene.settle_debts()
    await stopping
    return crowd


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


def most_seats(events: list[EventView]) -> int:
    """The most seats that were ever held at once, by the journal."""
    held: set[str] = set()
    most = 0
    for event in events:
        assert event.request is not None or event.kind.startswith("policy_")
        if event.request is None:
            continue
        if event.kind == "request_recovery_seat_released" or event.to not in SEATED:
            held.discard(event.request)
        else:
            held.add(event.request)
        most = max(most, len(held))
    return most


async def check(scene: Scene, crowd: Crowd) -> None:
    async def nothing_held() -> bool:
        await scene.settle_debts()
        return not (await scene.operator.adm.leases()).leases

    await until(nothing_held)
    assert not crowd.said("trouble")
    waited = crowd.said("waited_ms")
    print(f"{len(waited)} seats, {crowd.killed} killed, worst wait {max(waited)} ms")
    assert max(waited) < WORST_WAIT_MS

    dispatched = Counter(line.split()[0] for line in crowd.provider.read_text().splitlines())
    assert dispatched
    assert max(dispatched.values()) == 1, dispatched.most_common(3)

    events = await scene.journal()
    assert most_seats(events) == SEATS
    ends = {event.request: event.to for event in events if event.request is not None}
    left = {state for state in ends.values() if state in SEATED | {"queued"}}
    assert left <= {"recovery_required", "queued"}
    # What the last killed ones had queued may still wait for adoption.
    assert sum(state == "queued" for state in ends.values()) <= CONNECTORS
    await same_digest_when_replayed(scene)


async def same_digest_when_replayed(scene: Scene) -> None:
    space = scene.space
    conn = await space.connect()
    try:
        log = await folds.read_log(JetStream(conn), space.names)
    finally:
        await conn.close()
    assert await scene.worker.stop() == 0
    live = digest_of(space_dir(space.data_dir, space.names.space) / LEDGER_FILE, space)
    path = space.data_dir / "replayed" / LEDGER_FILE
    await folds.fold(path, space.names, log[: live.watermark])
    assert digest_of(path, space) == live


def digest_of(path: Path, space: Space) -> digest.Digest:
    db = store.open_ledger(path, space.names, PLANES)
    try:
        return digest.compute(db, PLANES)
    finally:
        db.close()


@pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")
async def test_processes_share_few_seats_and_the_killed_are_replaced(
    scene: Scene, tmp_path: Path
) -> None:
    crowd = await work(scene, tmp_path, seconds=8, kill_every_s=2.5)
    assert crowd.killed >= 2
    await check(scene, crowd)


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")
async def test_processes_share_few_seats_for_a_minute(scene: Scene, tmp_path: Path) -> None:
    crowd = await work(scene, tmp_path, seconds=60, kill_every_s=2)
    assert crowd.killed >= 20
    await check(scene, crowd)


async def test_a_flood_costs_another_agent_one_turns_length(scene: Scene) -> None:
    flood = Connector(await scene.stack.enter_async_context(scene.space.client("flood")), host=HOST)
    other = Connector(await scene.stack.enter_async_context(scene.space.client("other")), host=HOST)
    length_s, flooded, slack_ms = 0.3, 100, 250

    async def turn(connector: Connector, request: str, agent: str) -> int:
        async with connector.turn(
            request,
            session_id="session",
            agent_id=agent,
            fingerprint="f",
            provider="acme",
            model="m1",
        ) as seat:
            view = await scene.operator.adm.request(request)
            assert view.lease is not None
            await seat.start()
            await asyncio.sleep(length_s)
            await seat.abandon()
            return view.lease.admitted_at_ms - view.enqueued_at_ms

    async with flood, other:
        flooding = [
            asyncio.create_task(turn(flood, f"flood-{n:03d}", "flooder")) for n in range(flooded)
        ]

        async def all_queued() -> bool:
            return (await scene.operator.adm.policy()).queued == flooded - SEATS

        await until(all_queued)
        waits = [await turn(other, f"other-{n}", f"agent-{n % AGENTS}") for n in range(5)]
        assert max(waits) <= length_s * 1000 + slack_ms, waits
        # The flood itself keeps moving meanwhile.
        done = [task for task in flooding if task.done()]
        assert len(done) >= 5
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
