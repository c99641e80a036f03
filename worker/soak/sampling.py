"""Looks at everything that could grow, again and again, and keeps what it saw as series."""

import asyncio
import os
import re
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Final

from schemas.names import Names
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.errors import TidegateError
from worker.soak import series
from worker.soak.drift import Point
from worker.soak.ground import SoakGround
from worker.soak.processes import usage

MB: Final = 2**20
_TASKS: Final = re.compile(r"^tidegate_tasks (\S+)$", re.MULTILINE)


class Sampler:
    """Samples one ground.

    Attributes:
        series: Points of each series, in order of time.
        latest: The latest value of each.
        missed: Samples that could not be taken.

    Args:
        place: What is looked at.
        js: JetStream of the workers' account.
        metrics_port: Where the worker shows its metrics.
        began_s: The beginning, on the clock of ``time.monotonic``.
    """

    def __init__(self, place: SoakGround, js: JetStream, metrics_port: int, began_s: float) -> None:
        self._place = place
        self._js = js
        self._port = metrics_port
        self._began_s = began_s
        self.series: defaultdict[str, list[Point]] = defaultdict(list)
        self.latest: dict[str, float] = {}
        self.missed = 0

    async def run(self, interval_s: float) -> None:
        """Sample for ever."""
        while True:
            began = time.monotonic()
            try:
                await self.sample()
            except (OSError, BusError, TidegateError):
                self.missed += 1
            await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - began)))

    def check(self) -> None:
        """See that broker and worker are alive.

        Raises:
            BenchError: One of them has ended.
        """
        _ = self._place.worker_pid, self._place.broker_pid

    async def sample(self) -> None:
        """Take one sample of everything.

        Raises:
            OSError: A process has ended, or does not answer.
            BusError: The broker does not answer.
            BenchError: The broker or the worker has ended.
        """
        pids = {
            "worker": self._place.worker_pid,
            "broker": self._place.broker_pid,
            "client": os.getpid(),
        }
        found: dict[str, float] = {}
        for who, pid in pids.items():
            used = usage(pid)
            found[f"{who}.memory"] = used.memory_mb
            found[f"{who}.open_files"] = used.open_files
            found[f"{who}.threads"] = used.threads
        found["client.tasks"] = len(asyncio.all_tasks())
        found["worker.tasks"] = await asyncio.to_thread(self._worker_tasks)
        found |= files(self._place.data_dir)
        found |= await streams(self._js, self._place.names)
        at_s = time.monotonic() - self._began_s
        for name, value in found.items():
            self.series[name].append((at_s, value))
        self.latest = found

    def _worker_tasks(self) -> float:
        url = f"http://127.0.0.1:{self._port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            shown = _TASKS.search(answer.read().decode())
        if shown is None:
            raise OSError("the worker shows no tasks")
        return float(shown[1])


def files(folder: Path) -> dict[str, float]:
    """How large the databases below a folder are, and how many files there are; MB."""
    sizes: dict[str, int] = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes[path.name] = sizes.get(path.name, 0) + path.stat().st_size
        except FileNotFoundError:
            continue  # it went away between the two looks
    wal = sum(size for name, size in sizes.items() if name.endswith("-wal"))
    return {
        "files.ledger": sizes.get("ledger.db", 0) / MB,
        "files.wal": wal / MB,
        "files.index": sizes.get("index.db", 0) / MB,
        "files.journal": sizes.get("settled.db", 0) / MB,
        "files.count": len(sizes),
    }


async def streams(js: JetStream, names: Names) -> dict[str, float]:
    """Messages, bytes and messages ever stored of every stream of a space, and what they carry."""
    wanted = (*series.bounded_streams(names), *series.growing_streams(names))
    timers = js.stream_info(names.ept_stream, subjects_filter=f"{names.prefix}.ept.*.*.*.*.armed")
    armed, *infos = await asyncio.gather(timers, *(js.stream_info(name) for name in wanted))
    found: dict[str, float] = {
        "timers.armed": len(armed.subjects),
        "broker.consumers": sum(info.consumers for info in infos),
    }
    for info in infos:
        found[f"stream.{info.name}.messages"] = info.messages
        found[f"stream.{info.name}.bytes"] = info.size_bytes
        found[f"stream.{info.name}.stored"] = info.last_seq
    return found
