"""Silence over a real broker: who is silent is suspected, and a deaf worker suspects nobody."""

import asyncio
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas import subjects
from schemas.commands.sys import Liveness
from schemas.names import Names
from schemas.subjects import Speaker
from tests.support.beater import beating
from tests.support.proctable import ProcTable, process
from tests.support.running import running
from tests.support.server import Server
from tests.support.space import Space, speaker
from tests.support.turns import Turn, recovering, seats, until
from worker.bus.connection import Connection
from worker.bus.errors import Unavailable
from worker.evidence.heartbeats import Heartbeats

SILENCE_MS = 1_200
NAMES = Names("tidegate", "beats")
WORKER = Speaker("_worker", "w" * 26)
ALICE = Speaker("alice", "a" * 26)
ROOT = Path(__file__).parents[2]


class Heard:
    """What a worker reports, and a worker that can be told to fail."""

    def __init__(self) -> None:
        self.reports: list[Liveness] = []
        self.failing = False

    async def take(self, body: Liveness) -> str:
        if self.failing:
            raise Unavailable("away")
        self.reports.append(body)
        return "suspected" if body.state == "silent" else "cleared"

    def states(self, owner: Speaker = ALICE) -> list[str]:
        return [one.state for one in self.reports if one.owner.uid == owner.uid]

    async def become(self, *states: str) -> None:
        async def look() -> list[str]:
            return self.states()

        await until(look, list(states), 10, "what was reported")


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[tuple[Heartbeats, Heard, Connection]]:
    heard = Heard()
    conn = await Connection.open(server.worker_options(), name="test-heartbeats")
    beats = Heartbeats(
        conn,
        NAMES,
        WORKER,
        heard.take,
        monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
        broker_ms=lambda: time.time_ns() // 1_000_000,
        silence_ms=lambda: SILENCE_MS,
    )
    await beats.start()
    task = asyncio.create_task(beats.run())
    try:
        yield beats, heard, conn
    finally:
        await beats.stop()
        await task
        await conn.close()


@pytest.fixture
async def beat_server(own_server: Callable[..., Server]) -> Server:
    """A server of the test's own, to be stopped at will."""
    return await asyncio.to_thread(own_server("beats").start)


async def test_an_owner_that_stops_beating_is_reported_and_so_is_its_next_beat(
    beat_server: Server,
) -> None:
    async with listening(beat_server) as (beats, heard, conn):
        with beating(beat_server.port, NAMES, ALICE) as owner:
            await heard.become("alive")
            owner.kill()
            await heard.become("alive", "silent")
        before_ms = time.time_ns() // 1_000_000
        await conn.publish(subjects.heartbeat(NAMES, ALICE))
        await heard.become("alive", "silent", "alive")
        first, silent, again = heard.reports
        rounding_ms = 2  # two clocks, each cut to a millisecond
        assert first.seen_at_ms - rounding_ms <= silent.seen_at_ms
        assert silent.seen_at_ms <= before_ms - SILENCE_MS + rounding_ms
        assert before_ms - rounding_ms <= again.seen_at_ms <= time.time_ns() // 1_000_000
        assert beats.watch.disturbances == 0


async def test_workers_and_garbage_are_not_owners(beat_server: Server) -> None:
    async with listening(beat_server) as (beats, heard, conn):
        for tail in ("_worker." + "x" * 26, "_op." + "x" * 26, "alice.short", "é." + "x" * 26):
            await conn.publish(f"tidegate.beats.hb.{tail}")
        await conn.publish(subjects.heartbeat(NAMES, ALICE), b"\xff" * 100)
        await heard.become("alive")
        assert len(beats.watch) == 1


async def test_a_report_that_failed_is_made_again(beat_server: Server) -> None:
    async with listening(beat_server) as (_, heard, conn):
        heard.failing = True
        await conn.publish(subjects.heartbeat(NAMES, ALICE))
        await asyncio.sleep(0.6)
        assert heard.states() == []
        heard.failing = False
        await heard.become("alive", "silent")


async def still_hears(heard: Heard, owner: "subprocess.Popen[str]") -> None:
    """Nobody was suspected, and the worker is not merely deaf: a real silence is found."""
    await asyncio.sleep(2 * SILENCE_MS / 1_000)
    assert heard.states() == ["alive"]
    owner.kill()
    await heard.become("alive", "silent")


