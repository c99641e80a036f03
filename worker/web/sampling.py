"""Brings the gauges up to date when somebody asks for the metrics, and renders them.

Counters and histograms are kept where things happen. What describes a state is read from it at the
moment of asking, so a worker that nobody scrapes spends nothing on it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from schemas.admission import Block
from schemas.results import Accepted, Verdict
from schemas.subjects import Speaker
from worker import logs, metrics
from worker.admission import sampling as admission
from worker.app import Worker
from worker.bus.errors import BusError
from worker.caps import sampling as caps
from worker.component import Sampled, SpaceComponent
from worker.errors import TidegateError
from worker.ledger.plane import View
from worker.ledger.service import LedgerPlane
from worker.version import version

LIMIT_S: Final = 2.0
"""Longest one space's state is waited for; what is late keeps its last value."""

_NOBODY: Final = Speaker("_worker", "0" * 26)
_EMPTY: Final = b'{"v":1}'

log = logs.get()


class Sampler:
    """Renders one worker's metrics.

    Args:
        worker: Whose.
        monotonic: Seconds that never go back.
    """

    def __init__(self, worker: Worker, monotonic: Callable[[], float]) -> None:
        self._worker = worker
        self._monotonic = monotonic
        self._reconnects = 0
        self._denials = 0
        self._blocked: dict[str, tuple[float, admission.Sample]] = {}
        self._sampling = asyncio.Lock()

    async def render(self) -> tuple[bytes, str]:
        """Everything in Prometheus' text format: body and content type."""
        async with self._sampling:
            await self._sample()
        return generate_latest(metrics.REGISTRY), CONTENT_TYPE_LATEST

    async def _sample(self) -> None:
        self._sample_process()
        for space, components in self._worker.planes.items():
            for component in components:
                metrics.PLANE_READY.labels(space, component.name).set(not component.not_ready())
                try:
                    async with asyncio.timeout(LIMIT_S):
                        await self._sample_component(space, component)
                except (TimeoutError, BusError, TidegateError, sqlite3.Error) as error:
                    log.info("not_sampled", space=space, component=component.name, error=error)

    def _sample_process(self) -> None:
        conn = self._worker.conn
        metrics.READY.set(not self._worker.not_ready())
        metrics.TASKS.set(len(asyncio.all_tasks()))
        metrics.CONNECTED.set(conn is not None and conn.connected)
        server = "" if conn is None else ".".join(map(str, conn.server_version))
        metrics.BUILD_INFO.clear()
        metrics.BUILD_INFO.labels(version(), server, sqlite3.sqlite_version).set(1)
        if conn is None:
            return
        if conn.rtt_ms is not None:
            metrics.ROUND_TRIP.set(conn.rtt_ms / 1000)
        metrics.RECONNECTS.inc(conn.reconnects - self._reconnects)
        metrics.DENIALS.inc(conn.denials - self._denials)
        self._reconnects, self._denials = conn.reconnects, conn.denials

    async def _sample_component(self, space: str, component: SpaceComponent) -> None:
        if isinstance(component, Sampled):
            await component.sample()
        if isinstance(component, LedgerPlane):
            folded = {plane for plane, _ in component.queries()}
            if "adm" in folded:
                await self._sample_admission(space, component)
            if "cap" in folded:
                await self._sample_caps(space, component)

    async def _sample_admission(self, space: str, ledger: LedgerPlane) -> None:
        found: list[admission.Sample] = []

        def look(view: View, _: bytes) -> Verdict:
            found.append(admission.read(view.db, view.now_ms))
            return Accepted("sampled")

        await ledger.read(look, _NOBODY, _EMPTY)
        if not found:
            return
        (sample,) = found
        for phase, seats in sample.seats.items():
            metrics.SEATS.labels(space, phase).set(seats)
        metrics.SEAT_LIMIT.labels(space).set(sample.seat_limit)
        metrics.QUEUED.labels(space).set(sample.queued)
        metrics.OLDEST_DEBT_SECONDS.labels(space).set(sample.oldest_debt_ms / 1000)
        now_s = self._monotonic()
        since_s, before = self._blocked.get(space, (now_s, sample))
        self._blocked[space] = (now_s, sample)
        for block in admission.BLOCKS:
            metrics.BLOCKED.labels(space, block).set(sample.blocked[block])
            waited_s = _turn_seconds(block, before, sample, now_s - since_s)
            metrics.BLOCKED_SECONDS.labels(space, block).inc(waited_s)

    async def _sample_caps(self, space: str, ledger: LedgerPlane) -> None:
        found: list[caps.Sample] = []

        def look(view: View, _: bytes) -> Verdict:
            found.append(caps.read(view.db))
            return Accepted("sampled")

        await ledger.read(look, _NOBODY, _EMPTY)
        for sample in found:
            metrics.CAPS_ACTIVE.labels(space).set(sample.active)


def _turn_seconds(
    block: Block, before: admission.Sample, now: admission.Sample, passed_s: float
) -> float:
    """Time spent waiting between two samples, taking the change between them as even."""
    return (before.blocked[block] + now.blocked[block]) / 2 * max(0.0, passed_s)
