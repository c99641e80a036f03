"""One broker, or a cluster of three whose every route runs through a link that can be cut."""

import asyncio
import itertools
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from schemas.names import Names
from schemas.roles import Role
from tests.nemesis.arena.disks import Disk
from tests.support.links import Links
from tests.support.process import free_port
from tests.support.server import WORKER_PASSWORD, Server
from worker.bus import conf, users

NEMESIS_USER: Final = "nemesis"
"""May do everything in the workers' account."""

NOWHERE = "127.0.0.1:9"
"""What a broker tells the others as its own address: they know each other by their links only."""


@dataclass
class Brokers:
    """The brokers of an arena.

    Attributes:
        servers: By number.
        disks: Where their stores lie.
        links: The process with every link.
    """

    links: Links
    servers: list[Server] = field(default_factory=list)
    disks: list[Disk] = field(default_factory=list)
    _confs: list[tuple[Path, str]] = field(default_factory=list)
    _names: Names = field(default_factory=lambda: Names("tidegate", "main"))

    @property
    def numbers(self) -> range:
        return range(len(self.servers))

    async def start(self, directory: Path, space: str, count: int) -> None:
        """Start ``count`` brokers, each knowing the others through links ``route-<a>-<b>``."""
        self._names = Names("tidegate", space)
        ports = [free_port() for _ in range(count)]
        for a, b in itertools.permutations(range(count), 2):
            await self.links.add(f"route-{a}-{b}", ports[b])
        for number in range(count):
            here = directory / f"broker-{number}"
            here.mkdir(parents=True)
            self.disks.append(Disk.mount(here / "store", 192))
            cluster = self._cluster(number, ports) if count > 1 else ""
            self._confs.append((here / "store", cluster))
            server = Server(here, self._configuration(number, {}))
            self.servers.append(server)
            await asyncio.to_thread(server.start)

    def _cluster(self, number: int, ports: list[int]) -> str:
        routes = [
            f"nats://127.0.0.1:{self.links.ports[f'route-{number}-{other}']}"
            for other in range(len(ports))
            if other != number
        ]
        return (
            f"server_name: n{number}\n"
            f'cluster {{ name: nemesis, listen: "127.0.0.1:{ports[number]}", '
            f'advertise: "{NOWHERE}", no_advertise: true, routes: {json.dumps(routes)} }}\n'
        )

    def routes_of(self, number: int) -> list[str]:
        """Every link between a broker and the others."""
        return [
            name
            for name in self.links.ports
            if name.startswith("route-") and str(number) in name.split("-")[1:]
        ]

    def routes_between(self, a: int, b: int) -> list[str]:
        return [f"route-{a}-{b}", f"route-{b}-{a}"]

    async def stop(self) -> None:
        for server in self.servers:
            await asyncio.to_thread(server.kill)
        for disk in self.disks:
            disk.unmount()

    def rights_without(self, word: str) -> Mapping[str, tuple[str, ...]]:
        """The worker's rights, as they are shipped, but for those that hold a word."""
        worker = self._worker
        return {
            kind: tuple(one for one in getattr(worker, kind) or () if word not in one)
            for kind in ("publish", "subscribe")
        }

    async def permit(self, rights: Mapping[str, tuple[str, ...]]) -> None:
        """Give the worker other rights on every broker that runs; ``{}`` is the shipped ones."""
        for number, server in enumerate(self.servers):
            server.rewrite(self._configuration(number, rights))
            if server.running:
                server.send(signal.SIGHUP)

    @property
    def _worker(self) -> conf.User:
        return users.user(users.Grant(Role.WORKER, conf.WORKER_USER), [self._names])

    def _configuration(self, number: int, rights: Mapping[str, tuple[str, ...]]) -> str:
        store, cluster = self._confs[number]
        logins = (
            replace(self._worker, password=WORKER_PASSWORD, **rights),  # type: ignore[arg-type]  # its own fields
            conf.User(NEMESIS_USER, WORKER_PASSWORD, "W"),
            conf.User(conf.CLIENT_USER, None, "C"),
        )
        return conf.render(
            [conf.Space(self._names.root, self._names.space)],
            logins,
            store_dir=store,
            listen="127.0.0.1:-1",
            no_auth_user=conf.CLIENT_USER,
            extra=cluster,
        )
