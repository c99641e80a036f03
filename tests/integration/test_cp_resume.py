"""Resume: only the recorded holder, only before the deadline, only once."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas import subjects
from schemas.subjects import Checkpoint, Speaker
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
    until,
)
from tests.support.space import Space, speaker

PROMPT = {"v": 1, "title": "Ship it?", "body": "now", "choices": ["yes", "no"]}


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space, wheel=False) as one:
        yield one


def canonical(value: Any) -> bytes:
    """RFC 8785 for the ASCII values of these tests, without our own code."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def expected_answer_id(token: str, by: str, value: Any, artifact: str | None) -> str:
    content = canonical({"token": token, "by": by, "value": value, "artifact": artifact})
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


@pytest.mark.usefixtures("replica")
async def test_the_holder_resumes_and_the_timer_is_cancelled(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    minted = await desk.mint(target)
    seq = await desk.say("resume", target, {}, command_id=command_id)
    told = await desk.result(seq)

    command = await desk.js.message(desk.names.cmd_stream, seq)
    assert command is not None
    holder = {"id": "alice", "lifecycleUid": desk.alice.uid}
    assert (told["status"], told["outcome"]) == ("ok", "resumed")
    assert told["data"]["settled_holder"] == holder
    assert "answer_id" not in told["data"]
    status = await desk.agree(target)
    assert status == {
        "state": "resumed",
        "deadlineGeneration": 1,
        "deadline": minted["data"]["deadline_at_ms"],
        "observedSpecRevision": await desk.spec_revision(target),
        "settledGeneration": 1,
        "settledHolder": holder,
        "settledTs": told["data"]["settled_at_ms"],
    }
    assert status["settledTs"] >= command.time_ms
    fact = await desk.fact_at(target)
    assert fact is not None
    stored = await desk.status_at(target)
    assert stored.headers["Tidegate-Cause"] == f"alice/{command_id}"
    assert fact.headers["Tidegate-Cause"] == f"alice/{command_id}"
    await desk.was_told(target, ("resumed", 1), ("waiting", 1))
    fires = await desk.stored(desk.names.ept_stream, desk.timer_subject(target, "fire"))
    assert fires == []


@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize("state", ["waiting", "overdue", "resumed", "expired"])
async def test_another_holder_is_denied_before_anything_else(desk: Desk, state: str) -> None:
    target = a_target()
    if state == "overdue":
        await desk.plant(target, in_ms=-1_000)
    else:
        await desk.mint(target, in_ms=150 if state == "expired" else MINUTE_MS, prompt=PROMPT)
    if state == "resumed":
        await desk.resume(target)
    if state == "expired":
        await desk.agree(target)
    before = await desk.status_at(target)
    others: list[Speaker] = [
        speaker("alice"),
        Speaker("bob", desk.alice.uid),
        desk.bob,
    ]
    for other in others:
        told = await desk.resume(target, {"answer": "maybe", "prompt_digest": "0" * 64}, by=other)
        assert (code_of(told), told["outcome"]) == ("permission-denied", "not-the-holder")
        assert told["data"] == {}
        told = await desk.resume(target, by=other)
        assert told["outcome"] == "not-the-holder"
    assert await desk.status_at(target) == before


@pytest.mark.usefixtures("replica")
async def test_an_unknown_checkpoint_is_not_found(desk: Desk) -> None:
    told = await desk.resume(a_target())
    assert (code_of(told), told["outcome"]) == ("not-found", "unknown-checkpoint")


async def test_where_readers_do_not_know_it_the_answers_id_stands_in_a_header(
    desk: Desk, space: Space
) -> None:
    target, twice = a_target(), new_id()
    async with serving(space, answer_id_in_status=False) as replica:
        await desk.mint(target, prompt=PROMPT)
        told = await desk.resume(target, {"answer": "yes"}, command_id=twice)
        assert told["outcome"] == "resumed"
        identifier = told["data"]["answer_id"]
        status, fact = await desk.agree(target), await desk.fact(target)
        assert status is not None
        assert fact is not None
        assert "settledAnswerId" not in status
        assert "answerId" not in fact
        assert (await desk.status_at(target)).headers["Tidegate-Answer"] == identifier
        where = {"v": 1, "endpoint": target.endpoint, "token": target.token}
        shown = await replica.query("show", desk.alice, **where)
        assert shown.data["checkpoint"]["answer_id"] == identifier
        assert shown.data["answer"]["value"] == "yes"
    # A worker that names answers takes such a settlement for what it is, too.
    async with serving(space, name="r2"):
        told = await desk.resume(target, {"answer": "yes"})
        assert (told["outcome"], told["data"]["answer_id"]) == ("already-resumed", identifier)
        await desk.ask("repair", target, {})
        assert await desk.fact(target) == fact


@pytest.mark.usefixtures("replica")
async def test_an_answer_is_filed_under_the_digest_of_what_it_says(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    await desk.mint(target)
    value = {"b": [1, None, "x"], "a": True}
    seq = await desk.say(
        "resume", target, {"answer": value, "artifact": "sha256:1"}, command_id=command_id
    )
    told = await desk.result(seq)

    expected = expected_answer_id(target.token, "alice", value, "sha256:1")
    assert len(expected) == 43
    assert told["data"]["answer_id"] == expected
    command = await desk.js.message(desk.names.cmd_stream, seq)
    assert command is not None
    assert await desk.answer(target, expected) == {
        "v": 1,
        "token": target.token,
        "answerId": expected,
        "by": "alice",
        "at": command.time_ms,
        "value": value,
        "artifact": "sha256:1",
    }
    status = await desk.agree(target)
    assert status["settledAnswerId"] == expected
    entry = await desk.entry(subjects.answer_key(target, expected))
    assert entry is not None
    assert entry.headers["Tidegate-Cause"] == f"alice/{command_id}"
    assert entry.seq < (await desk.status_at(target)).seq, "the answer is filed first"


@pytest.mark.parametrize(
    ("body", "filed"),
    [
        ({}, None),
        ({"answer": None}, (None, None)),
        ({"answer": False}, (False, None)),
        ({"answer": 0}, (0, None)),
        ({"artifact": "sha256:2"}, (None, "sha256:2")),
    ],
)
@pytest.mark.usefixtures("replica")
async def test_what_counts_as_an_answer(desk: Desk, body: Json, filed: Any) -> None:
    target = a_target()
    await desk.mint(target)
    told = await desk.resume(target, body)
    status = await desk.agree(target)
    if filed is None:
        assert "settledAnswerId" not in status
        return
    value, artifact = filed
    expected = expected_answer_id(target.token, "alice", value, artifact)
    assert told["data"]["answer_id"] == status["settledAnswerId"] == expected
    record = await desk.answer(target, expected)
    assert record is not None
    assert record.get("value") == value


@pytest.mark.usefixtures("replica")
async def test_the_same_answer_is_the_same_record(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    identifier = expected_answer_id(target.token, "alice", "yes", None)
    earlier = {
        "v": 1,
        "token": target.token,
        "answerId": identifier,
        "by": "alice",
        "at": 7,
        "value": "yes",
    }
    await desk.put(subjects.answer_key(target, identifier), earlier)
    told = await desk.resume(target, {"answer": "yes"})
    assert told["data"]["answer_id"] == identifier
    assert await desk.answer(target, identifier) == earlier


@pytest.mark.usefixtures("replica")
async def test_choices_are_enforced_on_an_answers_value(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target, prompt=PROMPT)
    for body in (
        {"answer": "maybe"},
        {"answer": None},
        {"answer": ["yes"]},
        {"answer": 1},
        {"artifact": "sha256:3"},
    ):
        told = await desk.resume(target, body)
        assert (code_of(told), told["outcome"]) == ("bad-request", "not-a-choice"), body
        assert told["error"]["field"] == "answer"
    assert (await desk.status(target) or {})["state"] == "waiting"
    assert (await desk.resume(target, {"answer": "yes"}))["outcome"] == "resumed"
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_a_prompt_with_choices_may_be_resumed_without_an_answer(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target, prompt=PROMPT)
    assert (await desk.resume(target))["outcome"] == "resumed"


@pytest.mark.usefixtures("replica")
async def test_an_answer_schema_is_shown_and_not_enforced(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target, prompt={"v": 1, "title": "t", "answer_schema": {"type": "integer"}})
    assert (await desk.resume(target, {"answer": "text"}))["outcome"] == "resumed"


@pytest.mark.usefixtures("replica")
async def test_a_prompt_digest_approves_only_the_stored_prompt(desk: Desk) -> None:
    target, bare = a_target(), a_target()
    await desk.mint(target, prompt=PROMPT)
    await desk.mint(bare)
    digest = hashlib.sha256(canonical(PROMPT)).hexdigest()
    other = hashlib.sha256(canonical({**PROMPT, "title": "Ship it!"})).hexdigest()

    wrong = await desk.resume(target, {"answer": "yes", "prompt_digest": other})
    none = await desk.resume(bare, {"prompt_digest": digest})
    garbled = await desk.resume(target, {"prompt_digest": digest.upper()})

    for told in (wrong, none):
        assert (code_of(told), told["outcome"]) == ("conflict", "prompt-differs")
    assert garbled["error"]["field"] == "prompt_digest"
    assert (await desk.status(target) or {})["state"] == "waiting"
    right = await desk.resume(target, {"answer": "yes", "prompt_digest": digest})
    assert right["outcome"] == "resumed"
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_a_late_resume_drives_the_expiry_and_is_told_so(desk: Desk) -> None:
    target = a_target()
    planted = await desk.plant(target, in_ms=-1)
    told = await desk.resume(target, {"answer": "yes"})
    assert (told["status"], code_of(told)) == ("refused", "expired")
    status = await desk.agree(target)
    assert status["state"] == "expired"
    assert status["deadline"] == planted["deadline"]
    assert told["data"]["settled_at_ms"] == status["settledTs"]
    assert "answer_id" not in told["data"]


@pytest.mark.parametrize("minted_here", [True, False])
async def test_an_answer_that_takes_until_after_the_deadline_to_file_settles_nothing(
    desk: Desk, replica: Replica, monkeypatch: pytest.MonkeyPatch, minted_here: bool
) -> None:
    """The deadline is judged when the status is written, not only when the command is read."""
    target, records = a_target(), replica.plane._records
    if minted_here:
        deadline = (await desk.mint(target, in_ms=1_500))["data"]["deadline_at_ms"]
        # No timer is to settle it before the resume tries to.
        assert await replica.plane._writer.withdraw(desk.own_timer(target))
        assert records.remembered(target) is not None
    else:
        deadline = (await desk.plant(target, in_ms=1_500))["deadline"]
    put_answer = records.put_answer

    async def passed() -> bool:
        return bool(await desk.now_ms() > deadline)

    async def put_slowly(*answer: Any) -> None:
        await put_answer(*answer)
        await until(passed)

    monkeypatch.setattr(records, "put_answer", put_slowly)
    told = await desk.resume(target, {"answer": "yes"})
    assert (told["status"], told["outcome"]) == ("refused", "expired")
    status = await desk.agree(target)
    assert status["state"] == "expired"
    assert "settledAnswerId" not in status


@pytest.mark.usefixtures("replica")
async def test_a_late_resume_is_expired_whatever_it_says(desk: Desk) -> None:
    target = a_target()
    told_mint = await desk.mint(target, in_ms=150, prompt=PROMPT)
    await desk.agree(target)
    for body in ({"answer": "maybe"}, {"prompt_digest": "0" * 64}, {}):
        told = await desk.resume(target, body)
        assert code_of(told) == "expired", body
        assert told["data"]["deadline_at_ms"] == told_mint["data"]["deadline_at_ms"]


@pytest.mark.usefixtures("replica")
async def test_a_second_resume_conflicts_with_the_recorded_settlement(desk: Desk) -> None:
    target = a_target()
    await desk.mint(target)
    first = await desk.resume(target, {"answer": "yes"})
    before = await desk.status_at(target)
    for body in ({"answer": "no"}, {"answer": "yes"}, {}):
        told = await desk.resume(target, body)
        assert (told["status"], code_of(told)) == ("refused", "conflict")
        assert told["outcome"] == "already-resumed"
        assert told["data"] == first["data"]
    assert await desk.status_at(target) == before
    await desk.agree(target)


@pytest.mark.usefixtures("replica")
async def test_a_resume_sent_again_recognises_its_own_settlement(desk: Desk) -> None:
    target, command_id = a_target(), new_id()
    await desk.mint(target)
    first = await desk.resume(target, {"answer": "yes"}, command_id=command_id)
    before = await desk.status_at(target)
    again = await desk.resume(target, {"answer": "yes"}, command_id=command_id)
    assert (again["status"], again["outcome"]) == ("ok", "resumed")
    assert again["data"] == first["data"]
    assert await desk.status_at(target) == before
    await desk.agree(target)


async def test_an_approval_that_waits_past_the_deadline_for_a_worker_is_expired(
    desk: Desk, space: Space
) -> None:
    """Row 7: it arrives while no worker runs, and so does the deadline; 20 times the same."""
    targets: list[Checkpoint] = [a_target() for _ in range(20)]
    planted = [await desk.plant(target, in_ms=1_000) for target in targets]
    seqs = [await desk.say("resume", target, {}) for target in targets]
    commands = [await desk.js.message(desk.names.cmd_stream, seq) for seq in seqs]
    in_time = [
        command is not None and command.time_ms < status["deadline"]
        for command, status in zip(commands, planted, strict=True)
    ]
    assert any(in_time)

    async def all_due() -> bool:
        return bool(await desk.now_ms() > planted[-1]["deadline"])

    await until(all_due)
    async with serving(space, wheel=False):
        told = [await desk.result(seq) for seq in seqs]
        for target in targets:
            assert (await desk.agree(target))["state"] == "expired"
    assert {result["outcome"] for result in told} == {"expired"}
