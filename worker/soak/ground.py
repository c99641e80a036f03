"""The broker and the worker that are soaked: those of a benchmark, kept short where they can be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

from worker.bench.ground import BenchError, Ground
from worker.settings import Settings

RES_MAX_AGE_MS: Final = 60_000
"""Results leave after a minute, so that their stream comes to rest within the warm-up."""

TRIM_MS: Final = 30_000
"""So often the worker takes a snapshot, and so long commands stay in the log below one."""


class SoakGround(Ground):
    """One broker and one worker process in a temporary folder."""

    @classmethod
    @asynccontextmanager
    async def laid_out(cls) -> "AsyncIterator[SoakGround]":
        """A broker with an empty space; everything is removed afterwards."""
        async with cls.prepared() as place:
            yield cast(SoakGround, place)

    def settings(self, **values: object) -> Settings:
        """Settings of a worker here."""
        return super().settings(res_max_age_ms=RES_MAX_AGE_MS, **values)

    @property
    def worker_pid(self) -> int:
        """The worker process.

        Raises:
            BenchError: It does not run.
        """
        if self._worker is None or self._worker.returncode is not None:
            raise BenchError("the worker has ended")
        return self._worker.pid

    @property
    def broker_pid(self) -> int:
        """The broker process.

        Raises:
            BenchError: It does not run.
        """
        if self._server is None or self._server.exited.done():
            raise BenchError("the broker has ended")
        return self._server.pid

    @property
    def data_dir(self) -> Path:
        """Where the worker keeps its files."""
        return self.folder / "data"
