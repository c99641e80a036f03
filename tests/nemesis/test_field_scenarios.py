"""Scenarios of public reports that no other test plays in full; ``test_field_reports`` names them.

What takes long, or is measured over seconds, has the mark ``nemesis``; a shorter part of it runs
without the mark.
"""

import asyncio
import contextlib
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.codes import BadInput, Code
from schemas.names import Names, kv_stream
from schemas.roles import Role
from schemas.subjects import Checkpoint
from tests.integration.bus_server import Signer, free_port
from tests.support.cp import Desk, Json, a_target, desk_in, serving, until
from tests.support.cp_storm import all_settled, nothing_armed, reckon
from tests.support.ledger import read_all
from tests.support.process import WorkerProcess, command, data_of, environment, space_environment
from tests.support.proxy import proxy_to
from tests.support.server import WORKER_PASSWORD, Server, spaces_of
from tests.support.space import Space
from worker.bus import conf, users
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.bus.topology import SpaceTopology, TopologySettings
from worker.checkpoints.journal import Journal
from worker.client import Client, new_command_id
from worker.client.errors import Refused
from worker.errors import TidegateError
from worker.ledger import store
from worker.planes import PLANES

SEED = 20_260_805
HOUR_MS = 3_600_000
MIB = 1024**2
NAMES = Names("tidegate", "main")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers on any space; the last argument is their settings."""
    started: list[WorkerProcess] = []

    def start(space: Space, **settings: object) -> WorkerProcess:
        log = tmp_path / f"scenario-worker-{len(started)}.log"
        started.append(WorkerProcess(space_environment(space, **settings), log))
        return started[-1]

    yield start
    for one in started:
        one.kill()


class Meter:
    """What a worker costs and says from here on."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._process = psutil.Process(worker.pid)
        self._began = time.monotonic()
        self._cpu_s = self._spent_s()
        self._lines = len(worker.log().splitlines())

    def _spent_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def cpu_share(self) -> float:
        return (self._spent_s() - self._cpu_s) / self.took_s

    @property
    def lines(self) -> int:
        return len(self._worker.log().splitlines()) - self._lines


# Credentials that the broker itself ends.


@pytest.mark.long
async def test_a_worker_whose_credentials_expire_is_not_ready_until_they_are_renewed(
    tmp_path: Path,
) -> None:
    """The broker says ``-ERR 'User Authentication Expired'`` by itself, and lets nobody in."""
    signer, creds = Signer(), tmp_path / "worker.creds"
    directory = tmp_path / "signed"
    directory.mkdir()
    server = Server(directory, signer.conf(directory / "store"))
    await asyncio.to_thread(server.start)
    worker: WorkerProcess | None = None
    try:
        env = environment(
            nats_url=server.url, nats_creds_file=creds, spaces="main", data_dir=tmp_path / "data"
        )
        signer.write_creds(creds, valid_s=60)
        done = await asyncio.to_thread(command, ["setup", "--new"], env)
        assert done.returncode == 0, done.stderr
        signer.write_creds(creds, valid_s=15)
        worker = WorkerProcess(env, tmp_path / "worker.log")
        await asyncio.to_thread(worker.wait_ready)
        await asyncio.to_thread(worker.wait_for, bool, 30)
        signer.write_creds(creds, valid_s=600)
        began = time.monotonic()
        await asyncio.to_thread(worker.wait_ready, 30)
        assert time.monotonic() - began < 30

        # And renewed no more: whoever is never let in again leaves, so that somebody notices.
        signer.write_creds(creds, valid_s=1)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        assert await asyncio.to_thread(worker.wait, 60) == 1
        said = [str(event.get("reason")) for event in worker.events()]
        assert any("Authentication Expired" in reason for reason in said), said
        assert any(event["event"] == "connection_closed" for event in worker.events())
    finally:
        if worker is not None:
            worker.kill()
        server.kill()


# Callers that are cancelled and cut off at random.


