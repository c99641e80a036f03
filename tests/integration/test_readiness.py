"""Readiness says what works: each probe against a store that really takes nothing."""

import asyncio
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from schemas.names import kv_stream
from tests.support.cp import until
from tests.support.process import WorkerProcess
from tests.support.space import Space
from worker import identity
from worker.bus.jetstream import JetStream
from worker.web.probes import Probes

QUICKLY_S = 0.1


@asynccontextmanager
async def probing(space: Space, replica: str | None = None) -> AsyncIterator[Probes]:
    conn = await space.connect("test-probes")
    probes = Probes(
        conn,
        space.names,
        replica or identity.new_uid(),
        None,
        monotonic=time.monotonic,
        interval_s=QUICKLY_S,
        limit_s=5 * QUICKLY_S,
    )
    await probes.start()
    task = asyncio.create_task(probes.run())
    try:
        yield probes
    finally:
        await probes.stop()
        await task
        await conn.close()


async def becomes_ready(probes: Probes) -> None:
    async def ready() -> bool:
        return not probes.not_ready() and probes.status()["compare_and_set_age_ms"] < 1_000

    await until(ready)


async def says(probes: Probes, words: str) -> None:
    async def said() -> bool:
        return any(words in reason for reason in probes.not_ready())

    await until(said, what=f"readiness says that {words}")


async def limit(js: JetStream, stream: str, **changes: Any) -> None:
    config = dict((await js.stream_info(stream)).config)
    await js.stream_update({**config, **changes})


async def test_a_store_that_takes_nothing_more_is_not_ready(space: Space) -> None:
    stream = kv_stream(space.names.leases_bucket)
    conn = await space.connect()
    js = JetStream(conn)
    async with probing(space) as probes:
        await becomes_ready(probes)
        full = {"max_bytes": 1, "discard": "new"}
        await limit(js, stream, **full)
        await says(probes, "the broker stores nothing")
        await limit(js, stream, max_bytes=-1)
        await becomes_ready(probes)
    await conn.close()


async def test_a_broker_that_stands_still_is_not_ready(own_space: Space) -> None:
    async with probing(own_space) as probes:
        await becomes_ready(probes)
        own_space.server.send(signal.SIGSTOP)
        try:
            await says(probes, "the broker does not answer")
        finally:
            own_space.server.send(signal.SIGCONT)
        await becomes_ready(probes)


async def test_two_workers_with_one_identity_are_found_out(space: Space) -> None:
    shared = identity.new_uid()
    async with probing(space, shared) as one:
        await becomes_ready(one)
        async with probing(space, shared) as other:
            await says(one, "must not share a data directory")
            await says(other, "must not share a data directory")
        await becomes_ready(one)


async def test_a_restart_finds_its_own_key_and_is_ready(space: Space) -> None:
    same = identity.new_uid()
    for _ in range(2):
        async with probing(space, same) as probes:
            await becomes_ready(probes)


def test_a_ledger_whose_file_takes_no_write_is_not_ready(
    process_worker: Callable[..., WorkerProcess], space: Space
) -> None:
    worker = process_worker().wait_ready()
    journal = space.data_dir / space.names.space / "ledger.db-wal"
    before = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    # From here on no file of that process grows beyond what the ledger's journal is now.
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (journal.stat().st_size, before[1]))
    told = _when(worker, lambda reasons: bool(reasons))
    assert any("the ledger's file takes no write" in reason for reason in told), told
    assert worker.exit_code is None
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, before)
    assert _when(worker, lambda reasons: not reasons) == []


def _when(worker: WorkerProcess, wanted: Callable[[list[str]], bool]) -> list[str]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        reasons = worker.readiness()
        if reasons is not None and wanted(reasons):
            return reasons
        time.sleep(0.05)
    raise AssertionError(f"readiness stays {worker.readiness()}")
