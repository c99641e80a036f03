"""Snapshots are proven, ledgers are rebuilt from them, and the log is trimmed below them only."""

import asyncio
import contextlib
import dataclasses
import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.names import object_stream
from schemas.subjects import Speaker
from tests.ledgers import HOLDS
from tests.support.ledger import (
    UID,
    Log,
    Running,
    a_log,
    digest_of,
    folding,
    replay,
    results,
    until,
)
from tests.support.space import Space
from worker.errors import StartRefused
from worker.ledger import digest
from worker.ledger.plane import Plane
from worker.ledger.snapshots import SnapshotDamaged, Snapshots


async def ask(one: Running, name: str, who: str = "_op", **fields: Any) -> dict[str, Any]:
    """Ask for an operation; the data of its answer, with its outcome or reason."""
    body = json.dumps({"v": 1, **fields}).encode()
    verdict = await one.ledger.queries()["sys", name](Speaker(who, UID), body)
    outcome = getattr(verdict, "outcome", None) or getattr(verdict, "reason", None)
    return {"outcome": outcome, **verdict.data}


def remove_ledger(space: Space) -> Path:
    path = space.data_dir / space.names.space / "ledger.db"
    path.unlink()
    return path


async def first_seq(log: Log) -> int:
    return (await log.js.stream_info(log.names.log_stream)).first_seq


async def objects(log: Log, kind: str) -> list[str]:
    bucket = log.names.snapshots_bucket
    info = await log.js.stream_info(object_stream(bucket), subjects_filter=f"$O.{bucket}.{kind}.>")
    return list(info.subjects)


async def test_a_lost_ledger_is_rebuilt_from_snapshot_and_log_without_help(space: Space) -> None:
    async with a_log(space) as log:
        async with folding(space) as one:
            await one.said(await log.mixed(120))
            taken = await ask(one, "snapshot")
            assert (taken["outcome"], taken["watermark"]) == ("stored", 121)
            last = await log.mixed(60)
            await one.said(last)
            expected, said = await one.digest(), await results(log)
        remove_ledger(space)
        async with folding(space) as one:
            assert one.watermark >= 121, "it did not begin at the first command"
            await one.said(last)
            assert await one.digest() == expected
            assert await results(log) == said


async def test_a_lost_ledger_is_rebuilt_from_the_log_alone(space: Space) -> None:
    async with a_log(space) as log:
        async with folding(space) as one:
            last = await log.mixed(120)
            await one.said(last)
            expected = await one.digest()
        remove_ledger(space)
        async with folding(space) as one:
            await one.said(last)
            assert await one.digest() == expected


async def test_the_log_is_trimmed_below_a_proven_snapshot_only(space: Space) -> None:
    async with a_log(space) as log, folding(space) as one:
        await one.said(await log.mixed(50))
        with pytest.raises(StartRefused):
            await ask(one, "trim")
        assert await first_seq(log) == 1
        await ask(one, "snapshot")
        last = await log.mixed(20)
        await one.said(last)
        trimmed = await ask(one, "trim")
        assert (trimmed["first_seq"], trimmed["removed"]) == (51, 50)
        assert await first_seq(log) == 51
        expected = await one.digest()
    async with a_log(space) as log:
        async with folding(space) as one:
            assert one.watermark == last, "its own file fits the trimmed log"
        remove_ledger(space)
        async with folding(space) as one:
            await one.folded(last)
            assert await one.digest() == expected


async def test_a_replica_left_behind_by_trimming_catches_up_from_a_snapshot(
    space: Space, tmp_path: Path
) -> None:
    async with a_log(space) as log:
        async with folding(space, tmp_path / "b") as b:
            await b.folded(await log.mixed(10))
        async with folding(space, tmp_path / "a") as a:
            await a.said(await log.mixed(50))
            await ask(a, "snapshot")
            await ask(a, "trim")
            last = await log.mixed(10)
            await a.said(last)
            async with folding(space, tmp_path / "b") as b:
                await b.folded(last)
                assert await b.digest() == await a.digest()


async def test_left_behind_without_a_snapshot_is_a_refusal(space: Space) -> None:
    async with a_log(space) as log:
        async with folding(space) as one:
            await one.said(await log.mixed(10))
        await log.mixed(20)
        await log.js.stream_purge(space.names.log_stream, below_seq=25)
        with pytest.raises(StartRefused, match="begins at 25"):
            async with folding(space):
                raise AssertionError("it started")


async def test_a_damaged_snapshot_is_skipped_for_an_older_one(space: Space) -> None:
    async with a_log(space) as log:
        async with folding(space) as one:
            await one.said(await log.mixed(30))
            older = await ask(one, "snapshot")
            last = await log.mixed(30)
            await one.said(last)
            newer = await ask(one, "snapshot")
            expected = await one.digest()
            stream = object_stream(space.names.snapshots_bucket)
            ages = {}
            for subject in await objects(log, "C"):
                chunk = await log.js.last_message(stream, subject)
                assert chunk is not None
                ages[chunk.seq] = subject
            newest = ages[max(ages)]
            await log.js.stream_purge(stream, subject=newest)
            await log.js.publish(newest, b"\x00" * newer["bytes"])
        remove_ledger(space)
        async with folding(space) as one:
            assert one.watermark >= older["watermark"]
            await one.folded(last)
            assert await one.digest() == expected
            trimmed = await ask(one, "trim")
            assert trimmed["snapshot"]["name"] == older["name"], "never below a damaged one"


