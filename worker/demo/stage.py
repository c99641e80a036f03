"""The demo's stage: a broker of its own, a worker process, and clients; all in one folder."""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from schemas.names import Names
from schemas.subjects import Speaker
from worker import identity
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.embedded import EmbeddedServer
from worker.bus.options import ConnectOptions
from worker.client import Client, ClientError
from worker.errors import TidegateError
from worker.settings import PREFIX, Settings
from worker.spaces import create_space

SPACE: Final = "demo"
HOST: Final = "demo-host"
"""The host id that worker and connectors of the demo share, wherever it is played."""

REAPER_MS: Final = 500
READY_S: Final = 10.0
POLL_S: Final = 0.03


class StageError(TidegateError):
    """The stage fell down; the worker's last words follow."""


class Stage:
    """Everything a scenario plays on.

    Attributes:
        names: The space.

    Args:
        folder: Where everything is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.names = Names("tidegate", SPACE)
        self._folder = folder
        self._password = secrets.token_urlsafe(24)
        self._server: EmbeddedServer | None = None
        self._worker: asyncio.subprocess.Process | None = None
        self._lives: dict[str, Speaker] = {}

    async def set_up(self) -> None:
        """Start the broker, set up the space, start the worker."""
        await self.start_broker()
        options = self._worker_options()
        conn = await Connection.open(options, name="tidegate-demo")
        try:
            await create_space(conn, self.names, self._settings())
        finally:
            await conn.close()
        await self.start_worker()

    async def tear_down(self) -> None:
        """End the worker and the broker."""
        await self._end_worker(kill=False)
        if self._server is not None:
            await self._server.stop()

    @asynccontextmanager
    async def client(self, principal: str) -> AsyncIterator[Client]:
        """A client of one principal, in the same life throughout the demo."""
        client = Client(self.url, self.speaker(principal), SPACE, timeout_ms=8_000)
        async with client:
            yield client

    def speaker(self, principal: str) -> Speaker:
        """One principal's life."""
        if principal not in self._lives:
            self._lives[principal] = Speaker(principal, identity.new_uid())
        return self._lives[principal]

    async def start_broker(self) -> None:
        """Start the broker, on the same port as before if there was one."""
        text = conf.embedded(
            [conf.Space(self.names.root, SPACE)],
            store_dir=self._folder / "broker" / "store",
            worker_password=self._password,
        )
        port = self._server.port if self._server is not None else None
        self._server = await EmbeddedServer.start(self._folder / "broker", text, port=port)

    async def start_worker(self) -> None:
        """Start the worker process and wait until it is ready.

        Raises:
            StageError: It did not get ready.
        """
        with (self._folder / "worker.log").open("ab") as log:
            self._worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "worker.cli.main",
                "run",
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + READY_S
        async with self.client("_op-demo") as client:
            while time.monotonic() < until and self._worker.returncode is None:
                with contextlib.suppress(ClientError):
                    if (await client.status(timeout_ms=500))["ready"]:
                        return
                await asyncio.sleep(POLL_S)
        raise StageError(f"the worker did not get ready: {self.last_words()}")

    async def kill_everything(self) -> None:
        """SIGKILL the worker and the broker, as a power cut would."""
        await self._end_worker(kill=True)
        if self._server is not None:
            self._server.kill()
            await self._server.exited

    def last_words(self) -> str:
        """The end of the worker's log."""
        try:
            lines = (self._folder / "worker.log").read_text(errors="replace").splitlines()
        except OSError:
            return "it said nothing"
        return "\n".join(lines[-5:])

    async def _end_worker(self, *, kill: bool) -> None:
        worker, self._worker = self._worker, None
        if worker is None or worker.returncode is not None:
            return
        if not kill:
            worker.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.wait(), 5)
        if worker.returncode is None:
            worker.kill()
            await worker.wait()

    @property
    def url(self) -> str:
        """Where the broker listens."""
        if self._server is None:
            raise StageError("the broker was not started")
        return self._server.client_url

    def _worker_options(self) -> ConnectOptions:
        return ConnectOptions((self.url,), user=conf.WORKER_USER, password=self._password)

    def _settings(self) -> Settings:
        return Settings(data_dir=self._folder / "data", spaces=(SPACE,))

    def _environment(self) -> dict[str, str]:
        outer = {k: v for k, v in os.environ.items() if not k.upper().startswith(PREFIX)}
        return {
            **outer,
            f"{PREFIX}NATS_URL": self.url,
            f"{PREFIX}NATS_USER": conf.WORKER_USER,
            f"{PREFIX}NATS_PASSWORD": self._password,
            f"{PREFIX}SPACES": SPACE,
            f"{PREFIX}DATA_DIR": str(self._folder / "data"),
            f"{PREFIX}LOG_FORMAT": "json",
            f"{PREFIX}HOST": HOST,
            f"{PREFIX}REAPER_INTERVAL_MS": str(REAPER_MS),
        }
