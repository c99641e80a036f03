"""The broker's store replaced by an older copy: nothing repeated, nothing dropped in silence."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.subjects import Speaker
from tests.ledgers import HOLDS
from tests.support.ledger import UID, Log, Running, a_log, folding, read_all, results, until
from tests.support.server import Server
from tests.support.space import Space
from tests.support.wall_clock import WallClock
from worker.bus.errors import BusError
from worker.bus.messages import Outgoing
from worker.ledger.presence import PEERS
from worker.ledger.replay import Replayed, ReplayStopped, replay
from worker.ledger.store import local


class Store:
    """Copies of a server's store, taken and put back while it is stopped."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._copy = folder / "older"

    async def keep(self) -> None:
        """Remember the store as it is now."""
        await asyncio.to_thread(self._server.stop)
        shutil.copytree(self._server.directory / "store", self._copy)
        await asyncio.to_thread(self._server.start)

    async def put_back(self) -> None:
        """Replace the store by what was kept."""
        await asyncio.to_thread(self._server.stop)
        shutil.rmtree(self._server.directory / "store")
        shutil.copytree(self._copy, self._server.directory / "store")
        await asyncio.to_thread(self._server.start)


@pytest.fixture
def kept(own_space: Space, tmp_path: Path) -> Store:
    return Store(own_space.server, tmp_path)


@asynccontextmanager
async def connected(space: Space) -> AsyncIterator[Log]:
    async with a_log(space) as log:
        assert await log.js.connection.wait_connected(20_000)
        yield log


async def reconnected(log: Log) -> None:
    async with asyncio.timeout(20):
        while True:
            if await log.js.connection.wait_connected(1_000):
                try:
                    await log.js.stream_info(log.names.log_stream)
                except BusError:
                    continue
                return


def epoch(one: Running) -> int:
    return int(one.ledger.status()["epoch"])


async def ask_to_rebase(one: Running) -> dict[str, Any]:
    verdict = await one.ledger.queries()["sys", "rebase"](Speaker("_op", UID), b'{"v":1}')
    return verdict.data


async def holds(one: Running) -> dict[str, int]:
    """How often each user's row was changed: a command carried out twice would show."""
    database = one.ledger._runner.database
    rows = await database.read(
        # On a slow machine a hold lapses before the test has ended; that is no command.
        lambda db, _: db.execute("SELECT user, changes - (state = 'lapsed') FROM holds").fetchall()
    )
    return dict(rows)


async def reserve(log: Log, *users: str) -> list[tuple[int, Outgoing]]:
    commands = [log.command("reserve", user) for user in users]
    return list(zip(await log.publish(*commands), commands, strict=True))


async def test_one_replica_goes_on_by_itself(own_space: Space, kept: Store) -> None:
    async with connected(own_space) as log, folding(own_space) as one:
        before = await reserve(log, "u0", "u1")
        await one.said(before[-1][0])
        await kept.keep()
        await reconnected(log)
        lost = await reserve(log, "u2", "u3", "u4")
        await one.said(lost[-1][0])
        await kept.put_back()
        await reconnected(log)
        await until(lambda: epoch(one) == 2, 40, one.ledger.status)
        await until(lambda: one.ledger.not_ready() == [], 20, one.ledger.not_ready)

        # What was folded from the lost part of the log stays folded, and is not folded again.
        assert await holds(one) == {f"u{n}": 1 for n in range(5)}
        again = await log.publish(*(command for _, command in lost))
        fresh = await reserve(log, "u0", "u5")
        await one.said(fresh[-1][0])
        assert await holds(one) == {"u0": 2} | {f"u{n}": 1 for n in range(1, 6)}
        found = await results(log)
        for seq, (_, command) in zip(again, lost, strict=True):
            assert command.headers is not None
            result = found[f"2-{seq}"]
            assert result["command_id"] == command.headers["Tidegate-Command"]
            assert (result["outcome"], result["data"]["changes"]) == ("reserved", 1)
        assert found[f"2-{fresh[0][0]}"]["data"]["changes"] == 2

        prefix = log.names.prefix
        stated = await read_all(log.js, log.names.res_stream, f"{prefix}.fact.sys.log_regressed.>")
        assert [json.loads(m.data)["watermark"] for m in stated] == [lost[-1][0]]
        commands = await read_all(log.js, log.names.log_stream, f"{prefix}.cmd.*.*.sys.rebase")
        assert [json.loads(m.data)["common"] for m in commands] == [before[-1][0]]


