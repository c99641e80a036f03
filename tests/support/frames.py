"""The NATS protocol as frames, and a proxy that loses, holds, doubles and reorders whole ones.

What a proxy of bytes cannot do: lose one answer and leave the connection standing. Rules say which
frames they want and what becomes of them; everything else passes as it is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

_PLACES: Final = {b"PUB": 1, b"HPUB": 2, b"MSG": 1, b"HMSG": 2}
"""How many sizes end a frame's first line."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the protocol.

    Attributes:
        raw: All its bytes.
        verb: ``PUB``, ``HMSG``, ``PING``, …
        subject: Of a message.
        reply: Where its answer goes.
        payload: Headers and body.
    """

    raw: bytes
    verb: bytes
    subject: bytes = b""
    reply: bytes = b""
    payload: bytes = b""


class Frames:
    """Cuts a stream of bytes, in one direction, into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now."""
        self._rest += data
        found: list[Frame] = []
        start = 0
        while (frame := self._next(start)) is not None:
            found.append(frame)
            start += len(frame.raw)
        self._rest = self._rest[start:]
        return found

    def _next(self, start: int) -> Frame | None:
        end = self._rest.find(b"\r\n", start)
        if end < 0:
            return None
        line = self._rest[start:end]
        verb, *words = line.split(b" ")
        sizes = _PLACES.get(verb.upper())
        if sizes is None:
            return Frame(self._rest[start : end + 2], verb.upper())
        whole = end + 2 + int(words[-1]) + 2
        if len(self._rest) < whole:
            return None
        named = words[: len(words) - sizes]
        before_reply = 1 if verb.upper().endswith(b"PUB") else 2
        reply = named[before_reply] if len(named) > before_reply else b""
        payload = self._rest[end + 2 : whole - 2]
        return Frame(self._rest[start:whole], verb.upper(), named[0], reply, payload)


Fate = Literal["drop", "hold", "double", "swap", "cut", "cut-after"]
"""``hold`` until released; ``swap`` with the next frame that way; ``cut`` the connection in its
place, or ``cut-after`` it."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A frame on its way.

    Attributes:
        down: Whether to the client.
        about: Its subject; for the answer to a request of the client, the request's.
        answers: Whether it is such an answer.
        frame: It.
    """

    down: bool
    about: str
    answers: bool
    frame: Frame


@dataclass(eq=False)
class Rule:
    """What is done to frames.

    Attributes:
        wanted: Which.
        fate: What.
        times: To how many; -1 for all.
        met: Set once it was done to one.
        held: What is kept back.
    """

    wanted: Callable[[Passing], bool]
    fate: Fate
    times: int = 1
    met: asyncio.Event = field(default_factory=asyncio.Event)
    held: list[tuple["_Way", Frame]] = field(default_factory=list)

    def takes(self, passing: Passing) -> bool:
        if self.times == 0 or not self.wanted(passing):
            return False
        self.times -= 1
        self.met.set()
        return True

    def release(self, *, backwards: bool = False) -> None:
        """Let pass what was held, as far as its connection still stands."""
        self.times = 0
        for way, frame in reversed(self.held) if backwards else self.held:
            way.write(frame.raw)
        self.held.clear()


class _Way:
    """One direction of a connection."""

    def __init__(self, proxy: "FrameProxy", pair: "_Pair", sink: asyncio.StreamWriter, down: bool):
        self._proxy = proxy
        self._pair = pair
        self._sink = sink
        self._down = down
        self._frames = Frames()
        self._swapped: list[bytes] = []

    def write(self, raw: bytes) -> None:
        if not self._sink.is_closing():
            self._sink.write(raw)

    async def pump(self, source: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self._proxy.open.wait()
                for frame in self._frames.feed(data):
                    self._pass(frame)
                await self._sink.drain()
        self._pair.cut()

    def _pass(self, frame: Frame) -> None:
        passing = self._pair.seen(frame, self._down)
        fate = self._proxy.fate_of(passing, self)
        match fate:
            case "drop" | "hold":
                return
            case "swap":
                self._swapped.append(frame.raw)
                return
            case "cut":
                self._pair.cut()
                return
        self.write(frame.raw)
        if fate == "double":
            self.write(frame.raw)
        for raw in self._swapped:
            self.write(raw)
        self._swapped.clear()
        if fate == "cut-after":
            # A close, not an abort: what was written goes out first.
            self._sink.close()


class _Pair:
    """One connection of a client, forwarded."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self._asked: dict[bytes, bytes] = {}

    def seen(self, frame: Frame, down: bool) -> Passing:
        if not down:
            if frame.reply:
                self._asked[frame.reply] = frame.subject
            return Passing(False, _text(frame.subject), False, frame)
        asked = self._asked.get(frame.subject)
        return Passing(True, _text(asked or frame.subject), asked is not None, frame)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "surrogateescape")


class FrameProxy:
    """Stands between clients and a broker.

    Args:
        target_port: The broker's.

    Attributes:
        port: Where it listens.
        open: While clear, nothing passes and nothing is closed.
        rules: The first one that takes a frame decides.
        passed: Everything that came by, in order.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.open = asyncio.Event()
        self.open.set()
        self.rules: list[Rule] = []
        self.passed: list[Passing] = []
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def rule(self, fate: Fate, wanted: Callable[[Passing], bool], times: int = 1) -> Rule:
        """From now on."""
        one = Rule(wanted, fate, times)
        self.rules.append(one)
        return one

    def fate_of(self, passing: Passing, way: _Way) -> Fate | None:
        self.passed.append(passing)
        for rule in self.rules:
            if rule.takes(passing):
                if rule.fate == "hold":
                    rule.held.append((way, passing.frame))
                return rule.fate
        return None

    def cut(self) -> None:
        """Close every connection without a word."""
        for pair in list(self._pairs):
            pair.cut()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, up_writer)
        self._pairs.add(pair)
        ways = (
            (_Way(self, pair, up_writer, False), reader),
            (_Way(self, pair, writer, True), up_reader),
        )
        for way, source in ways:
            task = asyncio.create_task(way.pump(source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


@asynccontextmanager
async def frames_to(target_port: int) -> AsyncIterator[FrameProxy]:
    """A running proxy."""
    one = FrameProxy(target_port)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
