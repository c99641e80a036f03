"""The sweep: what is due, overdue or unproven is repaired, and nothing else is touched."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from functools import partial

import pytest

from schemas import subjects
from schemas.names import kv_stream
from schemas.subjects import Checkpoint
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    a_target,
    code_of,
    counted,
    desk_in,
    serving,
    until,
)
from tests.support.space import Space
from worker.checkpoints import sweep
from worker.checkpoints.index import Pending
from worker.checkpoints.repair import Repairer

HOUR_MS = 60 * MINUTE_MS


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is too young to be looked at."""
    monkeypatch.setattr(sweep, "GRACE_MS", -1)


def repairs_counted(word: str) -> float:
    return counted("tidegate_checkpoint_repairs_total", repair=word)


async def told_of(desk: Desk, target: Checkpoint) -> list[list[str]]:
    return [fact.body["repairs"] for fact in await desk.facts(target) if fact.kind == "repaired"]


async def test_what_is_overdue_at_the_start_expires_by_itself(desk: Desk, space: Space) -> None:
    targets = [a_target() for _ in range(3)]
    for target in targets:
        await desk.plant(target, in_ms=-10_000)
    before = repairs_counted("expired")
    async with serving(space, wheel=False):
        for target in targets:
            assert (await desk.agree(target))["state"] == "expired"
            assert await until(partial(told_of, desk, target)) == [["expired"]]
    assert repairs_counted("expired") == before + 3


async def test_more_is_overdue_than_one_page_holds(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "PAGE", 4)
    targets = [a_target() for _ in range(13)]
    for target in targets:
        await desk.plant(target, in_ms=-10_000)
    async with serving(space, wheel=False):
        for target in targets:
            assert (await desk.agree(target))["state"] == "expired"


@pytest.mark.usefixtures("no_grace")
async def test_looking_for_timers_keeps_nothing_that_is_near_from_the_wheel(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Checkpoint] = []

    async def without_end(_: Repairer, row: Pending) -> bool:
        looked.append(row.target)
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(Repairer, "waits_in_order", without_end)
    monkeypatch.setattr(sweep, "PAGE", 4)
    targets = [a_target() for _ in range(9)]
    async with serving(space, wheel_horizon_ms=2_000, sweep_interval_ms=500):
        for target in targets:  # without a timer, and too far ahead for the wheel
            await desk.plant(target, in_ms=4_000)
        for target in targets:
            assert (await desk.agree(target))["state"] == "expired"
    assert 0 < len(looked) <= sweep.CHECKS_IN_FLIGHT


@pytest.mark.usefixtures("no_grace")
async def test_a_missing_timer_is_armed_again(desk: Desk, space: Space) -> None:
    near, far = a_target(), a_target()
    async with serving(space, wheel=False, sweep_interval_ms=HOUR_MS) as replica:
        await desk.mint(near, in_ms=MINUTE_MS)
        await desk.mint(far, in_ms=10 * HOUR_MS)
        await desk.disarm(near)
        await desk.disarm(far)
        await replica.swept(audit=False)
        assert await desk.armed(near) is not None
        assert await told_of(desk, near) == [["rearmed"]]
        assert await desk.armed(far) is None, "a pass looks at what is near"
        await replica.swept(audit=True)
        assert await desk.armed(far) is not None
        armed = await desk.armed(near)
        await replica.swept(audit=True)
        assert await desk.armed(near) == armed
        assert await told_of(desk, near) == [["rearmed"]]


@pytest.mark.usefixtures("no_grace")
async def test_a_settlement_without_a_fact_gets_it(desk: Desk, space: Space) -> None:
    async with serving(space, wheel=False) as replica:
        target = a_target()
        now = await desk.now_ms()
        await desk.plant(target, in_ms=-5, state="expired", settledGeneration=1, settledTs=now)
        await replica.swept(audit=False)
        assert (await desk.agree(target))["settledTs"] == now
        assert await told_of(desk, target) == [["fact-published"]]


@pytest.mark.usefixtures("no_grace")
async def test_a_foreign_expiry_stamped_before_its_deadline_gets_its_fact_too(
    desk: Desk, space: Space
) -> None:
    target, other = a_target(), a_target()
    now = await desk.now_ms()
    for one in (target, other):
        await desk.plant(one, in_ms=MINUTE_MS, state="expired", settledGeneration=1, settledTs=now)
    async with serving(space, wheel=False) as replica:
        assert (await desk.ask("expire", other, {}))["outcome"] == "already_settled"
        await replica.swept(audit=False)
        for one in (target, other):
            fact = await desk.fact(one)
            assert fact is not None
            assert (fact["settle"], fact["ts"]) == ("expired", now)
            told = [fact for fact in await desk.facts(one) if fact.kind == "expired"]
            assert [fact.body["lateness_ms"] for fact in told] == [0]


