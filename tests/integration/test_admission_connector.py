"""``Connector`` against a real broker and worker: from a turn to its seat and to its end."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from schemas.admission import EventsPage, TurnView
from schemas.commands.adm import Failure
from tests.support.proxy import proxy_to
from tests.support.running import RunningWorker, running
from tests.support.space import Space, speaker
from worker.bus.options import ConnectOptions
from worker.client import Client
from worker.client.errors import Failed, Refused
from worker.connector import Connector, LeaseLost, NoSealer, NotAdmitted, Turn, TurnError
from worker.sealing.keyring import KeyRing
from worker.sealing.sealer import Sealer
from worker.turns import Wish

HOST = "host-of-this-test"
PROMPT = b"what the agent was asked"
LIMIT_S = 15.0

T = TypeVar("T")


@dataclass
class Scene:
    """A worker, an operator, and a way to more connectors."""

    space: Space
    worker: RunningWorker
    operator: Client
    stack: AsyncExitStack
    sealer: Sealer

    async def client(self, name: str, **more: Any) -> Client:
        return await self.stack.enter_async_context(self.space.client(name, **more))

    async def connector(self, name: str = "conn") -> Connector:
        client = await self.client(name)
        made = Connector(client, host=HOST, sealer=self.sealer)
        return await self.stack.enter_async_context(made)

    async def policy(self, **values: int) -> None:
        now = await self.operator.adm.policy()
        given = {**now.policy.to_object(), **values}
        await self.operator.adm.claim_policy(now.epoch + 1, **given)

    async def view(self, request_id: str) -> TurnView:
        return await self.operator.adm.request(request_id)

    async def becomes(self, request_id: str, state: str) -> TurnView:
        """Wait until a turn is somewhere."""

        async def look() -> TurnView | None:
            try:
                view = await self.view(request_id)
            except Refused:
                return None
            return view if view.state == state else None

        return await until(look)


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await look()
            if found is not None:
                return found
            await asyncio.sleep(0.02)


@pytest.fixture
async def scene(space: Space, tmp_path: Path) -> AsyncIterator[Scene]:
    folder = tmp_path / "keys"
    ring = KeyRing(folder)
    ring.init()
    sealer = Sealer(ring, space.names.space)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(running(space.settings(host=HOST)))
        operator = await stack.enter_async_context(space.client("_op"))
        yield Scene(space, worker, operator, stack, sealer)


def a_turn(connector: Connector, request_id: str = "r1", **more: Any) -> Turn:
    given: dict[str, Any] = {
        "session_id": "session",
        "agent_id": f"agent-of-{request_id}",
        "fingerprint": f"print-of-{request_id}",
        "provider": "acme",
        "model": "m1",
        **more,
    }
    return connector.turn(request_id, **given)


def a_child() -> subprocess.Popen[bytes]:
    """A process in a group of its own that ends when its input does."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        process_group=0,
    )


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


async def test_a_turn_from_its_prompt_to_its_end(scene: Scene) -> None:
    connector = await scene.connector()
    child = a_child()
    try:
        async with a_turn(connector, prompt=PROMPT) as turn:
            assert (await scene.view("r1")).state == "admitted"
            assert await turn.prompt() == PROMPT
            await turn.start()
            await turn.intent(child.pid)
            assert (await scene.view("r1")).state == "dispatch_intent"
            assert await turn.prompt() == PROMPT
            await turn.active()
            with pytest.raises(Refused):
                await turn.prompt()
            await turn.complete("completed")
    finally:
        end(child)
    view = await scene.view("r1")
    assert (view.state, view.lease) == ("completed", None)

    async def look() -> EventsPage | None:
        try:
            page = await scene.operator.adm.events()
        except Failed:  # until the worker has read the space's key
            return None
        return page if len(page.events) == 6 else None

    page = await until(look)
    assert [event.to for event in page.events] == [
        "queued",
        "admitted",
        "starting",
        "dispatch_intent",
        "active",
        "completed",
    ]
    assert len({event.request for event in page.events}) == 1


