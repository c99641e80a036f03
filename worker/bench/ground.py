"""What every benchmark stands on: a broker, a worker process, pipelines and percentiles."""

import asyncio
import itertools
import json
import math
import os
import platform
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.names import Names
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import identity
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.embedded import EmbeddedServer
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.client import Client, ClientError
from worker.errors import TidegateError
from worker.settings import PREFIX, Settings
from worker.spaces import create_space

SPACE: Final = "bench"
IN_FLIGHT: Final = 64
READY_S: Final = 60.0
PAYLOAD: Final = b"x" * 160
"""About the size of a status record."""

Say = Callable[[str], None]


class BenchError(TidegateError):
    """The benchmark could not be run."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast something went.

    Attributes:
        count: How many.
        per_s: How many a second.
    """

    count: int
    per_s: float


class Ground:
    """One broker and, if asked for, one worker process, all in a temporary folder.

    Attributes:
        names: The space.
        folder: Where everything is kept.
        sync_always: Whether the broker syncs before it acknowledges.
    """

    def __init__(self, folder: Path, *, sync_always: bool) -> None:
        self.names = Names("tidegate", SPACE)
        self.folder = folder
        self.sync_always = sync_always
        self._password = secrets.token_urlsafe(24)
        self._server: EmbeddedServer | None = None
        self._worker: asyncio.subprocess.Process | None = None
        self._replicas: list[asyncio.subprocess.Process] = []
        self._lives: dict[str, Speaker] = {}

    @classmethod
    @asynccontextmanager
    async def prepared(cls, *, sync_always: bool = True) -> "AsyncIterator[Ground]":
        """A broker with an empty space; everything is removed afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        ground = cls(folder, sync_always=sync_always)
        try:
            await ground._set_up()
            yield ground
        finally:
            await ground.stop_replicas()
            await ground.stop_worker()
            if ground._server is not None:
                await ground._server.stop()
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Where the broker listens."""
        if self._server is None:
            raise BenchError("the broker was not started")
        return self._server.client_url

    @property
    def worker_options(self) -> ConnectOptions:
        """How to connect in the workers' account."""
        return ConnectOptions((self.url,), user=conf.WORKER_USER, password=self._password)

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStream]:
        """JetStream of the workers' account."""
        conn = await Connection.open(self.worker_options, name="tidegate-bench")
        try:
            yield JetStream(conn)
        finally:
            await conn.close()

    @asynccontextmanager
    async def client(self, principal: str) -> AsyncIterator[Client]:
        """A client of one principal, in one life for the whole run."""
        life = self._lives.setdefault(principal, Speaker(principal, identity.new_uid()))
        async with Client(self.url, life, SPACE, timeout_ms=60_000) as client:
            yield client

    def settings(self, **values: object) -> Settings:
        """Settings of a worker on this ground."""
        return Settings.model_validate(
            {"data_dir": self.folder / "data", "spaces": (SPACE,), **values}
        )

    async def start_worker(self, **settings: object) -> None:
        """Start the worker process and wait until it is ready.

        Raises:
            BenchError: It did not get ready.
        """
        self._worker = await self._spawn("worker", settings)
        until = time.monotonic() + READY_S
        async with self.client("_op-bench") as client:
            while time.monotonic() < until and self._worker.returncode is None:
                if await _is_ready(client):
                    return
                await asyncio.sleep(0.05)
        raise BenchError(f"the worker did not get ready: {self._last_words('worker')}")

    async def stop_worker(self) -> None:
        """End the worker process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await _end(worker)

    async def start_replicas(self, count: int, **settings: object) -> None:
        """Start more workers of the same space, each with a data directory of its own.

        Raises:
            BenchError: One did not get ready.
        """
        for number in range(count):
            name = f"replica-{number}"
            own = {"data_dir": self.folder / name, **settings}
            replica = await self._spawn(name, own)
            self._replicas.append(replica)
            until = time.monotonic() + READY_S
            while not self._says_ready(name):
                if time.monotonic() > until or replica.returncode is not None:
                    raise BenchError(f"a replica did not get ready: {self._last_words(name)}")
                await asyncio.sleep(0.05)

    async def stop_replicas(self) -> None:
        """End all the workers besides the first."""
        replicas, self._replicas = self._replicas, []
        for number, replica in enumerate(replicas):
            await _end(replica)
            (self.folder / f"replica-{number}.log").unlink()
            shutil.rmtree(self.folder / f"replica-{number}", ignore_errors=True)

    def worker_memory_mb(self) -> float:
        """Resident memory of the worker process."""
        if self._worker is None:
            raise BenchError("no worker runs")
        return _resident_mb(self._worker.pid)

    def broker_memory_mb(self) -> float:
        """Resident memory of the broker process."""
        if self._server is None:
            raise BenchError("the broker was not started")
        return _resident_mb(self._server.pid)

    def store_mb(self) -> float:
        """What the broker's store takes on the disk."""
        files = (self.folder / "broker" / "store").rglob("*")
        return sum(_allocated(path) for path in files) / 2**20

    def processor_s(self) -> dict[str, float]:
        """Processor seconds used so far: by this process, the workers and the broker."""
        used = {"bench": time.process_time()}
        if self._worker is not None:
            workers = [self._worker, *self._replicas]
            used["worker"] = sum(_processor_s(worker.pid) for worker in workers)
        if self._server is not None:
            used["broker"] = _processor_s(self._server.pid)
        return used

    def worker_log(self) -> list[JsonObject]:
        """Every event the worker has logged so far, over all its starts."""
        lines = self._said("worker").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def _spawn(self, name: str, settings: Mapping[str, object]) -> asyncio.subprocess.Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "worker.cli.main", "run"),
                env=self._environment(settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _says_ready(self, name: str) -> bool:
        return '"worker_ready"' in self._said(name)

    def _last_words(self, name: str) -> str:
        return self._said(name)[-2000:]

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    async def _set_up(self) -> None:
        text = conf.embedded(
            [conf.Space(self.names.root, SPACE)],
            store_dir=self.folder / "broker" / "store",
            worker_password=self._password,
            sync_always=self.sync_always,
        )
        self._server = await EmbeddedServer.start(self.folder / "broker", text)
        conn = await Connection.open(self.worker_options, name="tidegate-bench-setup")
        try:
            await create_space(conn, self.names, self.settings())
        finally:
            await conn.close()

    def _environment(self, settings: Mapping[str, object]) -> dict[str, str]:
        outer = {k: v for k, v in os.environ.items() if not k.upper().startswith(PREFIX)}
        own = {
            "NATS_URL": self.url,
            "NATS_USER": conf.WORKER_USER,
            "NATS_PASSWORD": self._password,
            "SPACES": SPACE,
            "DATA_DIR": str(self.folder / "data"),
            "LOG_FORMAT": "json",
        }
        own |= {name.upper(): str(value) for name, value in settings.items()}
        return outer | {PREFIX + name: value for name, value in own.items()}


async def pipeline(
    count: int, work: Callable[[int], Awaitable[object]], *, in_flight: int = IN_FLIGHT
) -> Rate:
    """Run ``work(0)`` to ``work(count - 1)``, so many at a time, and tell how fast it went."""
    numbers = itertools.count()

    async def lane() -> None:
        while (number := next(numbers)) < count:
            await work(number)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(min(in_flight, count))))
    return Rate(count, count / (time.perf_counter() - started))