@pytest.mark.usefixtures("no_grace")
async def test_timers_left_after_a_settlement_are_cancelled_also_foreign_ones(
    desk: Desk, space: Space
) -> None:
    async with serving(space, wheel=False) as replica:
        target, unknown = a_target(), a_target()
        await desk.mint(target)
        armed = await desk.armed(target)
        assert armed is not None
        await desk.resume(target)
        await desk.agree(target)
        headers = {k: v for k, v in armed.headers.items() if k.startswith("Nats-Schedule")}
        foreign = f"{desk.names.prefix}.ept.review_eu.{'f' * 26}.7.{target.token}"
        for owner in (armed.subject.removesuffix(".armed"), foreign):
            schedule = {**headers, "Nats-Schedule-Target": f"{owner}.fire"}
            await desk.js.publish(f"{owner}.armed", armed.data, headers=schedule)
        assert len(await desk.all_armed(target)) == 2
        await replica.swept()
        assert await desk.all_armed(target) == []
        assert await told_of(desk, target) == [["timer-cancelled"]]
        assert await desk.status(unknown) is None


async def test_the_sweep_does_not_race_with_a_fresh_arm(desk: Desk, space: Space) -> None:
    """A checkpoint whose status has just been written is left to whoever is arming it."""
    target = a_target()
    async with serving(space, wheel=False) as replica:
        await desk.plant(target, in_ms=MINUTE_MS)
        await replica.swept()
        assert await desk.all_armed(target) == []
        assert await told_of(desk, target) == []


@pytest.mark.usefixtures("no_grace")
async def test_one_bad_record_keeps_no_other_from_being_repaired(desk: Desk, space: Space) -> None:
    garbled, contradicted, far, good = a_target(), a_target(), a_target(), a_target()
    wrong = await desk.plant(garbled, in_ms=-20_000)
    status = await desk.plant(contradicted, in_ms=-15_000, generation=3)
    await desk.plant(far, in_ms=2**53 - 1 - await desk.now_ms() - MINUTE_MS)
    await desk.plant(good, in_ms=-10_000)
    fact = {
        "v": 1,
        "token": contradicted.token,
        "settle": "expired",
        "generation": 2,
        "ts": status["deadline"],
    }
    await desk.put_fact(contradicted, fact)
    spec = await desk.spec(garbled)
    assert spec is not None
    await desk.put(subjects.spec_key(garbled), {**spec, "unknown": 1})
    async with serving(space, wheel=False) as replica:
        await replica.swept()
        assert (await desk.agree(good))["state"] == "expired"
        assert await desk.status(garbled) == wrong
        assert await desk.status(contradicted) == status
        assert await desk.fact(contradicted) == fact
        assert await desk.all_armed(far) == []
        assert replica.task is not None
        assert not replica.task.done()


async def test_the_index_goes_on_where_it_stopped_and_is_rebuilt_if_it_is_lost(
    desk: Desk, space: Space
) -> None:
    first, second = a_target(), a_target()
    index = space.data_dir / "r1" / space.names.space / "waiting.db"

    async def listed(replica: Replica) -> set[str]:
        verdict = await replica.query("list", desk.alice)
        return {item["token"] for item in verdict.data["items"]}

    async with serving(space) as replica:
        await desk.mint(first, in_ms=HOUR_MS)
        await replica.followed()
        assert await listed(replica) == {first.token}
    await desk.plant(second, in_ms=HOUR_MS)

    async def both(replica: Replica) -> None:
        await replica.followed()
        assert await listed(replica) == {first.token, second.token}

    async with serving(space) as replica:
        await both(replica)
    index.unlink()
    async with serving(space) as replica:
        await both(replica)
    index.write_bytes(b"this is no database, whatever it is " * 400)
    async with serving(space) as replica:
        await both(replica)
    db = sqlite3.connect(index)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    async with serving(space) as replica:
        await both(replica)


