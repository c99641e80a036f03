"""The repository's own ``nats.conf`` on a real server, with a worker that has only its rights."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as RawClient

from schemas.names import Names
from schemas.roles import Role
from schemas.subjects import Speaker
from tests.support.process import WorkerProcess, command, environment
from worker.bus import embedded, users
from worker.bus.options import ConnectOptions
from worker.client import Client

CONF = Path(__file__).parents[2] / "nats.conf"
NAMES = Names("tidegate", "main")
ENDPOINT, PERSON = "runs", "alice"
GRANTS = {grant.role: grant for grant in users.one_of_each([ENDPOINT], [PERSON])}
PASSWORDS = {grant.variable: f"p-{grant.name}-12e4" for grant in GRANTS.values()}


def conf_environment(directory: Path) -> dict[str, str]:
    """What the configuration takes from the environment."""
    return {**os.environ, "NATS_STORE_DIR": str(directory / "store"), **PASSWORDS}


def conf_arguments(directory: Path, conf: Path = CONF) -> list[str]:
    """The very file; only ports and addresses are chosen for the test."""
    return [
        *(str(embedded.find_binary()), "-c", str(conf)),
        *("-a", "127.0.0.1", "-p", "-1", "-m", "-1", "--ports_file_dir", str(directory)),
    ]


@dataclass
class Rights:
    """What the broker objected to, in its own words.

    Attributes:
        violations: ``publish <subject>`` and ``subscription <subject>``, lower case.
    """

    violations: list[str]

    async def heard(self, error: Exception) -> None:
        text = str(error)
        for kind in ("publish", "subscription"):
            _, found, subject = text.partition(f"violation for {kind} to ")
            if found:
                self.violations.append(f"{kind} {subject.strip(chr(34))}")


class Production:
    """A server with ``nats.conf``, and a worker beside it.

    Attributes:
        url: The server.
    """

    def __init__(self, directory: Path, conf: Path = CONF) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)
        with (directory / "server.log").open("wb") as log:
            self._server = subprocess.Popen(
                conf_arguments(directory, conf),
                env=conf_environment(directory),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._workers: list[WorkerProcess] = []
        try:
            self._start_worker()
        except BaseException:
            self.stop()
            raise

    def _start_worker(self) -> None:
        self.url = self._await_url()
        env = self.worker_environment()
        done = command(["setup", "--new"], env)
        assert done.returncode == 0, done.stderr
        self._workers.append(WorkerProcess(env, self._directory / "worker.log"))
        self.worker.wait_ready()

    @property
    def worker(self) -> WorkerProcess:
        return self._workers[0]

    def worker_environment(self, **settings: object) -> dict[str, str]:
        return environment(
            **{
                "nats_url": self.url,
                "nats_user": "worker",
                "nats_password": PASSWORDS["NATS_WORKER_PASSWORD"],
                "data_dir": self._directory / "data",
                **settings,
            }
        )

    def _await_url(self) -> str:
        until = time.monotonic() + 15
        while time.monotonic() < until:
            for path in self._directory.glob("*.ports"):
                try:
                    return str(json.loads(path.read_text())["nats"][0])
                except (OSError, ValueError, LookupError):
                    break
            assert self._server.poll() is None, self.server_log()
            time.sleep(0.02)
        raise AssertionError("the server did not start in time")

    def server_log(self) -> str:
        return (self._directory / "server.log").read_text()

    def stop(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._server.kill()
        self._server.wait(5)

    def options(self, role: Role) -> ConnectOptions:
        grant = GRANTS[role]
        return ConnectOptions(
            (self.url,),
            user=grant.name,
            password=PASSWORDS[grant.variable],
            inbox_prefix=f"_INBOX_{grant.name}",
        )

    def client(self, role: Role, uid: str) -> Client:
        """Our own client with one role's credential."""
        speaker = Speaker(GRANTS[role].principal, uid)
        return Client(self.options(role), speaker, NAMES.space, root=NAMES.root)

    async def raw(self, role: Role) -> tuple[RawClient, Rights]:
        """A plain client with one role's credential, and what the broker objects to."""
        grant = GRANTS[role]
        return await self.raw_as(grant.name, PASSWORDS[grant.variable])

    async def raw_as(self, name: str, password: str) -> tuple[RawClient, Rights]:
        """As ``raw``, for any login."""
        rights = Rights([])
        client = await nats.connect(
            self.url,
            user=name,
            password=password,
            inbox_prefix=f"_INBOX_{name}".encode(),
            error_cb=rights.heard,
            allow_reconnect=False,
        )
        return client, rights


async def stored(worker: RawClient, names: Names) -> dict[str, dict[str, int]]:
    """How many messages lie under every subject of every stream of the space."""
    from worker.bus.plan import TopologySettings, stream_configs

    found: dict[str, dict[str, int]] = {}
    for config in stream_configs(names, TopologySettings(), ""):
        info = await api(worker, f"STREAM.INFO.{config['name']}", {"subjects_filter": ">"})
        found[config["name"]] = info["state"].get("subjects") or {}
    return found


async def api(worker: RawClient, name: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the JetStream API in plain words."""
    reply = await worker.request(f"$JS.API.{name}", json.dumps(query).encode(), timeout=5)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer
