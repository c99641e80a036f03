"""Recovery end to end: real processes end, and their seats come back as far as the rules allow."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.commands.sys import ProcessIdentity, witness_of
from tests.support.process import environment
from tests.support.processes import Family, family
from tests.support.running import RunningWorker, running
from tests.support.server import Server
from tests.support.space import Space, speaker
from tests.support.turns import Turn, policy, recovering, refused, seats, until
from worker.client import Client
from worker.evidence.identity import identify
from worker.evidence.procfs import LinuxProc
from worker.evidence.verdicts import Observer
from worker.evidence.witness import Witness
from worker.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")

HOST = "host-of-the-worker"
ELSEWHERE = "another-host"
PERIOD_MS = 500
TWO_PERIODS_S = 2 * PERIOD_MS / 1_000 + 1.0
"""Two looks of the reaper, and a second for a busy machine."""


@dataclass
class Scene:
    """A worker on a host, an operator, and a way to more clients."""

    space: Space
    worker: RunningWorker
    operator: Client
    stack: AsyncExitStack
    proc: LinuxProc

    async def client(self, name: str) -> Client:
        return await self.stack.enter_async_context(self.space.client(name))

    def name(self, pid: int, host: str = HOST) -> ProcessIdentity:
        return identify(pid, host=host, reader=self.proc)

    async def turn(self, request_id: str, of: Family, host: str = HOST) -> Turn:
        client = await self.client(f"owner-of-{request_id}")
        return Turn(client, request_id, self.name(of.connector.pid, host))


@pytest.fixture
async def scene(space: Space) -> AsyncIterator[Scene]:
    settings = space.settings(host=HOST, reaper_interval_ms=PERIOD_MS)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(running(settings, recovering()))
        operator = await stack.enter_async_context(space.client("_op"))
        await policy(operator, max_active_turns=1)
        yield Scene(space, worker, operator, stack, LinuxProc())


@pytest.fixture
def proc_observer() -> Observer:
    return Observer.at(ELSEWHERE, LinuxProc())


@pytest.mark.parametrize("phase", ["admitted", "starting"])
async def test_before_its_intent_a_dead_connectors_turn_goes_back_to_the_queue(
    scene: Scene, phase: str
) -> None:
    with family() as them, family() as others:
        turn = await (await scene.turn("r1", them)).bring_to(phase)
        waiting = await scene.turn("r2", others)
        assert await waiting.enqueue() == "queued"
        them.kill_connector()
        await waiting.become("admitted", TWO_PERIODS_S)
        assert await turn.state() == "queued"
        assert (await turn.view())["generation"] == 2
        await scene.operator.call("adm", "cancel", ("r1",), {})


@pytest.mark.parametrize("phase", ["dispatch_intent", "active", "recovery_required"])
async def test_after_its_intent_the_seat_comes_back_when_all_processes_are_gone(
    scene: Scene, phase: str
) -> None:
    with family() as them, family() as others:
        turn = await scene.turn("r1", them)
        await turn.bring_to(phase, scene.name(them.child))
        waiting = await scene.turn("r2", others)
        assert await waiting.enqueue() == "queued"
        them.kill_connector()
        them.kill(them.child)
        await waiting.become("admitted", TWO_PERIODS_S)
        assert await turn.state() == "recovery_required"
        assert set(await seats(scene.operator)) == {"r2"}


async def test_a_child_that_outlives_its_connector_keeps_the_seat_until_its_group_is_empty(
    scene: Scene,
) -> None:
    with family("with-grandchild") as them, family() as others:
        turn = await scene.turn("r1", them)
        await turn.bring_to("active", scene.name(them.child))
        waiting = await scene.turn("r2", others)
        await waiting.enqueue()
        them.kill_connector()
        await turn.become("recovery_required", TWO_PERIODS_S)
        them.kill(them.child)
        await asyncio.sleep(3 * PERIOD_MS / 1_000)
        assert await waiting.state() == "queued"
        assert "debt_since_ms" in (await seats(scene.operator))["r1"]
        them.kill(them.grandchild)
        await waiting.become("admitted", TWO_PERIODS_S)


async def test_over_http_the_connectors_end_is_enough(scene: Scene) -> None:
    with family() as them, family() as others:
        turn = await scene.turn("r1", them)
        await turn.bring_to("active", channel="http")
        waiting = await scene.turn("r2", others)
        await waiting.enqueue()
        them.kill_connector()
        await waiting.become("admitted", TWO_PERIODS_S)
        assert await turn.state() == "recovery_required"


async def test_a_child_in_its_connectors_group_leaves_a_debt_for_an_operator(
    scene: Scene,
) -> None:
    with family(group="shared") as them, family() as others:
        turn = await scene.turn("r1", them)
        await turn.bring_to("active", scene.name(them.child))
        waiting = await scene.turn("r2", others)
        await waiting.enqueue()
        them.kill_connector()
        them.kill(them.child)
        await turn.become("recovery_required", TWO_PERIODS_S)
        await asyncio.sleep(3 * PERIOD_MS / 1_000)
        assert await waiting.state() == "queued"
        body = {"resolution": "acknowledged_unknown", "evidence": "the process list of the host"}
        await scene.operator.call("adm", "resolve", ("r1",), body)
        await waiting.become("admitted")


async def test_a_stopped_connector_keeps_everything(scene: Scene) -> None:
    with family() as them:
        turn = await scene.turn("r1", them)
        await turn.bring_to("active", scene.name(them.child))
        them.connector.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4 * PERIOD_MS / 1_000)
        them.connector.send_signal(signal.SIGCONT)
        await asyncio.sleep(2 * PERIOD_MS / 1_000)
        assert await turn.state() == "active"
        assert "suspect_since_ms" not in (await seats(scene.operator))["r1"]
        await turn.step("complete", outcome="completed")


async def test_a_process_in_another_namespace_is_suspected_and_kept(scene: Scene) -> None:
    with family() as them:
        turn = await scene.turn("r1", them)
        turn.connector = turn.connector.model_copy(update={"pid_ns": 4_026_530_000})
        await turn.bring_to("active", channel="http")
        them.kill_connector()

        async def suspicion() -> object:
            return (await seats(scene.operator))["r1"].get("suspicion")

        await until(suspicion, "identity_unverifiable", TWO_PERIODS_S)
        await asyncio.sleep(2 * PERIOD_MS / 1_000)
        assert await turn.state() == "active"


async def test_a_witness_frees_what_the_worker_of_another_host_cannot_see(scene: Scene) -> None:
    with family() as them, family() as others:
        turn = await scene.turn("r1", them, host=ELSEWHERE)
        await turn.bring_to("active", scene.name(them.child, host=ELSEWHERE))
        waiting = await scene.turn("r2", others)
        await waiting.enqueue()
        them.kill_connector()
        them.kill(them.child)
        await asyncio.sleep(3 * PERIOD_MS / 1_000)
        assert await turn.state() == "active"
        settings = scene.space.settings(
            host=ELSEWHERE, reaper_interval_ms=PERIOD_MS, nats_user=None, nats_password=None
        )
        observer = Observer.at(ELSEWHERE, scene.proc)
        witness = Witness(settings, observer, uid=speaker("w").uid)
        looking = asyncio.create_task(witness.run())
        try:
            await waiting.become("admitted", TWO_PERIODS_S)
        finally:
            witness.stop()
            await looking
        assert await turn.state() == "recovery_required"
        assert [reaper.totals["released"] for reaper in witness.reapers] == [1]


async def test_the_witness_is_a_process_that_ends_when_told(
    scene: Scene,
) -> None:
    settings = {"host": ELSEWHERE, "reaper_interval_ms": PERIOD_MS, "log_format": "json"}
    env = environment(nats_url=scene.space.server.url, spaces=scene.space.names.space, **settings)
    with family() as them, family() as others:
        turn = await scene.turn("r1", them, host=ELSEWHERE)
        await turn.bring_to("active", scene.name(them.child, host=ELSEWHERE))
        waiting = await scene.turn("r2", others)
        await waiting.enqueue()
        them.kill_connector()
        them.kill(them.child)
        arguments = ("-m", "worker.cli.main", "witness")
        witness = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=env, stderr=asyncio.subprocess.PIPE
        )
        try:
            await waiting.become("admitted")
            witness.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                _, said = await witness.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                witness.kill()
        assert witness.returncode == 0
        events = [json.loads(line)["event"] for line in said.splitlines()]
        assert {"witness_ready", "evidence_sent", "reaper_pass"} <= set(events)


async def test_a_witness_waits_for_its_broker_and_can_be_told_to_stop_meanwhile(
    own_server: Callable[..., Server], tmp_path: Path, proc_observer: Observer
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    settings = Settings(nats_url=server.url, data_dir=tmp_path, connect_timeout_ms=200)
    await asyncio.to_thread(server.kill)

    async def reaches() -> int:
        return len(witness.reapers)

    for starts in (False, True):
        witness = Witness(settings, proc_observer, uid=speaker("w").uid)
        looking = asyncio.create_task(witness.run())
        if starts:
            await asyncio.to_thread(server.start)
            await until(reaches, 1)
        else:
            await asyncio.sleep(0.5)
            assert not looking.done()
        witness.stop()
        async with asyncio.timeout(5):
            await looking


async def test_a_witness_is_believed_about_its_own_host_only(scene: Scene) -> None:
    with family() as them:
        turn = await scene.turn("r1", them)
        await turn.bring_to("active", channel="http")
        lease = (await turn.view())["lease"]
        lie = {
            "request_id": "r1",
            "fence": {
                "lease_id": lease["lease_id"],
                "request_id": "r1",
                "generation": lease["generation"],
                "owner": lease["owner"],
            },
            "host": HOST,
            "connector": turn.connector.to_object(),
            "connector_state": "gone",
            "observed_at_ms": 0,
        }
        liar = await scene.client(witness_of(ELSEWHERE))
        assert await refused(liar.call("sys", "evidence", (), lie)) == "other-host"
        elsewhere = {**lie, "host": ELSEWHERE}
        assert await refused(liar.call("sys", "evidence", (), elsewhere)) == "other-host"
        assert await turn.state() == "active"
        assert "suspect_since_ms" not in (await seats(scene.operator))["r1"]


async def test_many_connectors_that_die_at_once_give_all_seats_back(scene: Scene) -> None:
    await policy(scene.operator, max_active_turns=6, max_concurrent_starts=6)
    with family() as them, family() as others:
        child = scene.name(them.child)
        client = await scene.client("busy")
        for number in range(6):
            turn = Turn(client, f"r{number}", scene.name(them.connector.pid))
            await turn.bring_to("active", child)
        waiting = [await scene.turn(f"w{number}", others) for number in range(6)]
        for turn in waiting:
            await turn.enqueue()
        them.kill_connector()
        os.kill(them.child, signal.SIGKILL)
        for turn in waiting:
            await turn.become("admitted", TWO_PERIODS_S)
        assert set(await seats(scene.operator)) == {turn.request_id for turn in waiting}
