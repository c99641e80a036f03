"""The worker as a process: signals, brokers that go and come back, and an end within ten seconds.

Rows 4, 8, 14, 17 of field-reports.md.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.process import WorkerProcess, environment, space_environment
from tests.support.proxy import proxy_to
from tests.support.space import Space

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def has(word: str) -> Callable[[list[str] | None], bool]:
    return lambda reasons: bool(reasons) and word in " ".join(reasons or ())


@pytest.fixture
def own_worker(own_space: Space, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers on the test's own server."""
    started: list[WorkerProcess] = []

    def start(**settings: object) -> WorkerProcess:
        log = tmp_path / f"own-worker-{len(started)}.log"
        started.append(WorkerProcess(space_environment(own_space, **settings), log))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_worker_with_0(
    process_worker: Callable[..., WorkerProcess], signum: int
) -> None:
    worker = process_worker().wait_ready()
    began = time.monotonic()
    worker.send(signum)
    assert worker.wait(10) == 0
    assert time.monotonic() - began < 3
    assert worker.events()[-1]["event"] == "worker_stopped"


async def test_sigterm_in_the_middle_of_requests_loses_none(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    first = await asyncio.to_thread(process_worker().wait_ready)
    async with space.client(timeout_ms=30_000) as client:
        deadline = now_ms() + HOUR_MS
        calls = [
            asyncio.create_task(client.cp.mint("build", f"t{n}", deadline_at_ms=deadline))
            for n in range(400)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        began = time.monotonic()
        assert await asyncio.to_thread(first.terminate) == 0
        assert time.monotonic() - began < 10
        await asyncio.to_thread(process_worker().wait_ready)
        outcomes = await asyncio.gather(*calls)
        assert {one.word for one in outcomes} == {"minted"}
        listed = [item async for page in client.cp.pages() for item in page.items]
    assert len(listed) == 400
    assert {item.generation for item in listed} == {1}


async def test_a_second_worker_carries_on_when_the_first_is_killed(
    space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    first, second = process_worker(), process_worker(data_dir=tmp_path / "second")
    await asyncio.to_thread(first.wait_ready)
    await asyncio.to_thread(second.wait_ready)
    async with space.client(timeout_ms=20_000) as client:
        deadline = now_ms() + HOUR_MS
        calls = [
            asyncio.create_task(client.cp.mint("build", f"t{n}", deadline_at_ms=deadline))
            for n in range(300)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(first.kill)
        outcomes = await asyncio.gather(*calls)
        assert {one.word for one in outcomes} == {"minted"}
        assert {one.checkpoint.generation for one in outcomes} == {1}
        status = await client.status()
    assert status["worker"]["pid"] == second.pid


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_sigterm_with_the_broker_gone_or_frozen(
    own_space: Space, own_worker: Callable[..., WorkerProcess], how: int
) -> None:
    worker = own_worker().wait_ready()
    server = own_space.server
    if how == signal.SIGKILL:
        server.kill()
        worker.wait_for(has("broker"), 10)
    else:
        server.send(how)
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert time.monotonic() - began < 10


def test_a_broker_that_is_down_at_start_is_waited_for(
    own_space: Space, own_worker: Callable[..., WorkerProcess]
) -> None:
    own_space.server.kill()
    began = time.monotonic()
    worker = own_worker()
    reasons = worker.wait_for(lambda found: found is not None, 10)
    assert reasons
    worker.wait_for(has("cannot be reached"), 10)
    assert time.monotonic() - began < 10
    assert worker.liveness() == []
    time.sleep(3)
    own_space.server.start()
    worker.wait_ready(15)
    assert len(worker.events()) < 10
    assert worker.terminate() == 0


def test_a_broker_that_never_comes_does_not_hold_up_sigterm(
    own_space: Space, own_worker: Callable[..., WorkerProcess]
) -> None:
    own_space.server.kill()
    worker = own_worker()
    worker.wait_for(has("cannot be reached"), 10)
    began = time.monotonic()
    assert worker.terminate() == 0
    assert time.monotonic() - began < 3


async def test_a_broker_that_goes_for_a_while_is_outlived(
    own_space: Space, own_worker: Callable[..., WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(own_worker().wait_ready)
    async with own_space.client() as client:
        await client.cp.mint("build", "before", deadline_at_ms=now_ms() + HOUR_MS)
    before = len(worker.events())

    await asyncio.to_thread(own_space.server.kill)
    began = time.monotonic()
    await asyncio.to_thread(worker.wait_for, has("broker"), 10)
    assert time.monotonic() - began < 10
    cpu_before = cpu_s(worker.pid)
    await asyncio.sleep(6)
    assert cpu_s(worker.pid) - cpu_before < 1.2
    # Ten minutes must fit in 100 lines; what is said at first and at the end may come in any six.
    assert len(worker.events()) - before < 20

    await asyncio.to_thread(own_space.server.start)
    await asyncio.to_thread(worker.wait_ready, 30)
    async with own_space.client() as client:
        await client.cp.mint("build", "after", deadline_at_ms=now_ms() + HOUR_MS)
        page = await client.cp.list()
    assert {item.token for item in page.items} == {"before", "after"}
    assert worker.exit_code is None


def test_a_frozen_broker_is_noticed_and_outlived(
    own_space: Space, own_worker: Callable[..., WorkerProcess]
) -> None:
    worker = own_worker().wait_ready()
    own_space.server.send(signal.SIGSTOP)
    try:
        worker.wait_for(has("broker"), 10)
    finally:
        own_space.server.send(signal.SIGCONT)
    worker.wait_ready(15)
    assert worker.liveness() == []


def test_an_idle_worker_is_small(process_worker: Callable[..., WorkerProcess]) -> None:
    worker = process_worker().wait_ready()
    status = Path(f"/proc/{worker.pid}/status").read_text()
    (resident,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    assert int(resident.split()[1]) <= 100 * 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def test_expired_authentication_is_survived(
    own_space: Space, own_worker: Callable[..., WorkerProcess]
) -> None:
    async with proxy_to(own_space.server.port) as proxy:
        worker = await asyncio.to_thread(own_worker(nats_url=proxy.url).wait_ready)
        for _ in range(3):
            proxy.inject(b"-ERR 'User Authentication Expired'\r\n")
            await asyncio.sleep(0.2)
            await asyncio.to_thread(worker.wait_ready, 30)
        async with own_space.client() as client:
            minted = await client.cp.mint("build", "one", deadline_at_ms=now_ms() + HOUR_MS)
            status = await client.query("sys", "status", {})
        assert minted.word == "minted"
        assert status.data["broker"]["reconnects"] == 3
        assert await asyncio.to_thread(worker.terminate) == 0


async def test_a_login_that_is_taken_away_ends_the_worker(
    own_space: Space, own_worker: Callable[..., WorkerProcess]
) -> None:
    """A broker that is there and keeps refusing us will not change its mind: leave, non-zero."""
    worker = await asyncio.to_thread(own_worker().wait_ready)
    server = own_space.server
    text = (server.directory / "server.conf").read_text()
    server.rewrite(text.replace("worker-password", "another-password"))
    server.reload()
    await asyncio.to_thread(worker.wait_for, has("broker"), 10)
    assert await asyncio.to_thread(worker.wait, 35) == 1
    assert any(event["event"] == "connection_closed" for event in worker.events())


LEAKY = """
import threading, sys
from worker import daemon, logs
from worker.errors import StartRefused
from worker.settings import load

class Leaky:
    name = "leaky"
    def __init__(self, *_):
        # As a database's thread that nobody joined would.
        threading.Thread(target=threading.Event().wait).start()
    async def start(self):
        raise {error}("the database has a bad schema")
    async def run(self): pass
    async def stop(self): {stop}
    def not_ready(self): return []
    def queries(self): return {{}}
    def status(self): return {{}}

logs.configure("info", "json")
try:
    code = daemon.run(load().settings, lambda *a: (Leaky(*a),))
except StartRefused as refused:
    print(refused.message, file=sys.stderr)
    code = 3
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("error", "stop", "code"),
    [
        ("StartRefused", "pass", 3),
        ("RuntimeError", "pass", 1),
        ("StartRefused", "raise RuntimeError", 3),
    ],
)
def test_a_start_that_fails_late_leaves_within_five_seconds(
    space: Space, error: str, stop: str, code: int
) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", LEAKY.format(error=error, stop=stop)],
        env=space_environment(space),
        capture_output=True,
        timeout=8,
        check=False,
    )
    assert done.returncode == code
    assert time.monotonic() - began < 5


def test_a_url_that_is_none_leaves_with_2(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "worker.cli.main", "run"],
        env=environment(data_dir=tmp_path, nats_url="nats://"),
        capture_output=True,
        timeout=8,
        check=False,
    )
    assert done.returncode == 2
    assert time.monotonic() - began < 5


STUCK = """
import sys, time, threading
from worker import daemon, logs
from worker.settings import load

class Stuck:
    name = "stuck"
    def __init__(self, *_): pass
    async def start(self): pass
    async def run(self):
        import asyncio
        await asyncio.Event().wait()
    async def stop(self):
        time.sleep(60)  # the event loop itself is stuck
    def not_ready(self): return []
    def queries(self): return {}
    def status(self): return {}

logs.configure("info", "json")
sys.exit(daemon.run(load().settings, lambda *a: (Stuck(),)))
"""


def test_a_shutdown_that_is_stuck_is_cut_off_within_ten_seconds(
    space: Space, tmp_path: Path
) -> None:
    log = tmp_path / "stuck.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK], env=space_environment(space), stdout=out, stderr=out
        )
    try:
        until = time.monotonic() + 10
        while b"worker_ready" not in log.read_bytes():
            assert time.monotonic() < until
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 75
        assert time.monotonic() - began < 10
    finally:
        process.kill()
        process.wait()
    assert b"shutdown_cut_off" in log.read_bytes()
