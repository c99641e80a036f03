"""A login that says bytes: the NATS protocol by hand, with no library to forbid anything."""

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Self

from tests.support.odd_bytes import Said

_AT_ONCE = 200
_TAKEN_S = 30.0
_FALSE_S = 0.5
"""Longest wait for a broker that was told a false size: it may wait for bytes that never come."""


class Stranger:
    """One user's connection; when the broker hangs up it logs in again and goes on.

    Args:
        port: Of the broker.
        user: The login; empty for nobody.
        password: Its password.

    Attributes:
        hung_up: How often the broker ended the connection.
        objections: How often it said ``-ERR``.
    """

    def __init__(self, port: int, user: str, password: str) -> None:
        self._port = port
        self._user = user
        self._password = password
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.hung_up = 0
        self.objections = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop()

    async def say(self, messages: Iterable[Said]) -> None:
        """Say messages; returns when the broker has taken all that it takes."""
        batch: list[Said] = []
        for said in messages:
            if said.sizes is not None:
                await self._say([said])
                continue
            batch.append(said)
            if len(batch) == _AT_ONCE:
                await self._say(batch)
                batch = []
        await self._say(batch)

    async def _say(self, batch: list[Said]) -> None:
        """Say some at once, and what the broker hung up over one by one."""
        false = any(said.sizes is not None for said in batch)
        wire = b"".join(said.wire for said in batch)
        if not batch or await self._through(wire, _FALSE_S if false else _TAKEN_S):
            return
        if len(batch) > 1:
            half = len(batch) // 2
            await self._say(batch[:half])
            await self._say(batch[half:])

    async def _through(self, wire: bytes, limit_s: float) -> bool:
        """Whether the broker took bytes and stayed on."""
        try:
            await self._login()
            assert self._writer is not None
            self._writer.write(wire + b"PING\r\n")
            await self._until_pong(limit_s)
        except (OSError, EOFError):
            self.hung_up += 1
            self._drop()
            return False
        return True

    async def _login(self) -> None:
        if self._writer is not None:
            return
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=2**22
        )
        await self._reader.readline()
        connect: dict[str, object] = {"verbose": False, "pedantic": False, "headers": True}
        connect |= {"no_responders": True}
        if self._user:
            connect |= {"user": self._user, "pass": self._password}
        self._writer.write(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        await self._until_pong()

    async def _until_pong(self, limit_s: float = _TAKEN_S) -> None:
        assert self._reader is not None
        assert self._writer is not None
        async with asyncio.timeout(limit_s):
            await self._writer.drain()
            while not (line := await self._reader.readline()).startswith(b"PONG"):
                if not line:
                    raise EOFError
                if line.startswith(b"-ERR"):
                    self.objections += 1
                    if b"ermissions Violation" not in line:
                        raise EOFError
                elif line.startswith(b"PING"):
                    self._writer.write(b"PONG\r\n")

    def _drop(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.transport.abort()
        self._reader = self._writer = None
