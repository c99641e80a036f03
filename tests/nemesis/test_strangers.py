"""Whatever bytes strangers say on the shipped configuration, nobody else notices.

Every user may choose some tokens of its subjects, its headers, where its answers go and how long
its messages are. So each says every byte and every cut character there, and pairs of them, while
ordinary people work: their answers come, in order, and what they did stands after every restart.
See ``tests/support/odd_bytes.py`` for what is said.
"""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import nats
import pytest

from tests.support import odd_bytes
from tests.support.odd_bytes import Said
from tests.support.production import api
from tests.support.shipped import NAMES, PRINCIPALS, Shipped, printed_conf, shipped
from worker.client import Client
from worker.connector import Connector

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are killed")

SEED = 20
CHUNK = 400
PAIRS = 600
ORDINARY_MS = 20_000
CAUGHT_UP_S = 120.0

Grants = dict[str, list[str]]


class People:
    """Ordinary people of every plane, who know what they have done and what must come of it."""

    def __init__(self, place: Shipped) -> None:
        self._place = place
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)
        self._bumps = 0
        self._last = 0

    async def __aenter__(self) -> Self:
        self._minter = await self._open("minter")
        self._holder = await self._open("holder")
        self._delegate = await self._open("delegate")
        connector = Connector(await self._open("connector"), host="host-1")
        self._seats = await self._stack.enter_async_context(connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self, user: str) -> Client:
        return await self._stack.enter_async_context(
            self._place.client(user, timeout_ms=ORDINARY_MS)
        )

    async def work(self) -> None:
        """Everybody does one thing; each answer is the one that is due."""
        number = next(self._numbers)
        await asyncio.gather(self._cap(), self._checkpoint(number), self._turn(number))

    async def _cap(self) -> None:
        told = await self._delegate.call("cap", "bump", ("alice",), {})
        self._bumps += 1
        assert told.data["generation"] == self._bumps, told
        _, seq = _id(told.id)
        assert seq > self._last, "answers come in the log's order"
        self._last = seq

    async def _checkpoint(self, number: int) -> None:
        token, deadline = f"ordinary-{number}", time.time_ns() // 1_000_000 + 3_600_000
        told = await self._minter.cp.mint(
            "runs", token, deadline_at_ms=deadline, holder=self._holder.speaker
        )
        assert told.word == "minted", told
        settled = await self._holder.cp.resume("runs", token, answer="yes")
        assert settled.word == "resumed", settled

    async def _turn(self, number: int) -> None:
        turn = self._seats.turn(
            f"ordinary-{number}",
            session_id="s",
            agent_id="a",
            fingerprint="f",
            provider="acme",
            model="m",
        )
        async with turn:
            await turn.start()
            await turn.intent(channel="http")
            await turn.active()
            await turn.complete()

    async def look(self) -> None:
        """What was done stands."""
        shown = await self._delegate.cap.show("alice")
        assert shown.generation == self._bumps, shown


def _id(result_id: str) -> tuple[str, int]:
    *epoch, seq = result_id.split("-")
    return "-".join(epoch), int(seq)


async def say(place: Shipped, messages: Iterable[Said]) -> None:
    """Everybody says their messages, all users at once."""
    by_user: dict[str, list[Said]] = {}
    for said in messages:
        by_user.setdefault(said.user, []).append(said)

    async def one(user: str, its: list[Said]) -> None:
        async with place.stranger(user) as stranger:
            await stranger.say(its)

    await asyncio.gather(*(one(user, its) for user, its in by_user.items()))


def harmless(messages: Iterable[Said]) -> Iterator[Said]:
    """Nobody bumps the person of the ordinary people, whose generation they count."""
    for said in messages:
        mine = b".cap." in said.subject and said.subject.endswith(b".alice")
        yield (
            Said(said.user, said.subject, said.reply, said.headers, b"?", said.sizes)
            if (mine)
            else said
        )


async def every_command_has_one_result(place: Shipped) -> None:
    """As many results as commands, but for ticks, once everything is folded and handled."""
    worker = await nats.connect(
        place.server.url,
        user="worker",
        password=place.password("worker"),
        inbox_prefix=b"_INBOX_worker",
    )
    try:
        counts: dict[str, int] = {}
        until = time.monotonic() + CAUGHT_UP_S
        while time.monotonic() < until:
            counts = await _counted(worker)
            if counts["commands"] == counts["results"]:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"commands without a result, or results without one: {counts}")
    finally:
        await worker.close()


async def _counted(worker: Any) -> dict[str, int]:
    async def stored(stream: str, subjects: str) -> int:
        query = {"subjects_filter": subjects}
        info = await api(worker, f"STREAM.INFO.{stream}", query)
        return sum((info["state"].get("subjects") or {}).values())

    async def state(stream: str, what: str) -> int:
        return int((await api(worker, f"STREAM.INFO.{stream}", {}))["state"][what])

    prefix = NAMES.prefix
    results = await state(NAMES.res_stream, "messages")
    for other in ("fact.>", "grant.>", "res.*.*.*.lease_lost.*"):
        results -= await stored(NAMES.res_stream, f"{prefix}.{other}")
    ticks = await stored(NAMES.log_stream, f"{prefix}.cmd.*.*.sys.tick")
    # By their last sequences: what lies below a snapshot may have been trimmed.
    commands = await state(NAMES.log_stream, "last_seq") + await state(NAMES.cmd_stream, "last_seq")
    commands -= ticks
    return {"commands": commands, "results": results, "ticks": ticks}


