"""Recovery by evidence as a component of the worker: reaper, heartbeats and sealed prompts."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from schemas.names import Names, kv_stream
from schemas.results import Refusal, Verdict
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import logs
from worker.admission import queries
from worker.bus.clock import BrokerClock
from worker.bus.connection import Connection
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket
from worker.bus.window import GroupPublisher
from worker.errors import TidegateError
from worker.evidence.heartbeats import Heartbeats
from worker.evidence.liveness import SILENCE_MS
from worker.evidence.ports import FoldPort
from worker.evidence.procfs import NoEvidence, ProcReader
from worker.evidence.reaper import Reaper
from worker.evidence.verdicts import observer_of
from worker.ledger.plane import Query
from worker.queries import QueryHandler
from worker.sealing.payloads import PayloadQueries
from worker.settings import Settings

WORKER: Final = "_worker"
POLICY_MS: Final = 5_000

log = logs.get()


class Ledger(Protocol):
    """What is needed of the fold of the same space."""

    async def read(self, query: Query, speaker: Speaker, raw: bytes) -> Verdict:
        """Answer a plane's query."""
        ...

    async def wait_for(self, result_id: str) -> Refusal | None:
        """Wait until the fold has reached a result."""
        ...

    def status(self) -> JsonObject:
        """Where the fold stands."""
        ...


class EvidencePlane:
    """Watches owners, looks at processes on this host, and hands out sealed prompts.

    Args:
        conn: The worker's connection.
        names: The space.
        settings: The worker's settings.
        replica: This worker's id.
        ledger: The fold of the same space, which folds the admission plane.
        reader: The kernel; this machine's by default.
        wall_ms: This machine's clock, for people only.
        monotonic: Seconds that never go back.
    """

    name = "evidence"

    def __init__(
        self,
        conn: Connection,
        names: Names,
        settings: Settings,
        replica: str,
        ledger: Ledger,
        *,
        reader: ProcReader | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        js = JetStream(conn)
        worker = Speaker(WORKER, replica)
        self._space = names.space
        self._silence_ms = SILENCE_MS
        self._clock = BrokerClock(js, names.log_stream, monotonic)
        self._port = FoldPort(
            js,
            names,
            worker,
            ledger,
            queries.recoverable,
            queries.policy,
            new_id=lambda: secrets.token_urlsafe(16),
        )
        self._heartbeats = Heartbeats(
            conn,
            names,
            worker,
            self._port.send,
            monotonic_ms=lambda: int(monotonic() * 1_000),
            broker_ms=lambda: int(self._clock.lower_ms()),
            silence_ms=lambda: self._silence_ms,
        )
        bucket = Bucket(
            js,
            names.payloads_bucket,
            GroupPublisher(js, kv_stream(names.payloads_bucket), atomic=False),
        )
        self._payloads = PayloadQueries(bucket, ledger, queries.payload_place)
        self._reaper: Reaper | None = None
        self._no_reaper = ""
        try:
            self._reaper = Reaper(
                self._port,
                observer_of(settings.host, reader),
                now_ms=wall_ms,
                monotonic_ms=lambda: int(monotonic() * 1_000),
                period_ms=settings.reaper_interval_ms,
                label={"space": names.space},
            )
        except NoEvidence as error:
            self._no_reaper = error.reason
            log.warning("no_reaper", space=names.space, reason=error.reason, error=error)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Listen for beats, and learn the broker's time.

        Raises:
            BusError: The broker does not answer, or refuses.
        """
        await self._clock.refresh()
        await self._heartbeats.start()
        if self._reaper is not None:
            await self._reaper.start()

    async def run(self) -> None:
        """Watch and look until stopped."""
        parts = {
            "clock": self._clock.run(),
            "policy": self._follow_policy(),
            "heartbeats": self._heartbeats.run(),
        }
        if self._reaper is not None:
            parts["reaper"] = self._reaper.run()
        self._tasks = [
            asyncio.create_task(part, name=f"evidence-{name}") for name, part in parts.items()
        ]
        stopping = asyncio.create_task(self._stopping.wait(), name="evidence-stopping")
        try:
            done, _ = await asyncio.wait(
                [*self._tasks, stopping], return_when=asyncio.FIRST_COMPLETED
            )
            if stopping in done:
                return
            for task in done:
                await task
        finally:
            stopping.cancel()
            await self._end()

    async def stop(self) -> None:
        """Report nothing more; evidence that is on its way is true whether it lands or not."""
        self._stopping.set()
        if self._reaper is not None:
            await self._reaper.stop()
        await self._heartbeats.stop()
        await self._end()

    def not_ready(self) -> list[str]:
        """Without evidence seats come back later, and nothing is endangered."""
        return []

    def queries(self) -> Mapping[tuple[str, str], QueryHandler]:
        """``adm.payload`` and ``adm.sealed``."""
        return self._payloads.handlers()

    def status(self) -> JsonObject:
        """What ``sys.status`` shows of it."""
        watch = self._heartbeats.watch
        return {
            "owners_watched": len(watch),
            "hearing": watch.hearing_since_ms is not None,
            "deaf_spells": watch.disturbances,
            "silence_ms": self._silence_ms,
            "reaper": self._no_reaper if self._reaper is None else self._reaper.status(),
        }

    async def _follow_policy(self) -> None:
        while True:
            try:
                self._silence_ms = await self._port.silence_ms()
            except TidegateError as error:
                log.debug("policy_not_read", space=self._space, error=error)
            await asyncio.sleep(POLICY_MS / 1_000)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
