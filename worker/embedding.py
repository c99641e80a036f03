"""The broker that a worker starts for itself when no other is configured."""

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import Self

from worker import broker, files, logs
from worker.broker import OwnBroker
from worker.bus import conf
from worker.bus.embedded import EmbeddedServer
from worker.bus.options import ConnectOptions
from worker.errors import StartRefused
from worker.settings import Settings

DIRECTORY = "broker"
STOP_LIMIT_MS = 1_500

log = logs.get()


class OwnServer:
    """A running broker of our own, announced in ``broker.json``.

    Attributes:
        options: How the worker reaches it.
        exited: Resolves with its return code when it ends.
    """

    def __init__(self, server: EmbeddedServer, settings: Settings, found: OwnBroker) -> None:
        self._server = server
        self._data_dir = settings.data_dir
        self.options: ConnectOptions = broker.own_options(found, settings)
        self.exited: asyncio.Future[int] = server.exited

    @classmethod
    async def start(cls, settings: Settings) -> Self:
        """Start it and leave word of it.

        It listens where it listened last time if that port is free, so that clients find it again.

        Raises:
            StartRefused: There is no nats-server, another worker runs here, or it did not start.
        """
        files.private_dir(settings.data_dir)
        password = secrets.token_urlsafe(24)
        directory = settings.data_dir / DIRECTORY
        spaces = [conf.Space(settings.root, space) for space in settings.spaces]
        text = conf.embedded(spaces, store_dir=directory / "store", worker_password=password)
        server = await _start_where_it_was(directory, text)
        files.replace_private(directory / "port", str(server.port).encode())
        found = OwnBroker(server.client_url, conf.WORKER_USER, password, os.getpid())
        try:
            broker.write(settings.data_dir, found)
        except BaseException:
            await server.stop()
            raise
        log.info("own_broker_started", url=server.client_url)
        return cls(server, settings, found)

    async def stop(self) -> None:
        """End it within two seconds and take the word back."""
        broker.remove(self._data_dir)
        await self._server.stop(STOP_LIMIT_MS)


async def _start_where_it_was(directory: Path, text: str) -> EmbeddedServer:
    port: int | None = None
    with contextlib.suppress(OSError, ValueError):
        port = int((directory / "port").read_text())
    if port is not None:
        try:
            return await EmbeddedServer.start(directory, text, port=port)
        except StartRefused as refused:
            log.info("own_broker_moves", error=refused)
    return await EmbeddedServer.start(directory, text)