def ready(place: Shipped, data: str = "data") -> None:
    place.start_worker(data).wait_ready(60)


def plain_subject(grants: Grants, user: str, part: str) -> bytes:
    """A subject that a user may publish to, with nothing odd in it."""
    pattern = next(one for one in grants[user] if part in one)
    return b".".join(odd_bytes.tokens_of(pattern))


def short_of_everything(grants: Grants, seed: int) -> list[Said]:
    """Each odd thing everywhere once, some sizes and answers, and pairs."""
    rng = random.Random(seed)
    subject = plain_subject(grants, "minter", ".cp.repair.")
    replies = list(odd_bytes.every_reply("minter", subject))
    return [
        *odd_bytes.each_once(rng, grants),
        *rng.sample(replies, 300),
        *odd_bytes.every_size("delegate", plain_subject(grants, "delegate", ".cap.bump.")),
        *itertools.islice(odd_bytes.drawn(rng, grants), PAIRS),
    ]


async def spoken_between_ordinary_work(
    place: Shipped, people: People, messages: Iterable[Said], chunk: int = CHUNK
) -> None:
    rest = harmless(messages)
    while some := list(itertools.islice(rest, chunk)):
        working = asyncio.create_task(people.work())
        await say(place, some)
        await working
        assert place.workers[-1].exit_code is None, place.workers[-1].log()[-3_000:]
    await people.work()


async def stands_after_every_restart(place: Shipped, people: People) -> None:
    """Killed worker, stopped worker, killed broker: everything goes on and is answered."""
    await every_command_has_one_result(place)
    await people.look()

    place.workers[-1].kill()
    await asyncio.to_thread(ready, place)
    await people.work()

    assert await asyncio.to_thread(place.workers[-1].terminate) == 0
    await asyncio.to_thread(ready, place)
    await people.work()

    await asyncio.to_thread(place.server.kill)
    await asyncio.to_thread(place.server.start)
    await asyncio.to_thread(place.workers[-1].wait_ready, 60)
    await people.work()
    await every_command_has_one_result(place)
    await people.look()


async def replayed_and_verified(place: Shipped, people: People) -> None:
    """The log folds to the same state again, from its beginning and from a snapshot."""
    await asyncio.to_thread(place.tidegate, "ledger", "verify", user="worker")
    await asyncio.to_thread(place.tidegate, "ledger", "snapshot")
    await people.work()
    await asyncio.to_thread(place.tidegate, "ledger", "verify", "--from-snapshot", user="worker")
    await asyncio.to_thread(ready, place, "another")
    await people.work()
    await people.look()
    place.workers[-1].kill()


@pytest.mark.timeout(240)
async def test_strange_bytes_change_nothing_for_anybody_else(tmp_path: Path) -> None:
    with shipped(tmp_path / "broker", ("alice", "mallory")) as place:
        ready(place)
        async with People(place) as people:
            await people.work()
            await spoken_between_ordinary_work(
                place, people, short_of_everything(place.grants, SEED)
            )
            await stands_after_every_restart(place, people)
            await replayed_and_verified(place, people)


def test_every_shipped_user_is_tried_with_every_odd_thing() -> None:
    grants = odd_bytes.granted(printed_conf())
    assert {*grants} >= {"minter", "holder", "connector", "delegate", *PRINCIPALS}
    said = short_of_everything(grants, SEED)
    for odd in odd_bytes.ODD:
        assert sum(odd in one.subject for one in said) >= 5, odd
    assert {one.user for one in said} == {*grants}


@pytest.mark.timeout(240)
async def test_a_log_with_strange_bytes_that_went_back_is_gone_on_with(tmp_path: Path) -> None:
    """The broker's store comes back older: the only replica goes on with what it knew."""
    with shipped(tmp_path / "broker", ("alice", "mallory")) as place:
        ready(place)
        async with People(place) as people:
            await people.work()
            await say(place, harmless(odd_bytes.each_once(random.Random(SEED), place.grants)))
            await every_command_has_one_result(place)
            await asyncio.to_thread(place.server.stop)
            await asyncio.to_thread(place.keep_store)
            await asyncio.to_thread(place.server.start)
            await people.work()
            await asyncio.to_thread(place.server.stop)
            await asyncio.to_thread(place.bring_back_store)
            await asyncio.to_thread(place.server.start)
            await asyncio.to_thread(place.workers[-1].wait_ready, 90)
            await people.look()
            await people.work()
            await people.look()


def all_of_everything(grants: Grants, seed: int) -> Iterator[Said]:
    """Everything odd in every token, header and answer, and many pairs."""
    yield from odd_bytes.every_subject(grants)
    for user, part in (
        ("minter", ".cp.repair."),
        ("delegate", ".cap.bump."),
        ("operator", ".qry."),
    ):
        subject = plain_subject(grants, user, part)
        yield from odd_bytes.every_header(user, subject)
        yield from odd_bytes.every_reply(user, subject)
        yield from odd_bytes.every_size(user, subject)
    yield from itertools.islice(odd_bytes.drawn(random.Random(seed), grants), 100 * PAIRS)


@pytest.mark.long
@pytest.mark.timeout(3_600)
async def test_every_strange_byte_everywhere_changes_nothing(tmp_path: Path) -> None:
    with shipped(tmp_path / "broker", ("alice", "mallory")) as place:
        ready(place)
        async with People(place) as people:
            await people.work()
            everything = all_of_everything(place.grants, SEED)
            await spoken_between_ordinary_work(place, people, everything, 5 * CHUNK)
            await stands_after_every_restart(place, people)
            await replayed_and_verified(place, people)
