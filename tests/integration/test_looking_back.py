"""Looking whether streams went back, while they go on and while the broker comes and goes."""

import asyncio
import time
from typing import cast

import pytest

from tests.integration.bus_server import eventually
from tests.support.ledger import a_log, folding
from tests.support.running import RunningWorker, running
from tests.support.space import Space
from worker.bus.messages import StreamInfo
from worker.checkpoints.journal import Seen
from worker.checkpoints.plane import CheckpointPlane


def checkpoints(worker: RunningWorker, space: Space) -> CheckpointPlane:
    planes = worker.worker.planes[space.names.space]
    return cast(CheckpointPlane, next(plane for plane in planes if plane.name == "checkpoints"))


async def never() -> None:
    raise AssertionError("the streams did not go back")


async def test_what_is_folded_during_the_look_at_the_log_is_not_lost(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_log(space) as log, folding(space) as one:
        (seq,) = await log.publish(log.command("reserve", "u0"))
        await one.said(seq)
        watch, runner = one.ledger._watch, one.ledger._runner
        look = watch.refresh

        async def slow() -> StreamInfo:
            info = await look()
            monkeypatch.setattr(watch, "refresh", look)
            (newer,) = await log.publish(log.command("reserve", "u1"))
            await one.folded(newer)
            return info

        monkeypatch.setattr(watch, "refresh", slow)
        await runner.check_log()
        assert one.watermark > seq


async def test_what_is_noted_during_the_look_at_the_streams_is_not_lost(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(space.settings()) as worker, space.client() as client:
        plane = checkpoints(worker, space)
        guard = plane._guard
        look = guard._look

        async def slow(stream: str) -> Seen:
            seen = await look(stream)
            deadline_at_ms = time.time_ns() // 1_000_000 + 600_000
            await client.cp.mint("runs", f"t-{stream[:3]}", deadline_at_ms=deadline_at_ms)
            await guard.flush()
            return seen

        monkeypatch.setattr(guard, "_look", slow)
        await guard.check(plane._settler, never)
        assert guard.regressed == ()


async def test_a_broker_lost_while_the_index_begins_anew_ends_nothing(own_space: Space) -> None:
    async with running(own_space.settings()) as worker:
        plane = checkpoints(worker, own_space)
        await eventually(plane._feed.caught_up.is_set)
        await asyncio.to_thread(own_space.server.kill)
        plane._feed.rebuild()
        await eventually(lambda: "index is not fed" in plane._feed.trouble)
        assert not worker.done.done()
        await asyncio.to_thread(own_space.server.start)
        await eventually(plane._feed.caught_up.is_set, 30)
        await eventually(lambda: worker.worker.not_ready() == [], 30)
