"""Many TCP links in a process of their own, to cut, to stall, or to let bytes vanish on.

``python -m tests.support.links`` takes one JSON command a line on standard input and answers each
on standard output; ``Links`` drives it. A link listens on loopback and forwards to one port. Its
process ends when standard input does. A framed link knows where messages begin and end.
"""

import asyncio
import json
import random
import sys
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from tests.support.frames import Frame, Frames

Mode = Literal["open", "cut", "stall", "swallow", "muddle", "lag"]
"""``cut``: closed, and refused; ``stall``: nothing passes, nothing is lost; ``swallow``: bytes
vanish as if the other end were gone, so the connection is closed when the link opens again.

Of framed links only: ``muddle``: messages from the target are lost, doubled, late and out of order,
and now and then the connection with them; ``lag``: what consumers of the log are handed is held up,
and nothing else, so that whoever folds it falls behind and goes on answering.
"""

Way = Literal["both", "up", "down"]
"""``up``: from who connected to the target."""

_HIGH = 1 << 20
_LOG: Final = b"$JS.ACK.LOG_"
"""How the reply of a message begins that a consumer of the log is handed."""

_FATES: Final = {"pass": 60, "drop": 12, "double": 10, "late": 16, "cut": 2}
_LATEST_S: Final = 3.0


@dataclass(eq=False)
class _Link:
    """One listening port and its connections."""

    target: int
    mode: Mode = "open"
    way: Way = "both"
    framed: bool = False
    rng: random.Random = field(default_factory=random.Random)
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
                pair.far.release()


class _Side(asyncio.Protocol):
    """One end of a forwarded connection: what it reads goes to the other end."""

    def __init__(self, pair: "_Pair", way: Way) -> None:
        self.pair = pair
        self.way = way
        self.transport: asyncio.Transport | None = None
        self._full = False
        self._waiting: list[bytes] = []
        self._frames = Frames() if pair.link.framed and way == "down" else None
        self._held: list[bytes] = []

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
        elif self._frames is None:
            self.other.write(data)
        else:
            for frame in self._frames.feed(data):
                self._pass(frame)

    def _pass(self, frame: Frame) -> None:
        """A whole frame from the target goes its way, as the link's mode has it."""
        link = self.pair.link
        if link.mode == "lag" and frame.reply.startswith(_LOG):
            self._held.append(frame.raw)
            return
        fate = "pass"
        if link.mode == "muddle" and frame.verb in (b"MSG", b"HMSG"):
            (fate,) = link.rng.choices(list(_FATES), list(_FATES.values()))
        match fate:
            case "drop":
                return
            case "late":
                late_s = link.rng.uniform(0.0, _LATEST_S)
                asyncio.get_running_loop().call_later(late_s, self.other.write, frame.raw)
                return
            case "cut":
                self.pair.abort()
                return
            case "double":
                self.other.write(frame.raw)
        self.other.write(frame.raw)

    def release(self) -> None:
        """Hand on what was held up, unless it still is."""
        if self.pair.link.mode != "lag":
            for raw in self._held:
                self.other.write(raw)
            self._held.clear()

    def write(self, data: bytes) -> None:
        if self.transport is None:
            self._waiting.append(data)
        elif not self.transport.is_closing():
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
            rng = random.Random(order["add"])
            link = links[order["add"]] = _Link(order["target"], framed=order["framed"], rng=rng)
            server = await loop.create_server(
                lambda link=link: _Pair(link).near,  # type: ignore[misc]  # bound at once
                "127.0.0.1",
                0,
            )
            answer["port"] = server.sockets[0].getsockname()[1]
        else:
            for name in order["links"]:
                if order["seed"]:
                    links[name].rng.seed(f"{order['seed']}/{name}")
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

    async def add(self, name: str, target: int, *, framed: bool = False) -> int:
        """A new link to a port; where it listens."""
        order = {"add": name, "target": target, "framed": framed}
        self.ports[name] = (await self._order(order))["port"]
        return self.ports[name]

    async def turn(
        self, names: list[str], mode: Mode, way: Way = "both", *, seed: str = ""
    ) -> None:
        """Change what links do; ``seed`` decides every chance from now on."""
        await self._order({"links": names, "mode": mode, "way": way, "seed": seed})

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