async def test_the_block_begins_when_the_seat_is_there(scene: Scene) -> None:
    await scene.policy(max_active_turns=1)
    connector = await scene.connector()
    order: list[str] = []

    async def second() -> None:
        async with a_turn(connector, "r2") as turn:
            order.append("r2 has its seat")
            await turn.abandon()

    async with a_turn(connector, "r1") as turn:
        waiting = asyncio.create_task(second())
        await scene.becomes("r2", "queued")
        order.append("r1 ends")
        await turn.abandon("failed")
    await waiting
    assert order == ["r1 ends", "r2 has its seat"]


@pytest.mark.parametrize(
    ("reached", "state"),
    [
        ("seat", "failed"),
        ("start", "failed"),
        ("intent", "recovery_required"),
        ("active", "recovery_required"),
    ],
)
async def test_a_block_left_by_an_exception_settles_its_turn(
    scene: Scene, reached: str, state: str
) -> None:
    connector = await scene.connector()

    async def block() -> None:
        async with a_turn(connector) as turn:
            await go(turn, reached)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert (await scene.view("r1")).state == state


@pytest.mark.parametrize(
    ("reached", "state"),
    [("seat", "cancelled"), ("start", "cancelled"), ("intent", "recovery_required")],
)
async def test_a_block_that_is_cancelled_or_just_ends_settles_its_turn(
    scene: Scene, reached: str, state: str
) -> None:
    connector = await scene.connector()
    async with a_turn(connector, "ends") as turn:
        await go(turn, reached)
    assert (await scene.view("ends")).state == state

    reached_it = asyncio.Event()

    async def block() -> None:
        async with a_turn(connector, "cancelled") as turn:
            await go(turn, reached)
            reached_it.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(block())
    await reached_it.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await scene.view("cancelled")).state == state


async def go(turn: Turn, reached: str) -> None:
    steps = {"seat": 0, "start": 1, "intent": 2, "active": 3}[reached]
    for verb in ("start", "intent", "active")[:steps]:
        if verb == "intent":
            await turn.intent(channel="http")
        else:
            await getattr(turn, verb)()


async def test_a_turn_that_is_not_waited_for_any_longer_is_taken_back(scene: Scene) -> None:
    await scene.operator.adm.drain(0)
    connector = await scene.connector()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), a_turn(connector):
            pytest.fail("there is no seat")
    assert (await scene.becomes("r1", "cancelled")).reason is None


async def test_closing_a_connector_takes_back_what_is_queued(scene: Scene) -> None:
    await scene.operator.adm.drain(0)
    client = await scene.client("conn")

    async def wait_for_seat(connector: Connector, request_id: str) -> None:
        async with a_turn(connector, request_id):
            pytest.fail("there is no seat")

    async with Connector(client, host=HOST) as connector:
        waiting = [asyncio.create_task(wait_for_seat(connector, f"r{n}")) for n in range(3)]
        for n in range(3):
            await scene.becomes(f"r{n}", "queued")
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(error, "reason", error) for error in ended] == ["connector-closed"] * 3
    for n in range(3):
        assert (await scene.view(f"r{n}")).state == "cancelled"


async def test_a_turn_that_outlives_its_connector_does_nothing_more_and_ends(scene: Scene) -> None:
    go_on, seated = asyncio.Event(), asyncio.Event()

    async def too_long(connector: Connector) -> None:
        async with a_turn(connector) as turn:
            seated.set()
            await go_on.wait()
            await turn.start()

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(scene.space.client("conn"))
        connector = await stack.enter_async_context(Connector(client, host=HOST))
        running_on = asyncio.create_task(too_long(connector))
        await seated.wait()
    go_on.set()
    async with asyncio.timeout(LIMIT_S):
        (error,) = await asyncio.gather(running_on, return_exceptions=True)
    assert getattr(error, "reason", error) == "connector-closed"
    assert (await scene.view("r1")).state == "admitted", "its start timeout takes the seat back"
    assert {task for task in asyncio.all_tasks() if "_settle_rest" in repr(task)} == set()


