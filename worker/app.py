"""The worker's life: start in order, supervise, and end in two phases within ten seconds.

A broker that is merely down is waited for; health shows the difference. What would never become
right by waiting (a server below the floor, another space's streams, TLS that is none) ends the
start with one sentence.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from schemas.commands.sys import StatusQuery
from schemas.names import Names
from schemas.results import Accepted, Verdict
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import broker, descriptors, files, identity, lastword, logs
from worker.bus.connection import Connection
from worker.bus.errors import Denied, TlsRefused, Unauthenticated, Unavailable
from worker.bus.options import ConnectOptions
from worker.bus.topology import check_server
from worker.component import Component, Folding, SpaceComponent
from worker.embedding import OwnServer
from worker.errors import StartRefused, TidegateError
from worker.queries import QueryHandler, QueryService
from worker.settings import Settings
from worker.spaces import check_space
from worker.version import version

OK: Final = 0
FAILED: Final = 1

PHASE_ONE_S: Final = 4.0
"""Taking no new work and finishing what is in flight."""

PHASE_TWO_S: Final = 1.0
"""Ending what did not end by itself."""

PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
LOG_EVERY: Final = 30
"""Of many attempts that fail alike, every so many is logged: about one a minute."""

T = TypeVar("T")
PlaneFactory = Callable[[Connection, Names, Settings, str], Sequence[SpaceComponent]]
"""Makes the components of one space; the last argument is this worker's replica id."""

log = logs.get()


class Stopped(Exception):
    """The worker was asked to stop while it was starting."""


