"""Streams and buckets that are deleted, edited or made anew under a running worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schemas.names import Names, kv_stream, object_stream
from tests.support.ledger import until
from tests.support.process import command, space_environment
from tests.support.running import running
from tests.support.space import Space
from worker import wiring
from worker.app import Worker
from worker.bus.jetstream import JetStream


def streams_of(names: Names) -> dict[str, str]:
    return {
        "payloads": kv_stream(names.payloads_bucket),
        "keys": kv_stream(names.keys_bucket),
        "snapshots": object_stream(names.snapshots_bucket),
        "requests": names.ept_req_stream,
        "results": names.res_stream,
    }


@asynccontextmanager
async def starting(space: Space) -> AsyncIterator[Worker]:
    """A worker that need not get ready."""
    worker = Worker(space.settings(), wiring.planes_of)
    done = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await done


@pytest.mark.parametrize("which", ["payloads", "keys", "snapshots", "requests", "results"])
async def test_a_stream_that_goes_is_named_and_one_made_anew_until_it_is_confirmed(
    own_space: Space, which: str
) -> None:
    stream = streams_of(own_space.names)[which]
    conn = await own_space.connect()
    js = JetStream(conn)
    config = dict((await js.stream_info(stream)).config)
    env = space_environment(own_space)
    async with running(own_space.settings()) as worker:

        def reasons() -> str:
            return "; ".join(worker.worker.not_ready())

        await js.stream_delete(stream)
        await until(lambda: f"{stream} is gone" in reasons(), 30, reasons)
        await js.stream_create(config)
        anew = f"{stream} was deleted and made anew"
        await until(lambda: anew in reasons(), 30, reasons)
        assert not worker.done.done()
    async with starting(own_space) as again:
        await until(lambda: anew in "; ".join(again.not_ready()), 30, again.not_ready)
        found = await asyncio.to_thread(command, ["doctor"], env, timeout_s=60)
        assert f"the stream {stream} was deleted and made anew" in found.stdout
        said = await asyncio.to_thread(command, ["setup", "--confirm-streams"], env, timeout_s=60)
        assert f"{stream} is accepted" in said.stderr, said
        await until(lambda: anew not in "; ".join(again.not_ready()), 30, again.not_ready)
    await conn.close()


async def test_an_edit_that_could_lose_data_is_named(own_space: Space) -> None:
    stream = own_space.names.log_stream
    conn = await own_space.connect()
    js = JetStream(conn)
    config = dict((await js.stream_info(stream)).config)
    async with running(own_space.settings()) as worker:

        def reasons() -> str:
            return "; ".join(worker.worker.not_ready())

        await js.stream_update(config | {"max_age": 600_000_000_000})
        await until(lambda: f"{stream}.max_age" in reasons(), 30, reasons)
        await js.stream_update(config)
        await until(lambda: reasons() == "", 30, reasons)
    await conn.close()