async def test_a_queue_deadline_ends_the_wait(scene: Scene) -> None:
    await scene.operator.adm.drain(0)
    connector = await scene.connector()
    with pytest.raises(NotAdmitted) as refused:
        async with a_turn(connector, queue_timeout_ms=200):
            pytest.fail("there is no seat")
    assert refused.value.state == "queue_timeout"


async def test_a_lost_seat_ends_the_block_at_once(scene: Scene) -> None:
    await scene.policy(start_timeout_ms=300)
    connector = await scene.connector()

    async def block() -> None:
        async with a_turn(connector) as turn:
            await turn.start()
            await asyncio.sleep(60)

    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(LeaseLost) as lost:
            await block()
    assert (lost.value.request_id, lost.value.generation) == ("r1", 1)
    assert lost.value.why == "start-timeout"
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_a_lost_seat_can_be_waited_for_again(scene: Scene) -> None:
    await scene.policy(start_timeout_ms=500)
    connector = await scene.connector()
    for generation in (1, 2):
        try:
            async with a_turn(connector) as turn:
                assert turn.fence.generation == generation
                if generation == 1:
                    await asyncio.sleep(60)
                await turn.start()
                await turn.intent(channel="http")
                await turn.active()
                await turn.complete()
        except LeaseLost:
            assert generation == 1
    assert (await scene.view("r1")).state == "completed"


async def test_a_verb_that_finds_its_fence_dead_raises_lease_lost(scene: Scene) -> None:
    connector = await scene.connector()

    async def block() -> None:
        async with a_turn(connector) as turn:
            # Somebody with the same credential settles the turn behind its back.
            await connector.adm.abandon(turn.fence, "cancelled")
            await turn.start()

    with pytest.raises(LeaseLost):
        await block()
    assert (await scene.view("r1")).state == "cancelled"


async def test_an_operators_word_about_a_debt_is_not_heard_as_an_error(scene: Scene) -> None:
    connector = await scene.connector()
    async with a_turn(connector) as turn:
        await go(turn, "intent")
        await turn.ambiguous()
    ruled = await scene.operator.adm.resolve("r1", "confirmed_completed", "the bill says so")
    assert (ruled.word, ruled.turn.state) == ("completed", "completed")


async def test_a_request_id_that_stands_for_something_else_is_left_alone(scene: Scene) -> None:
    await scene.operator.adm.drain(0)
    connector, other = await scene.connector(), await scene.connector()
    waiting = asyncio.create_task(enter(a_turn(connector)))
    await scene.becomes("r1", "queued")
    with pytest.raises(Refused) as refused:
        await enter(a_turn(other, model="another"))
    assert refused.value.reason == "different-request"
    with pytest.raises(TurnError) as twice:
        await enter(a_turn(connector))
    assert twice.value.reason == "already-running"
    assert (await scene.view("r1")).state == "queued"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def enter(turn: Turn) -> None:
    async with turn:
        await turn.abandon()


async def test_a_new_life_takes_over_what_is_queued_and_the_old_one_is_told(scene: Scene) -> None:
    await scene.operator.adm.drain(0)
    old, new = await scene.connector(), await scene.connector()
    waiting = asyncio.create_task(enter(a_turn(old)))
    await scene.becomes("r1", "queued")
    taking = asyncio.create_task(enter(a_turn(new)))
    with pytest.raises(NotAdmitted):
        await waiting
    assert (await scene.view("r1")).state == "queued"
    await scene.operator.adm.drain(1)
    await taking
    assert (await scene.view("r1")).state == "cancelled"


