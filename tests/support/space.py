"""One space of a real server, and what speaks in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.names import Names
from schemas.subjects import Speaker
from tests.support.server import WORKER_PASSWORD, Server
from worker import identity
from worker.bus import conf
from worker.bus.connection import Connection
from worker.client import Client
from worker.settings import Settings
from worker.spaces import create_space


def speaker(principal: str) -> Speaker:
    """A new life of a principal."""
    return Speaker(principal, identity.new_uid())


@dataclass(frozen=True)
class Space:
    """A space of its own for one test.

    Attributes:
        server: The server it lives on.
        names: Its names.
        data_dir: A data directory of its own.
    """

    server: Server
    names: Names
    data_dir: Path

    async def set_up(self) -> str:
        """Create its streams; the space id."""
        conn = await self.connect("test-setup")
        try:
            return await create_space(conn, self.names, self.settings())
        finally:
            await conn.close()

    def settings(self, **changes: Any) -> Settings:
        """Settings of a worker that serves this space."""
        given: dict[str, Any] = {
            "nats_url": self.server.url,
            "nats_user": conf.WORKER_USER,
            "nats_password": WORKER_PASSWORD,
            "root": self.names.root,
            "spaces": self.names.space,
            "data_dir": self.data_dir,
            "log_level": "info",
        }
        return Settings(**{**given, **changes})

    async def connect(self, name: str = "test-worker") -> Connection:
        """A connection in the workers' account."""
        return await Connection.open(self.server.worker_options(), name=name)

    def client(self, who: Speaker | str = "alice", **options: Any) -> Client:
        """A client in the clients' account; open it with ``async with``."""
        by = speaker(who) if isinstance(who, str) else who
        return Client(
            self.server.client_options(),
            by,
            self.names.space,
            root=self.names.root,
            **options,
        )
