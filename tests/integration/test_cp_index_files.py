"""Local files of the checkpoint plane that are damaged: disposable ones are built anew."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.codes import Code
from schemas.results import Accepted
from tests.support.cp import MINUTE_MS, Desk, Replica, a_target, desk_in, serving, until
from tests.support.space import Space
from worker.errors import StartRefused, TidegateError

COUNT = 300
PAGE = 4_096


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


def garble(path: Path, seed: int) -> None:
    """Overwrite every page but the first with bytes of no meaning."""
    size, rand = path.stat().st_size, random.Random(seed)
    with path.open("r+b") as file:
        for at in range(PAGE, size, PAGE):
            file.seek(at)
            file.write(rand.randbytes(PAGE))


async def listed(replica: Replica, desk: Desk) -> int | None:
    """How many waiting checkpoints a list holds; none if it is not answered."""
    found, cursor = 0, None
    while True:
        try:
            told = await replica.query("list", desk.alice, v=1, limit=1_000, cursor=cursor)
        except TidegateError as error:
            if error.code is Code.UNAVAILABLE and error.reason == "index-building":
                return None
            raise
        assert isinstance(told, Accepted)
        assert isinstance(told.data, dict)
        found += len(told.data["items"])
        cursor = told.data["next_cursor"]
        if cursor is None:
            return found


async def plant(desk: Desk, count: int) -> None:
    for _ in range(count):
        await desk.plant(a_target(), in_ms=60 * MINUTE_MS)


def index_of(space: Space, name: str = "r1") -> Path:
    return space.data_dir / name / space.names.space / "waiting.db"


async def test_an_index_whose_pages_are_damaged_is_built_anew_at_the_next_start(
    desk: Desk, space: Space
) -> None:
    await plant(desk, COUNT)
    async with serving(space) as replica:
        assert await listed(replica, desk) == COUNT
    garble(index_of(space), 1)
    async with serving(space) as replica:

        async def whole() -> bool:
            return await listed(replica, desk) == COUNT

        await until(whole, what="the list is whole")


async def test_damage_that_is_met_while_running_ends_nothing(desk: Desk, space: Space) -> None:
    await plant(desk, COUNT)
    async with serving(space) as replica:
        index = replica.plane._feed._it

        def damage() -> None:
            # What SQLite holds in memory goes first, so that the pages are read from the file.
            index._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            index._db.execute("PRAGMA shrink_memory")
            garble(index_of(space), 2)

        await replica.plane._feed._thread.once(damage)
        answers = {await listed(replica, desk)}
        await plant(desk, 1)

        async def whole() -> bool:
            answers.add(await listed(replica, desk))
            return COUNT + 1 in answers

        await until(whole, what="the list is whole again")
        assert answers <= {None, COUNT, COUNT + 1}
        due = a_target()
        await desk.mint(due, in_ms=300)
        assert (await desk.settled(due))["state"] == "expired"


async def test_a_list_is_whole_or_unavailable_while_the_index_is_built(
    desk: Desk, space: Space
) -> None:
    await plant(desk, COUNT)
    replica = Replica(space)
    starting = asyncio.create_task(replica.start())
    answers: list[int | None] = []
    try:
        while not starting.done():
            if hasattr(replica, "plane"):
                answers.append(await listed(replica, desk))
            await asyncio.sleep(0)
        await starting
        assert set(answers) <= {None, COUNT}
        assert None in answers
        assert await listed(replica, desk) == COUNT
    finally:
        await replica.stop()


async def test_a_list_is_not_answered_in_part_after_the_broker_was_away(
    desk: Desk, space: Space
) -> None:
    async with serving(space) as replica:
        feed = replica.plane._feed
        # What the follower had seen before the connection was lost says nothing about now.
        feed._built_at -= 1
        assert await listed(replica, desk) is None
        assert "being built" in " ".join(replica.plane.not_ready())


async def test_a_damaged_journal_of_settlements_is_refused_by_name(
    desk: Desk, space: Space
) -> None:
    async with serving(space):
        for _ in range(60):
            target = a_target()
            await desk.mint(target)
            await desk.resume(target)
    path = space.data_dir / "r1" / space.names.space / "settled.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    garble(path, 3)
    with pytest.raises(StartRefused, match=r"settled\.db .*journal"):
        async with serving(space):
            pass
