"""Getting from a URL to an accepted client, and saying plainly why not."""

import asyncio
import itertools
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import nats.errors

from worker import logs
from worker.bus import nkey
from worker.bus.errors import BusError, TlsRefused, Unauthenticated, Unavailable, Unknown
from worker.bus.options import ConnectOptions, TlsOptions
from worker.bus.urls import ServerUrl
from worker.bus.wire import Violation, WireClient, is_refusal_text

BACKOFF_MS: Final = (50, 100, 250, 500, 1_000)
LOG_EVERY_S: Final = 60.0
_log = logs.get("tidegate.bus")
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Target:
    """One server to try.

    Attributes:
        url: Where it is, and who to be there if the options do not say.
        tls_name: Name to expect in its certificate where the URL holds a bare address.
    """

    url: ServerUrl
    tls_name: str | None = None


class Pool:
    """The configured servers, and what the cluster told us about the others."""

    def __init__(self, servers: tuple[str, ...]) -> None:
        self._configured = [Target(ServerUrl.parse(url)) for url in servers]
        self._learned: list[Target] = []

    def targets(self) -> list[Target]:
        """Every server known, the configured ones first."""
        return [*self._configured, *self._learned]

    def learn(self, client: WireClient) -> None:
        """Remember the cluster's other servers, as the last client heard of them."""
        configured = {target.url.address for target in self._configured}
        first = self._configured[0].url
        login = f"{first.login}@" if first.login else ""
        self._learned = [
            Target(ServerUrl.parse(f"{first.scheme}://{login}{uri.netloc}"), first.host)
            for uri in client.discovered_servers
            if uri.netloc not in configured
        ][:64]


