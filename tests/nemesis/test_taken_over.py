"""A turn that was given to another is written by that one alone, whenever the first one wakes."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.admission import DEBT
from schemas.commands.adm import IntentIdentity
from tests.integration.bus_server import freeze
from tests.support.frames import Fate, frames_to
from tests.support.outside import (
    LIMIT_S,
    NOBODY,
    Scene,
    a_scene,
    ack_of,
    brought_to,
    enqueued,
    result_of,
    run_turn,
    until,
)
from tests.support.space import Space
from worker.client.admission import Fence
from worker.client.errors import Refused
from worker.connector import LeaseLost


@pytest.fixture
async def scene(space: Space, tmp_path: Path) -> AsyncIterator[Scene]:
    async with a_scene(space, tmp_path) as one:
        yield one


# Somebody else decides meanwhile.


async def suspected(scene: Scene, request: str) -> None:
    """Wait until its owner has been silent for so long that an operator may decide."""

    async def look() -> bool | None:
        seats = (await scene.operator.adm.leases()).leases
        owed = [one for one in seats if one.state in DEBT or one.suspicion is not None]
        return True if request in [one.request_id for one in owed] else None

    await until(look)


async def second_writes(scene: Scene, request: str) -> None:
    """A second life of the connector runs the turn, as the next generation."""
    connector, _ = await scene.connector()
    await run_turn(scene, connector, request)
    turn = await scene.operator.adm.request(request)
    assert (turn.state, turn.generation) == ("completed", 2), turn


async def outcome_of(work: "asyncio.Task[None]") -> BaseException | None:
    """How the first connector's turn ended; it has to end."""
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait({work})
    return work.exception()


@pytest.mark.parametrize("fate", ["drop", "hold"])
async def test_a_turn_that_an_operator_gave_to_another_is_not_written_by_the_first(
    scene: Scene, fate: Fate
) -> None:
    """The first intent was stored, its answer lost or late; the operator told the truth."""
    connector, proxy = await scene.connector()
    answers = [proxy.rule(fate, which("adm.intent"), -1) for which in (ack_of, result_of)]
    work = asyncio.create_task(run_turn(scene, connector, "r1"))
    await answers[1].met.wait()
    proxy.open.clear()
    await suspected(scene, "r1")
    assert scene.written("r1") == 0
    await scene.operator.adm.resolve("r1", "confirmed_not_dispatched", "nothing was written")
    await second_writes(scene, "r1")
    if fate == "drop":
        proxy.cut()
    proxy.open.set()
    for rule in answers:
        rule.release()
    error = await outcome_of(work)
    assert scene.written("r1") == 1
    assert isinstance(error, LeaseLost), error


@pytest.mark.skipif(sys.platform != "linux", reason="a process is stopped")
@pytest.mark.parametrize("told", [True, False])
async def test_a_connector_that_slept_over_its_answer_does_not_write_what_another_wrote(
    scene: Scene, told: bool
) -> None:
    """Its machine stood still: the ok lies in its socket, and is read long after it was true.

    Behind it may lie the word that its seat is lost, or that word was never heard.
    """
    async with frames_to(scene.space.server.port) as proxy:
        if not told:
            proxy.rule("drop", lambda one: one.down and ".lease_lost." in one.about, -1)
        held = [proxy.rule("hold", which("adm.intent"), -1) for which in (ack_of, result_of)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.one_turn"),
            *(proxy.url, scene.space.names.space, "r1", str(scene.provider)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await held[1].met.wait()
            await freeze(process.pid)
            for rule in held:
                rule.release()
            await suspected(scene, "r1")
            assert scene.written("r1") == 0
            await scene.operator.adm.resolve("r1", "confirmed_not_dispatched", "it was asleep")
            await second_writes(scene, "r1")
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(LIMIT_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert scene.written("r1") == 1
    assert said.startswith(b"lost"), said


async def test_an_intent_asked_for_again_after_its_turn_went_elsewhere_is_refused(
    scene: Scene,
) -> None:
    """The bare verb, under the id under which it was once answered ok."""
    client, _ = await scene.behind("conn")
    fence = await brought_to(client, "r1", "intent")
    identity = IntentIdentity(connector=NOBODY, child=None)
    command_id = "an-intent-of-the-first-life"
    told = await client.adm.intent(fence, identity, "http", command_id=command_id)
    assert told.word == "dispatch_intent"
    await client.adm.ambiguous(fence)
    await scene.operator.adm.resolve("r1", "confirmed_not_dispatched", "nothing was written")
    with pytest.raises(Refused) as refused:
        await client.adm.intent(fence, identity, "http", command_id=command_id)
    assert refused.value.code == "fenced"


@pytest.mark.parametrize("verb", ["start", "active"])
async def test_no_step_of_a_turn_that_went_elsewhere_is_answered_ok_from_memory(
    scene: Scene, verb: str
) -> None:
    client, _ = await scene.behind("conn")
    fence = await brought_to(client, "r1", verb)
    step = getattr(client.adm, verb)
    await step(fence, command_id=f"the-first-{verb}-0123456789")
    await client.adm.recover(fence)
    await scene.operator.adm.resolve("r1", "confirmed_not_dispatched", "nothing was written")
    with pytest.raises(Refused) as refused:
        await step(fence, command_id=f"the-first-{verb}-0123456789")
    assert refused.value.code == "fenced"


async def test_a_seat_asked_for_again_after_it_was_lost_is_not_given_from_memory(
    scene: Scene,
) -> None:
    client, _ = await scene.behind("conn")
    await enqueued(client, "r1")
    command_id = "a-seat-of-the-first-life"
    first = await client.adm.admit("r1", command_id=command_id)
    assert first.grant is not None
    await client.adm.abandon(Fence("r1", first.grant.lease_id, first.grant.generation), "failed")
    with pytest.raises(Refused) as refused:
        await client.adm.admit("r1", command_id=command_id)
    assert refused.value.code == "fenced"
