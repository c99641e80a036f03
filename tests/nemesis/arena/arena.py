"""The arena: brokers, two workers, and links between all of them and to the clients."""

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from schemas.names import Names
from schemas.subjects import Speaker
from tests.nemesis.arena.brokers import NEMESIS_USER, Brokers
from tests.nemesis.arena.workers import Slot
from tests.nemesis.history.recorder import RecordedClient, Recorder
from tests.support.links import Links
from tests.support.process import environment
from tests.support.server import WORKER_PASSWORD
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.errors import Unavailable
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.errors import StartRefused
from worker.settings import Settings
from worker.spaces import create_space

SPACE = "main"
WORKERS = ("w0", "w1")
SET_UP_S = 60.0
READY_S = 60.0


class Arena:
    """Everything that runs, until the block ends.

    Args:
        directory: Where everything lies.
        brokers: 1 or 3.
        recorder: Where what happens is recorded.

    Attributes:
        names: The space.
        brokers: The brokers.
        links: Every link: ``route-<a>-<b>``, ``<worker>-<broker>``, ``client-<broker>``.
        slots: The workers.
        js: JetStream of the workers' account, past every link.
    """

    def __init__(self, directory: Path, brokers: int, recorder: Recorder) -> None:
        self.directory = directory
        self.names = Names("tidegate", SPACE)
        self.recorder = recorder
        self.links = Links()
        self.brokers = Brokers(self.links)
        self.slots: list[Slot] = []
        self._count = brokers
        self._turns = itertools.count()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        await self._stack.enter_async_context(self.links)
        self._stack.push_async_callback(self.brokers.stop)
        await self.brokers.start(self.directory, SPACE, self._count)
        for number, server in enumerate(self.brokers.servers):
            for name in (*WORKERS, "client"):
                await self.links.add(f"{name}-{number}", server.port, framed=True)
        self.conn = await Connection.open(self.direct_options(), name="nemesis")
        self._stack.push_async_callback(self.conn.close)
        self.js = JetStream(self.conn)
        await self._set_up()
        for name in WORKERS:
            slot = Slot(name, self.directory / name, self._environment_of(name), self._note)
            self.slots.append(slot)
            self._stack.push_async_callback(slot.clear_away)
            slot.supervise()
        await asyncio.gather(*(slot.wait_ready(READY_S) for slot in self.slots))

    def _note(self, target: str, note: str) -> None:
        self.recorder.injected("ended", target, "note", note)

    async def _set_up(self) -> None:
        settings = Settings(
            nats_url=self.brokers.servers[0].url,
            data_dir=self.directory / "setup",
            **self._common(),
        )
        until = time.monotonic() + SET_UP_S
        while True:
            try:
                await create_space(self.conn, self.names, settings)
            except Unavailable:
                # A young cluster has no leader yet.
                assert time.monotonic() < until, "the brokers form no cluster"
                await asyncio.sleep(0.2)
            except StartRefused:
                # An attempt whose answer was lost had made it.
                return
            else:
                return

    def _common(self) -> dict[str, Any]:
        return {
            "root": self.names.root,
            "spaces": SPACE,
            "replicas": 3 if self._count > 1 else 1,
            "ack_wait_ms": 2_000,
            "sweep_interval_ms": 2_000,
            "snapshot_commands": 400,
        }

    def _environment_of(self, name: str) -> Any:
        urls = self._urls(name)

        def of(data: Path) -> dict[str, str]:
            return environment(
                nats_url=",".join(urls),
                nats_user=conf.WORKER_USER,
                nats_password=WORKER_PASSWORD,
                data_dir=data,
                host=f"nemesis-{name}",
                **self._common(),
            )

        return of

    def _urls(self, who: str) -> tuple[str, ...]:
        return tuple(
            f"nats://127.0.0.1:{self.links.ports[f'{who}-{number}']}"
            for number in self.brokers.numbers
        )

    def links_of(self, who: str) -> list[str]:
        """The links from a worker, or from the clients, to the brokers."""
        return [f"{who}-{number}" for number in self.brokers.numbers]

    def direct_options(self) -> ConnectOptions:
        """To the brokers themselves, in the workers' account."""
        urls = tuple(server.url for server in self.brokers.servers)
        return ConnectOptions(urls, user=NEMESIS_USER, password=WORKER_PASSWORD)

    def client(self, speaker: Speaker) -> RecordedClient:
        """A client through the clients' links."""
        return RecordedClient(
            self.recorder, self.client_options(), speaker, SPACE, timeout_ms=6_000
        )

    def client_options(self) -> ConnectOptions:
        """Through the clients' links, each time to another broker first."""
        urls = self._urls("client")
        first = next(self._turns) % len(urls)
        return ConnectOptions((*urls[first:], *urls[:first]))

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)
