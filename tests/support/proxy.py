"""A TCP proxy in front of a real server, to do to the bytes what networks and servers do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Change = Callable[[bytes], bytes]


class Proxy:
    """Forwards connections to a server.

    Attributes:
        port: Where it listens.
        from_server: Changes what the server says, chunk by chunk.
        open: While clear, nothing passes in either direction and nothing is closed.
        seen_from_client: Every byte that clients sent.
    """

    def __init__(self, target_port: int, from_server: Change | None = None) -> None:
        self.port = 0
        self.from_server = from_server
        self.open = asyncio.Event()
        self.open.set()
        self.seen_from_client = b""
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._downstream: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def inject(self, data: bytes) -> None:
        """Say something to every client as if the server had said it."""
        for writer in self._downstream:
            writer.write(data)

    def cut(self) -> None:
        """Close every connection without a word."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._downstream.add(writer)
        self._writers |= {writer, up_writer}
        for source, sink, change in (
            (reader, up_writer, self._note),
            (up_reader, writer, self._changed),
        ):
            task = asyncio.create_task(self._pump(source, sink, change))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _note(self, data: bytes) -> bytes:
        self.seen_from_client += data
        return data

    def _changed(self, data: bytes) -> bytes:
        return self.from_server(data) if self.from_server is not None else data

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, change: Change
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self.open.wait()
                sink.write(change(data))
                await sink.drain()
        self._downstream.discard(sink)
        self._writers.discard(sink)
        sink.transport.abort()


@asynccontextmanager
async def proxy_to(target_port: int, from_server: Change | None = None) -> AsyncIterator[Proxy]:
    """A running proxy."""
    one = Proxy(target_port, from_server)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
