"""A server of our own: one per directory, whoever was killed before."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.bus_server import connected, eventually
from worker.bus import conf
from worker.bus.embedded import EmbeddedServer
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.errors import StartRefused

SPACES = [conf.Space("tidegate", "main")]


def _text(directory: Path) -> str:
    return conf.embedded(SPACES, store_dir=directory / "store", worker_password="w")


def _worker(server: EmbeddedServer) -> ConnectOptions:
    return ConnectOptions((server.client_url,), user="worker", password="w")


async def test_it_starts_serves_both_accounts_and_stops(tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    server = await EmbeddedServer.start(directory, _text(directory))
    async with connected(_worker(server)) as c:
        await JetStream(c).api("INFO", None)
    async with connected(ConnectOptions((server.client_url,))) as c:
        assert c.connected
    assert stat.S_IMODE((directory / "nats.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    started = time.monotonic()
    await server.stop()
    assert time.monotonic() - started < 4
    assert server.exited.done()
    assert not psutil.pid_exists(server.pid)


async def test_what_was_stored_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path, _text(tmp_path))
    async with connected(_worker(server)) as c:
        js = JetStream(c)
        await js.stream_create({"name": "S", "subjects": ["s.>"], "storage": "file"})
        await js.publish("s.1", b"kept")
    port = server.port
    server.kill()
    await asyncio.wait_for(asyncio.shield(server.exited), 5)
    again = await EmbeddedServer.start(tmp_path, _text(tmp_path), port=port)
    try:
        assert again.port == port
        async with connected(_worker(again)) as c:
            found = await JetStream(c).last_message("S", "s.1")
            assert found is not None
            assert found.data == b"kept"
    finally:
        await again.stop()


async def test_a_second_one_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path, _text(tmp_path))
    try:
        with pytest.raises(StartRefused, match="another worker"):
            await EmbeddedServer.start(tmp_path, _text(tmp_path))
        async with connected(_worker(server)) as c:
            assert c.connected
    finally:
        await server.stop()


async def test_one_left_behind_by_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from worker.bus import conf\n"
        "from worker.bus.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    d = Path(sys.argv[1])\n"
        "    text = conf.embedded([], store_dir=d / 'store', worker_password='w')\n"
        "    server = await EmbeddedServer.start(d, text)\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    left = int(await asyncio.to_thread(worker.stdout.readline))
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert psutil.pid_exists(left)
    server = await EmbeddedServer.start(tmp_path, _text(tmp_path))
    try:
        assert server.pid != left
        await eventually(lambda: not _alive(left))
    finally:
        await server.stop()


async def test_a_stopped_server_left_behind_is_killed(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path, _text(tmp_path))
    os.kill(server.pid, signal.SIGSTOP)
    started = time.monotonic()
    await server.stop(500)
    assert time.monotonic() - started < 3
    assert not psutil.pid_exists(server.pid)


async def test_a_configuration_it_does_not_take_is_refused_quickly(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(StartRefused, match="did not start"):
        await EmbeddedServer.start(tmp_path, "jetstream { nonsense")
    assert time.monotonic() - started < 5
    server = await EmbeddedServer.start(tmp_path, _text(tmp_path))
    await server.stop()


async def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path / "a", _text(tmp_path / "a"))
    try:
        with pytest.raises(StartRefused):
            await EmbeddedServer.start(tmp_path / "b", _text(tmp_path / "b"), port=server.port)
    finally:
        await server.stop()


async def test_an_end_by_itself_is_noticed(tmp_path: Path) -> None:
    server = await EmbeddedServer.start(tmp_path, _text(tmp_path))
    os.kill(server.pid, signal.SIGKILL)
    assert await asyncio.wait_for(asyncio.shield(server.exited), 5) == -signal.SIGKILL


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
