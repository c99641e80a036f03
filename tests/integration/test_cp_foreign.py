"""A foreign space whose streams take no atomic batches: keys one by one, and the replay repairs."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from schemas import subjects
from schemas.names import kv_stream
from tests.support.cp import (
    MINUTE_MS,
    QUICK_ACK_WAIT_MS,
    Desk,
    QuickSpace,
    a_target,
    desk_in,
    serving,
)
from tests.support.cp_process import ForkServer, Kill, fork_server
from tests.support.space import Space


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("planes")) as server:
        yield server


@pytest.fixture
async def foreign(bare_space: Space) -> Space:
    space = QuickSpace(bare_space.server, bare_space.names, bare_space.data_dir)
    await space.set_up()
    return space


@pytest.fixture
async def desk(foreign: Space) -> AsyncIterator[Desk]:
    async with desk_in(foreign) as one:
        names = one.names
        for stream in (
            kv_stream(names.records_bucket),
            names.epf_stream,
            names.ept_stream,
            names.res_stream,
        ):
            config = dict((await one.js.stream_info(stream)).config)
            await one.js.stream_update({**config, "allow_atomic": False})
            assert not (await one.js.stream_info(stream)).config.get("allow_atomic")
        yield one


async def test_everything_is_served_without_atomic_batches(desk: Desk, foreign: Space) -> None:
    async with serving(foreign) as replica:
        resumed, moved, expired = (a_target() for _ in range(3))
        await desk.mint(resumed)
        spec = await desk.entry(subjects.spec_key(resumed))
        assert spec is not None
        assert spec.seq < (await desk.status_at(resumed)).seq, "spec, then status"
        assert (await desk.resume(resumed, {"answer": "yes"}))["outcome"] == "resumed"
        await desk.mint(moved)
        assert (await desk.heartbeat(moved, 1, in_ms=300))["outcome"] == "extended"
        await desk.mint(expired, in_ms=300)
        states = [(await desk.agree(one))["state"] for one in (resumed, moved, expired)]
        assert states == ["resumed", "expired", "expired"]
        await replica.swept()
        assert replica.plane.not_ready() == []


async def test_many_at_once_are_served_without_atomic_batches(desk: Desk, foreign: Space) -> None:
    async with serving(foreign):
        deadline = await desk.now_ms() + MINUTE_MS
        targets = [a_target() for _ in range(100)]

        async def one(number: int) -> None:
            told = await desk.ask("mint", targets[number], {"deadline_at_ms": deadline})
            assert told["outcome"] == "minted"
            assert (await desk.resume(targets[number]))["outcome"] == "resumed"

        await asyncio.gather(*(one(number) for number in range(100)))
        for target in targets:
            await desk.agree(target)


async def test_a_prompt_is_refused_where_it_could_not_be_stored_with_its_checkpoint(
    desk: Desk, foreign: Space
) -> None:
    async with serving(foreign):
        target = a_target()
        body = {
            "deadline_at_ms": await desk.now_ms() + MINUTE_MS,
            "prompt": {"v": 1, "title": "which?"},
        }
        told = await desk.ask("mint", target, body)
        assert (told["status"], told["outcome"]) == ("refused", "prompts-unsupported")
        assert told["error"]["field"] == "prompt"
        assert await desk.spec(target) is None
        assert await desk.status(target) is None


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_mint_killed_between_spec_and_status_is_completed(
    desk: Desk, foreign: Space, forks: ForkServer, nth: int, when: str
) -> None:
    kill = Kill("records", nth, "before" if when == "before" else "after")
    victim = forks.start(foreign, kill=kill, armed=True, ack_wait_ms=QUICK_ACK_WAIT_MS)
    await victim.ready()
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    seq = await desk.say("mint", target, {"deadline_at_ms": deadline})
    await victim.gone()
    async with serving(foreign):
        assert (await desk.result(seq))["outcome"] == "minted"
        await desk.answered_once(seq)
        await desk.was_told(target, ("waiting", 1))
        assert len(await desk.all_armed(target)) == 1
        assert (await desk.resume(target))["outcome"] == "resumed"
        await desk.agree(target)
