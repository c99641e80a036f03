"""A copy of the open file is the state after some whole batch; batches go on meanwhile."""

import asyncio
import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.ledgers import HOLDS
from worker.ledger import copying, digest
from worker.ledger.database import Database
from worker.ledger.errors import LedgerError
from worker.ledger.testing import NAMES, UID, Logged

T0 = 1_700_000_000_000
ROWS = 1_500


def batch(first: int, count: int) -> list[Logged]:
    return [
        Logged(
            f"{NAMES.prefix}.cmd.alice.{UID}.cap.reserve.user-{seq % 1_200}.mintkey-00000001",
            seq,
            T0 + seq,
            {"Tidegate-Command": f"intent-{seq:012d}"},
            b'{"v":1,"latest_expires_at_ms":4000000000000,"cap":10}',
        )
        for seq in range(first, first + count)
    ]


async def a_ledger(path: Path) -> Database:
    database = await Database.open(path, NAMES, [HOLDS])
    await database.run(lambda: database.fold.apply_batch(batch(1, ROWS)))
    return database


def digest_at(path: Path) -> digest.Digest:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return digest.compute(db, [HOLDS])


async def test_batches_go_on_and_the_copy_is_one_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PAGES", 8)
    database = await a_ledger(tmp_path / "ledger.db")
    copying_it = asyncio.create_task(database.copy_into(tmp_path / "copy.db"))
    digests, during = {}, 0
    for number in range(40):
        more = partial(database.fold.apply_batch, batch(ROWS + 1 + number * 10, 10))
        await database.run(more)
        found = await database.read(lambda db, _: digest.compute(db, [HOLDS]))
        digests[found.watermark] = found
        during += not copying_it.done()
    await copying_it
    await database.close()
    assert during > 3, "no batch was folded while the copy was made"
    copied = digest_at(tmp_path / "copy.db")
    assert copied == digests.get(copied.watermark, copied)
    assert copied.watermark in digests


async def test_a_file_that_is_closed_abandons_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PAGES", 1)
    database = await a_ledger(tmp_path / "ledger.db")
    copies = [asyncio.create_task(database.copy_into(tmp_path / f"copy-{n}.db")) for n in range(3)]
    await asyncio.sleep(0.05)
    copies[0].cancel()
    await database.close()
    ends = await asyncio.gather(*copies, return_exceptions=True)
    assert isinstance(ends[0], asyncio.CancelledError)
    assert all(isinstance(end, LedgerError) for end in ends[1:])
    # Nothing holds the file any more.
    again = await Database.open(tmp_path / "ledger.db", NAMES, [HOLDS], busy_ms=0)
    assert await again.read(lambda _, state: state.watermark) == ROWS
    await again.close()


async def test_a_copy_without_room_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    database = await a_ledger(tmp_path / "ledger.db")
    with pytest.raises(sqlite3.OperationalError):
        await database.copy_into(tmp_path / "no-such-folder" / "copy.db")
    await database.copy_into(tmp_path / "copy.db")
    assert digest_at(tmp_path / "copy.db").watermark == ROWS
    await database.close()


async def test_no_batch_waits_for_the_threads_that_all_share(tmp_path: Path) -> None:
    database = await a_ledger(tmp_path / "ledger.db")
    loop = asyncio.get_running_loop()
    let_go = threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, let_go.wait)
    copy = asyncio.create_task(database.copy_into(tmp_path / "copy.db"))
    try:
        async with asyncio.timeout(10):
            await copy
            batch_after = partial(database.fold.apply_batch, batch(ROWS + 1, 1))
            assert (await database.run(batch_after)).watermark == ROWS + 1
    finally:
        let_go.set()
        await busy
    await database.close()
    assert digest_at(tmp_path / "copy.db").watermark == ROWS
