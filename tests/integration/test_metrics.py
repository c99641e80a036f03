"""What the worker counts and shows, on a real broker with real traffic of every plane."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from schemas import headers as h
from schemas import subjects
from schemas.subjects import Checkpoint
from tests.support.cp import desk_in, until
from tests.support.running import RunningWorker, running
from tests.support.space import Space, speaker
from worker.client import Client
from worker.web.sampling import Sampler

MINUTE_MS = 60_000
KEY = "mintkey-00000001"


class Scrape:
    """One scrape's samples, looked up as a query would."""

    def __init__(self, text: str) -> None:
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all series of a name that carry these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def has(self, name: str, **labels: str) -> bool:
        return any(
            sample.name == name and labels.items() <= sample.labels.items()
            for sample in self.samples
        )


class Watched:
    """A worker and its metrics; counters are read as what they gained since the start."""

    def __init__(self, worker: RunningWorker, space: Space) -> None:
        self.space = space
        self.name = space.names.space
        self.worker = worker.worker
        self._sampler = Sampler(worker.worker, time.monotonic)
        self._before = Scrape("")

    async def begin(self) -> None:
        self._before = await self.scrape()

    async def scrape(self) -> Scrape:
        body, content_type = await self._sampler.render()
        assert content_type.startswith("text/plain")
        return Scrape(body.decode())

    async def gained(self, name: str, **labels: str) -> float:
        return (await self.scrape()).value(name, **labels) - self._before.value(name, **labels)

    async def gauge(self, name: str, **labels: str) -> float:
        found = await self.scrape()
        assert found.has(name, space=self.name, **labels), f"{name} {labels} is not shown"
        return found.value(name, space=self.name, **labels)


@pytest.fixture
async def watched(worker: RunningWorker, space: Space) -> Watched:
    one = Watched(worker, space)
    await one.begin()
    return one


@asynccontextmanager
async def client(space: Space, principal: str) -> AsyncIterator[Client]:
    async with space.client(speaker(principal)) as one:
        yield one


async def send(one: Client, plane: str, verb: str, *key: str, **body: Any) -> Mapping[str, Any]:
    return (await one.send(plane, verb, key, body)).to_object()


def turn(agent: str, **more: Any) -> dict[str, Any]:
    fields = {
        "session_id": "s",
        "agent_id": agent,
        "fingerprint": "f",
        "provider": "acme",
        "model": "m1",
    }
    return {**fields, **more}


async def test_checkpoints_are_counted_by_what_became_of_them(watched: Watched) -> None:
    async with client(watched.space, "alice") as alice:
        now_ms = time.time_ns() // 1_000_000
        await alice.cp.mint("runs.a", "stays", deadline_at_ms=now_ms + MINUTE_MS)
        await alice.cp.mint("runs.a", "goes", deadline_at_ms=now_ms + MINUTE_MS)
        await alice.cp.mint("runs.a", "ends", deadline_at_ms=now_ms + 400)
        await alice.cp.resume("runs.a", "goes")
        refused = await send(alice, "cp", "resume", "runs_a", "goes")
        assert refused["outcome"] == "already-resumed"

        async def both_settled() -> bool:
            return await watched.gained("tidegate_checkpoints_settled_total") == 2

        await until(both_settled)
    assert await watched.gained("tidegate_commands_total", verb="mint", outcome="minted") == 3
    assert (
        await watched.gained("tidegate_commands_total", plane="cp", verb="resume", status="refused")
        == 1
    )
    assert await watched.gained("tidegate_checkpoints_settled_total", settle="resumed") == 1
    assert await watched.gained("tidegate_timer_arms_total", outcome="armed") == 3
    assert await watched.gained("tidegate_checkpoint_expiry_lateness_seconds_count") == 1
    assert 0 <= await watched.gained("tidegate_checkpoint_expiry_lateness_seconds_sum") < 10
    assert await watched.gained("tidegate_checkpoint_settle_seconds_count") == 1
    assert await watched.gained("tidegate_result_seconds_count", plane="cp") == 5

    async def one_waits() -> bool:
        return await watched.gauge("tidegate_checkpoints_waiting") == 1

    await until(one_waits)
    assert await watched.gauge("tidegate_checkpoint_overdue_seconds") == 0
    assert await watched.gauge("tidegate_clock_uncertainty_seconds") < 1
    assert await watched.gauge("tidegate_streams_regressed") == 0