async def test_a_grant_that_was_missed_is_found_by_looking(scene: Scene) -> None:
    await scene.operator.adm.drain(0)
    async with proxy_to(scene.space.server.port) as proxy:
        options = ConnectOptions((proxy.url,))
        client = Client(options, speaker("conn"), scene.space.names.space)
        async with client, Connector(client, host=HOST) as connector:
            waiting = asyncio.create_task(enter(a_turn(connector)))
            await scene.becomes("r1", "queued")
            proxy.open.clear()
            proxy.cut()
            await scene.operator.adm.drain(1)
            await scene.becomes("r1", "admitted")
            proxy.open.set()
            await asyncio.wait_for(waiting, LIMIT_S)
    assert (await scene.view("r1")).state == "cancelled"


async def test_a_turn_outlives_the_worker_that_admitted_it(scene: Scene) -> None:
    connector = await scene.connector()
    async with a_turn(connector) as turn:
        await turn.start()
        assert await scene.worker.stop() == 0
        pending = asyncio.create_task(turn.intent(channel="http"))
        await asyncio.sleep(0)
        async with running(scene.space.settings(host=HOST)):
            await asyncio.wait_for(pending, LIMIT_S)
            await turn.active()
            failure = Failure(category="provider_capacity", http_status=529)
            await turn.complete("failed", failure=failure, retry_after_ms=60_000)
            queue = await scene.operator.adm.queue()
            assert [rest.model for rest in queue.cooldowns] == ["m1"]


async def test_a_prompt_sent_back_by_an_operator_is_sealed_again(scene: Scene) -> None:
    connector = await scene.connector()
    async with a_turn(connector, prompt=PROMPT) as turn:
        await go(turn, "start")
        await turn.recover()
    await scene.operator.adm.resolve("r1", "confirmed_not_dispatched", "nothing was sent")
    assert (await scene.view("r1")).awaits_payload
    async with a_turn(connector, prompt=PROMPT) as turn:
        assert turn.fence.generation == 2
        assert await turn.prompt() == PROMPT
        await turn.abandon()


async def test_a_new_life_waits_for_the_platform_to_find_the_prompt_of_the_one_before(
    scene: Scene,
) -> None:
    wish = Wish("r1", PROMPT, {"turn_timeout_ms": None})
    await (await scene.connector()).seal(wish)  # it died before it enqueued
    impatient = Connector(
        await scene.client("conn", timeout_ms=200), host=HOST, sealer=scene.sealer
    )
    async with impatient:
        assert await scene.worker.stop() == 0
        entering = asyncio.create_task(enter(a_turn(impatient, prompt=PROMPT)))
        await asyncio.wait({entering}, timeout=1.5)
        assert not entering.done()
        async with running(scene.space.settings(host=HOST)):
            await asyncio.wait_for(entering, LIMIT_S)


async def test_a_prompt_needs_a_sealer(scene: Scene) -> None:
    client = await scene.client("conn")
    async with Connector(client, host=HOST) as connector:
        with pytest.raises(NoSealer):
            await enter(a_turn(connector, prompt=PROMPT))


async def test_a_connector_beats_and_its_owner_is_watched(scene: Scene) -> None:
    await scene.policy(silence_ms=1_500)
    connector = await scene.connector()
    client = await scene.client("quiet")
    async with a_turn(connector, "beating") as turn:
        await go(turn, "start")
        async with Connector(client, host=HOST) as quiet:
            await quiet.adm.enqueue(
                "fell-silent",
                session_id="s",
                agent_id="a",
                fingerprint="f",
                provider="acme",
                model="m1",
            )
            await scene.becomes("fell-silent", "admitted")

        async def suspect() -> TurnView | None:
            page = await scene.operator.adm.leases()
            silent = [seat.request_id for seat in page.leases if seat.suspicion is not None]
            return await scene.view("fell-silent") if silent == ["fell-silent"] else None

        await until(suspect)
        await turn.abandon()
