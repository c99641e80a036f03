"""The worker as a process: signals, event loop, health server, and an end nothing can put off."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

from worker import lastword, logs, tracing
from worker.app import FAILED, PlaneFactory, Worker
from worker.errors import StartRefused
from worker.settings import Settings

REFUSED: Final = 3
FORCED: Final = 75
"""Exit code of a shutdown that had to be cut off (``EX_TEMPFAIL``)."""

LONGEST_SHUTDOWN_S: Final = 9.0
LAST_GRACE_S: Final = 1.0

log = logs.get()


def run(settings: Settings, planes: PlaneFactory) -> int:
    """Run a worker until a signal or a failure.

    Returns:
        0 after SIGTERM or SIGINT, 1 if something failed.

    Raises:
        StartRefused: If the worker must not start like this.
    """
    code = FAILED
    lastword.take_back(settings.data_dir)
    tracing.start(os.environ)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(_serve(settings, planes))
    except StartRefused as refused:
        code = REFUSED
        lastword.leave(settings.data_dir, refused.message, time.time_ns() // 1_000_000)
        raise
    finally:
        tracing.stop()
        _leave_soon(code)
    return code


async def _serve(settings: Settings, planes: PlaneFactory) -> int:
    worker = Worker(settings, planes, on_stopping=_cut_off_later)
    _on_signals(worker.stop)
    health = await _start_health(settings, worker)
    try:
        return await worker.run()
    finally:
        if health is not None:
            await health()


async def _start_health(settings: Settings, worker: Worker) -> Callable[[], Awaitable[None]] | None:
    if not settings.health_port:
        return None
    from worker.web.serving import serve

    return await serve(settings, worker, monotonic=time.monotonic)


def _on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def asked(name: str) -> None:
        log.info("signal_received", signal=name)
        stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, asked, signum.name)


def _cut_off_later() -> None:
    """End the process even if the event loop never gets to it (a blocked disk, a stuck library)."""
    timer = threading.Timer(LONGEST_SHUTDOWN_S, _cut_off)
    timer.daemon = True
    timer.start()


def _cut_off() -> None:
    log.error("shutdown_cut_off", after_s=LONGEST_SHUTDOWN_S)
    os._exit(FORCED)


def _leave_soon(code: int) -> None:
    """Leave with ``code`` even if a library's thread would keep the process alive."""
    timer = threading.Timer(LAST_GRACE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes uvloop's event loops where it is installed, else ``None`` for the default."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