async def test_seats_queue_and_what_blocks_are_shown(watched: Watched) -> None:
    async with client(watched.space, "_op") as op, client(watched.space, "conn") as conn:
        claimed = await send(op, "adm", "policy", epoch=1, max_active_turns=1)
        assert claimed["outcome"] == "claimed"
        await send(conn, "adm", "enqueue", "r1", **turn("a"))
        await send(conn, "adm", "enqueue", "r2", **turn("b"))
        assert await watched.gauge("tidegate_admission_seats", phase="starting") == 1
        assert await watched.gauge("tidegate_admission_seat_limit") == 1
        assert await watched.gauge("tidegate_admission_queued") == 1
        assert await watched.gauge("tidegate_admission_blocked", block="seats") == 1
        assert await watched.gauge("tidegate_admission_blocked", block="cooldown") == 0
        until_ms = time.time_ns() // 1_000_000 + MINUTE_MS
        cooled = {"provider": "acme", "model": "m1", "not_before_ms": until_ms}
        await send(op, "adm", "cooldown", **cooled)
        assert await watched.gauge("tidegate_admission_blocked", block="cooldown") == 1
        assert await watched.gained("tidegate_admission_wait_seconds_count") == 1

        (lease,) = (await op.query("adm", "leases", {})).data["leases"]
        fence = {"lease_id": lease["lease_id"], "generation": lease["generation"]}
        await send(conn, "adm", "start", "r1", **fence)
        await send(conn, "adm", "recover", "r1", **fence)
        assert await watched.gauge("tidegate_admission_seats", phase="debt") == 1
        assert await watched.gauge("tidegate_admission_seats", phase="starting") == 0
        assert await watched.gauge("tidegate_admission_oldest_debt_seconds") > 0
    waited = await watched.gained("tidegate_admission_blocked_turn_seconds_total", block="seats")
    assert 0 < waited < 30
    assert await watched.gained("tidegate_admission_blocked_turn_seconds_total", block="drain") == 0


async def test_a_stop_and_what_it_ends_are_shown(watched: Watched) -> None:
    async with client(watched.space, "_op") as op, client(watched.space, "desk") as desk:
        assert (await send(op, "cap", "minting", enabled=True))["status"] == "ok"
        expires_ms = time.time_ns() // 1_000_000 + 60 * MINUTE_MS
        reserved = await send(
            desk, "cap", "reserve", "maria", KEY, latest_expires_at_ms=expires_ms, cap=100
        )
        second = reserved["data"]["expires_at_ms"]
        await send(desk, "cap", "confirm", "maria", KEY, grant_expires_at_ms=second)
        assert await watched.gauge("tidegate_caps_active") == 1
        asked = {"amount": 5, "grant_expires_at_ms": second}
        assert (await send(desk, "cap", "authorize", "maria", **asked))["outcome"] == "allowed"
        await send(desk, "cap", "stop", "maria")
        assert (await send(desk, "cap", "authorize", "maria", **asked))["status"] == "refused"
        assert await watched.gauge("tidegate_caps_active") == 0

    async def all_counted() -> bool:
        return await watched.gained("tidegate_commands_total", plane="cap") == 6

    await until(all_counted)
    assert await watched.gained("tidegate_cap_stop_seconds_count") == 1
    assert await watched.gained("tidegate_cap_stop_seconds_sum") < 5
    assert await watched.gained("tidegate_commands_total", verb="authorize", status="refused") == 1
    assert await watched.gained("tidegate_result_seconds_count", plane="cap") == 6
    assert await watched.gained("tidegate_fold_batch_commands_sum") >= 6
    assert await watched.gained("tidegate_fold_batch_seconds_count") >= 1
    assert await watched.gauge("tidegate_fold_lag_commands") == 0
    assert await watched.gauge("tidegate_fold_lag_seconds") == 0
    assert await watched.gauge("tidegate_outbox_depth") == 0
    assert await watched.gauge("tidegate_publishes") == 1


