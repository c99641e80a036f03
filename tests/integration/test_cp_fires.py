"""Fires, the wheel and the clock: hints are judged, and nothing ever expires early."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from schemas.subjects import Checkpoint
from tests.support.cp import (
    MINUTE_MS,
    Desk,
    Json,
    Replica,
    Skew,
    a_target,
    counted,
    desk_in,
    serving,
    until,
)
from tests.support.space import Space
from worker.bus.jetstream import parse_ack

FOREIGN = "f" * 26
HOUR_S = 3_600.0


@pytest.fixture
async def desk(space: Space) -> AsyncIterator[Desk]:
    async with desk_in(space) as one:
        yield one


@pytest.fixture
async def replica(space: Space) -> AsyncIterator[Replica]:
    async with serving(space, wheel=False) as one:
        yield one


def fires(verdict: str) -> float:
    return counted("tidegate_timer_fires_total", verdict=verdict)


async def passed(desk: Desk, at_ms: int) -> None:
    async def has() -> bool:
        return await desk.now_ms() >= at_ms

    await until(has)


class Fire:
    """A fired message that can be wrong in one way or another."""

    def __init__(self, desk: Desk, target: Checkpoint, status: Json) -> None:
        self.subject = desk.timer_subject(target, "fire")
        self.scheduler = desk.timer_subject(target, "armed")
        self.body: Json | bytes = {
            "v": 1,
            "timerId": target.token,
            "generation": status["deadlineGeneration"],
            "deadline": status["deadline"],
        }
        self.headers: list[tuple[str, str]] = [
            ("Nats-Scheduler", self.scheduler),
            ("Nats-Schedule-Next", "purge"),
        ]

    def raw_headers(self) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        return f"NATS/1.0\r\n{lines}\r\n".encode()


async def publish(desk: Desk, fire: Fire) -> int:
    """Store it as it is; its sequence."""
    data = fire.body if isinstance(fire.body, bytes) else json.dumps(fire.body).encode()
    header = fire.raw_headers() if fire.headers else b""
    _, answer = await desk.conn.begin(fire.subject, header, data)
    return parse_ack(answer, fire.subject).seq


Spoil = Callable[[Fire], None]


def no_headers(fire: Fire) -> None:
    fire.headers = []


def another_scheduler(fire: Fire) -> None:
    fire.headers[0] = ("Nats-Scheduler", fire.scheduler.replace(".0.", ".1."))


def repeated_scheduler(fire: Fire) -> None:
    fire.headers.append(("Nats-Scheduler", fire.scheduler))


def repeated_with_another(fire: Fire) -> None:
    fire.headers.insert(0, ("Nats-Scheduler", "x"))


def garbage(fire: Fire) -> None:
    fire.body = b"{}"


def another_timer_id(fire: Fire) -> None:
    assert isinstance(fire.body, dict)
    fire.body["timerId"] = "another"


def bad_instance(fire: Fire) -> None:
    parts = fire.subject.split(".")
    parts[4] = "short"
    fire.subject = ".".join(parts)
    fire.headers[0] = ("Nats-Scheduler", ".".join([*parts[:-1], "armed"]))


@pytest.mark.parametrize(
    "spoil",
    [
        no_headers,
        another_scheduler,
        repeated_scheduler,
        repeated_with_another,
        garbage,
        another_timer_id,
        bad_instance,
    ],
)
@pytest.mark.usefixtures("replica")
async def test_a_forged_fire_settles_nothing(desk: Desk, spoil: Spoil) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=-1_000)
    before = fires("forged")
    fire = Fire(desk, target, status)
    spoil(fire)
    await desk.handled(desk.names.fires_durable, await publish(desk, fire))
    assert fires("forged") == before + 1
    assert await desk.status(target) == status
    # The same fire, unspoilt, settles it.
    await publish(desk, Fire(desk, target, status))
    assert (await desk.agree(target))["state"] == "expired"


@pytest.mark.usefixtures("replica")
async def test_a_fire_settles_what_is_due(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=-1_000)
    before = fires("settled")
    seq = await publish(desk, Fire(desk, target, status))
    settled = await desk.agree(target)
    assert (settled["state"], settled["deadline"]) == ("expired", status["deadline"])
    await desk.handled(desk.names.fires_durable, seq)
    assert fires("settled") == before + 1
    assert (await desk.status_at(target)).headers["Tidegate-Cause"].endswith("-fire")


@pytest.mark.usefixtures("replica")
async def test_a_fire_of_another_generation_is_stale(desk: Desk) -> None:
    before, early = fires("stale"), fires("early")
    # Due or not: a deadline that has moved is nothing to be waited for.
    for in_ms in (-1_000, MINUTE_MS):
        target = a_target()
        status = await desk.plant(target, in_ms=in_ms, generation=3)
        for generation in (1, 2, 4):
            fire = Fire(desk, target, {**status, "deadlineGeneration": generation})
            seq = await publish(desk, fire)
        await desk.handled(desk.names.fires_durable, seq)
        assert await desk.status(target) == status
    assert (fires("stale"), fires("early")) == (before + 6, early)


@pytest.mark.usefixtures("replica")
async def test_a_timer_that_went_with_the_one_before_is_armed_anew(desk: Desk) -> None:
    """What the broker does to a timer that is armed anew in the instant of its firing."""
    target = a_target()
    before = fires("stale")
    status = await desk.plant(target, in_ms=MINUTE_MS, generation=3)
    assert await desk.armed(target) is None
    earlier = Fire(desk, target, {**status, "deadlineGeneration": 2})

    async def armed_after_it() -> int:
        await desk.handled(desk.names.fires_durable, await publish(desk, earlier))
        found = await desk.armed(target)
        assert found is not None
        body = json.loads(found.data)
        assert (body["generation"], body["deadline"]) == (3, status["deadline"])
        return found.seq

    first = await armed_after_it()
    # Its header has the broker remove what stands, as a real one's does.
    assert await armed_after_it() > first
    assert fires("stale") == before + 2


@pytest.mark.usefixtures("replica")
async def test_a_fire_of_what_does_not_wait_does_nothing(desk: Desk) -> None:
    resumed, unknown, expired = a_target(), a_target(), a_target()
    minted = await desk.mint(resumed)
    await desk.resume(resumed)
    now = await desk.now_ms()
    status = await desk.plant(
        expired, in_ms=-1_000, state="expired", settledGeneration=1, settledTs=now
    )
    before = fires("not-waiting")
    any_status = {"deadlineGeneration": 1, "deadline": minted["data"]["deadline_at_ms"]}
    for target in (resumed, unknown):
        await publish(desk, Fire(desk, target, any_status))
    seq = await publish(desk, Fire(desk, expired, status))
    await desk.handled(desk.names.fires_durable, seq)
    assert fires("not-waiting") == before + 3
    assert (await desk.agree(resumed))["state"] == "resumed"
    assert (await desk.agree(expired)) == status
    assert await desk.status(unknown) is None


@pytest.mark.usefixtures("replica")
async def test_an_early_fire_waits_and_settles_at_the_deadline(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=1_500)
    before, early = fires("settled"), fires("early")
    seq = await publish(desk, Fire(desk, target, status))
    settled = await desk.agree(target)
    assert settled["state"] == "expired"
    await desk.handled(desk.names.fires_durable, seq)
    assert fires("settled") == before + 1
    # It was put off and not asked about in a tight loop.
    assert 1 <= fires("early") - early <= 5


@pytest.mark.usefixtures("replica")
async def test_a_fire_about_a_garbled_record_is_dropped_and_the_next_one_heard(
    desk: Desk,
) -> None:
    garbled, good = a_target(), a_target()
    wrong = await desk.plant(garbled, in_ms=-1_000, settledTs=5)
    status = await desk.plant(good, in_ms=-1_000)
    await publish(desk, Fire(desk, garbled, wrong))
    seq = await publish(desk, Fire(desk, good, status))
    await desk.handled(desk.names.fires_durable, seq)
    assert await desk.status(garbled) == wrong
    assert (await desk.agree(good))["state"] == "expired"


@pytest.mark.usefixtures("replica")
async def test_a_fire_of_a_regressed_status_restores_it_instead(desk: Desk) -> None:
    target = a_target()
    status = await desk.plant(target, in_ms=-1_000)
    fact = {
        "v": 1,
        "token": target.token,
        "settle": "resumed",
        "generation": 1,
        "holder": {"id": "alice", "lifecycleUid": desk.alice.uid},
        "ts": status["deadline"] - 1,
    }
    await desk.put_fact(target, fact)
    seq = await publish(desk, Fire(desk, target, status))
    await desk.handled(desk.names.fires_durable, seq)
    assert await desk.fact(target) == fact
    restored = await desk.status(target)
    assert restored is not None
    assert (restored["state"], restored["settledTs"]) == ("resumed", fact["ts"])


# The wheel.


async def settled_by(desk: Desk, target: Checkpoint) -> str:
    await desk.agree(target)
    return (await desk.status_at(target)).headers["Tidegate-Cause"].rpartition("-")[2]


async def test_the_wheel_expires_what_this_worker_armed(desk: Desk, space: Space) -> None:
    async with serving(space) as replica:
        target = a_target()
        await desk.mint(target, in_ms=1_000)
        await desk.disarm(target)
        assert len(replica.plane._wheel or ()) == 1
        assert await settled_by(desk, target) == "wheel"
        assert len(replica.plane._wheel or ()) == 0


async def test_the_wheel_expires_what_it_learned_from_the_bucket(desk: Desk, space: Space) -> None:
    planted, overdue = a_target(), a_target()
    await desk.plant(overdue, in_ms=-1_000)
    async with serving(space):
        await desk.plant(planted, in_ms=200)
        assert await settled_by(desk, planted) == "wheel"
        assert await settled_by(desk, overdue) in ("wheel", "sweep")


async def test_without_the_wheel_the_brokers_schedule_expires(desk: Desk, space: Space) -> None:
    async with serving(space, wheel=False) as replica:
        assert replica.plane._wheel is None
        target = a_target()
        await desk.mint(target, in_ms=200)
        assert await settled_by(desk, target) == "fire"


async def test_the_wheel_holds_nothing_beyond_its_horizon(desk: Desk, space: Space) -> None:
    async with serving(space, wheel_horizon_ms=10_000) as replica:
        wheel = replica.plane._wheel
        assert wheel is not None
        near, far = a_target(), a_target()
        await desk.mint(near, in_ms=9_000)
        await desk.mint(far, in_ms=20_000)
        assert len(wheel) == 1
        await desk.heartbeat(near, 1, in_ms=20_000)
        assert len(wheel) == 0
        await desk.heartbeat(far, 1, in_ms=1_000)
        await desk.disarm(far)
        assert await settled_by(desk, far) == "wheel"


async def test_the_wheel_follows_heartbeats_and_settlements(desk: Desk, space: Space) -> None:
    async with serving(space) as replica:
        moved, resumed = a_target(), a_target()
        minted = await desk.mint(moved, in_ms=1_500)
        await desk.mint(resumed, in_ms=1_500)
        assert (await desk.resume(resumed))["outcome"] == "resumed"
        told = await desk.heartbeat(moved, 1)
        await passed(desk, minted["data"]["deadline_at_ms"] + 100)
        assert (await desk.status(moved) or {})["state"] == "waiting"
        assert (await desk.agree(resumed))["state"] == "resumed"
        assert told["data"]["generation"] == 2
        assert len(replica.plane._wheel or ()) == 1


async def test_a_regressed_status_is_not_expired_by_the_wheel(desk: Desk, space: Space) -> None:
    async with serving(space) as replica:
        target = a_target()
        minted = await desk.mint(target, in_ms=1_500)
        fact = {
            "v": 1,
            "token": target.token,
            "settle": "resumed",
            "generation": 1,
            "holder": {"id": "alice", "lifecycleUid": desk.alice.uid},
            "ts": minted["data"]["deadline_at_ms"] - 1,
        }
        await desk.put_fact(target, fact)

        async def restored() -> bool:
            status = await desk.status(target)
            return status is not None and bool(status["state"] != "waiting")

        await until(restored)
        status = await desk.status(target)
        assert status is not None
        assert (status["state"], status["settledTs"]) == ("resumed", fact["ts"])
        assert replica.plane.not_ready() == []


# The clock.


async def test_expiry_is_judged_by_the_lower_bound_of_now(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(space) as replica:
        clock = replica.plane._clock
        lower_ms = clock.lower_ms
        monkeypatch.setattr(clock, "lower_ms", lambda: lower_ms() - 700)
        target = a_target()
        minted = await desk.mint(target, in_ms=100)
        deadline = minted["data"]["deadline_at_ms"]
        told = await desk.ask("expire", target, {})
        status = await desk.agree(target)
        stored = await desk.status_at(target)
        assert stored.time_ms >= deadline + 500, "it waited until the deadline was past all doubt"
        assert status["state"] == "expired"
        assert told["outcome"] in ("not-due", "expired", "already_settled")


async def test_resume_and_heartbeat_are_judged_by_the_upper_bound_of_now(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(space) as replica:
        clock = replica.plane._clock
        upper_ms = clock.upper_ms
        monkeypatch.setattr(clock, "upper_ms", lambda: upper_ms() + 900)
        resumed, moved = a_target(), a_target()
        await desk.plant(resumed, in_ms=700)
        await desk.plant(moved, in_ms=700)
        told = await desk.resume(resumed)
        assert told["outcome"] == "expired", "it might have been late, so it never wins"
        told = await desk.heartbeat(moved, 1)
        assert told["outcome"] == "expired"
        for target in (resumed, moved):
            assert (await desk.agree(target))["state"] == "expired"


async def test_a_resume_sequenced_after_the_deadline_never_wins_however_late_the_clock(
    desk: Desk, space: Space
) -> None:
    """A machine that slept: the worker's clock is an hour behind until it asks again."""
    skew = Skew()
    async with serving(space, monotonic=skew, wheel=False) as replica:
        targets = [a_target() for _ in range(3)]
        for target in targets:
            await desk.plant(target, in_ms=-5)
        skew.offset_s -= HOUR_S
        resume = await desk.say("resume", targets[0], {})
        heartbeat = await desk.say(
            "heartbeat",
            targets[1],
            {"generation": 1, "deadline_at_ms": await desk.now_ms() + MINUTE_MS},
        )
        expire = await desk.say("expire", targets[2], {})
        await replica.plane._clock.refresh()
        for seq in (resume, heartbeat, expire):
            assert (await desk.result(seq))["outcome"] == "expired"
        for target in targets:
            assert (await desk.agree(target))["state"] == "expired"


