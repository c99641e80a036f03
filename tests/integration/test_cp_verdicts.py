"""One sequence, one verdict: not another one later, not another command's, not on half a look."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import subjects
from schemas.subjects import Checkpoint
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    a_target,
    desk_in,
    new_id,
    serving,
    until,
)
from tests.support.space import Space

SECOND_NS = 1_000_000_000
PROMPT = {"v": 1, "title": "Ship it?", "choices": ["yes", "no"]}


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space) as one:
        yield one


async def keep_results_for_a_second(desk: Desk) -> None:
    config = dict((await desk.js.stream_info(desk.names.res_stream)).config)
    short = {"max_age": SECOND_NS, "duplicate_window": SECOND_NS}
    await desk.js.stream_update({**config, **short})


async def outlived(desk: Desk, seq: int) -> None:
    """Wait until whatever was said about a command is gone."""
    command = await desk.js.message(desk.names.cmd_stream, seq)
    assert command is not None
    stored_ms = command.time_ns // 1_000_000

    async def gone() -> bool:
        later = await desk.now_ms() > stored_ms + 1_100
        return later and not await desk.stored_results(seq)

    await until(gone, what="the result is gone")


async def served_again(desk: Desk, replica: Replica, seq: int) -> None:
    """Have a command delivered once more, as after a worker that died before it acknowledged."""
    message = await desk.js.message(desk.names.cmd_stream, seq)
    assert message is not None
    delivery = await desk.deliver(message, delivered=2)
    await replica.plane._commands.handle(delivery)
    assert delivery.settled


# What was refused is never carried out.


@pytest.mark.parametrize("lost", ["the acknowledgement", "the durable"])
async def test_what_was_refused_is_not_carried_out_once_its_result_is_gone(
    desk: Desk, space: Space, lost: str
) -> None:
    await keep_results_for_a_second(desk)
    async with serving(space, "r1") as replica:
        target, command_id = a_target(), new_id()
        refused = await desk.say("resume", target, {}, command_id=command_id)
        assert (await desk.result(refused))["outcome"] == "unknown-checkpoint"
        bad = await desk.say("mint", a_target(), {"deadline_at_ms": 1})
        assert (await desk.result(bad))["outcome"] == "deadline-not-future"
        early = {"generation": 2, "deadline_at_ms": await desk.now_ms() + 2 * MINUTE_MS}
        beat = await desk.say("heartbeat", target, early)
        assert (await desk.result(beat))["outcome"] == "unknown-checkpoint"
        await desk.mint(target)
        await desk.heartbeat(target, 1)
        before = await desk.status_at(target)
        for seq in (refused, bad, beat):
            await outlived(desk, seq)
        for seq in (refused, beat) if lost == "the acknowledgement" else ():
            await served_again(desk, replica, seq)
    if lost == "the durable":
        await desk.js.consumer_delete(desk.names.cmd_stream, desk.names.cp_durable)
    async with serving(space, "r2") as replica:

        async def all_again() -> bool:
            return replica.plane._pullers[desk.names.cmd_stream].handled >= 5

        if lost == "the durable":
            await until(all_again, what="every command was delivered again")
        assert (await desk.status_at(target)).seq == before.seq
        # Asked anew under the same id, it is judged.
        asked = await desk.ask("resume", target, {}, command_id=command_id)
        assert asked["outcome"] == "resumed"


async def test_what_cannot_be_judged_any_more_says_that_asking_again_helps(
    desk: Desk, space: Space
) -> None:
    await keep_results_for_a_second(desk)
    async with serving(space) as replica:
        target = a_target()
        seq = await desk.say("resume", target, {})
        assert (await desk.result(seq))["outcome"] == "unknown-checkpoint"
        await desk.mint(target)
        await outlived(desk, seq)
        await served_again(desk, replica, seq)

        async def told_twice() -> bool:
            return len(desk.heard[seq]) == 2

        await until(told_twice)
        error = desk.heard[seq][1]["error"]
        assert (error["reason"], error["retryable"]) == ("verdict-forgotten", True)


async def test_what_was_accepted_is_finished_however_late(desk: Desk, space: Space) -> None:
    await keep_results_for_a_second(desk)
    async with serving(space) as replica:
        target, other = a_target(), a_target()
        minted = await desk.say("mint", target, {"deadline_at_ms": await desk.now_ms() + MINUTE_MS})
        assert (await desk.result(minted))["outcome"] == "minted"
        await desk.mint(other)
        resumed = await desk.say("resume", other, {})
        assert (await desk.result(resumed))["outcome"] == "resumed"
        for seq in (minted, resumed):
            await outlived(desk, seq)
            await served_again(desk, replica, seq)

        async def told_again() -> bool:
            return len(desk.heard[minted]) == 2 and len(desk.heard[resumed]) == 2

        await until(told_again)
        assert desk.heard[minted][1]["outcome"] == "minted"
        assert desk.heard[resumed][1]["outcome"] == "resumed"


async def test_what_nobody_served_is_served_however_long_it_waited(
    desk: Desk, space: Space
) -> None:
    await keep_results_for_a_second(desk)
    target = a_target()
    seq = await desk.say("mint", target, {"deadline_at_ms": await desk.now_ms() + 5 * MINUTE_MS})
    await outlived(desk, seq)
    async with serving(space):
        assert (await desk.result(seq))["outcome"] == "minted"


async def test_what_another_replica_refused_is_not_carried_out_by_one_that_was_stopped(
    desk: Desk, space: Space
) -> None:
    """It was stopped while its write waited for a place in the window."""
    async with serving(space, "r1") as slow:
        window = slow.plane._kv
        window._batches.limit = 0
        target = a_target()
        deadline = await desk.now_ms() + 500
        seq = await desk.say("mint", target, {"deadline_at_ms": deadline})

        async def waits() -> bool:
            return window.waiting == 1

        await until(waits, what="the write waits")
        async with serving(space, "r2") as quick:

            async def over() -> bool:
                return await desk.now_ms() > deadline

            await until(over)
            await served_again(desk, quick, seq)
        assert (await desk.result(seq))["outcome"] == "deadline-not-future"
        time.sleep(slow.settings.ack_wait_ms / 1000)  # noqa: ASYNC251 - the process is stopped
        window._batches.limit = 2
        window._schedule()
        await desk.handled(desk.names.cp_durable, seq)
        assert await desk.status(target) is None
        assert await desk.entry(subjects.spec_key(target)) is None
        await desk.answered_once(seq)


# A stream of commands that is made anew counts from one again.


async def test_sequences_that_begin_again_get_results_of_their_own(
    desk: Desk, space: Space
) -> None:
    async with serving(space) as replica:
        for _ in range(2):
            old = [a_target() for _ in range(3)]
            for target in old:
                await desk.mint(target)
            config = dict((await desk.js.stream_info(desk.names.cmd_stream)).config)
            await desk.js.stream_delete(desk.names.cmd_stream)
            await desk.js.stream_create(config)

            async def durable_again() -> bool:
                names = desk.names
                pullers = replica.plane._pullers[names.cmd_stream]
                return pullers.problem is None and names.cp_durable in await durables(desk)

            await until(durable_again, what="the durable is made again")
            desk.heard.clear()
            for target in (a_target() for _ in range(3)):
                command_id = new_id()
                body = {"deadline_at_ms": await desk.now_ms() + MINUTE_MS}
                told = await desk.ask("mint", target, body, command_id=command_id)
                assert (told["command_id"], told["data"]["token"]) == (command_id, target.token)
                assert told["outcome"] == "minted"


async def durables(desk: Desk) -> list[str]:
    answer = await desk.js.api(f"CONSUMER.NAMES.{desk.names.cmd_stream}", None)
    return list(answer.get("consumers") or ())


# One command id, one command.


@pytest.mark.parametrize(
    ("verb", "second"),
    [
        ("resume", {"answer": "no"}),
        ("resume", {"answer": None}),
        ("resume", {}),
        ("resume", {"answer": "yes", "artifact": "sha256:other"}),
        ("resume", {"answer": "yes", "prompt_digest": "0" * 64}),
        ("heartbeat", {"generation": 1, "deadline_at_ms": 2**45}),
    ],
)
async def test_another_command_under_the_id_that_resumed_is_refused(
    desk: Desk, replica: Replica, verb: str, second: Json
) -> None:
    target, command_id = a_target(), new_id()
    await desk.mint(target, prompt=PROMPT)
    first = {"answer": "yes"}
    assert (await desk.resume(target, first, command_id=command_id))["outcome"] == "resumed"
    told = await desk.ask(verb, target, second, command_id=command_id)
    assert (told["status"], told["error"]["code"]) == ("refused", "conflict"), told
    assert told["outcome"] == "command-id-reused"
    assert (await desk.resume(target, first, command_id=command_id))["outcome"] == "resumed"
    await desk.agree(target)


async def test_a_mint_that_repeats_a_heartbeats_id_minted_nothing(
    desk: Desk, replica: Replica
) -> None:
    target, command_id = a_target(), new_id()
    deadline = await desk.now_ms() + MINUTE_MS
    await desk.mint(target, deadline_at_ms=deadline)
    await desk.heartbeat(target, 1, command_id=command_id)
    told = await desk.ask("mint", target, {"deadline_at_ms": deadline}, command_id=command_id)
    assert told["outcome"] == "already_minted"


# The order of the stream, for one token.


async def test_what_is_stored_after_a_mint_finds_its_checkpoint(desk: Desk, space: Space) -> None:
    async def one() -> list[str]:
        target = a_target()
        body = {"deadline_at_ms": await desk.now_ms() + 5 * MINUTE_MS}
        mint = await desk.say("mint", target, body)
        resume = await desk.say("resume", target, {})
        expire = await desk.say("expire", target, {})
        return [(await desk.result(seq))["outcome"] for seq in (mint, resume, expire)]

    async with serving(space, "r1"), serving(space, "r2"):
        for _ in range(3):
            outcomes = await asyncio.gather(*(one() for _ in range(40)))
            for mint, resume, expire in outcomes:
                assert (mint, resume) == ("minted", "resumed"), outcomes
                assert expire in ("already_settled", "not-due"), outcomes


async def test_a_mint_that_is_carried_out_after_the_look_is_looked_at_again(
    desk: Desk, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the command that needs it was put off before."""
    window, sequence = replica.plane._kv, replica.plane._sequence
    window._batches.limit = 0
    target = a_target()
    mint = await desk.say("mint", target, {"deadline_at_ms": await desk.now_ms() + MINUTE_MS})
    mint_before = sequence.mint_before

    async def minted_meanwhile(target: Checkpoint, delivery: Any) -> Any:
        if delivery.delivered > 2 and not window._batches.limit:
            window._batches.limit = 2
            window._schedule()
            await desk.answered_once(mint)
        return await mint_before(target, delivery)

    monkeypatch.setattr(sequence, "mint_before", minted_meanwhile)
    resume = await desk.say("resume", target, {})
    assert (await desk.result(mint))["outcome"] == "minted"
    assert (await desk.result(resume))["outcome"] == "resumed"