async def go_away_at_random(space: Space, count: int, seed: int) -> Counter[str]:
    """So many requests of both kinds, each cut short at random; how they ended."""
    chance, ends = random.Random(seed), Counter[str]()
    at_once, persons = 100, 20

    async def one(client: Client, number: int) -> None:
        # A few are let finish, however slow the machine.
        limit_s = 10 if number % 50 < 2 else chance.uniform(0.001, 0.06)
        try:
            async with asyncio.timeout(limit_s):
                if number % 2:
                    await client.cap.stop(f"user-{number % persons}")
                else:
                    deadline = now_ms() + HOUR_MS
                    await client.cp.mint("runs", f"t{number}", deadline_at_ms=deadline)
                    await client.cp.resume("runs", f"t{number}")
        except TimeoutError:
            ends["cancelled"] += 1
        except TidegateError as error:
            ends[type(error).__name__] += 1
        else:
            ends["answered"] += 1

    async with proxy_to(space.server.port) as proxy:
        options = ConnectOptions((proxy.url,))
        for start in range(0, count, at_once):
            client = Client(options, space.client().speaker, space.names.space, timeout_ms=10_000)
            async with client:
                batch = [one(client, number) for number in range(start, start + at_once)]
                calls = [asyncio.create_task(call) for call in batch]
                # Now and then everybody is cut off in the middle, without a word.
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.uniform(0, 0.05))
                    proxy.cut()
                    ends["cut off"] += 1
                await asyncio.gather(*calls)
    return ends


