"""Whole workers, seen from their callers: frozen, killed, refused, and callers that go away."""

import asyncio
import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.ledger import a_log, read_all, until
from tests.support.process import WorkerProcess, command, space_environment
from tests.support.space import Space
from worker.client import CallTimeout, Client, new_command_id

REFUSED = 3


async def stop(client: Client, user: str, command_id: str | None = None) -> int:
    """Stop a user; the generation it led to."""
    result = await client.call("cap", "stop", [user], {}, command_id=command_id or new_command_id())
    return int(result.data["generation"])


async def ready(worker: WorkerProcess) -> WorkerProcess:
    return await asyncio.to_thread(worker.wait_ready)


async def test_a_frozen_worker_is_replaced_and_does_no_harm_when_it_thaws(
    space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    a = await ready(process_worker(data_dir=tmp_path / "a"))
    async with space.client("alice") as client:
        assert await stop(client, "user-1") == 1
        b = await ready(process_worker(data_dir=tmp_path / "b"))
        a.send(signal.SIGSTOP)
        began = time.monotonic()
        assert await stop(client, "user-1") == 2
        assert time.monotonic() - began < 5
        for n in range(3, 13):
            assert await stop(client, "user-1") == n
        a.send(signal.SIGCONT)
        for n in range(13, 23):
            assert await stop(client, "user-1") == n
        for one in (a, b):
            await asyncio.to_thread(one.wait_for, lambda reasons: reasons == [])
    async with a_log(space) as log:
        found = await read_all(log.js, space.names.res_stream, f"{space.names.prefix}.res.>")
        assert len({message.subject for message in found}) == len(found)
    digests = []
    for one, folder in ((a, "a"), (b, "b")):
        assert one.terminate() == 0
        asked = await asyncio.to_thread(
            command,
            [
                "ledger",
                "digest",
                "--json",
                "--file",
                str(tmp_path / folder / space.names.space / "ledger.db"),
            ],
            space_environment(space),
        )
        digests.append(asked.stdout)
    assert digests[0] == digests[1] != ""


async def test_killing_either_of_two_workers_changes_nothing_for_callers(
    space: Space, process_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    workers = {name: await ready(process_worker(data_dir=tmp_path / name)) for name in ("a", "b")}
    async with space.client("alice") as client:
        done = 0
        for victim in ("a", "b", "a"):
            calling = asyncio.create_task(call_many(client, "user-1", 30))
            await asyncio.sleep(0.1)
            workers[victim].kill()
            assert await calling == [done + n for n in range(1, 31)]
            done += 30
            workers[victim] = await ready(process_worker(data_dir=tmp_path / victim))


async def call_many(client: Client, user: str, count: int) -> list[int]:
    return [await stop(client, user) for _ in range(count)]


async def test_callers_that_go_away_leave_whole_effects_only(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    """Cancelled at random: what reached the log is done once, what did not is not done."""
    await ready(process_worker())
    chance = random.Random(7)

    async def one_of_many(client: Client, user: str, command_id: str) -> None:
        with contextlib.suppress(TimeoutError, CallTimeout):
            async with asyncio.timeout(chance.random() * 0.02):
                await stop(client, user, command_id)

    ids = [new_command_id() for _ in range(1_000)]
    async with space.client("alice") as client:
        for start in range(0, len(ids), 100):
            await asyncio.gather(
                *(one_of_many(client, f"user-{n % 10}", ids[n]) for n in range(start, start + 100))
            )
        generations = [await stop(client, f"user-{n}") for n in range(10)]
    async with a_log(space) as log:
        stored = await read_all(
            log.js, space.names.log_stream, f"{space.names.prefix}.cmd.*.*.cap.stop.*"
        )
        intents = {(m.subject, m.headers["Tidegate-Command"]) for m in stored}
        assert sum(generations) == len(intents)
        assert len(intents) > 10


async def test_a_ledger_that_is_refused_ends_the_start_at_once(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    worker = await ready(process_worker())
    assert worker.terminate() == 0
    path = space.data_dir / space.names.space / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TRIGGER sly AFTER INSERT ON outbox BEGIN DELETE FROM outbox; END")
    began = time.monotonic()
    again = process_worker()
    assert await asyncio.to_thread(again.wait, 15) == REFUSED
    assert time.monotonic() - began < 10
    assert "trigger sly does not belong here" in again.log()


async def test_a_ledger_held_by_another_process_is_refused(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    """An operator's shell in the middle of a change, say."""
    worker = await ready(process_worker())
    assert worker.terminate() == 0
    path = space.data_dir / space.names.space / "ledger.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        again = process_worker()
        assert await asyncio.to_thread(again.wait, 15) == REFUSED
        assert "held by another process" in again.log()
    await ready(process_worker())


async def test_a_broker_away_for_a_while_loses_and_repeats_nothing(
    own_space: Space, tmp_path: Path
) -> None:
    worker = WorkerProcess(space_environment(own_space), tmp_path / "worker.log")
    try:
        await ready(worker)
        async with own_space.client("alice", timeout_ms=30_000) as client:
            assert await stop(client, "user-1") == 1
            calling = [asyncio.create_task(stop(client, "user-1")) for _ in range(20)]
            await asyncio.to_thread(own_space.server.kill)
            await until(lambda: worker.readiness() != [])
            await asyncio.to_thread(own_space.server.start)
            told = await asyncio.gather(*calling, return_exceptions=True)
            await asyncio.to_thread(worker.wait_ready)
            last = await stop(client, "user-1")
            generations = [one for one in told if isinstance(one, int)]
            assert len(set(generations)) == len(generations)
            assert max(generations, default=1) < last <= 22
        async with a_log(own_space) as log:
            subject = f"{own_space.names.prefix}.cmd.*.*.cap.stop.*"
            stored = await read_all(log.js, own_space.names.log_stream, subject)
            assert last == len({m.headers["Tidegate-Command"] for m in stored})
        assert worker.terminate() == 0
    finally:
        worker.kill()
