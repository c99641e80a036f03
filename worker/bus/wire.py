"""The one module that reaches into nats-py: its client with another parser, send path and end.

Everything that overrides a private part of the library is here, with the reason, and
``tests/unit/test_bus_wire_shape.py`` fails if the library changes the shape of such a part. What we
keep is the handshake, authentication, TLS and the socket. What we replace, and why:

* **Parser.** The library matches six regular expressions per message, copies the rest of its buffer
  after each one and awaits three coroutines, which caps a consumer near 10,000 messages/s. Ours
  finds the line end, splits once and calls a *sink*.
* **Sending.** The library makes a future and a queue entry per message. Ours appends to a list that
  is written once per turn of the event loop.
* **Errors.** The library closes for good on any ``-ERR`` that is not about permissions, and dies
  silently if a callback raises. Ours resolves ``lost``, and the owner dials with a new client.
* **TLS.** The library sends CONNECT, password included, in the clear if the server offers no TLS.
  Ours refuses on the INFO line, before a byte was sent.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.protocol.parser import Parser

from worker import logs
from worker.bus.errors import TlsRefused

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""Takes subject, reply, header block and data of one message, on the event loop; must not block."""

READ_SIZE: Final = 256 * 1024
MAX_UNSENT_BYTES: Final = 32 * 1024 * 1024
"""Beyond this in the socket's buffer the server is not reading and nothing more is accepted."""

_VIOLATION = re.compile(
    r"permissions violation for (publish with reply of|publish to|subscription to) "
    r'("(?:[^"\\]|\\.)*")',
    re.IGNORECASE,
)
_REFUSED = ("authorization", "authentication")
_GRACE_S: Final = 0.5
_NOT_NATS: Final = "the server sent something that is not NATS"
_log = logs.get("tidegate.bus")


@dataclass(frozen=True, slots=True)
class Violation:
    """The broker's permissions refused something.

    Attributes:
        kind: ``publish``, ``reply`` or ``subscribe``.
        subject: What was refused; for ``reply`` the reply subject.
    """

    kind: str
    subject: str


def parse_violation(text: str) -> Violation | None:
    """Read a permissions violation out of the text of ``-ERR``, which carries no number."""
    found = _VIOLATION.search(text)
    if found is None:
        return None
    try:
        subject = str(json.loads(found[2]))
    except ValueError:
        subject = found[2][1:-1]
    verb = found[1].lower()
    kind = "reply" if "reply" in verb else "publish" if verb.startswith("publish") else "subscribe"
    return Violation(kind, subject)


def is_refusal_text(text: str) -> bool:
    """Whether the text of ``-ERR`` says that our credentials are not, or no longer, accepted."""
    lowered = text.lower()
    return any(word in lowered for word in _REFUSED)


