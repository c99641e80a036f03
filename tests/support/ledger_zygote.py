"""Starts real worker processes that kill themselves at a chosen point of a batch.

One process imports everything once and forks a child for each line it reads, so hundreds of starts
cost seconds. A child opens the real ledger over the real broker; the only thing added is that it
sends itself SIGKILL when the named point is reached for the n-th time.
"""

import asyncio
import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from schemas.names import Names
from tests.ledgers import HOLDS
from worker import identity, logs
from worker.bus.connection import Connection
from worker.bus.options import ConnectOptions
from worker.ledger.fold import Fold
from worker.ledger.publisher import Publisher
from worker.ledger.service import LedgerPlane
from worker.ledger.tx import OutRow
from worker.settings import Settings

POINTS = ("in-batch", "before-commit", "after-commit", "in-outbox", "after-outbox", "after-drop")
"""Inside a command, around the commit, between two publishes, before the rows are dropped."""

LIMIT_S = 25.0


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL is not survived")


def arm(point: str, nth: int) -> None:
    """Make the n-th passing of a point the last thing this process does."""
    left = nth

    def passed() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            die()

    def before(cls: type, name: str) -> None:
        original: Callable[..., Any] = getattr(cls, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            passed()
            return original(*args, **kwargs)

        setattr(cls, name, wrapped)

    match point:
        case "in-batch":
            before(Fold, "_plain")
        case "before-commit":
            before(Fold, "_commit")
        case "after-commit":
            before(Publisher, "offer")
        case "in-outbox":
            _die_between_publishes(passed)
        case "after-outbox":
            before(Publisher, "_done")
        case "after-drop":
            original = Fold.drop

            def drop(self: Fold, ids: Sequence[int]) -> None:
                original(self, ids)
                passed()

            Fold.drop = drop  # type: ignore[method-assign]  # the point of this process
        case "":
            return
        case _:
            raise AssertionError(point)


def _die_between_publishes(passed: Callable[[], None]) -> None:
    async def store(self: Publisher, rows: Sequence[OutRow]) -> None:
        for row in rows:
            await self._store_each(await self._outgoing([row]), [row])
            passed()

    Publisher._store = store  # type: ignore[method-assign]  # the point of this process


async def serve(order: dict[str, Any]) -> None:
    """Run the ledger until everything up to a sequence is folded and said."""
    settings = Settings(
        nats_url=order["url"],
        root=order["root"],
        spaces=order["space"],
        data_dir=Path(order["data_dir"]),
    )
    options = ConnectOptions((order["url"],), user=order["user"], password=order["password"])
    conn = await Connection.open(options, name="test-zygote-child")
    names = Names(order["root"], order["space"])
    replica = identity.replica_id(settings.data_dir)
    ledger = LedgerPlane(conn, names, settings, replica, planes=[HOLDS])
    await ledger.start()
    run = asyncio.create_task(ledger.run())
    began = asyncio.get_running_loop().time()
    while not run.done():
        if asyncio.get_running_loop().time() - began > LIMIT_S:
            raise AssertionError(f"not done: {ledger.status()} {ledger.not_ready()}")
        status = ledger.status()
        done = status["watermark"] >= order["through"] and status["unpublished"] == 0
        done = done and not ledger._publisher.said
        if done and not order["for_ever"]:
            break
        await asyncio.sleep(0.005)
    await ledger.stop()
    await conn.close()
    await run


def main() -> None:
    logs.configure("error", "json")
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                arm(order["point"], order["nth"])
                asyncio.run(serve(order))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
