"""``/livez``, ``/readyz`` with reasons, and ``/metrics``; plain HTTP, off unless a port is set.

``/`` names the others.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from worker.errors import StartRefused

Reasons = Callable[[], list[str]]
SHUTDOWN_S = 1.0
INDEX = """tidegate
/livez    200 while this process need not be restarted, else 503 with reasons
/readyz   200 while work is served, else 503 with reasons
/metrics  Prometheus metrics
"""


class HealthServer:
    """The worker's HTTP side.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        alive: Reasons why this process should be restarted; empty while it is fine.
        ready: Reasons why work would not be served now; empty when ready.
        metrics: Renders the metrics in Prometheus' text format: body and content type.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        alive: Reasons,
        ready: Reasons,
        metrics: Callable[[], Awaitable[tuple[bytes, str]]],
    ) -> None:
        self._host = host
        self._port = port
        self._metrics = metrics
        application = web.Application()
        application.router.add_get("/", _index)
        application.router.add_get("/livez", _answers(alive, "alive", "broken"))
        application.router.add_get("/readyz", _answers(ready, "ready", "not-ready"))
        application.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S
        )

    async def start(self) -> None:
        """Start to listen.

        Raises:
            StartRefused: If the address cannot be had.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except (OSError, socket.gaierror) as error:
            await self._runner.cleanup()
            unknown = isinstance(error, socket.gaierror) or not error.errno
            words = "no such address" if unknown else os.strerror(error.errno or 0)
            raise StartRefused(
                f"the health address {self._host}:{self._port} cannot be used: {words}"
                "; set TIDEGATE_HEALTH_HOST or TIDEGATE_HEALTH_PORT"
            ) from error

    async def stop(self) -> None:
        """Stop to listen; never takes longer than two seconds and never raises."""
        try:
            async with asyncio.timeout(2 * SHUTDOWN_S):
                await self._runner.cleanup()
        except (TimeoutError, OSError):
            return

    async def _scrape(self, _: web.Request) -> web.Response:
        body, content_type = await self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})


async def _index(_: web.Request) -> web.Response:
    return web.Response(text=INDEX)


def _answers(
    reasons: Reasons, good: str, bad: str
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        found = reasons()
        body: dict[str, Any] = {"status": bad if found else good, "reasons": found}
        return web.Response(
            text=json.dumps(body) + "\n",
            status=503 if found else 200,
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    return answer
