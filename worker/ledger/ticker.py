"""Puts the passing of time into the log, when it matters.

The fold reads no clock. When the earliest due instant of its state passes, a worker publishes
``sys.tick``, and the broker's timestamp on it is what passes time for every replica alike.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from schemas import strict_json, subjects
from schemas.names import Names
from schemas.subjects import Speaker
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.ledger.runner import Runner
from worker.ledger.watch import LogWatch

JITTER_MS: Final = 20
"""Replicas spread over so long, so that mostly one of them ticks."""

LEAST_WAIT_MS: Final = 50
"""After a tick that changed nothing, at least so long passes before the next."""

FOLD_LIMIT_MS: Final = 2_000
_BODY: Final = strict_json.dumps({"v": 1})
_log = structlog.get_logger("tidegate.ledger")


class Ticker:
    """Ticks for one space.

    Attributes:
        sent: Ticks published.

    Args:
        js: Where.
        names: The space.
        worker: Who ticks: a principal ``_worker…``.
        runner: The fold.
        watch: The broker's time.
        jitter: Gives a number in 0..1 for each tick.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        worker: Speaker,
        runner: Runner,
        watch: LogWatch,
        *,
        jitter: Callable[[], float],
    ) -> None:
        self._js = js
        self._subject = subjects.command(names, worker, "sys", "tick")
        self._runner = runner
        self._watch = watch
        self._jitter = jitter
        self.sent = 0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due_at_ms = await self._wait_until_due()
            ticks = self._runner.position.ticks
            await asyncio.sleep(self._jitter() * JITTER_MS / 1000)
            here = self._runner.position
            if here.ticks != ticks or here.due_at_ms != due_at_ms or self._is_idle():
                continue
            await self._tick(due_at_ms)

    async def _wait_until_due(self) -> int:
        """Sleep until something is due by the broker's clock; returns when it was due."""
        runner = self._runner
        while True:
            due_at_ms = runner.position.due_at_ms
            left_ms = None if due_at_ms is None else due_at_ms - self._watch.now_ms()
            if due_at_ms is not None and left_ms is not None and left_ms <= 0:
                if not self._is_idle():
                    return due_at_ms
                left_ms = 1_000
            async with runner.moved:
                if runner.position.due_at_ms != due_at_ms:
                    continue
                try:
                    async with asyncio.timeout(None if left_ms is None else left_ms / 1000):
                        await runner.moved.wait()
                except TimeoutError:
                    continue

    def _is_idle(self) -> bool:
        """Whether a tick would help nobody: the fold stands still or has the log to catch up."""
        behind = self._watch.last_seq() - self._runner.position.watermark
        return self._runner.trouble is not None or behind > 1_000 or self._watch.info is None

    async def _tick(self, due_at_ms: int) -> None:
        epoch = self._runner.position.epoch
        try:
            ack = await self._js.publish(self._subject, _BODY)
        except BusError as error:
            _log.debug("tick_not_published", error=error.message)
            await asyncio.sleep(1)
            return
        self.sent += 1
        await self._runner.wait_for(epoch, ack.seq, FOLD_LIMIT_MS)
        here = self._runner.position
        if here.due_at_ms is not None and here.due_at_ms <= due_at_ms:
            # Our reading of the broker's clock was early, or the tick is not folded yet.
            wait_ms = max(LEAST_WAIT_MS, here.due_at_ms - here.now_ms)
            await asyncio.sleep(wait_ms / 1000)
