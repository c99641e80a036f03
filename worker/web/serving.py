"""A worker's HTTP side as the daemon starts it: health, metrics, the event loop's delay."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import prometheus_client

from worker import metrics
from worker.app import Worker
from worker.settings import Settings
from worker.web.health import HealthServer
from worker.web.sampling import Sampler

BEAT_S: Final = 0.25
"""How often the event loop's delay is measured."""


async def serve(
    settings: Settings, worker: Worker, *, monotonic: Callable[[], float]
) -> Callable[[], Awaitable[None]]:
    """Answer ``/livez``, ``/readyz`` and ``/metrics`` until what is returned is called.

    Args:
        settings: Where to listen.
        worker: Whose health.
        monotonic: Seconds that never go back.

    Raises:
        StartRefused: The address cannot be had.
    """
    # The time a counter was made is noise in the text format.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types
    server = HealthServer(
        settings.health_host,
        settings.health_port,
        alive=worker.broken,
        ready=worker.not_ready,
        metrics=Sampler(worker, monotonic).render,
    )
    await server.start()
    beats = asyncio.create_task(_measure_delay(monotonic), name="loop-delay")

    async def stop() -> None:
        beats.cancel()
        await server.stop()

    return stop


async def _measure_delay(monotonic: Callable[[], float]) -> None:
    while True:
        asked_s = monotonic()
        await asyncio.sleep(BEAT_S)
        metrics.LOOP_DELAY.observe(max(0.0, monotonic() - asked_s - BEAT_S))