async def test_nothing_is_decided_while_the_clock_is_uncertain(desk: Desk, space: Space) -> None:
    skew = Skew()
    async with serving(space, monotonic=skew) as replica:
        waiting, minted = a_target(), a_target()
        await desk.mint(waiting, in_ms=MINUTE_MS)
        # Two hours without an answer, at 200 ppm each way, are more than a second of doubt.
        skew.offset_s += 2 * HOUR_S
        assert replica.plane.not_ready() == ["the broker's clock is not known to within a second"]
        seq = await desk.say("mint", minted, {"deadline_at_ms": await desk.now_ms() + MINUTE_MS})
        armed = await desk.armed(waiting)
        assert armed is not None
        # The wheel believes it is due, and a fire comes: neither may act.
        status = await desk.status(waiting)
        assert status is not None
        await publish(desk, Fire(desk, waiting, status))

        async def put_off() -> bool:
            info = await desk.js.consumer_info(desk.names.cmd_stream, desk.names.cp_durable)
            return info.redelivered > 0

        await until(put_off, what="the command was delivered and put off")
        assert (await desk.status(waiting) or {})["state"] == "waiting"
        assert (await desk.result(seq))["outcome"] == "minted"
        assert replica.plane.not_ready() == []
        assert (await desk.status(waiting) or {})["state"] == "waiting"
        assert (await desk.resume(waiting))["outcome"] == "resumed"
        await desk.agree(waiting)


async def test_the_wheel_and_a_fire_of_the_same_timer_take_turns(
    desk: Desk, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they race for one revision, and the loser's batch is taken apart."""
    async with serving(space) as replica:
        settler = replica.plane._settler
        attempts, go_on = [], asyncio.Event()
        attempt = settler.attempt

        async def held(target: Checkpoint, *rest: Any) -> Any:
            attempts.append(target)
            await go_on.wait()
            return await attempt(target, *rest)

        monkeypatch.setattr(settler, "attempt", held)
        target, before = a_target(), fires("not-waiting") + fires("settled")
        await desk.mint(target, in_ms=1_500)
        pulled, wheel = replica.plane._pullers[desk.names.ept_stream], replica.plane._wheel
        assert wheel is not None

        async def both_at_it() -> bool:
            return bool(attempts and pulled.busy and wheel._running)

        await until(both_at_it)
        assert attempts == [target]
        go_on.set()
        await desk.settled(target)

        async def judged() -> bool:
            return fires("not-waiting") + fires("settled") == before + 1

        await until(judged)
        assert attempts == [target]
        await desk.agree(target)