@pytest.mark.parametrize(
    "count",
    [400, pytest.param(5_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
async def test_requests_cancelled_and_cut_off_at_random_leave_whole_effects_only(
    space: Space, desk: Desk, start_worker: Callable[..., WorkerProcess], count: int
) -> None:
    worker = await asyncio.to_thread(start_worker(space).wait_ready)
    ends = await go_away_at_random(space, count, SEED)
    assert ends["cut off"] > 0
    assert ends["cancelled"] > count // 10
    assert ends["answered"] > 0
    names, prefix = space.names, space.names.prefix
    async with space.client("_op") as client:
        last = await client.cap.stop("last")
        assert last.generation == 1
    async with space.client() as client:
        done = await client.cp.mint("runs", "last", deadline_at_ms=now_ms() + HOUR_MS)
        assert done.word == "minted"
    # The ledger is what a fresh fold of the accepted commands makes, table by table.
    env = space_environment(space)
    verified = await asyncio.to_thread(command, ["ledger", "verify", "--json"], env, timeout_s=60)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert data_of(verified.stdout)["equal"]

    # Every command that was accepted has one result, and every record belongs to one of them.
    said = [
        message.seq
        for message in await read_all(desk.js, names.cmd_stream, f"{prefix}.cmd.*.*.cp.>")
    ]
    minted = {
        message.subject.rpartition(".")[2]
        for message in await read_all(desk.js, names.cmd_stream, f"{prefix}.cmd.*.*.cp.mint.>")
    }
    results = Counter(
        int(message.subject.rpartition("-")[2])
        for message in await read_all(desk.js, names.res_stream, f"{prefix}.res.*.*.cp.>")
    )
    assert results == Counter(said)
    records = f"$KV.{names.records_bucket}.cp.*.*"
    kv = kv_stream(names.records_bucket)
    specs = await read_all(desk.js, kv, f"{records}.spec")
    statuses = {
        message.subject.split(".")[-2]: json.loads(message.data)
        for message in await read_all(desk.js, kv, f"{records}.status")
    }
    assert {message.subject.split(".")[-2] for message in specs} == minted == statuses.keys()
    facts = Counter(
        message.subject.rpartition(".")[2]
        for message in await read_all(desk.js, names.epf_stream, f"{prefix}.epf.>")
    )
    settled = {token for token, status in statuses.items() if status["state"] != "waiting"}
    assert facts == Counter(settled)

    async def armed() -> bool:
        waiting = {one.split(".")[-2] for one in await desk.all_armed()}
        return waiting == minted - settled

    await until(armed, what="what waits is armed, and nothing else")
    assert worker.readiness() == []


# An approval while the worker is down, and the deadline passes while it is down.


@pytest.mark.parametrize("wheel", [True, False])
async def test_an_approval_and_a_deadline_that_both_fall_into_an_outage_always_expire(
    desk: Desk, space: Space, wheel: bool
) -> None:
    """The documented outcome, twenty runs of twenty, whatever expires what is due."""
    targets = [a_target() for _ in range(20)]
    async with serving(space, wheel=wheel):
        await asyncio.gather(*(desk.mint(target, in_ms=1_500) for target in targets))
    statuses = [await desk.status(target) for target in targets]
    deadlines = [status["deadline"] for status in statuses if status is not None]
    seqs = [await desk.say("resume", target, {"answer": "yes"}) for target in targets]
    for seq, deadline in zip(seqs, deadlines, strict=True):
        stored = await desk.js.message(space.names.cmd_stream, seq)
        assert stored is not None
        assert stored.time_ms < deadline, "it came in time, and nobody was there"

    last: int = max(deadlines)

    async def passed() -> bool:
        return await desk.now_ms() > last

    await until(passed)
    async with serving(space, wheel=wheel):
        for target, seq in zip(targets, seqs, strict=True):
            told = await desk.result(seq)
            assert (told["outcome"], told["status"]) == ("expired", "refused")
            status = await desk.agree(target)
            assert (status["state"], status["settledGeneration"]) == ("expired", 1)
            await desk.answered_once(seq)


# Durables that vanish.


async def lose_readers(js: JetStream, names: Names) -> int:
    """Delete every consumer of the space's commands and timers; how many there were."""
    count = 0
    for stream in (names.cmd_stream, names.log_stream, names.ept_req_stream, names.ept_stream):
        found = await js.api(f"CONSUMER.NAMES.{stream}", None)
        for consumer in found["consumers"] or ():
            with contextlib.suppress(BusError):
                await js.consumer_delete(stream, consumer)
                count += 1
    return count


@pytest.mark.long
@pytest.mark.parametrize("when", ["idle", "in mid-fetch"])
async def test_readers_that_are_deleted_come_back_and_cost_nothing(
    space: Space, desk: Desk, start_worker: Callable[..., WorkerProcess], when: str
) -> None:
    worker = await asyncio.to_thread(start_worker(space).wait_ready)
    seqs: list[int] = []
    deadline = await desk.now_ms() + HOUR_MS

    async def mint_some(count: int) -> None:
        for _ in range(count):
            seqs.append(await desk.say("mint", a_target(), {"deadline_at_ms": deadline}))

    await mint_some(1)
    await desk.result(seqs[0])
    talking = asyncio.create_task(mint_some(0 if when == "idle" else 400))
    if when != "idle":
        await until(lambda: _has(len(seqs) > 50))
    meter = Meter(worker)
    assert await lose_readers(desk.js, space.names) >= 4
    await talking
    await mint_some(1)
    for seq in seqs:
        assert (await desk.result(seq, limit_s=30))["outcome"] == "minted"
    async with space.client("_op") as client:
        assert (await client.cap.stop("maria", timeout_ms=30_000)).generation == 1
    assert meter.took_s < 30
    await asyncio.to_thread(worker.wait_ready, 30 - meter.took_s)
    if when != "idle":
        # Work costs what it costs; what is measured is whether anything spins afterwards.
        meter = Meter(worker)
    await asyncio.sleep(10)
    assert meter.cpu_share < 0.2, meter.cpu_share
    assert meter.lines < 10 * meter.took_s
    for seq in seqs:
        await desk.answered_once(seq)


async def _has(condition: bool) -> bool:
    return condition


# The leader of a cluster of three dies while timers are armed.


class Cluster(Server):
    """Three servers that are one to a client."""

    def __init__(self, directory: Path) -> None:
        routes = [free_port() for _ in range(3)]
        others = ", ".join(json.dumps(f"nats://127.0.0.1:{port}") for port in routes)
        self.servers = []
        for number, port in enumerate(routes):
            folder = directory / f"n{number}"
            folder.mkdir(parents=True)
            text = conf.render(
                spaces_of("tidegate", ["main"]),
                (
                    conf.User(conf.WORKER_USER, WORKER_PASSWORD, "W"),
                    conf.User(conf.CLIENT_USER, None, "C"),
                ),
                store_dir=folder / "store",
                listen="127.0.0.1:-1",
                no_auth_user=conf.CLIENT_USER,
                extra=f"server_name: n{number}\n"
                f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{others}] }}',
            )
            self.servers.append(Server(folder, text))

    def start(self) -> "Cluster":
        for server in self.servers:
            server.start()
        return self

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def worker_options(self) -> ConnectOptions:
        login = {"user": conf.WORKER_USER, "password": WORKER_PASSWORD}
        return ConnectOptions(tuple(self.url.split(",")), **login)  # type: ignore[arg-type]  # a name and a password

    def client_options(self) -> ConnectOptions:
        return ConnectOptions(tuple(self.url.split(",")))


