"""A socket that speaks the NATS protocol byte by byte, and says what no library would let one."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self


class RawSocket:
    """One connection in the clients' account; every publish asks for its acknowledgement."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        await reader.readline()
        one = cls(reader, writer)
        connect = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
        }
        writer.write(b"CONNECT " + json.dumps(connect).encode() + b"\r\nSUB _INBOX.raw 1\r\n")
        await one._round_trip()
        return one

    @classmethod
    @asynccontextmanager
    async def held(cls, port: int) -> AsyncIterator[Self]:
        """Connect until the block ends."""
        one = await cls.connect(port)
        try:
            yield one
        finally:
            await one.close()

    async def _round_trip(self) -> None:
        self._writer.write(b"PING\r\n")
        while not (await self._line()).startswith(b"PONG"):
            continue

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        assert line, "the server hung up"
        assert not line.startswith(b"-ERR"), line
        return line

    def tell(self, subject: bytes, body: bytes) -> None:
        """Publish, and want no answer."""
        self._writer.write(b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body))

    async def ask(self, subject: bytes, body: bytes, *, reply: bytes = b"_INBOX.raw") -> Any:
        """Ask, have the answer sent to this very subject, and read it as JSON."""
        extra = b"" if reply == b"_INBOX.raw" else b"SUB %b 2\r\n" % reply
        after = b"UNSUB 2\r\n" if extra else b""
        self._writer.write(b"%bPUB %b %b %d\r\n%b\r\n" % (extra, subject, reply, len(body), body))
        answer = await self._answer()
        self._writer.write(after)
        assert "headers" not in answer or answer["body"], answer
        return json.loads(answer["body"]) if "headers" in answer else answer

    async def publish(
        self, subject: bytes, body: bytes, headers: Sequence[bytes] | None = None
    ) -> dict[str, Any]:
        """Publish with these very header lines; what the stream answers."""
        if headers is None:
            head = b"PUB %s _INBOX.raw %d\r\n" % (subject, len(body))
            block = b""
        else:
            block = b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in headers) + b"\r\n"
            sizes = (subject, len(block), len(block) + len(body))
            head = b"HPUB %s _INBOX.raw %d %d\r\n" % sizes
        self._writer.write(head + block + body + b"\r\n")
        await self._writer.drain()
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                line = await self._line()
                if line.startswith((b"MSG", b"HMSG")):
                    sizes = line.split(b" ")
                    size = int(sizes[-1])
                    payload = (await self._reader.readexactly(size + 2))[:size]
                    if line.startswith(b"HMSG"):
                        split = int(sizes[-2])
                        return {"headers": payload[:split].decode(), "body": payload[split:]}
                    ack: dict[str, Any] = json.loads(payload)
                    return ack
                if line.startswith(b"PING"):
                    self._writer.write(b"PONG\r\n")

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