class Worker:
    """One worker process's work, for every space of its settings.

    Attributes:
        conn: The connection to the broker, once there is one.
        own_server: The broker this worker started, if it did.
        ready: Set once everything has started for the first time.

    Args:
        settings: The settings.
        planes: Makes the planes of one space.
        clock_ns: Wall clock in nanoseconds, for what people are shown.
        on_stopping: Called when the shutdown begins, whatever began it.
    """

    def __init__(
        self,
        settings: Settings,
        planes: PlaneFactory,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.conn: Connection | None = None
        self.own_server: OwnServer | None = None
        self.ready = asyncio.Event()
        self._settings = settings
        self._factory = planes
        self._names = [Names(settings.root, space) for space in settings.spaces]
        self._clock_ns = clock_ns
        self._on_stopping = on_stopping
        self._started_ms = clock_ns() // 1_000_000
        self._id = ""
        self._lock: int | None = None
        self._stop = asyncio.Event()
        self._trouble = "the worker is starting"
        self._refused = False
        self._planes: dict[str, Sequence[SpaceComponent]] = {}
        self._components: list[Component] = []
        self._tasks: dict[asyncio.Task[None], Component] = {}

    @property
    def planes(self) -> Mapping[str, Sequence[SpaceComponent]]:
        """What serves each space now; empty while the worker starts."""
        return self._planes

    def stop(self) -> None:
        """Ask the worker to stop; ``run`` then returns within ten seconds."""
        self._stop.set()

    def not_ready(self) -> list[str]:
        """Why work would not be served now, in sentences; empty when ready."""
        if self._stop.is_set():
            return ["the worker is stopping"]
        if self._trouble:
            return [self._trouble]
        if self.conn is None or not self.conn.connected:
            why = self.conn.last_error if self.conn is not None else ""
            return [f"the broker is not connected: {why or 'never reached'}"]
        return self.conn.rights_lost + [
            f"{space}: {plane.name}: {reason}"
            for space, planes in self._planes.items()
            for plane in planes
            for reason in plane.not_ready()
        ]

    def broken(self) -> list[str]:
        """Why only a restart of this process would help; empty while it is fine."""
        if self.conn is not None and self.conn.closed.done() and not self._stop.is_set():
            return [self.conn.closed.result()]
        return []

    async def run(self) -> int:
        """Start, serve until ``stop`` or a failure, and shut down.

        Returns:
            0 if it was asked to stop, 1 if something failed.

        Raises:
            StartRefused: If the worker must not start like this.
        """
        try:
            own_broker = not self._settings.servers
            descriptors.provide(len(self._settings.spaces), own_broker=own_broker)
            self._claim_data_dir()
            await self._bring_up()
            self._trouble = ""
            self.ready.set()
            log.info(
                "worker_ready",
                spaces=list(self._settings.spaces),
                version=version(),
                broker=self._broker_version(),
            )
            return await self._supervise()
        except Stopped:
            return OK
        except TidegateError:
            self._refused = not self.ready.is_set()
            raise
        except Exception:
            log.exception("start_failed")
            return FAILED
        finally:
            await self._shut_down()

    def _claim_data_dir(self) -> None:
        """Make sure that no other worker keeps its databases and its replica id here.

        Raises:
            StartRefused: Another one does, or the directory cannot be used.
        """
        directory = self._settings.data_dir
        try:
            self._lock = files.hold(directory / lastword.LOCK_NAME)
            self._id = identity.replica_id(directory)
        except OSError as error:
            raise StartRefused(
                f"the data directory {directory} cannot be used: {error.strerror}"
            ) from error
        if self._lock is None:
            raise StartRefused(
                f"another worker already runs in the data directory {directory}; "
                "give this one its own: TIDEGATE_DATA_DIR or --data-dir"
            )

    async def _bring_up(self) -> None:
        options = await self._find_broker()
        self.conn = await self._connect(options)
        # A server that was down may come back as any server, so each attempt checks it anew.
        for attempt in itertools.count():
            try:
                await self._or_stop(self._start_everything(self.conn))
            except Unavailable as error:
                if self.conn.closed.done():
                    raise StartRefused(self.conn.closed.result()) from error
                self._trouble = f"the broker is not ready: {error.message}"
                if attempt % LOG_EVERY == 0:
                    log.warning("broker_not_ready", error=error, attempts=attempt + 1)
                await self._unwind()
                pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
                await self._or_stop(asyncio.sleep(pause_s))
            else:
                return

    async def _find_broker(self) -> ConnectOptions:
        if self._settings.servers:
            return broker.options(self._settings)
        self._trouble = "the worker's own broker is starting"
        self.own_server = await OwnServer.start(self._settings)
        return self.own_server.options

    async def _connect(self, options: ConnectOptions) -> Connection:
        name = f"tidegate-worker-{self._id}"
        try:
            return await self._or_stop(Connection.open(options, name=name))
        except Unavailable as error:
            self._trouble = f"the broker cannot be reached: {error.message}"
            log.warning("broker_unreachable_at_start", error=error)
        except (TlsRefused, Unauthenticated, Denied) as error:
            raise StartRefused(error.message) from error
        conn = await Connection.open(options, name=name, required=False)
        try:
            await self._or_stop(_up_or_closed(conn))
        except BaseException:
            await conn.close(timeout_ms=500)
            raise
        if conn.closed.done():
            raise StartRefused(conn.closed.result())
        return conn

    async def _start_everything(self, conn: Connection) -> None:
        self._trouble = "the broker's streams are being checked"
        if not await conn.wait_connected(5_000):
            raise Unavailable(conn.last_error)
        await check_server(conn)
        for names in self._names:
            await check_space(conn, names, self._settings, may_create=self.own_server is not None)
        self._trouble = "the planes are starting"
        queries = self._new_query_service(conn)
        for names in self._names:
            planes = self._factory(conn, names, self._settings, self._id)
            self._planes[names.space] = planes
            for plane in planes:
                self._components.append(plane)
                with logs.bound(space=names.space):
                    await plane.start()
                serves = getattr(plane, "serves_queries", lambda: True)
                queries.add(names, plane.queries(), serves=serves)
            queries.add(names, {("sys", "status"): self._status_of(names.space)})
        self._components.append(queries)
        await queries.start()
        for component in self._components:
            task = asyncio.create_task(component.run(), name=component.name)
            self._tasks[task] = component

    def _new_query_service(self, conn: Connection) -> QueryService:
        started = datetime.fromtimestamp(self._started_ms / 1000, tz=UTC)
        return QueryService(
            conn,
            service_id=self._id,
            version=version(),
            started_at=started.isoformat().replace("+00:00", "Z"),
            clock_ns=time.monotonic_ns,
        )

    async def _supervise(self) -> int:
        """Wait for the end: asked for, or the failure of any part."""
        if self.conn is None:
            raise RuntimeError("not started")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        ends: set[asyncio.Future[Any]] = {stopping, self.conn.closed, *self._tasks}
        if self.own_server is not None:
            ends.add(self.own_server.exited)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if self._stop.is_set():
            return OK
        if self.conn.closed.done():
            log.error("connection_closed", reason=self.conn.closed.result())
        if self.own_server is not None and self.own_server.exited.done():
            log.error("own_broker_ended", code=self.own_server.exited.result())
        for task, component in self._tasks.items():
            if task.done():
                error = None if task.cancelled() else task.exception()
                log.error("component_failed", component=component.name, exc_info=error)
        return FAILED

    async def _unwind(self) -> None:
        """Phase one and two for the components; each gets its time, none can take more."""
        components, self._components = self._components, []
        tasks, self._tasks = self._tasks, {}
        self._planes = {}
        if components:
            stops = {
                asyncio.create_task(component.stop(), name=component.name): component.name
                for component in components
            }
            done, late = await asyncio.wait(stops, timeout=PHASE_ONE_S)
            for task in late:
                log.warning("component_late", component=stops[task])
                task.cancel()
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("component_stop_failed", component=stops[task], exc_info=error)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=PHASE_TWO_S)

    async def _shut_down(self) -> None:
        self._stop.set()
        self._on_stopping()
        # Whoever refused to start says so in one sentence, and nothing was there to be stopped.
        tell = log.debug if self._refused else log.info
        tell("worker_stopping")
        await self._unwind()
        if self.conn is not None:
            await _within(PHASE_TWO_S, self.conn.close(timeout_ms=800), "connection")
        if self.own_server is not None:
            await _within(2 * PHASE_TWO_S, self.own_server.stop(), "own_broker")
        if self._lock is not None:
            os.close(self._lock)
        tell("worker_stopped")

    async def _or_stop(self, work: Awaitable[T]) -> T:
        """Do something unless the worker is asked to stop first.

        Raises:
            Stopped: It was.
        """
        task = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=PHASE_TWO_S)

    def _status_of(self, space: str) -> QueryHandler:
        async def status(_: Speaker, raw: bytes) -> Verdict:
            after = StatusQuery.from_bytes(raw).after
            for plane in self._planes.get(space, ()):
                if after is not None and isinstance(plane, Folding):
                    late = await plane.wait_for(after)
                    if late is not None:
                        return late
            return Accepted("status", self.status(space))

        return status

    def _broker_version(self) -> str:
        return ".".join(map(str, self.conn.server_version)) if self.conn else ""

    def status(self, space: str) -> JsonObject:
        """What ``sys.status`` answers for one space."""
        now_ms = self._clock_ns() // 1_000_000
        conn = self.conn
        return {
            "at_ms": now_ms,
            "space": space,
            "ready": not self.not_ready(),
            "reasons": self.not_ready(),
            "worker": {
                "id": self._id,
                "version": version(),
                "pid": os.getpid(),
                "started_at_ms": self._started_ms,
                "spaces": list(self._settings.spaces),
            },
            "broker": {
                "version": self._broker_version(),
                "rtt_ms": conn.rtt_ms if conn else None,
                "reconnects": conn.reconnects if conn else 0,
                "embedded": self.own_server is not None,
            },
            "planes": {plane.name: plane.status() for plane in self._planes.get(space, ())},
        }


async def _up_or_closed(conn: Connection) -> None:
    up = asyncio.create_task(conn.wait_connected(), name="connected")
    ends: set[asyncio.Future[Any]] = {up, conn.closed}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()


async def _within(limit_s: float, work: Awaitable[object], what: str) -> None:
    """Do a part of the shutdown; whatever it does, the next part gets its turn."""
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning("shutdown_late", part=what)
    except Exception:
        log.exception("shutdown_failed", part=what)
