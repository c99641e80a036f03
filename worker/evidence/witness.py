"""The witness of a host: what a worker elsewhere cannot see, it sees and vouches for.

One per host, in the host's own pid namespace; it speaks as ``_witness-<host>``, and the fold
believes it about that host only. It watches no heartbeats and decides nothing.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from schemas.codes import Code
from schemas.commands.sys import witness_of
from schemas.subjects import Speaker
from worker import broker, logs
from worker.bus.errors import Denied, Unavailable
from worker.client import Client, ClientError
from worker.errors import TidegateError
from worker.evidence.ports import ClientPort
from worker.evidence.reaper import Reaper
from worker.evidence.verdicts import Observer
from worker.settings import Settings

STOP_S: Final = 4.0
RETRY_S: Final = 2.0
LOG_EVERY: Final = 30
"""Of many attempts that fail alike, every so many is logged: about one a minute."""

log = logs.get()


class ConnectionLost(TidegateError):
    """The connection to the broker is lost for good; start again."""

    code = Code.UNAVAILABLE
    reason = "connection-lost"


class Witness:
    """Looks at one host's processes for several spaces.

    Args:
        settings: Broker, spaces, and how often to look.
        observer: Of this host.
        uid: Of this life.
    """

    def __init__(self, settings: Settings, observer: Observer, *, uid: str) -> None:
        self._settings = settings
        self._observer = observer
        self._speaker = Speaker(witness_of(observer.host), uid)
        self._stop = asyncio.Event()
        self.reapers: Sequence[Reaper] = ()

    def stop(self) -> None:
        """Look no more; ``run`` returns within seconds."""
        self._stop.set()

    async def run(self) -> None:
        """Look until stopped; an outage of the broker or of the workers is waited for.

        Raises:
            BusError: The broker refuses us, or to let us speak for this host.
            ConnectionLost: The connection is lost for good.
        """
        settings = self._settings
        async with AsyncExitStack() as stack:
            clients = []
            for space in settings.spaces:
                client = await self._reach(space)
                if client is None:
                    return
                stack.push_async_callback(client.close)
                clients.append(client)
                await self._is_permitted(client)
            self.reapers = [
                Reaper(
                    ClientPort(client),
                    self._observer,
                    now_ms=lambda: time.time_ns() // 1_000_000,
                    monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
                    period_ms=settings.reaper_interval_ms,
                    label={"space": client.names.space},
                )
                for client in clients
            ]
            log.info(
                "witness_ready",
                host=self._observer.host,
                principal=self._speaker.principal,
                spaces=list(settings.spaces),
            )
            await self._look(clients)

    async def _look(self, clients: Sequence[Client]) -> None:
        for reaper in self.reapers:
            await reaper.start()
        looking = [asyncio.create_task(reaper.run(), name="reaper") for reaper in self.reapers]
        stopping = asyncio.create_task(self._stop.wait(), name="witness-stop")
        lost = [client.conn.closed for client in clients]
        awaited: list[asyncio.Future[Any]] = [*looking, stopping, *lost]
        try:
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in looking:
                if task in done:
                    await task
            for closed in lost:
                if closed in done:
                    raise ConnectionLost(closed.result())
        finally:
            stopping.cancel()
            for reaper in self.reapers:
                await reaper.stop()
            if looking:
                await asyncio.wait(looking, timeout=STOP_S)
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _reach(self, space: str) -> Client | None:
        """A client of a space, once the broker is there; ``None`` if told to stop before."""
        for attempt in itertools.count():
            client = self._client(space)
            try:
                await client.open()
            except Unavailable as error:
                if attempt % LOG_EVERY == 0:
                    log.warning("broker_not_reached", space=space, error=error)
            else:
                return client
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._stop.wait()
                    return None
        return None

    async def _is_permitted(self, client: Client) -> None:
        """Ask once what there is to see: a login of another host would be refused for ever."""
        try:
            async with asyncio.timeout(RETRY_S):
                await client.adm.recoverable(host=self._observer.host, limit=1)
        except Denied as denied:
            raise Denied(
                f"this login may not speak as {self._speaker.principal}; the host is that of its "
                "user in nats.conf: TIDEGATE_HOST or --host",
                subject=denied.subject,
            ) from denied
        except (TimeoutError, ClientError):
            return  # Nobody answers now; that is waited for.

    def _client(self, space: str) -> Client:
        settings = self._settings
        return Client(
            broker.client_options(settings),
            self._speaker,
            space,
            root=settings.root,
            timeout_ms=settings.timeout_ms,
            name=f"tidegate-witness-{self._speaker.principal}",
        )
