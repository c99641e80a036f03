"""Checkpoint planes in processes of their own, which kill themselves at one exact write.

``python -m tests.support.cp_process`` is a fork server: it imports everything once and forks a
process per line of JSON on its standard input, so that a crash test costs milliseconds and the
process that dies is a real one, by SIGKILL.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from schemas.names import Names, kv_stream
from tests.support.cp import until
from tests.support.server import WORKER_PASSWORD
from tests.support.space import Space
from worker import logs
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.messages import Outgoing
from worker.bus.options import ConnectOptions
from worker.bus.window import GroupPublisher
from worker.checkpoints import plane as plane_module
from worker.checkpoints.plane import CheckpointPlane
from worker.settings import Settings

Stream = Literal["records", "facts", "timers", "results"]


@dataclass(frozen=True)
class Kill:
    """Where a process ends.

    Attributes:
        stream: Which stream's writes are counted.
        nth: The write, from 1, counted from when it was armed.
        when: Before it is sent, or after it was acknowledged.
    """

    stream: Stream
    nth: int
    when: Literal["before", "after"]


def stream_of(names: Names, stream: str) -> str:
    return {
        "records": kv_stream(names.records_bucket),
        "facts": names.epf_stream,
        "timers": names.ept_stream,
        "results": names.res_stream,
    }[stream]


class _KillingPublisher(GroupPublisher):
    """Counts the writes of one stream once armed, and ends the process at one of them."""

    fatal_stream = ""
    kill: Kill | None = None
    armed = False
    count = 0

    async def publish(self, subject: str, data: bytes, **how: Any) -> int:
        last = self._is_last()
        seq = await super().publish(subject, data, **how)
        if last:
            _die()
        return seq

    async def publish_all(self, messages: Sequence[Outgoing], still: Any = None) -> list[int]:
        last = self._is_last()
        seqs = await super().publish_all(messages, still)
        if last:
            _die()
        return seqs

    def _is_last(self) -> bool:
        cls = _KillingPublisher
        if not cls.armed or cls.kill is None or self.stream != cls.fatal_stream:
            return False
        cls.count += 1
        if cls.count != cls.kill.nth:
            return False
        if cls.kill.when == "before":
            _die()
        return True


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _serve(options: Mapping[str, Any]) -> None:
    names = Names(options["root"], options["space"])
    if options["kill"] is not None:
        _KillingPublisher.kill = Kill(**options["kill"])
        _KillingPublisher.fatal_stream = stream_of(names, _KillingPublisher.kill.stream)
        _KillingPublisher.armed = bool(options["armed"])
    setattr(plane_module, "GroupPublisher", _KillingPublisher)  # noqa: B010 - a class is replaced
    _skew_the_wall_clock(options["wall_skew_s"])
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    settings = Settings(**options["settings"])
    conn = await Connection.open(
        ConnectOptions((options["url"],), user=conf.WORKER_USER, password=WORKER_PASSWORD),
        name="process",
    )
    plane = CheckpointPlane(
        conn, names, settings, options["replica"], wall_ns=lambda: time.time_ns()
    )

    def arm() -> None:
        _KillingPublisher.armed = True
        show(".armed")

    def show(suffix: str, text: str = "") -> None:
        path = Path(options["files"] + suffix)
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    loop.add_signal_handler(signal.SIGUSR1, arm)
    await plane.start()
    running = asyncio.create_task(plane.run())
    while plane.not_ready():  # noqa: ASYNC110 - readiness is asked for
        await asyncio.sleep(0.002)
    show(".ready", f"{time.time()}")
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await plane.stop()
    await conn.close()


def _skew_the_wall_clock(skew_s: float) -> None:
    if skew_s:
        seconds, nanoseconds = time.time, time.time_ns
        setattr(time, "time", lambda: seconds() + skew_s)  # noqa: B010 - a function is replaced
        setattr(time, "time_ns", lambda: nanoseconds() + int(skew_s * 1e9))  # noqa: B010 - as above


def _fork_server() -> None:
    """Fork a process per line; when standard input ends, kill what is left."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    logs.configure("error", "json")
    children = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(_serve(json.loads(line)))
            os._exit(0)
        children.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class PlaneProcess:
    """One plane in a process of its own."""

    def __init__(self, pid: int, files: str) -> None:
        self.pid = pid
        self._files = files

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def send(self, signum: int) -> None:
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return

    async def ready(self) -> None:
        await self._appears(".ready")

    def wall_clock(self) -> float:
        """What its wall clock showed when it got ready, in seconds."""
        return float(Path(self._files + ".ready").read_text())

    async def arm(self) -> None:
        """From now on its writes are counted."""
        self.send(signal.SIGUSR1)
        await self._appears(".armed")

    async def gone(self) -> None:
        async def is_gone() -> bool:
            return not self.alive

        await until(is_gone, what=f"process {self.pid} ends")

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.gone()

    async def _appears(self, suffix: str) -> None:
        path = Path(self._files + suffix)

        async def there() -> bool:
            return self._shown(path) or not self.alive

        await until(there, what=f"process {self.pid} shows {suffix}")

    def _shown(self, path: Path) -> bool:
        return path.exists()


class ForkServer:
    """Starts plane processes quickly."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cp_process"],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self,
        space: Space,
        *,
        replica: str = "r1",
        kill: Kill | None = None,
        armed: bool = False,
        wall_skew_s: float = 0,
        **settings: Any,
    ) -> PlaneProcess:
        self._count += 1
        files = str(self._directory / f"plane-{self._count}")
        options = {
            "root": space.names.root,
            "space": space.names.space,
            "url": space.server.url,
            "replica": f"{replica:0<26}"[:26],
            "files": files,
            "kill": None if kill is None else asdict(kill),
            "armed": armed,
            "wall_skew_s": wall_skew_s,
            "settings": {
                "spaces": space.names.space,
                "data_dir": str(space.data_dir / replica),
                "sweep_interval_ms": 3_600_000,
                **settings,
            },
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        return PlaneProcess(int(self._process.stdout.readline()), files)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@contextmanager
def fork_server(directory: Path, env: Mapping[str, str] | None = None) -> Iterator[ForkServer]:
    """A fork server until the block ends.

    Args:
        directory: For what the processes show.
        env: Added to the environment of all of them.
    """
    server = ForkServer(directory, env)
    try:
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    _fork_server()
