"""Many TCP links in a process of their own, to cut, to stall, or to let bytes vanish on.

``python -m tests.support.links`` takes one JSON command a line on standard input and answers each
on standard output; ``Links`` drives it. A link listens on loopback and forwards to one port. Its
process ends when standard input does.
"""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Mode = Literal["open", "cut", "stall", "swallow"]
"""``cut``: closed, and refused; ``stall``: nothing passes, nothing is lost; ``swallow``: bytes
vanish as if the other end were gone, so the connection is closed when the link opens again."""

Way = Literal["both", "up", "down"]
"""``up``: from who connected to the target."""

_HIGH = 1 << 20


@dataclass(eq=False)
class _Link:
    """One listening port and its connections."""

    target: int
    mode: Mode = "open"
    way: Way = "both"
    pairs: set["_Pair"] = field(default_factory=set)

    def does(self, mode: Mode, way: Way) -> bool:
        return self.mode == mode and self.way in ("both", way)

    def turn(self, mode: Mode, way: Way) -> None:
        self.mode, self.way = mode, way
        for pair in list(self.pairs):
            if mode == "cut" or (mode == "open" and pair.tainted):
                pair.abort()
            else:
                pair.near.adapt()
                pair.far.adapt()


class _Side(asyncio.Protocol):
    """One end of a forwarded connection: what it reads goes to the other end."""

    def __init__(self, pair: "_Pair", way: Way) -> None:
        self.pair = pair
        self.way = way
        self.transport: asyncio.Transport | None = None
        self._full = False
        self._waiting: list[bytes] = []

    @property
    def other(self) -> "_Side":
        return self.pair.far if self is self.pair.near else self.pair.near

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH)
        for data in self._waiting:
            transport.write(data)
        self._waiting.clear()
        self.pair.made(self)
        self.adapt()

    def data_received(self, data: bytes) -> None:
        if self.pair.link.does("swallow", self.way):
            self.pair.tainted = True
        else:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        if self.transport is None:
            self._waiting.append(data)
        else:
            self.transport.write(data)

    def adapt(self) -> None:
        """Read, unless the link stalls this way or the other end takes no more."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.pair.link.does("stall", self.way) or self.other._full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._full = True
        self.other.adapt()

    def resume_writing(self) -> None:
        self._full = False
        self.other.adapt()

    def connection_lost(self, exc: Exception | None) -> None:
        # While bytes vanish, the end of a connection vanishes too.
        if self.pair.link.does("swallow", self.way):
            self.pair.tainted = True
            self.transport = None
        else:
            self.pair.abort()


class _Pair:
    """A forwarded connection."""

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.tainted = False
        self.near = _Side(self, "up")
        self.far = _Side(self, "down")

    def made(self, side: _Side) -> None:
        if side is self.far:
            return
        self.link.pairs.add(self)
        if self.link.mode == "cut":
            self.abort()
            return
        task = asyncio.ensure_future(self._reach())
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)

    async def _reach(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.far, "127.0.0.1", self.link.target)
        except OSError:
            self.abort()

    def abort(self) -> None:
        self.link.pairs.discard(self)
        for side in (self.near, self.far):
            if side.transport is not None:
                side.transport.abort()


_TASKS: set[asyncio.Future[None]] = set()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    links: dict[str, _Link] = {}
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {}
        if "add" in order:
            link = links[order["add"]] = _Link(order["target"])
            server = await loop.create_server(
                lambda link=link: _Pair(link).near,  # type: ignore[misc]  # bound at once
                "127.0.0.1",
                0,
            )
            answer["port"] = server.sockets[0].getsockname()[1]
        else:
            for name in order["links"]:
                links[name].turn(order["mode"], order["way"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Links:
    """The links' process, seen from the test.

    Attributes:
        ports: Where each link listens.
    """

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._one = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.links"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def add(self, name: str, target: int) -> int:
        """A new link to a port; where it listens."""
        self.ports[name] = (await self._order({"add": name, "target": target}))["port"]
        return self.ports[name]

    async def turn(self, names: list[str], mode: Mode, way: Way = "both") -> None:
        """Change what links do."""
        await self._order({"links": names, "mode": mode, "way": way})

    async def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._one:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


if __name__ == "__main__":
    asyncio.run(_serve())
