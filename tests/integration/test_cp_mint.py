"""Mint: a checkpoint comes to exist once, whole, and its deadline is armed."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import subjects
from schemas.names import kv_stream
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    a_target,
    code_of,
    desk_in,
    new_id,
    serving,
)
from tests.support.space import Space, speaker

YEAR_MS = 366 * 24 * 3600 * 1000
GOAL = {"caller": {"owner": "o1", "actor": "a1", "uid": "u1"}, "goalId": "goal-1"}
OBLIGATION = {
    "v": 1,
    "space": "main",
    "requestId": "req-1",
    "signer": {"keyId": "k1"},
    "attenuations": [{"kind": "budget", "max": 5}],
    "iat": 1,
    "exp": 2,
    "sig": "c2ln",
}
PROMPT = {"v": 1, "title": "Ship it?", "body": "**now**", "choices": ["yes", "no"]}


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space) as one:
        yield one


async def nothing_written(desk: Desk) -> None:
    info = await desk.js.stream_info(kv_stream(desk.names.records_bucket))
    assert info.last_seq == 0
    assert await desk.all_armed() == []


@pytest.mark.usefixtures("replica")
async def test_a_mint_writes_spec_and_status_and_arms_the_timer(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    deadline = await desk.now_ms() + MINUTE_MS
    seq = await desk.say("mint", target, {"deadline_at_ms": deadline}, command_id=command_id)
    told = await desk.result(seq)

    stored = await desk.js.message(desk.names.cmd_stream, seq)
    assert stored is not None
    holder = {"id": "alice", "lifecycleUid": desk.alice.uid}
    assert (told["status"], told["outcome"], told["command_id"]) == ("ok", "minted", command_id)
    assert told["data"] == {
        "endpoint": "review.eu",
        "token": target.token,
        "state": "waiting",
        "generation": 1,
        "deadline_at_ms": deadline,
        "holder": holder,
    }
    assert await desk.spec(target) == {
        "v": 1,
        "token": target.token,
        "holder": holder,
        "mintedAt": stored.time_ms,
        "initialDeadline": deadline,
    }
    assert await desk.status(target) == {
        "state": "waiting",
        "deadlineGeneration": 1,
        "deadline": deadline,
        "observedSpecRevision": 1,
    }
    armed = await desk.armed(target)
    assert armed is not None
    instance = subjects.own_instance(desk.names.space)
    owner = f"{desk.names.prefix}.ept.review_eu.{instance}.0.{target.token}"
    assert armed.subject == f"{owner}.armed"
    assert json.loads(armed.data) == {
        "v": 1,
        "timerId": target.token,
        "generation": 1,
        "deadline": deadline,
    }
    assert armed.headers["Nats-Schedule-Target"] == f"{owner}.fire"
    assert armed.headers["Nats-Schedule"].startswith("@at ")
    assert await desk.fact(target) is None


@pytest.mark.usefixtures("replica")
async def test_every_record_of_a_mint_carries_its_cause_and_shares_one_write(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    deadline = await desk.now_ms() + MINUTE_MS
    body = {"deadline_at_ms": deadline, "prompt": PROMPT}
    await desk.ask("mint", target, body, command_id=command_id)

    keys = (subjects.prompt_key(target), subjects.spec_key(target), subjects.status_key(target))
    entries = [await desk.entry(key) for key in keys]
    assert [entry.headers["Tidegate-Cause"] for entry in entries if entry] == [
        f"alice/{command_id}"
    ] * 3
    assert [entry.seq for entry in entries if entry] == [1, 2, 3]
    assert await desk.prompt(target) == PROMPT
    await desk.was_told(target, ("waiting", 1))
    waiting = (await desk.facts(target))[0]
    assert (waiting.kind, waiting.generation) == ("waiting", 1)
    assert waiting.headers["Tidegate-Cause"] == f"alice/{command_id}"
    assert waiting.body["deadline_at_ms"] == deadline


@pytest.mark.usefixtures("replica")
async def test_the_holder_is_the_speaker_unless_another_is_named(desk: Desk) -> None:
    target = a_target()
    holder = {"id": "bob", "lifecycleUid": desk.bob.uid}
    told = await desk.mint(target, holder=holder)
    assert told["data"]["holder"] == holder
    assert code_of(await desk.resume(target)) == "permission-denied"
    assert (await desk.resume(target, by=desk.bob))["outcome"] == "resumed"


@pytest.mark.usefixtures("replica")
async def test_goal_and_obligations_are_kept_verbatim(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target, goal=GOAL, obligations=[OBLIGATION])
    spec = await desk.spec(target)
    assert spec is not None
    assert spec["goal"] == GOAL
    assert spec["obligations"] == [OBLIGATION]


@pytest.mark.usefixtures("replica")
async def test_an_empty_obligations_array_counts_as_absent(desk: Desk) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    await desk.mint(target, deadline_at_ms=deadline, obligations=[])
    spec = await desk.spec(target)
    assert spec is not None
    assert "obligations" not in spec
    again = await desk.ask("mint", target, {"deadline_at_ms": deadline})
    assert again["outcome"] == "already_minted"


@pytest.mark.usefixtures("replica")
async def test_obligations_need_a_goal(desk: Desk) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    body = {"deadline_at_ms": deadline, "obligations": [OBLIGATION]}
    told = await desk.ask("mint", target, body)
    assert (told["status"], code_of(told)) == ("refused", "bad-request")
    assert told["outcome"] == "needs-goal"
    await nothing_written(desk)


@pytest.mark.usefixtures("replica")
async def test_a_deadline_is_mandatory_absolute_in_the_future_and_within_ten_years(
    desk: Desk,
) -> None:
    now = await desk.now_ms()
    wrong: list[tuple[Json, str]] = [
        ({}, "missing-field"),
        ({"deadline_at_ms": None}, "wrong-type"),
        ({"deadline_at_ms": now}, "deadline-not-future"),
        ({"deadline_at_ms": now - 1}, "deadline-not-future"),
        ({"deadline_at_ms": 60_000}, "deadline-not-future"),
        ({"deadline_at_ms": -1}, "out-of-range"),
        ({"deadline_at_ms": now + 10 * YEAR_MS + MINUTE_MS}, "deadline-too-far"),
        ({"deadline_at_ms": 2**53 - 1}, "deadline-too-far"),
        ({"deadline_at_ms": 2**53}, "number-too-large"),
        ({"deadline_at_ms": float(now + MINUTE_MS)}, "wrong-type"),
        ({"deadline_at_ms": True}, "wrong-type"),
        ({"deadline_at_ms": str(now + MINUTE_MS)}, "wrong-type"),
    ]
    for body, reason in wrong:
        told = await desk.ask("mint", a_target(), body)
        assert told["status"] == "refused", body
        assert told["outcome"] == reason, body
        assert told["error"]["field"] in ("deadline_at_ms", "body"), body
    await nothing_written(desk)
    far = await desk.mint(a_target(), in_ms=10 * YEAR_MS - MINUTE_MS)
    assert far["outcome"] == "minted"


@pytest.mark.usefixtures("replica")
async def test_the_same_mint_again_changes_no_record(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    body = {
        "deadline_at_ms": await desk.now_ms() + MINUTE_MS,
        "goal": GOAL,
        "obligations": [OBLIGATION],
        "prompt": PROMPT,
    }
    first = await desk.ask("mint", target, body, command_id=command_id)
    info = await desk.js.stream_info(kv_stream(desk.names.records_bucket))
    # The same in another order of keys is the same by canonical JSON.
    turned = {
        "prompt": dict(reversed(PROMPT.items())),
        "obligations": [dict(reversed(OBLIGATION.items()))],
        **body,
    }
    same = await desk.ask("mint", target, body, command_id=command_id)
    other = await desk.ask("mint", target, turned, command_id=new_id())
    by_bob = {**body, "holder": {"id": "alice", "lifecycleUid": desk.alice.uid}}
    bobs = await desk.ask("mint", target, by_bob, by=desk.bob)

    assert [told["outcome"] for told in (first, same, other, bobs)] == [
        "minted",
        "minted",
        "already_minted",
        "already_minted",
    ]
    assert same["data"] == other["data"] == bobs["data"] == first["data"]
    after = await desk.js.stream_info(kv_stream(desk.names.records_bucket))
    assert after.last_seq == info.last_seq
    await desk.was_told(target, ("waiting", 1))
    assert len(await desk.all_armed(target)) == 1


@pytest.mark.usefixtures("replica")
async def test_a_mint_that_differs_in_any_field_conflicts(desk: Desk) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    body: Json = {
        "deadline_at_ms": deadline,
        "goal": GOAL,
        "obligations": [OBLIGATION],
        "prompt": PROMPT,
    }
    await desk.mint(target, **body)
    others: list[Json] = [
        {"deadline_at_ms": deadline + 1},
        {"holder": {"id": "alice", "lifecycleUid": desk.bob.uid}},
        {"holder": {"id": "bob", "lifecycleUid": desk.alice.uid}},
        {"goal": {**GOAL, "goalId": "goal-2"}},
        {"goal": {**GOAL, "caller": {"owner": "o1", "actor": "a1", "uid": "u2"}}},
        {"obligations": [{**OBLIGATION, "sig": "b3RoZXI"}]},
        {"obligations": [OBLIGATION, OBLIGATION]},
        {"obligations": []},
        {"prompt": {**PROMPT, "title": "Ship it!"}},
        {"prompt": None},
    ]
    before = await desk.status_at(target)
    for other in others:
        changed = {k: v for k, v in {**body, **other}.items() if v is not None}
        told = await desk.ask("mint", target, changed)
        assert (told["status"], code_of(told)) == ("refused", "conflict"), other
        assert told["data"]["deadline_at_ms"] == deadline
    assert await desk.status_at(target) == before
    assert (await desk.ask("mint", target, body))["outcome"] == "already_minted"


@pytest.mark.usefixtures("replica")
async def test_a_prompt_that_was_never_stored_conflicts_with_a_mint_that_has_one(
    desk: Desk,
) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    await desk.mint(target, deadline_at_ms=deadline)
    told = await desk.ask("mint", target, {"deadline_at_ms": deadline, "prompt": PROMPT})
    assert code_of(told) == "conflict"
    assert await desk.prompt(target) is None


@pytest.mark.usefixtures("replica")
async def test_a_replay_arms_the_coordinates_in_force_and_never_the_callers(desk: Desk) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    await desk.mint(target, deadline_at_ms=deadline)
    moved = await desk.heartbeat(target, 1, in_ms=2 * MINUTE_MS)
    await desk.disarm(target)

    told = await desk.ask("mint", target, {"deadline_at_ms": deadline})

    assert told["outcome"] == "already_minted"
    assert told["data"]["generation"] == 2
    armed = await desk.armed(target)
    assert armed is not None
    body = json.loads(armed.data)
    assert (body["generation"], body["deadline"]) == (2, moved["data"]["deadline_at_ms"])


@pytest.mark.usefixtures("replica")
async def test_a_replay_on_a_settled_checkpoint_reports_it_and_arms_nothing(desk: Desk) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    await desk.mint(target, deadline_at_ms=deadline)
    settled = await desk.resume(target)

    told = await desk.ask("mint", target, {"deadline_at_ms": deadline})

    assert (told["status"], told["outcome"]) == ("ok", "already_minted")
    assert told["data"] == settled["data"]
    await desk.unarmed(target)
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_a_replay_after_the_deadline_is_still_a_replay(desk: Desk) -> None:
    target = a_target()
    deadline = await desk.now_ms() + 300
    await desk.mint(target, deadline_at_ms=deadline)
    status = await desk.agree(target)
    told = await desk.ask("mint", target, {"deadline_at_ms": deadline})
    assert (told["outcome"], told["data"]["state"]) == ("already_minted", "expired")
    assert told["data"]["settled_at_ms"] == status["settledTs"]


@pytest.mark.parametrize("gone", ["spec", "status", "prompt", "all"])
@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.usefixtures("replica")
async def test_a_deletion_marker_is_never_absence_and_closes_the_token(
    desk: Desk, space: Space, gone: str, purged: bool
) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    body = {"deadline_at_ms": deadline, "prompt": PROMPT}
    keys = {
        "spec": subjects.spec_key(target),
        "status": subjects.status_key(target),
        "prompt": subjects.prompt_key(target),
    }
    for name, key in keys.items():
        if gone in (name, "all"):
            if purged:
                await desk.put(key, b"", **{"KV-Operation": "PURGE"})
            else:
                await desk.delete(key)
    before = {key: await desk.entry(key) for key in keys.values()}

    told = await desk.ask("mint", target, body)

    assert (told["status"], told["outcome"]) == ("refused", "token-closed")
    assert {key: await desk.entry(key) for key in keys.values()} == before
    assert await desk.all_armed(target) == []
    for verb, verb_body in (
        ("resume", {}),
        ("heartbeat", {"generation": 1, "deadline_at_ms": deadline}),
        ("expire", {}),
        ("repair", {}),
    ):
        said = await desk.ask(verb, target, verb_body)
        wanted = "unknown-checkpoint" if gone == "prompt" else "token-closed"
        assert said["outcome"] == wanted, verb


@pytest.mark.parametrize("gone", ["spec", "status"])
async def test_a_token_whose_records_were_deleted_is_closed_for_every_replica(
    desk: Desk, space: Space, replica: Replica, gone: str
) -> None:
    target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
    await desk.mint(target, deadline_at_ms=deadline)
    key = subjects.spec_key(target) if gone == "spec" else subjects.status_key(target)
    seq = await desk.delete(key)
    await _index_reached(replica, desk, seq)

    for verb, body in (
        ("mint", {"deadline_at_ms": deadline}),
        ("resume", {}),
        ("heartbeat", {"generation": 1, "deadline_at_ms": deadline}),
        ("expire", {}),
    ):
        told = await desk.ask(verb, target, body)
        assert (told["status"], told["outcome"]) == ("refused", "token-closed"), verb
    assert await desk.fact(target) is None


async def _index_reached(replica: Replica, desk: Desk, seq: int) -> None:
    stream = kv_stream(desk.names.records_bucket)
    while replica.plane._feed.last.get(stream, 0) < seq:  # noqa: ASYNC110 - the feed tells nobody
        await asyncio.sleep(0.005)


async def foreign_spec(desk: Desk, **changes: Any) -> tuple[Json, int]:
    """A spec as a foreign writer stores it, without its status."""
    target = a_target()
    deadline = await desk.now_ms() + MINUTE_MS
    spec = {
        "v": 1,
        "token": target.token,
        "holder": {"id": "alice", "lifecycleUid": desk.alice.uid},
        "mintedAt": 1,
        "initialDeadline": deadline,
        **changes,
    }
    await desk.put(subjects.spec_key(target), spec)
    return spec, deadline


@pytest.mark.usefixtures("replica")
async def test_a_spec_without_a_status_is_incomplete_until_the_mint_is_repeated(
    desk: Desk,
) -> None:
    spec, deadline = await foreign_spec(desk)
    target = subjects.Checkpoint("review.eu", spec["token"])
    for verb, body in (
        ("resume", {}),
        ("heartbeat", {"generation": 1, "deadline_at_ms": deadline}),
        ("expire", {}),
        ("repair", {}),
    ):
        told = await desk.ask(verb, target, body)
        assert code_of(told) == "failed-precondition", verb
        assert told["outcome"] == "incomplete", verb

    other = await desk.ask("mint", target, {"deadline_at_ms": deadline + 1})
    assert code_of(other) in ("conflict", "failed-precondition")
    assert await desk.status(target) is None
    told = await desk.ask("mint", target, {"deadline_at_ms": deadline})

    assert told["status"] == "ok"
    assert await desk.spec(target) == spec
    assert (await desk.status(target) or {})["state"] == "waiting"
    assert len(await desk.all_armed(target)) == 1
    assert (await desk.resume(target))["outcome"] == "resumed"
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_bad_terms_are_refused_naming_the_field(desk: Desk) -> None:
    deadline = await desk.now_ms() + MINUTE_MS
    wrong: list[tuple[Json, str]] = [
        ({"holder": {"id": "a.b", "lifecycleUid": desk.bob.uid}}, "holder.id"),
        ({"holder": {"id": "bob", "lifecycleUid": "short"}}, "holder.lifecycleUid"),
        ({"holder": {"id": "bob"}}, "holder.lifecycleUid"),
        ({"holder": "bob"}, "holder"),
        ({"goal": {**GOAL, "goalId": "a b"}}, "goal.goalId"),
        ({"goal": {"goalId": "g"}}, "goal.caller"),
        ({"goal": GOAL, "obligations": [{**OBLIGATION, "attenuations": []}]}, "obligations[0]."),
        ({"goal": GOAL, "obligations": [{**OBLIGATION, "v": 2}]}, "obligations[0].v"),
        ({"prompt": {"v": 1}}, "prompt.title"),
        ({"prompt": {**PROMPT, "choices": ["a", "a"]}}, "prompt"),
        ({"extra": 1}, "extra"),
    ]
    for body, field in wrong:
        told = await desk.ask("mint", a_target(), {"deadline_at_ms": deadline, **body})
        assert told["status"] == "refused", body
        assert told["error"]["field"].startswith(field), told
    await nothing_written(desk)


@pytest.mark.usefixtures("replica")
async def test_reserved_principals_may_not_mint(desk: Desk) -> None:
    deadline = await desk.now_ms() + MINUTE_MS
    for name in ("_worker1", "_op1", "_witness1", "_other"):
        told = await desk.ask("mint", a_target(), {"deadline_at_ms": deadline}, by=speaker(name))
        assert code_of(told) == "permission-denied", name
    await nothing_written(desk)
