"""Health over HTTP: alive, ready with reasons, and metrics."""

import asyncio
import socket
import urllib.request
from collections.abc import Callable

import aiohttp
import pytest

from tests.support.process import WorkerProcess, command, free_port, space_environment
from tests.support.space import Space
from worker.errors import StartRefused
from worker.web.health import HealthServer


async def ask(port: int, path: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, answer.content_type, await answer.text()


async def no_metrics() -> tuple[bytes, str]:
    return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"


async def test_each_page_says_what_it_knows() -> None:
    reasons: dict[str, list[str]] = {"alive": [], "ready": []}
    port = free_port()
    server = HealthServer(
        "127.0.0.1",
        port,
        alive=lambda: reasons["alive"],
        ready=lambda: reasons["ready"],
        metrics=no_metrics,
    )
    await server.start()
    try:
        assert await ask(port, "/livez") == (
            200,
            "application/json",
            '{"status": "alive", "reasons": []}\n',
        )
        reasons["ready"] = ["the broker is not connected"]
        reasons["alive"] = ["closed"]
        status, _, text = await ask(port, "/readyz")
        assert status == 503
        assert text == '{"status": "not-ready", "reasons": ["the broker is not connected"]}\n'
        assert (await ask(port, "/livez"))[0] == 503
        assert await ask(port, "/metrics") == (200, "text/plain", "up 1\n")
        status, _, text = await ask(port, "/")
        assert status == 200
        assert all(page in text for page in ("/livez", "/readyz", "/metrics"))
        assert (await ask(port, "/elsewhere"))[0] == 404
    finally:
        await server.stop()


async def test_a_taken_port_is_refused_in_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = HealthServer("127.0.0.1", port, alive=list, ready=list, metrics=no_metrics)
        with pytest.raises(StartRefused, match=f"127.0.0.1:{port} cannot be used"):
            await server.start()


async def test_an_open_request_does_not_hold_up_the_end() -> None:
    port = free_port()
    server = HealthServer("127.0.0.1", port, alive=list, ready=list, metrics=no_metrics)
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\n")
    await writer.drain()
    async with asyncio.timeout(3):
        await server.stop()
    writer.close()


def test_a_taken_health_port_ends_the_start(space: Space) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = command(["run", "--health-port", str(port)], space_environment(space), timeout_s=8)
    assert done.returncode == 3
    assert "health address" in done.stderr


def test_a_running_worker_shows_its_metrics(process_worker: Callable[..., WorkerProcess]) -> None:
    worker = process_worker().wait_ready()
    assert worker.liveness() == []
    with urllib.request.urlopen(worker.health + "/metrics", timeout=2) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    assert "# TYPE tidegate_commands_total counter" in text


def test_health_is_off_by_default(space: Space) -> None:
    assert space.settings().health_port == 0
