"""An authorization asked for again is never answered with what an earlier one was told."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable

import pytest

from tests.support.cp import until
from tests.support.ledger import a_log
from tests.support.process import WorkerProcess
from tests.support.proxy import proxy_to
from tests.support.space import Space, speaker
from worker.bus.options import ConnectOptions
from worker.client import Client, new_command_id

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped")

KEY = "key-000000000001"


async def test_a_late_allowed_from_before_a_stop_allows_nothing(
    own_space: Space, worker_of: Callable[[Space], WorkerProcess]
) -> None:
    worker = await asyncio.to_thread(lambda: worker_of(own_space).wait_ready())
    latest = time.time_ns() // 1_000_000 + 3_600_000
    async with (
        own_space.client("_op") as operator,
        own_space.client("ann") as person,
        a_log(own_space) as log,
        proxy_to(own_space.server.port) as proxy,
    ):
        await operator.cap.minting(True)
        told = await person.cap.reserve("ann", KEY, latest_expires_at_ms=latest, cap=10)
        assert told.cap is not None
        second = told.cap.expires_at_ms
        await person.cap.confirm("ann", KEY, grant_expires_at_ms=second)

        async def stored() -> int:
            return (await log.js.stream_info(log.names.log_stream)).last_seq

        async def until_stored(count: int) -> None:
            async def there() -> bool:
                return await stored() >= count

            await until(there, what=f"{count} commands are stored")

        options = ConnectOptions((proxy.url,))
        async with Client(options, speaker("agent"), own_space.names.space) as agent:
            assert (await agent.cap.authorize("ann", amount=1, grant_expires_at_ms=second)).allowed
            worker.send(signal.SIGSTOP)
            before, intent = await stored(), new_command_id()

            def authorize(timeout_ms: int) -> asyncio.Task[object]:
                return asyncio.create_task(
                    agent.cap.authorize(
                        "ann",
                        amount=1,
                        grant_expires_at_ms=second,
                        command_id=intent,
                        timeout_ms=timeout_ms,
                    )
                )

            first = await authorize(300)
            assert not getattr(first, "allowed", True)
            stopping = asyncio.create_task(person.cap.stop("ann", timeout_ms=20_000))
            await until_stored(before + 2)

            # The same again, whose acknowledgement is lost with the connection.
            proxy.from_server = lambda _: b""
            again = authorize(20_000)
            await until_stored(before + 3)
            proxy.from_server = None
            proxy.cut()
            await until_stored(before + 4)
            worker.send(signal.SIGCONT)
            judged = await again
            assert not getattr(judged, "allowed", True), judged
            assert getattr(judged, "reason", "") == "stopped"
            assert (await stopping).generation == 1