@pytest.mark.usefixtures("no_grace")
async def test_a_pass_over_what_is_in_order_writes_nothing(desk: Desk, space: Space) -> None:
    async with serving(space) as replica:
        for _ in range(3):
            await desk.mint(a_target())
            resumed = a_target()
            await desk.mint(resumed)
            await desk.resume(resumed)
            await desk.agree(resumed)
        streams = (
            kv_stream(desk.names.records_bucket),
            desk.names.epf_stream,
            desk.names.ept_stream,
            desk.names.res_stream,
        )

        async def lasts() -> list[int]:
            return [(await desk.js.stream_info(stream)).last_seq for stream in streams]

        before = await lasts()
        await replica.swept(audit=True)
        await replica.swept(audit=True)
        assert await lasts() == before


GARBLED: list[Json | bytes] = [
    b"{",
    b"[]",
    b'{"state":"waiting","state":"waiting","deadlineGeneration":1,"deadline":9,"observedSpecRevision":1}',
    {"state": "waiting"},
    {"state": "paused"},
    {"state": "waiting", "settledTs": 1},
    {"state": "waiting", "settledGeneration": 1},
    {"state": "waiting", "settledHolder": {"id": "a", "lifecycleUid": "b"}},
    {"state": "waiting", "extra": 1},
    {"state": "waiting", "deadlineGeneration": 0},
    {"state": "waiting", "deadlineGeneration": 1.0},
    {"state": "waiting", "observedSpecRevision": 0},
    {"state": "waiting", "deadline": "soon"},
    {"state": "resumed", "settledGeneration": 1, "settledTs": 1},
    {"state": "resumed", "settledGeneration": 1, "settledHolder": {"id": "a", "lifecycleUid": "b"}},
    {"state": "expired", "settledGeneration": 1},
    {"state": "expired", "settledTs": 1},
    {"state": "expired", "settledGeneration": 2, "settledTs": 1},
    {
        "state": "expired",
        "settledGeneration": 1,
        "settledTs": 1,
        "settledHolder": {"id": "a", "lifecycleUid": "b"},
    },
    {"state": "expired", "settledGeneration": 1, "settledTs": 1, "settledAnswerId": "a"},
]


@pytest.mark.usefixtures("no_grace")
async def test_a_garbled_record_is_internal_never_defaulted_and_never_repaired(
    desk: Desk, space: Space
) -> None:
    async with serving(space, wheel=False) as replica:
        deadline = await desk.now_ms() + MINUTE_MS
        verbs: list[tuple[str, Json]] = [
            ("mint", {"deadline_at_ms": deadline}),
            ("heartbeat", {"generation": 1, "deadline_at_ms": deadline}),
            ("resume", {}),
            ("expire", {}),
            ("repair", {}),
        ]
        for record in GARBLED:
            target = a_target()
            await desk.plant(target, in_ms=-1_000)
            whole = await desk.status(target)
            assert whole is not None
            if isinstance(record, dict):
                record = {**whole, **record}
                if set(record) == set(whole) and record == whole:
                    del record["deadline"]
            await desk.put(subjects.status_key(target), record)
            before = await desk.status_at(target)
            for verb, body in verbs:
                told = await desk.ask(verb, target, body)
                assert (told["status"], code_of(told)) == ("failed", "internal"), record
                assert told["outcome"] == "garbled-record", (verb, record)
            assert await desk.status_at(target) == before
            assert await desk.fact(target) is None
        await replica.swept()
        assert await desk.all_armed() == []
        assert (await desk.js.stream_info(desk.names.epf_stream)).last_seq == 0


async def test_garbled_specs_and_facts_are_internal_too(desk: Desk, space: Space) -> None:
    async with serving(space, wheel=False) as replica:
        spec_wrong, token_wrong, fact_wrong, fact_token = targets = [a_target() for _ in range(4)]
        for target in targets:
            await desk.plant(target, in_ms=-10_000)
        spec = await desk.spec(spec_wrong)
        assert spec is not None
        await desk.put(subjects.spec_key(spec_wrong), {**spec, "holder": {"id": ""}})
        await desk.put(subjects.spec_key(token_wrong), spec)
        await desk.put_fact(fact_wrong, {"v": 1, "token": fact_wrong.token, "settle": "resumed"})
        other = {"v": 1, "token": "other", "settle": "expired", "generation": 1, "ts": 1}
        await desk.put_fact(fact_token, other)
        before = [await desk.status_at(target) for target in targets]
        for target in targets:
            for verb in ("resume", "expire", "repair"):
                told = await desk.ask(verb, target, {})
                assert told["outcome"] == "garbled-record", (verb, target)
        await replica.swept()
        assert [await desk.status_at(target) for target in targets] == before
        assert (await desk.js.stream_info(desk.names.epf_stream)).last_seq == 2