async def test_a_malformed_command_is_counted_under_no_name_of_the_callers(
    watched: Watched,
) -> None:
    names = watched.space.names
    async with client(watched.space, "alice") as alice:
        for tail in ("cap.plunder.x", "cp.plunder.x.y"):
            subject = f"{names.prefix}.cmd.alice.{'a' * 26}.{tail}"
            await alice.conn.request(subject, b'{"v":1}')

        async def counted() -> bool:
            return await watched.gained("tidegate_commands_total", verb="unknown") == 2

        await until(counted)
    text = (await watched.scrape()).samples
    assert not any("plunder" in sample.labels.values() for sample in text)


async def test_readiness_connection_and_versions_are_shown(watched: Watched) -> None:
    found = await watched.scrape()
    assert found.value("tidegate_ready") == 1
    assert found.value("tidegate_broker_connected") == 1
    assert 0 < found.value("tidegate_broker_round_trip_seconds") < 5
    assert found.value("tidegate_build_info") == 1
    assert 10 < found.value("tidegate_tasks") < 1_000
    for plane in ("checkpoints", "ledger", "probes"):
        assert await watched.gauge("tidegate_plane_ready", plane=plane) == 1
    for probe in ("round_trip", "compare_and_set", "database"):
        assert 0 <= await watched.gauge("tidegate_probe_age_seconds", probe=probe) < 30


async def test_a_lost_broker_is_shown_and_counted(own_space: Space) -> None:
    async with running(own_space.settings()) as worker:
        watched = Watched(worker, own_space)
        await watched.begin()
        await asyncio.to_thread(own_space.server.kill)

        async def shown() -> bool:
            return (await watched.scrape()).value("tidegate_broker_connected") == 0

        await until(shown)
        assert (await watched.scrape()).value("tidegate_ready") == 0
        await asyncio.to_thread(own_space.server.start)

        async def back() -> bool:
            return (await watched.scrape()).value("tidegate_ready") == 1

        await until(back)
        assert await watched.gained("tidegate_broker_reconnects_total") == 1


async def test_what_is_overdue_and_what_is_astray_is_shown(space: Space) -> None:
    held, orphan, bare = (Checkpoint("runs.a", token) for token in ("held", "orphan", "bare"))
    async with desk_in(space) as desk:
        await desk.plant(held, in_ms=-MINUTE_MS)
        await desk.put(subjects.spec_key(held), b"[]")
        await desk.plant(bare, in_ms=60 * MINUTE_MS)
        await desk.js.publish(
            desk.timer_subject(orphan, "armed"),
            b"{}",
            headers={
                h.SCHEDULE: "@at 2035-01-01T00:00:00Z",
                h.SCHEDULE_TARGET: desk.timer_subject(orphan, "fire"),
            },
        )
    async with running(space.settings()) as worker:
        watched = Watched(worker, space)

        async def audited() -> bool:
            return (await watched.scrape()).has("tidegate_timers_astray", space=watched.name)

        await until(audited)
        assert await watched.gauge("tidegate_timers_astray", kind="orphaned") == 1
        # A record that does not fit is left alone, so its deadline stays passed until it is mended.
        assert 60 <= await watched.gauge("tidegate_checkpoint_overdue_seconds") < 600
        assert await watched.gauge("tidegate_checkpoints_waiting") == 2
