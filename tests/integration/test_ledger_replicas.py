"""Two workers with two data directories fold one log: one state, and everything is said once."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas import headers, strict_json
from schemas.results import Accepted, Refusal
from schemas.subjects import HEARD, Speaker
from tests.ledgers import HOLDS
from tests.support.ledger import (
    UID,
    Log,
    Running,
    a_log,
    digest_of,
    folding,
    prove_clean,
    read_all,
    results,
    until,
)
from tests.support.space import Space
from worker.bus.subscription import Msg
from worker.ledger import store
from worker.ledger.fold import Fold


def publishes(*some: Running) -> list[bool]:
    return [bool(one.ledger.status()["publishes"]) for one in some]


async def prove_digests(log: Log, checked: list[dict[str, Any]], path: Path) -> None:
    """Assert that every digest is that of a clean replay at its own sequence."""
    fold = Fold(store.open_ledger(path, log.names, [HOLDS]), log.names, [HOLDS])
    messages = await read_all(log.js, log.names.log_stream, f"{log.names.prefix}.>")
    for digest in sorted(checked, key=lambda one: int(one["watermark"])):
        start = fold.state.watermark
        fold.apply_batch(messages[start : digest["watermark"]])
        assert digest_of(fold) == digest
    fold.connection.close()


async def test_two_replicas_agree_at_every_checked_sequence(space: Space, tmp_path: Path) -> None:
    async with (
        a_log(space) as log,
        folding(space, tmp_path / "a") as a,
        folding(space, tmp_path / "b") as b,
    ):
        checked = []
        feeding = asyncio.create_task(log.mixed(500, users=20))
        while not feeding.done():
            checked += [await a.digest(), await b.digest()]
            await asyncio.sleep(0.03)
        last = await feeding
        await a.said(last)
        await b.said(last)
        await until(lambda: sorted(publishes(a, b)) == [False, True])
        end = await a.digest()
        assert await b.digest() == end
        assert len({one["watermark"] for one in checked}) > 5
        await prove_digests(log, checked, tmp_path / "checked.db")
        await prove_clean(log, end, tmp_path / "clean.db")


async def test_either_may_go_and_come_while_commands_flow(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log:
        feeding = asyncio.create_task(log.mixed(900))
        async with folding(space, tmp_path / "a") as a:
            for _ in range(3):
                async with folding(space, tmp_path / "b") as b:
                    await b.folded(max(log.sent, default=0))
            async with folding(space, tmp_path / "b") as b:
                await until(lambda: sorted(publishes(a, b)) == [False, True])
        async with folding(space, tmp_path / "b") as b:
            last = await feeding
            await b.said(last)
            await prove_clean(log, await b.digest(), tmp_path / "clean.db")


async def test_a_holder_that_vanishes_is_followed_within_two_seconds(
    space: Space, tmp_path: Path
) -> None:
    async with a_log(space) as log, folding(space, tmp_path / "b") as b:
        await until(lambda: publishes(b) == [True])
        async with folding(space, tmp_path / "a") as a:
            await log.mixed(20)
            await until(lambda: publishes(a, b) == [False, True])
            # As SIGKILL would: it neither renews nor releases what it holds.
            b.ledger._lease.held = False
            b.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await b.task
            loop = asyncio.get_running_loop()
            began = loop.time()
            (last,) = await log.publish(log.command("reserve", "user-1"))
            await until(lambda: publishes(a) == [True], 5)
            await a.said(last)
            assert loop.time() - began < 3
            await prove_clean(log, await a.digest(), tmp_path / "clean.db")


async def test_a_replica_leaves_the_lease_to_the_one_that_renews_it(
    space: Space, tmp_path: Path
) -> None:
    async with (
        a_log(space) as log,
        folding(space, tmp_path / "a") as a,
        folding(space, tmp_path / "b") as b,
    ):
        await until(lambda: sorted(publishes(a, b)) == [False, True])
        last = await log.mixed(20)
        lease, looks, together = a.ledger._lease, 0, 0
        begun = lease._revision

        def renewed() -> bool:
            nonlocal looks, together
            looks += 1
            together += publishes(a, b) == [True, True]
            return lease._revision >= begun + 7

        await until(renewed)
        # A machine that stands still for a second lets it go over; then both may hold it a moment.
        assert together < looks / 2
        await a.said(last)
        await b.said(last)


async def test_two_that_both_publish_do_no_harm(space: Space, tmp_path: Path) -> None:
    """Without the bucket of leases everybody publishes: slower, and just as right."""
    async with a_log(space) as log:
        await log.js.stream_delete(f"KV_{space.names.leases_bucket}")
        async with folding(space, tmp_path / "a") as a, folding(space, tmp_path / "b") as b:
            await until(lambda: publishes(a, b) == [True, True])
            last = await log.mixed(200)
            await a.said(last)
            await b.said(last)
            assert a.ledger.status()["halted"] is None
            assert b.ledger.status()["halted"] is None
            await prove_clean(log, await a.digest(), tmp_path / "clean.db")


def is_halted(one: Running) -> Callable[[], bool]:
    return lambda: one.ledger.status()["halted"] == "diverged"


def is_ready_in(one: Running, epoch: int) -> Callable[[], bool]:
    return lambda: one.ledger.status()["epoch"] == epoch and one.ledger.not_ready() == []


def change_by_hand(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE holds SET changes = changes + 1")
        db.execute("INSERT INTO holds VALUES ('user-x', 'reserved', 5, 7, NULL)")
        db.commit()


async def rebase(one: Running, **body: str) -> Accepted | Refusal:
    raw = strict_json.dumps({"v": 1, **body})
    return await one.ledger.queries()["sys", "rebase"](Speaker("_op", UID), raw)


@pytest.mark.parametrize("leases", [True, False])
@pytest.mark.parametrize("damaged", ["follower", "publisher"])
async def test_a_replica_changed_by_hand_is_caught_and_every_replica_stops(
    space: Space, tmp_path: Path, leases: bool, damaged: str
) -> None:
    async with a_log(space) as log:
        async with folding(space, tmp_path / "right") as right:
            if not leases:
                await log.js.stream_delete(f"KV_{space.names.leases_bucket}")
            async with folding(space, tmp_path / "wrong") as wrong:
                last = await log.mixed(30)
                await right.said(last)
                await wrong.folded(last)
        change_by_hand(tmp_path / "wrong" / space.names.space / "ledger.db")
        first, second = ("right", "wrong") if damaged == "follower" else ("wrong", "right")
        async with folding(space, tmp_path / first) as publisher:
            if leases:
                await until(lambda: publishes(publisher) == [True])
            async with folding(space, tmp_path / second) as follower:
                both = (publisher, follower)
                await log.publish(log.command("reserve", "user-x"))
                for one in both:
                    await one.until(is_halted(one))
                    assert "tidegate ledger verify" in one.ledger.not_ready()[0]
                reached = [one.watermark for one in both]
                seen = asyncio.Queue[Msg]()
                await log.js.connection.subscribe(
                    f"{space.names.prefix}.{HEARD}.res.alice.>", seen.put
                )
                (asked,) = await log.publish(log.command("confirm", "user-x"))
                told = json.loads((await asyncio.wait_for(seen.get(), 20)).data)
                assert (told["outcome"], told["id"]) == ("not-folding", f"1-{asked}")
                assert [one.watermark for one in both] == reached, "nobody folds on"

                refused = await rebase(publisher)
                assert isinstance(refused, Refusal)
                assert refused.reason == "replica-not-named"
                right, wrong = both if damaged == "follower" else both[::-1]
                asked_for = await rebase(wrong, replica=right.ledger._replica)
                assert isinstance(asked_for, Accepted)
                for one in both:
                    await one.until(is_ready_in(one, 2), 40)
                (last,) = await log.publish(log.command("confirm", "user-0"))
                for one in both:
                    await one.said(last)
                assert await right.digest() == await wrong.digest()
                # A file that was changed by hand has 7 for this user, the right one 1.
                found = await results(log)
                assert found[f"2-{asked}"]["data"] == {"changes": 2}
                assert f"2-{last}" in found


async def test_a_divergence_outlives_every_process(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log:
        async with (
            folding(space, tmp_path / "a") as a,
            folding(space, tmp_path / "b") as b,
        ):
            last = await log.mixed(5)
            await a.said(last)
            await b.said(last)
        change_by_hand(tmp_path / "b" / space.names.space / "ledger.db")
        async with (
            folding(space, tmp_path / "a") as a,
            folding(space, tmp_path / "b") as b,
        ):
            await log.publish(log.command("reserve", "user-x"))
            for one in (a, b):
                await one.until(is_halted(one))
        (last,) = await log.publish(log.command("confirm", "user-x"))
        # The one that found it, the other one, and one that comes anew.
        for name in ("a", "b", "c"):
            async with folding(space, tmp_path / name) as one:
                await one.until(is_halted(one))
                assert one.watermark < last


async def test_what_a_replica_says_of_itself_goes_when_it_is_no_more(
    space: Space, tmp_path: Path
) -> None:
    async with a_log(space) as log:
        for name in ("a", "b", "c"):
            async with folding(space, tmp_path / name) as one:
                await one.until(lambda: one.ledger.not_ready() == [])
                bucket = space.names.leases_bucket
                subject = f"$KV.{bucket}.replica.{one.ledger._replica}"
                async with asyncio.timeout(20):
                    while (  # noqa: ASYNC110 - what is waited for tells nobody
                        said := await log.js.last_message(f"KV_{bucket}", subject)
                    ) is None:
                        await asyncio.sleep(0.05)
                assert said.headers.single(headers.TTL), "it stays for ever"
