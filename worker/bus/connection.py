"""One connection to the broker that is either working, or known not to be.

A supervisor dials, watches and dials again with a fresh client; nothing is buffered through an
outage. What was in flight when a connection ended has an unknown outcome, what is asked while there
is none fails at once (DESIGN section 6, field-reports.md house rules 4 and 6).
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self

from worker import logs
from worker.bus import dialing
from worker.bus.errors import BusError, Denied, TooLarge, Unavailable
from worker.bus.headers import decode, encode
from worker.bus.octets import to_bytes
from worker.bus.options import ConnectOptions
from worker.bus.requests import Answer, Requests
from worker.bus.rights import Rights, named
from worker.bus.subscription import Callback, Mailbox, Msg, Subscription
from worker.bus.wire import Sink, Violation, WireClient

DEFAULT_TIMEOUT_MS: Final = 5_000
_FIRST_SID: Final = 1 << 20
"""Above the numbers that nats-py gives the subscriptions it manages itself."""
_HOOK_LIMIT_S: Final = 10.0
_BLANK = re.compile(r"[ \t\r\n]")
_log = logs.get("tidegate.bus")

ConnectHook = Callable[[WireClient], Awaitable[None]]


class Connection:
    """A connection that survives its broker.

    Attributes:
        closed: Resolves with the reason when the connection is closed for good: by ``close``, or
            because a reachable broker refused our credentials for too long. Its owner then ends the
            process or builds another.
        reconnects: How often a working connection was lost.
        rtt_ms: Last measured round trip, ``None`` before the first.
        last_error: Why the broker cannot be reached, empty while it is.
    """

    def __init__(self, options: ConnectOptions, *, name: str) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._options = options
        self._name = name
        self._client: WireClient | None = None
        self._dialer = dialing.Dialer(options, name, self._on_violation)
        self._requests = Requests(loop)
        self._inbox = f"{options.inbox_prefix}.{secrets.token_hex(11)}."
        self._inbox_bytes = self._inbox.encode()
        self._subscriptions: dict[bytes, Subscription] = {}
        self._next_sid = _FIRST_SID
        self._hooks: list[ConnectHook] = []
        self._rights = Rights(loop.time)
        self._unheard: set[str] = set()
        self._up = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._max_payload = 1024 * 1024
        self._version = (0, 0, 0)
        self.closed: asyncio.Future[str] = loop.create_future()
        self.reconnects = 0
        self.rtt_ms: float | None = None
        self.last_error = ""
        self._attach(self._inbox + "*", self._on_answer)

    @classmethod
    async def open(cls, options: ConnectOptions, *, name: str, required: bool = True) -> Self:
        """Connect.

        Args:
            options: Where to and as whom.
            name: What the broker's monitoring calls us.
            required: Try each server once and raise if none accepts us. Otherwise return at once
                and keep trying; ``connected`` says when it worked.

        Raises:
            Unavailable: No server could be reached.
            Unauthenticated: The broker refused our credentials.
            TlsRefused: TLS was asked for and there is none; nothing was sent.
            Denied: We may not even listen for answers.
        """
        connection = cls(options, name=name)
        client: WireClient | None = None
        if required:
            try:
                client = await connection._dialer.once()
                await connection._welcome(client)
            except BaseException:
                if client is not None:
                    await client.discard()
                raise
            if connection._inbox_subscription.denied:
                await client.discard()
                raise Denied("the user may not subscribe to its inbox", subject=connection._inbox)
        connection._supervisor = asyncio.create_task(
            connection._supervise(client), name=f"bus-{name}"
        )
        return connection

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._client is not None

    @property
    def client(self) -> WireClient | None:
        """The client of the moment; see ``on_connect``."""
        return self._client

    @property
    def denials(self) -> int:
        """Permission violations seen."""
        return self._rights.denials

    @property
    def rights_lost(self) -> list[str]:
        """What the broker's permissions refuse now of what this connection does, as sentences.

        A subscription is proven, and made anew, every ``prove_interval_ms``. A publish counts until
        it works, or for a minute.
        """
        deaf = {one.subject: None for one in self._subscriptions.values() if one.denied}
        return [
            f"the broker refuses {what} {named(subjects)}"
            for what, subjects in (
                ("to let us listen to", list(deaf)),
                ("what we publish to", self._rights.refused()),
            )
            if subjects
        ]

    @property
    def server_version(self) -> tuple[int, int, int]:
        """Version of the server last connected to."""
        return self._version

    @property
    def server_info(self) -> Mapping[str, Any]:
        """INFO of the server connected to; empty while there is none."""
        return {} if self._client is None else self._client.info

    @property
    def max_payload(self) -> int:
        """Most bytes of headers and data together that one message may have."""
        return self._max_payload

    @property
    def in_flight(self) -> int:
        """Requests waiting for an answer."""
        return len(self._requests)

    async def wait_connected(self, timeout_ms: int | None = None) -> bool:
        """Wait until requests can be sent; ``False`` if that took longer than ``timeout_ms``."""
        if timeout_ms is None:
            await self._up.wait()
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self._up.wait()
        return self._up.is_set()

    async def on_connect(self, hook: ConnectHook) -> None:
        """Call ``hook`` with the client now, if connected, and after every connect.

        For what must be done anew on each client. What the hook raises is logged.
        """
        self._hooks.append(hook)
        if self._client is not None:
            await self._run_hook(hook, self._client)

    def off_connect(self, hook: ConnectHook) -> None:
        """Undo ``on_connect``; nothing happens if it was not done."""
        if hook in self._hooks:
            self._hooks.remove(hook)

    def on_denied(self, subject: str, listener: Callable[[Denied], None]) -> None:
        """Tell ``listener`` when publishing to ``subject`` is refused by permissions."""
        self._rights.listen(subject, listener)

    def off_denied(self, subject: str, listener: Callable[[Denied], None]) -> None:
        """Undo ``on_denied``."""
        self._rights.unlisten(subject, listener)

    def begin(
        self, subject: str, header: bytes, data: bytes, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> asyncio.Future[Answer]:
        """Send a request and return the future of its answer, without waiting.

        The future gives the raw header block and data, or fails like ``request``.

        Raises:
            Unavailable: There is no connection, or the server does not read.
            TooLarge: Headers and data together exceed ``max_payload``; nothing was sent.
        """
        client = self._ready(subject, len(header) + len(data))
        token, future = self._requests.begin(subject, timeout_ms)
        client.send(to_bytes(subject), self._inbox_bytes + token, header, data)
        return future

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> Msg:
        """Ask and wait for one answer.

        Raises:
            Unavailable: Nobody serves the subject, or there is no connection: nothing happened.
            Unknown: No answer in time, or the connection was lost meanwhile.
            Denied: The broker's permissions refuse the subject.
            TooLarge: Headers and data together exceed ``max_payload``; nothing was sent.
        """
        header = encode(headers)
        raw, body = await self.begin(subject, header, data, timeout_ms)
        return Msg(subject, "", decode(raw), body)

    def begin_many(
        self,
        messages: Sequence[tuple[str, bytes, bytes]],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> asyncio.Future[Answer]:
        """Send several messages in order, the last one as a request; see ``begin``.

        Args:
            messages: Subject, header block and data of each.
            timeout_ms: Longest wait for the answer to the last.

        Raises:
            Unavailable: There is no connection, or the server does not read; nothing was sent.
            TooLarge: One of them exceeds ``max_payload``; nothing was sent.
        """
        for subject, header, data in messages:
            client = self._ready(subject, len(header) + len(data))
        for subject, header, data in messages[:-1]:
            client.send(to_bytes(subject), b"", header, data)
        subject, header, data = messages[-1]
        token, future = self._requests.begin(subject, timeout_ms)
        client.send(to_bytes(subject), self._inbox_bytes + token, header, data)
        return future

    def send(self, subject: str, header: bytes, data: bytes, reply: str = "") -> None:
        """Publish without an acknowledgement; leaves with this turn of the event loop.

        Raises:
            Unavailable: There is no connection, or the server does not read.
            TooLarge: Headers and data together exceed ``max_payload``.
        """
        client = self._ready(subject, len(header) + len(data))
        client.send(to_bytes(subject), to_bytes(reply), header, data)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Publish a core message, at most once.

        A refusal by permissions arrives later: listen with ``on_denied``.

        Raises:
            Unavailable: There is no connection, or the server does not read.
            TooLarge: Headers and data together exceed ``max_payload``.
        """
        self.send(subject, encode(headers), data, reply)

    async def subscribe(self, subject: str, callback: Callback, *, queue: str = "") -> Subscription:
        """Call back for each message, one at a time, across reconnects, until unsubscribed.

        What the callback raises is logged. Returns when the broker has the subscription, or at once
        if there is no connection.

        Raises:
            Denied: The broker's permissions refuse the subject.
        """
        mailbox = Mailbox(callback)
        subscription = await self.attach(subject, mailbox.put, queue=queue)
        subscription.task = asyncio.create_task(mailbox.run(), name=f"sub-{subject}")
        return subscription

    async def attach(self, subject: str, sink: Sink, *, queue: str = "") -> Subscription:
        """Like ``subscribe``, with a plain function that gets raw bytes on the reading path."""
        subscription = self._attach(subject, sink, queue)
        client = self._client
        if client is not None:
            self._activate(client, subscription)
            try:
                await client.round_trip(DEFAULT_TIMEOUT_MS)
            except TimeoutError:
                client.lose("no answer to a ping")
            if subscription.denied:
                await self.detach(subscription)
                raise Denied(f"subscribing to {subject} is refused", subject=subject)
        return subscription

    async def detach(self, subscription: Subscription) -> None:
        """Stop receiving for ``subscription``."""
        if self._subscriptions.pop(subscription.sid, None) is None or self._client is None:
            return
        self._retire(self._client, subscription.sid)

    def new_inbox(self) -> str:
        """A reply subject of our own, below the permitted prefix."""
        return f"{self._options.inbox_prefix}.{secrets.token_hex(11)}"

    async def flush(self, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        """Wait until the server has processed everything sent so far.

        Raises:
            Unavailable: There is no connection.
            Unknown: No answer in time.
        """
        client = self._client
        if client is None:
            raise Unavailable(self._why_not())
        try:
            await client.round_trip(timeout_ms)
        except TimeoutError:
            raise dialing.no_answer(timeout_ms) from None

    async def close(self, timeout_ms: int = 2_000) -> None:
        """Send what is queued, then close for good; in-flight requests become unknown."""
        client = self._client
        if client is not None and not client.lost.done():
            with contextlib.suppress(TimeoutError):
                await client.round_trip(max(1, timeout_ms - 1_000))
        self._dialer.stop()
        while self._supervisor is not None and not self._supervisor.done():
            # More than once: before Python 3.12 ``wait_for``, which nats-py dials with, may swallow
            # a cancellation that arrives together with the result.
            self._supervisor.cancel()
            await asyncio.wait((self._supervisor,), timeout=0.2)
        for subscription in self._subscriptions.values():
            if subscription.task is not None:
                subscription.task.cancel()
        self._subscriptions.clear()
        self._finish("closed")

    # What follows runs in the supervisor.

    async def _supervise(self, client: WireClient | None) -> None:
        watchdog: asyncio.Task[None] | None = None
        try:
            while True:
                if client is None:
                    client = await self._dialer.until_accepted(self._welcome, self._told)
                watchdog = asyncio.create_task(self._watch(client), name=f"watch-{self._name}")
                reason = await client.lost
                watchdog.cancel()
                self._lose(reason)
                await client.discard()
                client = None
        except dialing.RefusedTooLong as error:
            self._finish(error.message)
        except Exception as error:
            _log.exception("bus_supervisor_failed")
            self._finish(f"internal: {type(error).__name__}")
        finally:
            if watchdog is not None:
                watchdog.cancel()
            self._lose("the connection was closed", intended=True)
            if client is not None:
                await client.discard()

    def _told(self, error: BusError) -> None:
        self.last_error = error.message

    async def _welcome(self, client: WireClient) -> None:
        """Make the subscriptions, prove them with a round trip, then let requests in."""
        for subscription in self._subscriptions.values():
            self._activate(client, subscription)
        took_us = 0
        try:
            took_us = await client.round_trip(self._options.connect_timeout_ms)
        except TimeoutError:
            client.lose("the broker does not answer")
        if client.lost.done():
            raise dialing.lost_error(client)
        self.rtt_ms = took_us / 1000
        self._max_payload = int(client.info.get("max_payload", self._max_payload))
        self._version = dialing.parse_version(str(client.info.get("version", "")))
        self.last_error = ""
        # What began or ended during the round trip.
        for subscription in self._subscriptions.values():
            if subscription.sid not in client.sinks:
                self._activate(client, subscription)
        for sid in client.sinks.keys() - self._subscriptions.keys():
            self._retire(client, sid)
        self._client = client
        self._up.set()
        for hook in list(self._hooks):
            await self._run_hook(hook, client)

    async def _run_hook(self, hook: ConnectHook, client: WireClient) -> None:
        try:
            async with asyncio.timeout(_HOOK_LIMIT_S):
                await hook(client)
        except Exception:
            _log.exception("connect_hook_failed")

    async def _watch(self, client: WireClient) -> None:
        interval_s = self._options.watchdog_interval_ms / 1000
        prove_at = self._loop.time() + self._options.prove_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            proving: list[Subscription] = []
            if self._loop.time() >= prove_at:
                prove_at = self._loop.time() + self._options.prove_interval_ms / 1000
                proving = self._ask_again(client)
            try:
                self.rtt_ms = await client.round_trip(self._options.connect_timeout_ms) / 1000
            except TimeoutError:
                client.lose("no answer to a ping")
                return
            for subscription in proving:
                subscription.denied = subscription.subject in self._unheard

    def _ask_again(self, client: WireClient) -> list[Subscription]:
        """Ask for every subscription under its own number once more.

        A reload of the broker's permissions takes away what is no longer allowed and never brings
        it back. One that stands is not made twice; what is refused is known before the next pong.
        """
        self._unheard.clear()
        subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            client.put(subscription.command)
        return subscriptions

    def _lose(self, reason: str, *, intended: bool = False) -> None:
        if self._client is None:
            return
        self._dialer.learn(self._client)
        self._client = None
        self._up.clear()
        self.last_error = reason
        if not intended:
            self.reconnects += 1
            _log.warning("broker_lost", reason=reason, in_flight=len(self._requests))
        self._requests.fail_all(reason)

    def _finish(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        self._lose(reason)
        self.last_error = reason

    def _ready(self, subject: str, size: int) -> WireClient:
        client = self._client
        if client is None or client.lost.done():
            raise Unavailable(self._why_not(), subject=subject)
        if size > self._max_payload:
            raise TooLarge(f"{size} bytes exceed the broker's {self._max_payload}", subject=subject)
        if not subject or _BLANK.search(subject) is not None:
            raise ValueError("a subject is not empty and holds no blank")
        if client.congested:
            raise Unavailable("the broker does not read what is sent", subject=subject)
        return client

    def _why_not(self) -> str:
        return f"not connected: {self.last_error or 'the broker was not reached yet'}"

    def _attach(self, subject: str, sink: Sink, queue: str = "") -> Subscription:
        if not subject or _BLANK.search(subject + queue) is not None:
            raise ValueError("a subject is not empty and holds no blank")
        self._next_sid += 1
        subscription = Subscription(self, b"%d" % self._next_sid, subject, queue, sink)
        self._subscriptions[subscription.sid] = subscription
        return subscription

    @property
    def _inbox_subscription(self) -> Subscription:
        return next(iter(self._subscriptions.values()))

    def _activate(self, client: WireClient, subscription: Subscription) -> None:
        subscription.denied = False
        client.sinks[subscription.sid] = subscription.sink
        client.put(subscription.command)

    def _retire(self, client: WireClient, sid: bytes) -> None:
        client.sinks.pop(sid, None)
        client.put(b"UNSUB %b\r\n" % sid)

    def _on_answer(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        asked = self._requests.answer(subject[len(self._inbox_bytes) :], header, data)
        if asked is not None:
            self._rights.allow(asked)

    def _on_violation(self, violation: Violation) -> None:
        """Fail what was refused at once; it would look like a timeout otherwise.

        The broker does not say which of several messages on one subject it refused. All of them
        fail: if the right was taken away between two of them, the first may have been stored.
        """
        subject = violation.subject
        deaf = [
            subscription
            for subscription in self._subscriptions.values()
            if violation.kind == "subscribe" and subscription.subject == subject
        ]
        known = bool(deaf) and all(subscription.denied for subscription in deaf)
        error = self._rights.refuse(violation, known=known)
        if violation.kind == "subscribe":
            self._unheard.add(subject)
            for subscription in deaf:
                subscription.denied = True
        elif violation.kind == "reply":
            self._requests.fail(subject[len(self._inbox) :].encode(), error)
        else:
            self._requests.fail_subject(subject, error)