async def test_a_fact_that_contradicts_the_status_is_internal_and_nobody_acts(
    desk: Desk, space: Space
) -> None:
    async with serving(space, wheel=False):
        settled, behind = a_target(), a_target()
        deadline = await desk.now_ms() + MINUTE_MS
        holder = {"id": "alice", "lifecycleUid": desk.alice.uid}
        await desk.plant(settled, in_ms=-1_000, state="expired", settledGeneration=1, settledTs=7)
        resumed = {"v": 1, "settle": "resumed", "generation": 1, "holder": holder, "ts": 5}
        await desk.put_fact(settled, {**resumed, "token": settled.token})
        # A fact of a generation that the status has left behind cannot be its settlement.
        await desk.plant(behind, in_ms=MINUTE_MS, generation=3)
        await desk.put_fact(behind, {**resumed, "token": behind.token, "generation": 2})
        verbs: list[tuple[str, Json]] = [
            ("heartbeat", {"generation": 3, "deadline_at_ms": deadline}),
            ("resume", {}),
            ("expire", {}),
            ("repair", {}),
        ]
        for target in (settled, behind):
            status, fact = await desk.status_at(target), await desk.fact_at(target)
            for verb, body in verbs:
                told = await desk.ask(verb, target, body)
                assert (told["status"], code_of(told)) == ("failed", "internal"), verb
                assert told["outcome"] == "fact-contradicts"
            assert await desk.status_at(target) == status
            assert await desk.fact_at(target) == fact
        await desk.was_told(settled)


async def test_a_status_behind_its_fact_is_refused_repaired_and_said_so(
    desk: Desk, space: Space
) -> None:
    async with serving(space, wheel=False):
        deadline = await desk.now_ms() + MINUTE_MS
        verbs: list[tuple[str, Json]] = [
            ("heartbeat", {"generation": 1, "deadline_at_ms": deadline}),
            ("resume", {}),
            ("expire", {}),
            ("mint", {}),
        ]
        for verb, body in verbs:
            target = a_target()
            status = await desk.plant(target, in_ms=MINUTE_MS)
            if verb == "mint":
                body = {"deadline_at_ms": status["deadline"]}
            fact = {
                "v": 1,
                "token": target.token,
                "settle": "resumed",
                "generation": 1,
                "holder": {"id": "alice", "lifecycleUid": desk.alice.uid},
                "ts": await desk.now_ms(),
            }
            await desk.put_fact(target, fact)
            told = await desk.ask(verb, target, body)
            assert (told["status"], told["outcome"]) == ("refused", "status-regressed"), verb
            assert told["data"]["state"] == "resumed"
            restored = await desk.status(target)
            assert restored is not None
            assert restored["settledTs"] == fact["ts"]
            assert await desk.fact(target) == fact
            assert (await desk.resume(target))["outcome"] == "already-resumed"
            await desk.agree(target)


async def test_a_status_behind_its_fact_is_noticed_by_the_worker_that_minted_it(
    desk: Desk, space: Space
) -> None:
    async with serving(space, wheel=False) as replica:
        target = a_target()
        await desk.mint(target)
        fact = {
            "v": 1,
            "token": target.token,
            "settle": "expired",
            "generation": 1,
            "ts": await desk.now_ms() + MINUTE_MS,
        }
        await desk.put_fact(target, fact)
        await replica.followed()
        told = await desk.resume(target)
        assert told["outcome"] == "status-regressed"
        assert (await desk.status(target) or {})["state"] == "expired"
        assert await desk.fact(target) == fact


async def test_what_is_due_and_has_no_spec_is_told_and_keeps_nothing_else_from_being_served(
    desk: Desk, space: Space
) -> None:
    lost = a_target()
    status = {
        "state": "waiting",
        "deadlineGeneration": 1,
        "deadline": await desk.now_ms() - 60_000,
        "observedSpecRevision": 1,
    }
    key = f"cp.{lost.wire_endpoint}.{lost.token}.status"
    async with serving(space) as replica_of_it:
        plane = replica_of_it.plane
        await desk.put(key, status)
        await replica_of_it.swept()
        assert plane.status()["stuck"] == [f"{lost.endpoint}/{lost.token}"]
        assert plane.not_ready() == []
        await desk.delete(key)
        await replica_of_it.swept()
        assert plane.status()["stuck"] == []