def note_peers(path: Path, note: Any) -> None:
    """Put into a closed file what its worker remembers of other replicas."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT OR REPLACE INTO local VALUES ('peers', ?)", (json.dumps(note),))


def hours_ago(hours: int) -> int:
    return time.time_ns() // 1_000_000 - hours * 3_600_000


async def test_a_lone_survivor_is_alone_a_day_after_it_heard_of_others(
    own_space: Space, kept: Store
) -> None:
    async with connected(own_space) as log:
        async with folding(own_space) as one:
            before = await reserve(log, "u0")
            await one.said(before[-1][0])
            file = one.ledger._path
        note_peers(file, {"gone": hours_ago(26)})
        await kept.keep()
        await reconnected(log)
        async with folding(own_space) as one:
            lost = await reserve(log, "u1")
            await one.said(lost[-1][0])
            await kept.put_back()
            await reconnected(log)
            await until(lambda: epoch(one) == 2, 40, one.ledger.status)


@pytest.mark.parametrize(
    ("note", "left"),
    [
        ({"gone": 26, "resting": 22}, ["resting"]),
        ({"wrong": -48}, ["wrong"]),
        (["of-an-older-version"], ["of-an-older-version"]),
    ],
)
async def test_what_a_file_remembers_of_others_ages(
    own_space: Space, note: Any, left: list[str]
) -> None:
    """A note without an instant counts from when it is read, and none lies in the future."""
    async with folding(own_space) as one:
        file = one.ledger._path
    note_peers(file, {k: hours_ago(v) for k, v in note.items()} if isinstance(note, dict) else note)
    async with folding(own_space) as one:

        async def noted() -> Any:
            return json.loads(
                await one.ledger._runner.database.read(lambda db, _: local(db, PEERS))
            )

        async def is_kept() -> bool:
            found = await noted()
            return (
                isinstance(found, dict)
                and sorted(found) == left
                and all(at_ms and at_ms <= hours_ago(-3) for at_ms in found.values())
            )

        async with asyncio.timeout(30):
            while True:
                if await is_kept():
                    break
                await asyncio.sleep(0.1)
        assert one.ledger.status()["peers"] == left


async def test_a_rebased_log_is_replayed_from_where_its_epoch_begins(
    own_space: Space, kept: Store, tmp_path: Path
) -> None:
    async with connected(own_space) as log, folding(own_space) as one:
        await one.said((await reserve(log, "u0"))[-1][0])
        await kept.keep()
        await reconnected(log)
        await one.said((await reserve(log, "u1"))[-1][0])
        await kept.put_back()
        await reconnected(log)
        unseen = await reserve(log, "u2")
        await until(lambda: epoch(one) == 2, 40, one.ledger.status)
        last = (await reserve(log, "u3"))[-1][0]
        await one.said(last)

        async def replayed(name: str, *, from_snapshot: bool = False) -> Replayed:
            into = tmp_path / name
            return await replay(
                log.js, log.names, [HOLDS], into, until=last, from_snapshot=from_snapshot
            )

        expected = await one.digest()
        whole = await replayed("whole.db")
        assert whole.digest.to_object() == expected
        assert whole.folded >= len(unseen) + 2, "all that the epoch still has was folded"
        assert (await replayed("newest.db", from_snapshot=True)).digest.to_object() == expected

        # The snapshot that it began with is gone one day; a later one of that epoch does.
        snapshots = one.ledger._snapshots
        await snapshots.take(one.ledger._runner.database)
        await snapshots.remove_old(1)
        assert (await replayed("later.db")).digest.to_object() == expected
        await snapshots.remove_old(0)
        with pytest.raises(ReplayStopped, match="tidegate ledger snapshot"):
            await replayed("none.db")


async def test_commands_between_the_copy_and_the_rebase_are_folded_once(
    own_space: Space, kept: Store
) -> None:
    """Here the worker is down while the store is replaced and clients go on."""
    async with connected(own_space) as log:
        async with folding(own_space) as one:
            await one.said((await reserve(log, "u0"))[0][0])
        await kept.keep()
        await reconnected(log)
        async with folding(own_space) as one:
            lost = await reserve(log, "u1", "u2")
            await one.said(lost[-1][0])
        await kept.put_back()
        await reconnected(log)
        retried = await log.publish(lost[0][1])
        unseen = await reserve(log, "u0", "u3", "u4")
        async with folding(own_space) as one:
            await until(lambda: epoch(one) == 2, 20, one.ledger.status)
            await one.said(unseen[-1][0])
            assert await holds(one) == {"u0": 2, "u1": 1, "u2": 1, "u3": 1, "u4": 1}
            found = await results(log)
            assert {f"2-{seq}" for seq in [*retried, *(seq for seq, _ in unseen)]} <= set(found)
            assert found[f"2-{retried[0]}"]["data"]["changes"] == 1


async def test_two_replicas_wait_for_an_operator_and_agree(
    own_space: Space, kept: Store, tmp_path: Path
) -> None:
    async with (
        connected(own_space) as log,
        folding(own_space, tmp_path / "a") as a,
        folding(own_space, tmp_path / "b") as b,
    ):
        await until(lambda: a.ledger.status()["peers"] and b.ledger.status()["peers"])
        before = await reserve(log, "u0")
        await a.said(before[-1][0])
        await kept.keep()
        await reconnected(log)
        lost = await reserve(log, "u1", "u2")
        await a.said(lost[-1][0])
        await b.said(lost[-1][0])
        await kept.put_back()
        await reconnected(log)
        for one in (a, b):
            await until(lambda one=one: one.ledger.status()["halted"] == "log-regressed", 40)  # type: ignore[misc]  # a default binds it
            assert "log-regressed" in one.ledger.not_ready()[0]
        asked = await reserve(log, "u0")
        await asyncio.sleep(3)
        assert [epoch(a), epoch(b)] == [1, 1], "nobody decides alone"
        assert f"1-{asked[-1][0]}" not in await results(log), "and nothing is answered"
        told = await ask_to_rebase(a)
        assert (told["epoch"], told["base"]) == (2, lost[-1][0])
        for one in (a, b):
            await until(lambda one=one: epoch(one) == 2, 20, one.ledger.status)  # type: ignore[misc]  # a default binds it
        (last, _), *_ = await reserve(log, "u3")
        await a.said(last)
        await b.said(last)
        assert await a.digest() == await b.digest()
        assert await holds(a) == {"u0": 2, "u1": 1, "u2": 1, "u3": 1}
        found = await results(log)
        assert {f"2-{asked[-1][0]}", f"2-{last}"} <= set(found)
        assert a.ledger.not_ready() + b.ledger.not_ready() == []


async def test_a_replica_that_saw_nothing_of_it_follows_into_the_epoch(
    own_space: Space, kept: Store, tmp_path: Path
) -> None:
    """It stopped before the copy was taken, so its own file fits the log that was put back."""
    async with connected(own_space) as log:
        async with folding(own_space, tmp_path / "b") as b:
            await b.said((await reserve(log, "u0"))[0][0])
        async with folding(own_space, tmp_path / "a") as a:
            await a.said((await reserve(log, "u1", "u2"))[-1][0])
        await kept.keep()
        await reconnected(log)
        async with folding(own_space, tmp_path / "a") as a:
            await a.said((await reserve(log, "u3"))[-1][0])
        await kept.put_back()
        await reconnected(log)
        async with folding(own_space, tmp_path / "a") as a:
            await until(lambda: a.ledger.status()["halted"] == "log-regressed", 20)
            async with folding(own_space, tmp_path / "b") as b:
                await until(lambda: b.ledger.status()["halted"] == "log-regressed")
                (seq, _), *_ = await reserve(log, "u0")
                await asyncio.sleep(1)
                assert b.watermark < seq, "what the log lost may have been a Stop"
                assert f"1-{seq}" not in await results(log)
                await ask_to_rebase(b)
                for one in (a, b):
                    await until(lambda one=one: epoch(one) == 2, 20, one.ledger.status)  # type: ignore[misc]  # a default binds it
                (last, _), *_ = await reserve(log, "u4")
                await a.said(last)
                await b.said(last)
                assert await b.digest() == await a.digest()
                assert await holds(b) == {"u0": 2} | {f"u{n}": 1 for n in range(1, 5)}
        async with folding(own_space, tmp_path / "c") as c:
            await c.folded(last)
            assert await holds(c) == {"u0": 2} | {f"u{n}": 1 for n in range(1, 5)}


async def test_a_replica_that_comes_after_the_rebase_follows_into_the_epoch(
    own_space: Space, kept: Store, tmp_path: Path
) -> None:
    async with connected(own_space) as log:
        async with folding(own_space, tmp_path / "b") as b:
            await b.said((await reserve(log, "u0"))[0][0])
        async with folding(own_space, tmp_path / "a") as a:
            await a.said((await reserve(log, "u1"))[-1][0])
        await kept.keep()
        await reconnected(log)
        async with folding(own_space, tmp_path / "a") as a:
            await a.said((await reserve(log, "u2"))[-1][0])
        await kept.put_back()
        await reconnected(log)
        async with folding(own_space, tmp_path / "a") as a:
            await until(lambda: a.ledger.status()["halted"] == "log-regressed", 20)
            await ask_to_rebase(a)
            (last, _), *_ = await reserve(log, "u3")
            await until(lambda: epoch(a) == 2, 20, a.ledger.status)
            await a.said(last)
            assert await holds(a) == {f"u{n}": 1 for n in range(4)}
        async with folding(own_space, tmp_path / "b") as b:
            await until(lambda: epoch(b) == 2, 20, b.ledger.status)
            await b.folded(last)
            assert await holds(b) == {f"u{n}": 1 for n in range(4)}


async def test_a_log_made_anew_is_noticed_even_when_it_is_longer(own_space: Space) -> None:
    async with connected(own_space) as log:
        async with folding(own_space) as one:
            await one.said((await reserve(log, "u0", "u1"))[-1][0])
        config = (await log.js.stream_info(own_space.names.log_stream)).config
        await log.js.stream_delete(own_space.names.log_stream)
        await log.js.stream_create(config)
        newer = await reserve(log, "u0", "u2", "u3")
        async with folding(own_space) as one:
            await until(lambda: epoch(one) == 2, 20, one.ledger.status)
            await one.said(newer[-1][0])
            assert await holds(one) == {"u0": 2, "u1": 1, "u2": 1, "u3": 1}


@pytest.mark.parametrize(
    ("noted", "value"),
    [("log_created", "2020-01-01T00:00:00Z"), ("log_last_seen", "1000")],
)
async def test_a_log_that_differs_from_what_was_noted_of_it_is_not_gone_on_with(
    space: Space, noted: str, value: str
) -> None:
    """Every message it holds is the one that was folded; its birth or its length is not."""
    async with a_log(space) as log:
        async with folding(space) as one:
            await one.said((await reserve(log, "u0", "u1"))[-1][0])
        path = space.data_dir / space.names.space / "ledger.db"
        with contextlib.closing(sqlite3.connect(path)) as db:
            found = db.execute("UPDATE local SET value = ? WHERE name = ?", (value, noted))
            assert found.rowcount == 1
            db.commit()
        async with folding(space) as one:
            last = (await reserve(log, "u2"))[-1][0]
            await one.folded(last)
            await until(lambda: epoch(one) == 2, 20, one.ledger.status)
            assert await holds(one) == {"u0": 1, "u1": 1, "u2": 1}


async def test_the_right_store_put_back_again_ends_the_alarm(
    own_space: Space, kept: Store, tmp_path: Path
) -> None:
    """With two replicas nobody decides alone, so a mistake of an operator can be undone."""
    async with connected(own_space) as log:
        await kept.keep()
        await reconnected(log)
        right = Store(own_space.server, tmp_path / "right")
        async with (
            folding(own_space, tmp_path / "a") as a,
            folding(own_space, tmp_path / "b") as b,
        ):
            await until(lambda: a.ledger.status()["peers"] and b.ledger.status()["peers"])
            last = (await reserve(log, "u0", "u1"))[-1][0]
            await a.said(last)
            await b.said(last)
            expected = await a.digest()
            await right.keep()
            await kept.put_back()
            await reconnected(log)
            await until(lambda: a.ledger.status()["halted"] == "log-regressed", 40)
            await right.put_back()
            await reconnected(log)
            await until(lambda: a.ledger.status()["halted"] is None, 40, a.ledger.status)
            assert await a.digest() == expected
            (last, _), *_ = await reserve(log, "u0")
            await a.said(last)
            assert epoch(a) == 1


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_stamp_of_a_clock_that_had_jumped_does_not_halt_the_fold_for_a_day(
    own_space: Space, tmp_path: Path, replicas: int
) -> None:
    day_s = 86_400
    async with connected(own_space) as log, contextlib.AsyncExitStack() as stack:
        some = [
            await stack.enter_async_context(folding(own_space, tmp_path / str(number)))
            for number in range(replicas)
        ]
        first = some[0]
        if replicas > 1:
            await until(lambda: all(one.ledger.status()["peers"] for one in some), 30)
        await first.said((await reserve(log, "u0"))[-1][0])
        with WallClock(own_space.server.pid).ahead(day_s):
            jumped = await reserve(log, "u1")
        after = await reserve(log, "u2")
        if replicas > 1:
            for one in some:
                await one.until(lambda one=one: one.ledger.status()["halted"] == "stamp-ahead", 40)  # type: ignore[misc]  # a default binds it
            await until_asked(first)
        for one in some:
            await one.until(lambda one=one: epoch(one) == 2, 60)  # type: ignore[misc]  # a default binds it
        last = (await reserve(log, "u3"))[-1][0]
        for one in some:
            await one.said(last, 40)
            assert one.ledger.not_ready() == []
        assert await holds(first) == {f"u{n}": 1 for n in range(4)}
        found = await results(log)
        bound_ms = (await log.js.message(log.names.log_stream, last)).time_ms  # type: ignore[union-attr]  # it was just stored
        for seq, _ in (*jumped, *after):
            assert found[f"2-{seq}"]["at_ms"] <= bound_ms, "the stamp was believed"
        assert len({(await one.digest())["digest"] for one in some}) == 1


async def until_asked(one: Running) -> None:
    """Ask for a rebase until a replica says that it stands still for a reason it mends."""
    async with asyncio.timeout(30):
        while "replica" not in await ask_to_rebase(one):  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.2)
