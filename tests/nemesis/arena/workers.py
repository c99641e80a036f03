"""Worker processes that are started again when they end, each with a data directory of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from tests.nemesis.arena.disks import Disk
from tests.support.process import WorkerProcess, free_port
from tests.support.skewed_worker import VARIABLE

LEDGER_DISK_MB = 48


class Worker(WorkerProcess):
    """``tidegate run`` with a clock that can be moved and a log that can be anything."""

    def __init__(self, env: Mapping[str, str], log_path: Path, log: BinaryIO) -> None:
        port = free_port()
        self.health = f"http://127.0.0.1:{port}"
        self.log_path = log_path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.skewed_worker", "run"],
            env={**env, "TIDEGATE_HEALTH_PORT": str(port), "TIDEGATE_LOG_FORMAT": "json"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


class Slot:
    """One place where a worker runs, supervised.

    Attributes:
        name: For the history.
        disk: Where its data lies.
        worker: The process that runs, or ran last.
        wanted: Whether it is to run.
        ends: Exit codes of processes that ended by themselves.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        environment: Callable[[Path], Mapping[str, str]],
        note: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self._directory = directory
        directory.mkdir(parents=True)
        self.disk = Disk.mount(directory / "data", LEDGER_DISK_MB)
        self._clock = directory / "clock"
        self.skew(0)
        self._environment = {**environment(self.disk.path), VARIABLE: str(self._clock)}
        self._note = note
        self.worker: Worker | None = None
        self.wanted = True
        self.ends: list[int] = []
        self._sink: BinaryIO | None = None
        self._supervising: asyncio.Task[None] | None = None

    @property
    def log_path(self) -> Path:
        return self._directory / "worker.log"

    @property
    def pid(self) -> int | None:
        worker = self.worker
        return None if worker is None or worker.exit_code is not None else worker.pid

    def skew(self, ms: int) -> None:
        """Step its clock to so many ms off the true one."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(ms))
        new.rename(self._clock)

    def supervise(self) -> None:
        self._supervising = asyncio.create_task(self._supervise(), name=self.name)

    async def _supervise(self) -> None:
        """Start it, and again whenever it ends while it is wanted."""
        while True:
            worker = self.worker
            if worker is None or worker.exit_code is not None:
                if worker is not None and self.wanted and worker.exit_code != -signal.SIGKILL:
                    self.ends.append(worker.exit_code or 0)
                    self._note(self.name, f"it ended with {worker.exit_code}")
                self.worker = None
                if self.wanted:
                    await asyncio.to_thread(self._start)
            await asyncio.sleep(0.1)

    def _start(self) -> None:
        if self._sink is not None:
            self.worker = Worker(self._environment, self.log_path, self._sink)
            return
        with self.log_path.open("ab") as log:
            self.worker = Worker(self._environment, self.log_path, log)

    def send(self, signum: int) -> None:
        if self.worker is not None and self.worker.exit_code is None:
            self.worker.send(signum)

    async def kill(self) -> None:
        """SIGKILL; it stays down until it is wanted again."""
        self.wanted = False
        if self.worker is not None:
            await asyncio.to_thread(self.worker.kill)

    def log_into(self, sink: BinaryIO | None) -> None:
        """Where the next process logs to; ``None`` is its file."""
        if self._sink is not None:
            self._sink.close()
        self._sink = sink

    async def wait_ready(self, limit_s: float) -> None:
        """Wait until its process is ready, however often it was started."""
        reasons: list[str] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while True:
                    if self.worker is not None:
                        reasons = await asyncio.to_thread(self.worker.readiness)
                        if reasons == []:
                            return
                    await asyncio.sleep(0.1)
        raise AssertionError(f"{self.name} did not get ready: {reasons}; {self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self.log_path.read_text(errors="replace")[-3_000:]

    async def stop(self, limit_s: float = 15) -> int | None:
        """SIGTERM; its exit code."""
        self.wanted = False
        await self._unsupervise()
        if self.worker is None:
            return None
        return await asyncio.to_thread(self.worker.terminate, limit_s)

    async def clear_away(self) -> None:
        self.wanted = False
        await self._unsupervise()
        if self.worker is not None:
            self.send(signal.SIGCONT)
            await asyncio.to_thread(self.worker.kill)
        self.log_into(None)
        self.disk.unmount()

    async def _unsupervise(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
            self._supervising = None


def broken_pipe() -> BinaryIO:
    """A log that nobody reads any more: every write fails."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "wb", buffering=0)


class FullPipe:
    """A log whose reader has stopped reading: nothing more fits.

    Attributes:
        sink: Where to write to.
    """

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"." * 4096)
        os.set_blocking(writing, True)
        self.sink: BinaryIO = os.fdopen(writing, "wb", buffering=0)

    def close(self) -> None:
        os.close(self._reading)
