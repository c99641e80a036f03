"""Queries: show, list and wait answer from what is stored, and write nothing."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import subjects
from schemas.codes import BadInput
from schemas.names import kv_stream
from tests.support.cp import MINUTE_MS, Desk, Json, Replica, a_target, desk_in, serving, until
from tests.support.space import Space, speaker

PROMPT = {"v": 1, "title": "Ship it?", "choices": ["yes", "no"]}


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space) as one:
        yield one


def key(target: subjects.Checkpoint) -> Json:
    return {"endpoint": target.endpoint, "token": target.token}


async def test_show_has_spec_status_fact_prompt_and_answer(desk: Desk, replica: Replica) -> None:
    target = a_target()
    await desk.mint(target, prompt=PROMPT)
    before = await replica.query("show", desk.alice, **key(target))
    told = await desk.resume(target, {"answer": "yes"})
    after = await replica.query("show", desk.alice, **key(target))

    canonical = json.dumps(PROMPT, sort_keys=True, separators=(",", ":")).encode()
    assert before.outcome == after.outcome == "shown"
    assert before.data["prompt_digest"] == hashlib.sha256(canonical).hexdigest()
    assert "fact" not in before.data
    assert "answer" not in before.data
    assert after.data["spec"] == await desk.spec(target)
    assert after.data["status"] == await desk.status(target)
    assert after.data["fact"] == await desk.fact(target)
    assert after.data["prompt"] == PROMPT
    assert after.data["answer"] == await desk.answer(target, told["data"]["answer_id"])
    assert after.data["checkpoint"] == told["data"]


async def test_prompt_and_answer_are_for_minter_holder_and_operator(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    holder = {"id": "bob", "lifecycleUid": desk.bob.uid}
    await desk.mint(target, prompt=PROMPT, holder=holder)
    await desk.resume(target, {"answer": "no"}, by=desk.bob)
    for name, may in (("alice", True), ("bob", True), ("_op1", True), ("carol", False)):
        shown = await replica.query("show", speaker(name), **key(target))
        assert ("prompt" in shown.data, "answer" in shown.data) == (may, may), name
        assert ("prompt_digest" in shown.data) == may
        assert shown.data["checkpoint"]["state"] == "resumed"


async def test_show_and_wait_of_what_is_not_there_say_so(desk: Desk, replica: Replica) -> None:
    incomplete = a_target()
    spec = {
        "v": 1,
        "token": incomplete.token,
        "holder": {"id": "alice", "lifecycleUid": desk.alice.uid},
        "mintedAt": 1,
        "initialDeadline": 2,
    }
    await desk.put(subjects.spec_key(incomplete), spec)
    for name in ("show", "wait"):
        unknown = await replica.query(name, desk.alice, **key(a_target()))
        assert unknown.reason == "unknown-checkpoint"
        half = await replica.query(name, desk.alice, **key(incomplete))
        assert half.reason == "incomplete"
        for wrong, field in (
            ({"endpoint": "UP", "token": "t"}, "endpoint"),
            ({"endpoint": "up", "token": "a.b"}, "token"),
            ({"endpoint": "up"}, "token"),
            ({"endpoint": "up", "token": "t", "x": 1}, "x"),
        ):
            with pytest.raises(BadInput) as caught:
                await replica.query(name, desk.alice, **wrong)
            assert caught.value.field == field


async def test_list_pages_through_waiting_checkpoints_by_deadline(
    desk: Desk, replica: Replica
) -> None:
    minted = []
    for number in range(7):
        target = a_target("ops" if number % 2 else "review.eu")
        # Two share a deadline, so the page boundary is not one of deadlines alone.
        in_ms = MINUTE_MS * (10 - (number // 2) * 2)
        deadline = 1_000 * ((await desk.now_ms() + in_ms) // 1_000)
        await desk.mint(target, deadline_at_ms=deadline)
        minted.append((deadline, target.endpoint, target.token))
    settled = a_target()
    await desk.mint(settled)
    await desk.resume(settled)
    await replica.followed()

    seen, cursor, pages = [], None, 0
    while True:
        answer = await replica.query("list", desk.bob, limit=3, cursor=cursor)
        pages += 1
        seen += [
            (item["deadline_at_ms"], item["endpoint"], item["token"])
            for item in answer.data["items"]
        ]
        cursor = answer.data["next_cursor"]
        if cursor is None:
            break
    assert pages == 3
    assert seen == sorted(minted)
    exactly = await replica.query("list", desk.bob, limit=7)
    assert len(exactly.data["items"]) == 7
    assert exactly.data["next_cursor"] is None


async def test_list_filters_by_endpoint_holder_and_deadline(desk: Desk, replica: Replica) -> None:
    mine, bobs, ops, later = a_target(), a_target(), a_target("ops"), a_target()
    holder = {"id": "bob", "lifecycleUid": desk.bob.uid}
    soon = await desk.now_ms() + MINUTE_MS
    await desk.mint(mine, deadline_at_ms=soon)
    await desk.mint(bobs, deadline_at_ms=soon, holder=holder)
    await desk.mint(ops, deadline_at_ms=soon)
    await desk.mint(later, deadline_at_ms=soon + MINUTE_MS)
    await replica.followed()

    async def tokens(**wanted: Any) -> set[str]:
        answer = await replica.query("list", desk.alice, **wanted)
        return {item["token"] for item in answer.data["items"]}

    every = {target.token for target in (mine, bobs, ops, later)}
    assert await tokens() == every
    assert await tokens(endpoint="ops") == {ops.token}
    assert await tokens(endpoint="none") == set()
    assert await tokens(holder="bob") == {bobs.token}
    assert await tokens(due_before_ms=soon) == set()
    assert await tokens(due_before_ms=soon + 1) == every - {later.token}
    assert await tokens(endpoint="review.eu", holder="alice", due_before_ms=soon + 1) == {
        mine.token
    }
    answer = await replica.query("list", desk.alice, holder="bob")
    assert answer.data["items"] == [
        {
            "endpoint": "review.eu",
            "token": bobs.token,
            "generation": 1,
            "deadline_at_ms": soon,
            "holder": holder,
        }
    ]


async def test_list_follows_heartbeats_and_settlements(desk: Desk, replica: Replica) -> None:
    target = a_target()
    await desk.mint(target)
    told = await desk.heartbeat(target, 1, in_ms=5 * MINUTE_MS)
    await replica.followed()
    answer = await replica.query("list", desk.alice)
    assert [(item["generation"], item["deadline_at_ms"]) for item in answer.data["items"]] == [
        (2, told["data"]["deadline_at_ms"])
    ]
    await desk.resume(target)
    await replica.followed()
    assert (await replica.query("list", desk.alice)).data["items"] == []


async def test_a_list_that_asks_wrongly_is_refused_naming_the_field(
    desk: Desk, replica: Replica
) -> None:
    wrong: list[tuple[Json, str]] = [
        ({"limit": 0}, "limit"),
        ({"limit": 1_001}, "limit"),
        ({"limit": True}, "limit"),
        ({"cursor": "?"}, "cursor"),
        ({"cursor": "bnVsbA"}, "cursor"),
        ({"cursor": "é"}, "cursor"),
        ({"cursor": "WzEsMiwzXQ"}, "cursor"),
        ({"cursor": "WzE4NDQ2NzQ0MDczNzA5NTUxNjE2LCJhIiwiYiJd"}, "cursor"),
        ({"cursor": "WzEsIlx1ZDgwMCIsImIiXQ"}, "cursor"),
        ({"cursor": "WzEsIkEiLCJiIl0"}, "cursor"),
        ({"endpoint": "Not.An.Endpoint"}, "endpoint"),
        ({"due_before_ms": -1}, "due_before_ms"),
        ({"extra": 1}, "extra"),
    ]
    for wanted, field in wrong:
        with pytest.raises(BadInput) as caught:
            await replica.query("list", desk.alice, **wanted)
        assert caught.value.field == field, wanted


async def test_wait_answers_as_soon_as_it_settles_whoever_settled_it(
    desk: Desk, space: Space
) -> None:
    async with serving(space, "r1") as here, serving(space, "r2", wheel=False) as there:
        resumed, expired, done = a_target(), a_target(), a_target()
        await desk.mint(resumed)
        await desk.mint(expired, in_ms=2_000)
        await desk.mint(done)
        await desk.resume(done)
        waits = [
            asyncio.create_task(replica.query("wait", desk.bob, **key(target)))
            for replica in (here, there)
            for target in (resumed, expired, done)
        ]

        async def listening() -> bool:
            return all(
                target in replica.plane._waiters._events
                for replica in (here, there)
                for target in (resumed, expired)
            )

        await until(listening)
        told = await desk.resume(resumed)
        answers = await asyncio.wait_for(asyncio.gather(*waits), 10)
        assert {answer.outcome for answer in answers} == {"settled"}
        states = [answer.data["state"] for answer in answers]
        assert states == ["resumed", "expired", "resumed"] * 2
        assert answers[0].data == answers[3].data == told["data"]
        assert here.plane._waiters._events == there.plane._waiters._events == {}


async def test_wait_answers_with_what_stands_when_the_time_is_up(
    desk: Desk, replica: Replica
) -> None:
    target = a_target()
    told = await desk.mint(target)
    for timeout_ms in (0, 50):
        answer = await replica.query("wait", desk.bob, **key(target), timeout_ms=timeout_ms)
        assert (answer.outcome, answer.data) == ("still_waiting", told["data"])
    for timeout_ms in (-1, 30_001):
        with pytest.raises(BadInput):
            await replica.query("wait", desk.bob, **key(target), timeout_ms=timeout_ms)


async def test_queries_write_nothing(desk: Desk, replica: Replica) -> None:
    unproven, overdue = a_target(), a_target()
    await desk.plant(
        unproven,
        in_ms=-5,
        state="expired",
        settledGeneration=1,
        settledTs=await desk.now_ms(),
    )
    await desk.mint(overdue)
    names = desk.names
    streams = (kv_stream(names.records_bucket), names.epf_stream, names.ept_stream)

    async def lasts() -> list[int]:
        return [(await desk.js.stream_info(stream)).last_seq for stream in streams]

    before = await lasts()
    for target in (unproven, overdue):
        await replica.query("show", desk.alice, **key(target))
        await replica.query("wait", desk.alice, **key(target), timeout_ms=0)
    await replica.query("list", desk.alice)
    assert await lasts() == before