async def timed(count: int, work: Callable[[int], Awaitable[object]]) -> list[float]:
    """Run one after another; the milliseconds that each took."""
    took = []
    for number in range(count):
        started = time.perf_counter()
        await work(number)
        took.append((time.perf_counter() - started) * 1000)
    return took


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile; NaN of nothing."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.ceil(len(ranked) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the same broker does without us, in the same run.

    Attributes:
        publish_per_s: Plain publishes, pipelined.
        cas_per_s: Compare-and-set updates of distinct keys, pipelined.
    """

    publish_per_s: float
    cas_per_s: float


async def ceilings(js: JetStream, count: int) -> Ceilings:
    """Measure the raw broker on two streams of its own."""
    for name, more in (("RAW", {}), ("RAWKV", {"max_msgs_per_subject": 1})):
        await js.stream_create(
            {"name": name, "subjects": [f"bench.{name}.>"], "storage": "file", **more}
        )
    revisions: dict[int, int] = {}

    async def publish(number: int) -> None:
        await js.publish(f"bench.RAW.{number}", PAYLOAD)

    async def create(number: int) -> None:
        ack = await js.publish(f"bench.RAWKV.{number}", PAYLOAD, expect_last_subject_seq=0)
        revisions[number] = ack.seq

    async def update(number: int) -> None:
        await js.publish(
            f"bench.RAWKV.{number}", PAYLOAD, expect_last_subject_seq=revisions[number]
        )

    published = await pipeline(count, publish)
    await pipeline(count, create)
    updated = await pipeline(count, update)
    for name in ("RAW", "RAWKV"):
        await js.stream_delete(name)
    return Ceilings(published.per_s, updated.per_s)


def machine() -> JsonObject:
    """What the figures were made on, as far as it matters and gives nothing away."""
    return {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def saying(say: Say, about: str) -> Say:
    """Says the same with what it is about in front."""
    return lambda what: say(f"{about}: {what}")


def spread(values: Sequence[float]) -> JsonObject:
    """Count, least, median, 99th percentile and greatest of durations in milliseconds."""
    return {
        "count": len(values),
        "min_ms": round(min(values), 2),
        "p50_ms": round(percentile(values, 50), 2),
        "p99_ms": round(percentile(values, 99), 2),
        "max_ms": round(max(values), 2),
    }


def soon_ms(wait_ms: int) -> int:
    """A deadline so far from now; the broker runs on this machine, so its clock is ours."""
    return time.time_ns() // 1_000_000 + wait_ms


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kib) / 1024


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0  # the broker removes files of its own accord


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _is_ready(client: Client) -> bool:
    try:
        answer = await client.query("sys", "status", {}, timeout_ms=500)
    except ClientError:
        return False
    return bool(answer.data.get("ready"))