async def test_a_worker_that_stalls_suspects_nobody(beat_server: Server) -> None:
    async with listening(beat_server) as (beats, heard, _):
        with beating(beat_server.port, NAMES, ALICE) as owner:
            await heard.become("alive")
            await asyncio.sleep(1)
            for _ in range(2):
                time.sleep(2.5 * SILENCE_MS / 1_000)  # noqa: ASYNC251 - the stall itself
                await asyncio.sleep(0.3)
            assert beats.watch.disturbances >= 1
            await still_hears(heard, owner)


async def test_a_worker_that_reconnects_suspects_nobody(beat_server: Server) -> None:
    async with listening(beat_server) as (beats, heard, conn):
        with beating(beat_server.port, NAMES, ALICE) as owner:
            await heard.become("alive")
            await asyncio.sleep(1)
            await asyncio.to_thread(beat_server.kill)
            await asyncio.sleep(2 * SILENCE_MS / 1_000)
            await asyncio.to_thread(beat_server.start)
            assert await conn.wait_connected(10_000)
            assert beats.watch.disturbances >= 1
            await still_hears(heard, owner)


async def test_a_worker_whose_own_beats_are_forged_proves_nothing_by_them(
    beat_server: Server,
) -> None:
    async with listening(beat_server) as (beats, heard, conn):
        await conn.publish(subjects.heartbeat(NAMES, ALICE))
        await heard.become("alive")
        beats._own_beats.clear()
        sends = beats._beat

        def loses(now_ms: int) -> None:
            pass

        beats._beat = loses  # type: ignore[method-assign]  # its own beats get lost
        beats.watch.disturbed(time.monotonic_ns() // 1_000_000)
        for _ in range(20):
            await conn.publish(subjects.heartbeat(NAMES, WORKER), b'{"v":1,"mark":"0123"}')
            await asyncio.sleep(0.1)
        assert heard.states() == ["alive"]
        beats._beat = sends  # type: ignore[method-assign]  # and are sent again
        await heard.become("alive", "silent")


LISTENS = """
import asyncio, json, sys, time
sys.path.insert(0, sys.argv[1])
from schemas.names import Names
from schemas.subjects import Speaker
from worker.bus.connection import Connection
from worker import logs
from worker.bus.options import ConnectOptions
from worker.evidence.heartbeats import Heartbeats
logs.configure("error", "json")
async def take(body):
    print(body.state, flush=True)
    return "taken"
async def main():
    options = ConnectOptions((sys.argv[2],), user=sys.argv[3], password=sys.argv[4])
    conn = await Connection.open(options, name="listens")
    beats = Heartbeats(conn, Names("tidegate", "beats"), Speaker("_worker", "w" * 26), take,
        monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
        broker_ms=lambda: time.time_ns() // 1_000_000, silence_ms=lambda: int(sys.argv[5]))
    await beats.start()
    print("up", flush=True)
    await beats.run()
asyncio.run(main())
"""


def test_a_worker_stopped_by_a_signal_suspects_nobody(own_server: Callable[..., Server]) -> None:
    server = own_server("beats").start()
    options = server.worker_options()
    assert options.user
    assert options.password
    arguments = [str(ROOT), server.url, options.user, options.password, str(SILENCE_MS)]
    worker = subprocess.Popen(
        [sys.executable, "-c", LISTENS, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
        with beating(server.port, NAMES, ALICE) as owner:
            assert worker.stdout.readline() == "alive\n"
            time.sleep(1)
            for _ in range(2):
                worker.send_signal(signal.SIGSTOP)
                time.sleep(2.5 * SILENCE_MS / 1_000)
                worker.send_signal(signal.SIGCONT)
                time.sleep(0.3)
            time.sleep(2 * SILENCE_MS / 1_000)
            assert select.select([worker.stdout], [], [], 0)[0] == []
            owner.kill()
            assert worker.stdout.readline() == "silent\n"
    finally:
        worker.kill()
        worker.communicate()


async def test_an_owners_silence_shows_with_its_seats_until_the_next_beat(space: Space) -> None:
    """Through the whole worker, with the policy's four seconds."""
    settings = space.settings(host="somewhere")
    async with running(settings, recovering(ProcTable())), space.client("_op") as operator:
        owner = speaker("alice")
        async with space.client(owner) as client:
            turn = Turn(client, "r1", process(100, host="somewhere-else"))
            await turn.bring_to("active", channel="http")

            async def suspicion() -> object:
                return (await seats(operator))["r1"].get("suspicion")

            with beating(space.server.port, space.names, owner):
                await asyncio.sleep(1)
            assert await suspicion() is None
            started = time.monotonic()
            await until(suspicion, "heartbeat_expired", 10)
            assert time.monotonic() - started > 3.5
            assert await turn.state() == "active"
            with beating(space.server.port, space.names, owner):
                await until(suspicion, None, 10)