async def test_a_snapshot_that_was_changed_does_not_verify(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log, folding(space) as one:
        await one.said(await log.mixed(30))
        await ask(one, "snapshot")
        snapshots = Snapshots(log.js, space.names, [HOLDS], tmp_path / "work", wall_ms=lambda: 0)
        (found,) = await snapshots.list()
        path = tmp_path / "fetched.db"
        await snapshots.fetch(found, path)
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT watermark FROM fold").fetchone() == (31,)
        lied = dataclasses.replace(found, digest="0" * 64)
        before = path.read_bytes()
        with pytest.raises(SnapshotDamaged):
            await snapshots.fetch(lied, path)
        assert path.read_bytes() == before, "what was there stays"
        assert list((tmp_path / "work").iterdir()) == []


async def test_snapshots_come_by_themselves_and_the_oldest_go(space: Space) -> None:
    settings: dict[str, Any] = {
        "snapshot_commands": 100,
        "snapshot_interval_ms": 1_000,
        "log_keep_ms": 1,
    }
    async with a_log(space) as log, folding(space, **settings) as one:
        for _ in range(5):
            last = await log.mixed(100)
            await one.said(last)
            await ask(one, "snapshot")
        listed = (await ask(one, "snapshots"))["snapshots"]
        assert [item["watermark"] for item in listed] == [501, 401, 301]
        assert len(await objects(log, "C")) == 3
        await one.said(await log.mixed(150))
        await until(lambda: one.ledger.status()["snapshot"]["watermark"] == 651, 15)
        async with asyncio.timeout(10):
            while await first_seq(log) != 651:  # noqa: ASYNC110 - the log tells nobody
                await asyncio.sleep(0.05)


async def test_an_interrupted_snapshot_leaves_nothing_that_is_listed(space: Space) -> None:
    async with a_log(space) as log, folding(space) as one:
        await one.said(await log.mixed(30))
        bucket = space.names.snapshots_bucket
        await log.js.publish(f"$O.{bucket}.C.{'0' * 22}", b"half of something")
        assert (await ask(one, "snapshots"))["snapshots"] == []
        await ask(one, "snapshot")
        assert len((await ask(one, "snapshots"))["snapshots"]) == 1


async def test_the_fold_goes_on_while_a_snapshot_is_stored(space: Space) -> None:
    async with a_log(space) as log, folding(space) as one:
        await one.said(await log.mixed(200, users=200))
        taking = asyncio.create_task(ask(one, "snapshot"))
        last = await log.mixed(100)
        await one.said(last)
        taken = await taking
        assert 200 <= taken["watermark"] <= last
        snapshot_digest = taken["digest"]
        fold = await replay(log, space.data_dir / "clean.db", through=taken["watermark"])
        assert digest_of(fold)["digest"] == snapshot_digest
        fold.connection.close()


async def test_many_that_ask_for_a_digest_share_one_beside_the_fold(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_log(space) as log, folding(space) as one:
        await one.said(await log.mixed(200))
        made: list[int] = []
        compute = digest.compute

        def counted(db: sqlite3.Connection, planes: Sequence[Plane]) -> digest.Digest:
            made.append(threading.get_ident())
            return compute(db, planes)

        monkeypatch.setattr(digest, "compute", counted)
        database = one.ledger._runner.database
        fold_thread = await database.run(threading.get_ident)
        asked = [asyncio.create_task(one.digest()) for _ in range(200)]
        (stop,) = await log.publish(log.command("stop", "user-1"))
        found = await asyncio.gather(*asked)
        await one.said(stop)
        assert len(made) <= 3, "each asker had one made"
        assert fold_thread not in made
        assert len({one["digest"] for one in found}) <= len(made)
        assert (await one.digest())["watermark"] >= stop


async def test_operations_are_for_operators(space: Space) -> None:
    async with folding(space) as one:
        for name in ("snapshot", "trim", "prune", "ruleset", "rebase"):
            assert (await ask(one, name, who="alice"))["outcome"] == "wrong-role"
        assert (await ask(one, "digest", who="alice"))["outcome"] == "digest"
        assert (await ask(one, "rebase"))["outcome"] == "not-regressed"


async def test_a_ruleset_is_activated_once_every_worker_that_answers_knows_it(
    space: Space, tmp_path: Path
) -> None:
    both = frozenset({2, 3, 4})
    async with folding(space, rulesets=both) as newer:
        async with folding(space, tmp_path / "older") as older:
            await newer.until(lambda: len(newer.ledger.status()["peers"]) == 1)
            for one in (newer, older):
                assert (await ask(one, "ruleset", version=4))["outcome"] == "ruleset-not-known"
            assert newer.ledger.status()["ruleset"] == 3
        async with folding(space, tmp_path / "older", rulesets=both):
            assert (await ask(newer, "ruleset", version=4))["outcome"] == "folded"
            assert newer.ledger.status()["ruleset"] == 4
        assert (await ask(newer, "ruleset", version=5))["outcome"] == "ruleset-not-known"
        assert (await ask(newer, "ruleset", version=5, force=True))["outcome"] == "published"
        await newer.until(lambda: newer.ledger.status()["halted"] == "unknown-ruleset")