@asynccontextmanager
async def cluster_space(directory: Path) -> AsyncIterator[tuple[Cluster, Space]]:
    cluster = Cluster(directory)
    try:
        await asyncio.to_thread(cluster.start)
        space = Space(cluster, NAMES, directory / "data")
        conn = await Connection.open(cluster.worker_options(), name="test-setup")
        topology = SpaceTopology(JetStream(conn), NAMES, TopologySettings(replicas=3))

        async def set_up() -> bool:
            try:
                await topology.create("c" * 32)
            except (BusError, TimeoutError):
                return False
            return True

        await until(set_up, limit_s=60)
        await conn.close()
        yield cluster, space
    finally:
        await asyncio.to_thread(cluster.kill)


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_clusters_leader_that_dies_while_timers_are_armed_loses_and_doubles_none(
    tmp_path: Path, start_worker: Callable[..., WorkerProcess]
) -> None:
    async with cluster_space(tmp_path / "cluster") as (cluster, space), desk_in(space) as desk:
        worker = await asyncio.to_thread(start_worker(space, replicas=3).wait_ready, 60)
        targets: dict[Checkpoint, int] = {}

        async def mint(in_ms: int) -> None:
            target, deadline = a_target(), await desk.now_ms() + in_ms
            seq = await desk.insist("mint", target, {"deadline_at_ms": deadline})
            # Told once more, or already done by the command whose acknowledgement was lost.
            told = await desk.result(seq, limit_s=60)
            assert told["outcome"] in ("minted", "already_minted"), told
            targets[target] = deadline

        await asyncio.gather(*(mint(25_000) for _ in range(200)))
        info = await desk.js.api(f"STREAM.INFO.{space.names.ept_stream}", None)
        leader = cluster.servers[int(info["cluster"]["leader"].removeprefix("n"))]
        arming = [asyncio.create_task(_patiently(mint)) for _ in range(100)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(leader.kill)
        await asyncio.gather(*arming)
        assert len(targets) == 300
        await all_settled(desk, targets, limit_s=120)
        await nothing_armed(desk)
        seen = await reckon(desk, targets, {})
        assert seen == {"expired": 300}
        await asyncio.to_thread(worker.wait_ready, 60)


async def _patiently(mint: Callable[[int], Any]) -> None:
    async def done() -> bool:
        try:
            await mint(40_000)
        except BusError:
            return False
        return True

    await until(done, limit_s=60)


# Many timers that are due in one second.


@pytest.mark.parametrize(
    "count",
    [500, pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
async def test_timers_due_in_one_second_all_fire_once_beside_live_traffic(
    desk: Desk,
    space: Space,
    start_worker: Callable[..., WorkerProcess],
    count: int,
) -> None:
    worker = await asyncio.to_thread(start_worker(space).wait_ready)
    process, slots = psutil.Process(worker.pid), asyncio.Semaphore(100)
    targets: dict[Checkpoint, int] = {}
    due_never = await desk.now_ms() + HOUR_MS

    async def mint(deadline: int) -> Checkpoint | None:
        """Mint one; ``None`` if the deadline has come before it was this one's turn."""
        target = a_target()
        async with slots:
            told = await desk.ask("mint", target, {"deadline_at_ms": deadline})
        if told["outcome"] == "deadline-not-future":
            return None
        assert told["outcome"] == "minted", told
        targets[target] = deadline
        return target

    async def mint_due(lead_ms: int) -> bool:
        """Mint all for one second; whether this machine could do it before that second."""
        due = await desk.now_ms() + lead_ms
        deadlines = (due + number * 1_000 // count for number in range(count))
        minted = await asyncio.gather(*(mint(deadline) for deadline in deadlines))
        return None not in minted and await desk.now_ms() < due

    began = time.monotonic()
    waiting = await asyncio.gather(*(mint(due_never) for _ in range(TRIAL)))
    lead_ms = int((time.monotonic() - began) / TRIAL * count * 2_000) + 2_000
    at_rest = process.memory_info().rss
    while not await mint_due(lead_ms):
        lead_ms *= 2
    for early in waiting:
        assert early is not None
        del targets[early]
    loaded = peak = process.memory_info().rss
    slowest_s, live, done = 0.0, {}, asyncio.Event()

    async def talk() -> None:
        nonlocal slowest_s, peak
        while not done.is_set():
            target, began = a_target(), time.monotonic()
            minted = await desk.mint(target, in_ms=HOUR_MS)
            assert (await desk.resume(target))["outcome"] == "resumed"
            live[target] = minted
            slowest_s = max(slowest_s, time.monotonic() - began)
            peak = max(peak, process.memory_info().rss)

    talking = asyncio.create_task(talk())

    async def expired() -> bool:
        facts = await desk.js.stream_info(space.names.epf_stream)
        return facts.messages >= len(targets) + len(live)

    try:
        await until(expired, what="everything fires", limit_s=lead_ms / 1_000 + 300)
    finally:
        done.set()
        await talking
    assert len(live) > 5, "new commands were answered meanwhile"
    assert slowest_s < 20
    assert peak - loaded < 150 * MIB, "what is due at once is not all held at once"
    assert peak - at_rest < 150 * MIB + count * 4_096
    for target in live:
        assert (await desk.agree(target))["state"] == "resumed"
    await _count_expiries(desk, targets, {one.token for one in waiting if one is not None})
    assert worker.readiness() == []


TRIAL = 200


async def _count_expiries(desk: Desk, targets: dict[Checkpoint, int], waiting: set[str]) -> None:
    """Each expired, once, not early; said so once by its status, its settle fact and in public."""
    names = desk.names
    tokens = {target.token: deadline for target, deadline in targets.items()}
    facts: Counter[str] = Counter()
    for message in await desk.stored(names.epf_stream):
        token = message.subject.rpartition(".")[2]
        if token in tokens:
            body = json.loads(message.data)
            assert body["settle"] == "expired"
            assert body["ts"] >= tokens[token], "it expired early"
            facts[token] += 1
    assert facts == Counter(tokens.keys())

    async def told() -> bool:
        pattern = f"{names.prefix}.fact.cp.expired.*.*.*"
        found = await desk.stored(names.res_stream, pattern)
        said = Counter(message.subject.split(".")[-2] for message in found)
        assert max(said.values()) == 1
        return said.keys() == tokens.keys()

    await until(told, what="everything is told")

    async def disarmed() -> bool:
        return {one.split(".")[-2] for one in await desk.all_armed()} == waiting

    await until(disarmed, what="only what is not due is armed")


# The broker is down at the start, and for long later.


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("outage_s", [60, 600])
async def test_ten_minutes_without_a_broker_are_said_in_few_lines_and_outlived(
    own_space: Space, start_worker: Callable[..., WorkerProcess], tmp_path: Path, outage_s: int
) -> None:
    server = own_space.server
    ready = await asyncio.to_thread(start_worker(own_space).wait_ready)
    await asyncio.to_thread(server.kill)

    def says_so(reasons: list[str] | None) -> bool:
        said = " ".join(reasons or ())
        return "broker" in said or "cannot be reached" in said

    await asyncio.to_thread(ready.wait_for, says_so, 10)
    cold = start_worker(own_space, data_dir=tmp_path / "cold")
    leaving = start_worker(own_space, data_dir=tmp_path / "leaving")
    for one in (cold, leaving):
        await asyncio.to_thread(one.wait_for, lambda reasons: reasons is not None)
        await asyncio.to_thread(one.wait_for, says_so, 10)
    meters = {one: Meter(one) for one in (ready, cold)}
    await asyncio.sleep(outage_s / 2)
    assert await asyncio.to_thread(leaving.terminate, 10) == 0
    await asyncio.sleep(outage_s / 2)
    for one, meter in meters.items():
        assert one.liveness() == []
        assert meter.lines < 10 + 80 * outage_s / 600, one.log()[-2_000:]
        assert meter.cpu_share < 0.2
    await asyncio.to_thread(server.start)
    for one in (ready, cold):
        await asyncio.to_thread(one.wait_ready, 30)
        assert len(one.log().splitlines()) < 100
    async with own_space.client() as client:
        await client.cp.mint("build", "after", deadline_at_ms=now_ms() + HOUR_MS)
    for one in (ready, cold):
        assert await asyncio.to_thread(one.terminate, 10) == 0


# A right that is taken away while the worker runs.


def guarded(server: Server, *, without: str = "\0") -> str:
    worker = users.user(users.Grant(Role.WORKER, conf.WORKER_USER), [NAMES])
    rights = tuple(one for one in worker.publish or () if without not in one)
    return conf.render(
        spaces_of("tidegate", ["main"]),
        (
            replace(worker, password=WORKER_PASSWORD, publish=rights),
            conf.User("setup", "setup", "W"),
            conf.User(conf.CLIENT_USER, None, "C"),
        ),
        store_dir=server.directory / "store",
        listen=f"127.0.0.1:{server.port or -1}",
        no_auth_user=conf.CLIENT_USER,
    )


@pytest.mark.parametrize(
    "without",
    [".armed", pytest.param("$KV.tidegate_records_main", marks=pytest.mark.long)],
)
async def test_a_workers_right_that_is_taken_away_is_denied_and_not_a_timeout(
    own_server: Callable[..., Server],
    tmp_path: Path,
    start_worker: Callable[..., WorkerProcess],
    without: str,
) -> None:
    server = own_server("main")
    server.rewrite(guarded(server))
    await asyncio.to_thread(server.start)
    space = Space(server, NAMES, tmp_path / "data")
    env = space_environment(space, nats_user="setup", nats_password="setup")
    assert (await asyncio.to_thread(command, ["setup", "--new"], env)).returncode == 0
    worker = await asyncio.to_thread(start_worker(space).wait_ready)
    async with space.client() as client:
        await client.cp.mint("build", "one", deadline_at_ms=now_ms() + HOUR_MS)
        server.rewrite(guarded(server, without=without))
        server.reload()
        meter = Meter(worker)
        minting = client.cp.mint("build", "two", deadline_at_ms=now_ms() + HOUR_MS)
        waiting = asyncio.create_task(minting)

        def says_so() -> bool:
            return any(event["event"] == "permission_denied" for event in worker.events())

        await until(lambda: _has(says_so()), limit_s=10)
        denied = [event for event in worker.events() if event["event"] == "permission_denied"]
        assert without in denied[0]["subject"] or without in "".join(e["subject"] for e in denied)
        await asyncio.sleep(3)
        assert meter.cpu_share < 0.2, "a right that is missing is no reason to spin"
        assert meter.lines < 10 * meter.took_s, worker.log()[-2_000:]
        assert not any("timeout" in json.dumps(event) for event in worker.events())
        server.rewrite(guarded(server))
        server.reload()
        assert (await waiting).word in ("minted", "already_minted")
        await asyncio.to_thread(worker.wait_ready)


# Many requests at once, and a log that keeps them apart.


async def test_a_hundred_interleaved_requests_have_their_own_id_on_every_line(
    space: Space, desk: Desk, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(start_worker(space, log_level="debug").wait_ready)
    deadline = await desk.now_ms() + HOUR_MS
    wanted: dict[str, tuple[str, str]] = {}
    asked: list[tuple[str, Checkpoint, Json, str]] = []
    for number in range(25):
        for verb, body, outcome in (
            ("mint", {"deadline_at_ms": deadline}, "minted"),
            ("mint", {"deadline_at_ms": 1}, "deadline-not-future"),
            ("resume", {"answer": number}, "unknown-checkpoint"),
            ("heartbeat", {"generation": 0, "deadline_at_ms": 1}, "out-of-range"),
        ):
            command_id = new_command_id()
            wanted[command_id] = (f"cp.{verb}", outcome)
            asked.append((verb, a_target(), body, command_id))
    seqs = await asyncio.gather(
        *(desk.say(verb, target, body, command_id=one) for verb, target, body, one in asked)
    )
    told = {(answer := await desk.result(seq))["command_id"]: answer["outcome"] for seq in seqs}
    assert told == {one: outcome for one, (_, outcome) in wanted.items()}
    await until(
        lambda: _has(sum(e["event"] == "command_answered" for e in worker.events()) >= len(asked))
    )
    lines = [event for event in worker.events() if "command_id" in event or "verb" in event]
    assert {event["command_id"]: (event["verb"], event["outcome"]) for event in lines} == wanted
    assert len(lines) == len(wanted)


# A start that fails after the database is open.


def newer(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA user_version = 99")


def meddled(db: sqlite3.Connection) -> None:
    db.execute("CREATE TRIGGER sly AFTER INSERT ON outbox BEGIN DELETE FROM outbox; END")


def emptied(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE outbox")


BAD_STARTS: dict[
    str, tuple[str, Callable[[sqlite3.Connection], None] | None, dict[str, str], int]
] = {
    "a url without a host": ("", None, {"nats_url": "nats://"}, 2),
    "a url of another kind": ("", None, {"nats_url": "http://127.0.0.1:4222"}, 2),
    "a newer ledger": ("ledger.db", newer, {}, 3),
    "a ledger with a trigger": ("ledger.db", meddled, {}, 3),
    "a ledger without a table": ("ledger.db", emptied, {}, 3),
    "a newer journal": ("settled.db", newer, {}, 3),
}


@pytest.mark.parametrize("why", BAD_STARTS)
def test_a_start_that_cannot_be_ends_non_zero_within_five_seconds(
    space: Space, start_worker: Callable[..., WorkerProcess], why: str
) -> None:
    name, spoil, settings, code = BAD_STARTS[why]
    folder = space.data_dir / space.names.space
    store.open_ledger(folder / "ledger.db", space.names, PLANES).close()
    Journal(folder / "settled.db").close()
    if spoil is not None:
        with contextlib.closing(sqlite3.connect(folder / name)) as db:
            spoil(db)
            db.commit()
    # What the interpreter needs to begin at all is this machine's affair.
    began = time.monotonic()
    assert command(["config", "show"], space_environment(space)).returncode == 0
    begins_s = time.monotonic() - began
    began = time.monotonic()
    worker = start_worker(space, **settings)
    assert worker.wait(begins_s + 10) == code, worker.log()
    assert time.monotonic() - began < begins_s + 5
    assert "Traceback" not in worker.log()


# Ids that are none.

BAD_IDS = ("a.b", "a*", "é", "a b", "x" * 300, "a\n")


@pytest.mark.usefixtures("worker")
async def test_ids_that_are_none_are_refused_whichever_way_they_come(
    space: Space, desk: Desk
) -> None:
    """By the client before anything is sent, or with one result by the worker; nothing is kept."""
    names = space.names

    async def refused(call: Awaitable[object], bad: str) -> None:
        try:
            await call
        except (BadInput, Refused) as error:
            assert error.code is Code.BAD_REQUEST, (bad, error)  # noqa: PT017 - of two kinds
        else:
            raise AssertionError(f"{bad!r} was accepted")

    async with space.client() as client:
        for bad in BAD_IDS:
            at = now_ms() + HOUR_MS
            await refused(client.cp.mint("runs", bad, deadline_at_ms=at), bad)
            await refused(client.cp.resume("runs", bad), bad)
            await refused(client.cp.show("runs", bad), bad)
            await refused(client.cap.stop(bad), bad)
            await refused(client.adm.cancel(bad), bad)
            if bad != "a.b":  # endpoints have dots
                await refused(client.cp.mint(bad, "t", deadline_at_ms=at), bad)
        assert (await client.cp.list()).items == ()
    said = 0
    for stream in (names.cmd_stream, names.log_stream):
        pattern = f"{names.prefix}.cmd.{client.speaker.principal}.>"
        said += len(await read_all(desk.js, stream, pattern))
    results = [
        message
        for message in await read_all(desk.js, names.res_stream, f"{names.prefix}.res.>")
        if ".res._worker." not in message.subject
    ]
    assert len({message.subject for message in results}) == len(results) == said
    assert await desk.stored(kv_stream(names.records_bucket)) == []
    assert await desk.all_armed() == []