async def test_a_mint_that_came_to_nothing_holds_up_nobody(desk: Desk, replica: Replica) -> None:
    target = a_target()
    mint = await desk.say("mint", target, {"deadline_at_ms": 1})
    resume = await desk.say("resume", target, {})
    assert (await desk.result(mint))["outcome"] == "deadline-not-future"
    assert (await desk.result(resume))["outcome"] == "unknown-checkpoint"


# Reads side by side are no one look.


class Order:
    """Lets the reads of one look happen in an order, with something in between."""

    def __init__(self, replica: Replica, first: str, then: str) -> None:
        self._records = replica.plane._records
        self._first, self._then = first, then
        self.read = asyncio.Event()
        self.go_on = asyncio.Event()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        early, late = getattr(self._records, self._first), getattr(self._records, self._then)

        async def read_first(target: Checkpoint) -> Any:
            found = await early(target)
            self.read.set()
            return found

        async def read_then(target: Checkpoint) -> Any:
            await self.go_on.wait()
            return await late(target)

        monkeypatch.setattr(self._records, self._first, read_first)
        monkeypatch.setattr(self._records, self._then, read_then)


@pytest.mark.parametrize("first", ["spec", "status"])
async def test_a_look_that_straddles_a_mint_is_repeated(
    desk: Desk, replica: Replica, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    order = Order(replica, first, {"spec": "status", "status": "spec"}[first])
    order.install(monkeypatch)
    target = a_target()
    seq = await desk.say("resume", target, {})
    await order.read.wait()
    await desk.plant(target, in_ms=MINUTE_MS)
    order.go_on.set()
    assert (await desk.result(seq))["outcome"] == "resumed"


async def test_a_look_that_straddles_a_settlement_is_repeated(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(space, "r1") as one:
        target = a_target()
        await desk.mint(target)
        order = Order(one, "status", "fact")
        order.install(monkeypatch)
        one.plane._records.forget()
        await desk.js.message(desk.names.cmd_stream, 1)
        settled = await desk.entry(subjects.status_key(target))
        assert settled is not None
        seq = await desk.say("resume", target, {}, by=desk.alice)
        await order.read.wait()
        record = json.loads(settled.data)
        now_ms = await desk.now_ms()
        holder = {"id": desk.alice.principal, "lifecycleUid": desk.alice.uid}
        await desk.put(
            subjects.status_key(target),
            {
                **record,
                "state": "resumed",
                "settledGeneration": 1,
                "settledTs": now_ms,
                "settledHolder": holder,
            },
        )
        await desk.put_fact(
            target,
            {
                "v": 1,
                "token": target.token,
                "settle": "resumed",
                "generation": 1,
                "ts": now_ms,
                "holder": holder,
            },
        )
        order.go_on.set()
        assert (await desk.result(seq))["outcome"] == "already-resumed"