class WireParser(Parser):
    """Splits the byte stream into operations without regular expressions."""

    nc: "WireClient"

    def reset(self) -> None:
        """Forget a half-read operation."""
        super().reset()
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0

    async def parse(self, data: bytes = b"") -> None:
        """Take the next bytes; messages with a sink are delivered before this returns."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        size = len(data)
        at = 0
        need = 1
        sinks = self.nc.sinks
        while at < size:
            end = data.find(b"\r\n", at)
            if end < 0:
                need = size - at + 1
                break
            first = data[at]
            if first == 72 or first == 77:  # H(MSG), M(SG)
                # At single blanks: every other byte may be part of a subject.
                fields = data[at:end].split(b" ")
                body = end + 2
                try:
                    stop = body + int(fields[-1])
                    middle = body + (int(fields[-2]) if first == 72 else 0)
                except (ValueError, IndexError):
                    self.nc.lose(_NOT_NATS)
                    return
                if stop + 2 > size:
                    need = stop + 2 - at
                    break
                at = stop + 2
                if first == 72:
                    header = data[body:middle]
                    payload = data[middle:stop]
                    reply = fields[3] if len(fields) == 6 else b""
                else:
                    header = b""
                    payload = data[body:stop]
                    reply = fields[3] if len(fields) == 5 else b""
                sink = sinks.get(fields[2])
                if sink is None:
                    continue  # nobody listens any more
                try:
                    sink(fields[1], reply, header, payload)
                except Exception:
                    # A sink that raises must not end the reading of everybody's messages.
                    _log.exception("sink_failed")
                continue
            line = data[at:end]
            at = end + 2
            await self._control(line)
        if at < size:
            self._parts.append(data[at:])
            self._have = size - at
            self._need = need

    async def _control(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            await self.nc._process_ping()
        elif word == b"PONG":
            await self.nc._process_pong()
        elif word == b"INFO":
            await self.nc._process_info(json.loads(line[4:]))
        elif word == b"-ERR":
            await self.nc._process_err(line[4:].decode("utf-8", "replace").strip().strip("'"))
        elif word[:3] != b"+OK":
            self.nc.lose(_NOT_NATS)


class WireClient(Client):
    """One connection to one server; it never reconnects by itself.

    Attributes:
        sinks: Subscription number (as bytes) to who takes its messages.
        lost: Resolves once, with the reason, when the connection is of no more use.
        refused: Whether it was lost because our credentials are not accepted.
        violations: Called for each permissions violation.
    """

    def __init__(self, *, want_tls: bool, violations: Callable[[Violation], None]) -> None:
        super().__init__()
        self._ps = WireParser(self)
        self._want_tls = want_tls
        self._out: list[bytes] = []
        self._unsent = 0
        self._loop = asyncio.get_running_loop()
        self._done_future: asyncio.Future[None] = self._loop.create_future()
        self._done_future.set_result(None)
        self.sinks: dict[bytes, Sink] = {}
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.refused = False
        self.violations = violations

    def use_nkey(self, public_key: str | None) -> None:
        """Authenticate by signing the server's nonce, with this key or with a JWT."""
        self._public_nkey = public_key
        self._auth_configured = True

    @property
    def info(self) -> dict[str, Any]:
        """The server's latest INFO."""
        return self._server_info

    @property
    def congested(self) -> bool:
        """Whether the server does not read what was sent, so that nothing more is accepted."""
        if self._unsent > MAX_UNSENT_BYTES:
            self._unsent = self._in_socket_buffer()
        return self._unsent > MAX_UNSENT_BYTES

    def _in_socket_buffer(self) -> int:
        writer = getattr(self._transport, "_io_writer", None)
        return 0 if writer is None else int(writer.transport.get_write_buffer_size())

    def lose(self, reason: str, *, refused: bool = False) -> None:
        """Declare the connection useless; the first reason stays."""
        if not self.lost.done():
            self.refused = refused
            self.lost.set_result(reason)

    def send(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        """Queue one message for the end of this turn of the event loop."""
        if header:
            line = b"HPUB %b %b %d %d\r\n" % (subject, reply, len(header), len(header) + len(data))
        else:
            line = b"PUB %b %b %d\r\n" % (subject, reply, len(data))
        self.put(b"".join((line, header, data, b"\r\n")))

    def put(self, command: bytes) -> None:
        """Queue one operation; operations leave in the order in which they were queued."""
        if not self._out:
            self._loop.call_soon(self.flush_out)
        self._out.append(command)

    def flush_out(self) -> None:
        """Hand everything queued to the socket."""
        out = self._out
        if not out:
            return
        self._out = []
        if self.lost.done() or self._transport is None:
            return
        try:
            self._transport.write(b"".join(out))
            self._unsent = self._in_socket_buffer()
        except (OSError, RuntimeError, AttributeError) as error:
            self.lose(f"writing failed: {type(error).__name__}")

    async def round_trip(self, timeout_ms: int) -> int:
        """Prove that the server processed everything sent so far.

        Returns:
            Microseconds it took.

        Raises:
            TimeoutError: The connection was lost, or no answer came within ``timeout_ms`` and half
                a second of grace, which a process that was stopped needs to read what already lies
                in its socket.
        """
        pong: asyncio.Future[None] = self._loop.create_future()
        started = self._loop.time()
        await self._send_ping(pong)
        ends = (pong, self.lost)
        for wait_s in (timeout_ms / 1000, _GRACE_S):
            done, _ = await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
        if not pong.done() or pong.cancelled():
            raise TimeoutError
        return int((self._loop.time() - started) * 1_000_000)

    async def discard(self) -> None:
        """Close the socket and end the library's tasks, in about a second at most.

        The library's own ``close`` waits for a peer that may never read again.
        """
        self.lose("closed")
        self._status = Client.CLOSED
        tasks = [self._reading_task, self._ping_interval_task, self._flusher_task]
        tasks += [sub._wait_for_msgs_task for sub in self._subs.values()]
        mine = asyncio.current_task()
        waiting = [task for task in tasks if task is not None and task is not mine]
        for task in waiting:
            task.cancel()
        for sub in self._subs.values():
            sub._stop_processing()
        self._subs.clear()
        self.sinks.clear()
        for pong in self._pongs:
            pong.cancel()
        if self._transport:
            transport: Any = self._transport
            transport.close()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(0.5):
                    await transport.wait_closed()
            writer = getattr(self._transport, "_io_writer", None)
            if writer is not None:
                writer.transport.abort()
        if waiting:
            await asyncio.wait(waiting, timeout=0.5)

    # The parts of nats-py that are replaced; see the module's docstring for why.

    async def _select_next_server(self) -> None:
        """Connect to the one server we were given; who owns us decides about the next."""
        server = self._server_pool[0]
        await self._connect_to_server(server)
        self._current_server = server

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._want_tls and not self.options["tls_handshake_first"]:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise TlsRefused(
                    "TLS was asked for, but the server offers none; "
                    "nothing was sent, use nats:// if that is intended"
                )
            # A server that merely allows TLS would get CONNECT in the clear from the library.
            info["tls_required"] = True
        await super()._process_info(info, initial_connection=initial_connection)

    async def _read_loop(self) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            while not self.lost.done():
                data = await transport.read(READ_SIZE)
                if not data:
                    self.lose("the server closed the connection")
                    return
                await self._ps.parse(data)
        except OSError as error:
            self.lose(f"reading failed: {error.strerror or type(error).__name__}")
        except Exception as error:
            _log.exception("read_loop_failed")
            self.lose(f"reading failed: {type(error).__name__}")

    async def _process_err(self, err_msg: str) -> None:
        violation = parse_violation(err_msg)
        if violation is not None:
            self.violations(violation)
        else:
            self.lose(f"the server said: {err_msg}", refused=is_refusal_text(err_msg))

    async def _process_op_err(self, e: Exception) -> None:
        self.lose(str(e) or type(e).__name__)

    async def _process_pong(self) -> None:
        if self._pongs:
            pong = self._pongs.pop(0)
            # The library sets the result of a cancelled future, which ends its read loop.
            if not pong.done():
                pong.set_result(None)
            self._pings_outstanding = 0

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self._pongs.append(self._loop.create_future() if future is None else future)
        self.put(b"PING\r\n")

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        self.put(bytes(cmd))

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        return self._done_future