def parse_version(text: str) -> tuple[int, int, int]:
    """The numbers of a server version; zeros if it has none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


def no_answer(timeout_ms: int) -> Unknown:
    """The error of a round trip that took too long."""
    return Unknown(f"the broker did not answer within {timeout_ms} ms")


def lost_error(client: WireClient) -> BusError:
    """Why a client was lost, as an error."""
    reason = client.lost.result() if client.lost.done() else "lost"
    return Unauthenticated(reason) if client.refused else Unavailable(reason)


class RefusedTooLong(Unauthenticated):
    """A broker that can be reached has refused our credentials for too long."""


class Dialer:
    """Finds a server that accepts us, once or for as long as it takes.

    Args:
        options: Where to and as whom.
        name: What the broker's monitoring calls us.
        violations: What a client calls for each permissions violation.
    """

    def __init__(
        self, options: ConnectOptions, name: str, violations: Callable[[Violation], None]
    ) -> None:
        self._options = options
        self._name = name
        self._violations = violations
        self._pool = Pool(options.servers)
        self._stopped = False

    def learn(self, client: WireClient) -> None:
        """Remember the cluster's other servers, as the last client heard of them."""
        self._pool.learn(client)

    def stop(self) -> None:
        """Dial no more; what is being dialled is not handed out."""
        self._stopped = True

    async def once(self) -> WireClient:
        """Try each known server once.

        Raises:
            BusError: Why the last one did not accept us.
        """
        error: BusError | None = None
        for target in self._pool.targets():
            try:
                return await dial(
                    target, self._options, name=self._name, violations=self._violations
                )
            except BusError as failed:
                error = failed
        raise error or Unavailable("no server is configured")

    async def until_accepted(
        self,
        welcome: Callable[[WireClient], Awaitable[None]],
        told: Callable[[BusError], None],
    ) -> WireClient:
        """Try until a server accepts us and ``welcome`` is content with the client.

        An outage of any length takes a few log lines and little work.

        Args:
            welcome: Makes the client usable; may raise a ``BusError``.
            told: Hears why an attempt failed.

        Raises:
            RefusedTooLong: A reachable broker refused us for ``refused_limit_ms``.
            CancelledError: Also if a cancellation was swallowed on the way, after ``stop``.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        refused_since: float | None = None
        next_log = started
        for attempt in itertools.count():
            if self._stopped:
                raise asyncio.CancelledError
            try:
                client = await self.once()
                try:
                    await welcome(client)
                except BaseException:
                    await client.discard()
                    raise
            except BusError as error:
                told(error)
                now = clock()
                if not isinstance(error, Unauthenticated):
                    refused_since = None
                elif refused_since is None:
                    refused_since = now
                elif (now - refused_since) * 1000 >= self._options.refused_limit_ms:
                    reason = f"the broker refuses our credentials: {error.message}"
                    raise RefusedTooLong(reason) from error
                if now >= next_log:
                    _log.warning("broker_unreachable", error=error.message, attempts=attempt + 1)
                    next_log = now + LOG_EVERY_S
                await asyncio.sleep(BACKOFF_MS[min(attempt, len(BACKOFF_MS) - 1)] / 1000)
            else:
                away_ms = int((clock() - started) * 1000)
                _log.info("broker_connected", attempts=attempt + 1, away_ms=away_ms)
                return client
        raise AssertionError("unreachable")


async def dial(
    target: Target,
    options: ConnectOptions,
    *,
    name: str,
    violations: Callable[[Violation], None],
) -> WireClient:
    """Connect to one server and authenticate, within ``connect_timeout_ms``.

    Raises:
        Unavailable: It cannot be reached or does not speak NATS.
        Unauthenticated: It refuses our credentials, or they cannot be read.
        TlsRefused: TLS was asked for and it has none, or its certificate is not accepted.
        CancelledError: Also if a cancellation was swallowed on the way: before Python 3.12
            ``wait_for``, which nats-py dials with, may do so when it comes with what is awaited.
    """
    task = asyncio.current_task()
    asked = 0 if task is None else task.cancelling()
    url = target.url
    want_tls = url.scheme == "tls" or options.tls is not None
    client = WireClient(want_tls=want_tls, violations=violations)
    shown = url.address
    try:
        arguments = _credentials(options, url, client) | _tls(options.tls, target)
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            await client.connect(
                servers=[url.bare],
                name=name,
                allow_reconnect=False,
                connect_timeout=max(1, options.connect_timeout_ms // 1000),
                ping_interval=options.ping_interval_s,
                pending_size=0,
                inbox_prefix=options.inbox_prefix,
                error_cb=_ignore,
                **arguments,
            )
    except BaseException as error:
        await client.discard()
        if task is not None and task.cancelling() > asked:
            raise asyncio.CancelledError from error
        if isinstance(error, BusError):
            raise
        if isinstance(error, TimeoutError):
            raise Unavailable(f"{shown} did not accept us in time") from error
        if isinstance(error, nkey.SeedError):
            raise Unauthenticated(str(error)) from error
        if isinstance(error, nats.errors.Error) and is_refusal_text(str(error)):
            raise Unauthenticated(f"{shown} refuses our credentials") from error
        if isinstance(error, OSError) and type(error).__module__ == "ssl":
            raise TlsRefused(f"TLS with {shown} failed: {_reason(error)}") from error
        if isinstance(error, OSError | nats.errors.Error | ValueError):
            raise Unavailable(f"{shown} cannot be reached: {_reason(error)}") from error
        raise
    if task is not None and task.cancelling() > asked:
        await client.discard()
        raise asyncio.CancelledError
    return client


async def _ignore(error: Exception) -> None:
    """nats-py reports here what it also raises."""


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        # asyncio puts the address in again, as a tuple.
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tls(tls: TlsOptions | None, target: Target) -> dict[str, Any]:
    if tls is None:
        return {"tls_hostname": target.tls_name} if target.tls_name else {}
    try:
        context = tls.context()
    except OSError as error:
        raise TlsRefused(f"the TLS files cannot be used: {_reason(error)}") from error
    arguments: dict[str, Any] = {"tls": context, "tls_handshake_first": tls.handshake_first}
    hostname = tls.hostname or target.tls_name
    if hostname:
        arguments["tls_hostname"] = hostname
    return arguments


def _credentials(options: ConnectOptions, url: ServerUrl, client: WireClient) -> dict[str, Any]:
    if options.creds_file is not None:
        credentials = nkey.read_credentials(options.creds_file)
        client.use_nkey(None)
        return {
            "user_jwt_cb": lambda: credentials.jwt.encode(),
            "signature_cb": credentials.sign,
        }
    if options.nkey_seed_file is not None:
        seed = nkey.read_seed(options.nkey_seed_file)
        client.use_nkey(seed.public_key)
        return {"signature_cb": seed.sign}
    if options.user is not None:
        return {"user": options.user, "password": options.password or ""}
    if url.user is not None:
        return {"user": url.user, "password": url.password or ""}
    return {"token": url.token} if url.token is not None else {}
