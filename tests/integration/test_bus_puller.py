"""Serving a durable: strange headers, vanishing consumers, absent brokers, handlers that fail."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import structlog

from tests.integration.bus_server import Place, connected, eventually, new_place
from tests.support.cp import until
from tests.support.server import Server
from worker.bus import conf
from worker.bus.errors import ConsumerMissing, Denied, StreamMissing
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.bus.pull import Delivery, Puller

CONFIG = {"ack_policy": "explicit", "ack_wait": 30_000_000_000, "max_ack_pending": 1_000}


class Served:
    """A puller at work, with what it handed out."""

    def __init__(self, place: Place, *, in_flight: int = 4) -> None:
        self.place = place
        self.puller = Puller(place.js, place.stream, "d", config=CONFIG)
        self.seen: list[Delivery] = []
        self._in_flight = in_flight
        self._task: asyncio.Task[None] | None = None

    async def handle(self, delivery: Delivery) -> None:
        self.seen.append(delivery)
        await delivery.ack()

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.data for delivery in self.seen]

    async def __aenter__(self) -> "Served":
        await self.place.js.consumer_create(self.place.stream, CONFIG | {"durable_name": "d"})
        self._task = asyncio.create_task(self.puller.run(self.handle, in_flight=self._in_flight))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.puller.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


@pytest.fixture
async def js(server: Server) -> AsyncIterator[JetStream]:
    async with connected(server.worker_options()) as c:
        yield JetStream(c)


@pytest.fixture
async def place(js: JetStream) -> Place:
    return await new_place(js)


async def test_a_delivery_says_everything_about_its_message(place: Place) -> None:
    async with Served(place) as served:
        await place.js.publish(place.subject("a"), b"1", headers={"X": "1"})
        await eventually(lambda: len(served.seen) == 1)
        (delivery,) = served.seen
        stored = await place.js.message(place.stream, 1)
        assert stored is not None
        assert delivery.message == stored
        assert (delivery.stream_seq, delivery.consumer_seq, delivery.delivered) == (1, 1, 1)
        assert delivery.settled
        info = await place.js.consumer_info(place.stream, "d")
        assert (info.ack_pending, info.ack_floor_seq) == (0, 1)


@pytest.mark.parametrize(
    "headers",
    [
        {"Status": "503"},
        {"Status": "404", "Description": "No Messages"},
        {"Status": "100", "Description": "Idle Heartbeat"},
        {"Status": "409", "Description": "Consumer Deleted"},
        {"Nats-Pending-Messages": "5", "Status": "408"},
    ],
)
async def test_a_strange_header_loses_neither_its_message_nor_a_neighbour(
    place: Place, headers: dict[str, str]
) -> None:
    async with Served(place) as served:
        for n in range(10):
            await place.js.publish(
                place.subject(n), b"%d" % n if n != 4 else b"", headers=headers if n == 4 else None
            )
        await eventually(lambda: len(served.seen) == 10)
        assert {d.stream_seq for d in served.seen} == set(range(1, 11))
        (strange,) = [d for d in served.seen if d.stream_seq == 5]
        assert strange.headers == headers

        async def all_acknowledged() -> bool:
            return (await place.js.consumer_info(place.stream, "d")).ack_floor_seq == 10

        await until(all_acknowledged)


async def test_no_more_than_allowed_are_in_hand_at_once(place: Place) -> None:
    running = most = 0

    class Slow(Served):
        async def handle(self, delivery: Delivery) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.005)
            running -= 1
            await super().handle(delivery)

    async with Slow(place, in_flight=5) as served:
        for n in range(60):
            await place.js.publish(place.subject(n), b"")
        await eventually(lambda: len(served.seen) == 60)
    assert most == 5


async def test_a_handler_that_raises_sees_the_message_again(place: Place) -> None:
    class Fussy(Served):
        async def handle(self, delivery: Delivery) -> None:
            if delivery.delivered == 1 and delivery.data == b"bad":
                raise RuntimeError
            await super().handle(delivery)

    async with Fussy(place) as served:
        for body in (b"1", b"bad", b"2"):
            await place.js.publish(place.subject(), body)
        await eventually(lambda: len(served.seen) == 3)
        assert sorted(served.bodies) == [b"1", b"2", b"bad"]
        assert served.seen[-1].delivered == 2


async def test_refused_with_a_delay_and_terminated(place: Place) -> None:
    class Choosy(Served):
        async def handle(self, delivery: Delivery) -> None:
            self.seen.append(delivery)
            if delivery.data == b"later" and delivery.delivered == 1:
                await delivery.nak(300)
            elif delivery.data == b"poison":
                await delivery.term()
            else:
                assert await delivery.ack_sync()

    async with Choosy(place) as served:
        started = time.monotonic()
        for body in (b"later", b"poison", b"good"):
            await place.js.publish(place.subject(), body)
        await eventually(lambda: len(served.seen) == 4)
        assert time.monotonic() - started >= 0.3
        assert served.bodies[-1] == b"later"
        info = await place.js.consumer_info(place.stream, "d")
        assert info.ack_pending == 0


async def test_a_durable_deleted_while_idle_is_made_again(place: Place) -> None:
    async with Served(place) as served:
        await place.js.publish(place.subject(), b"1")
        await eventually(lambda: served.bodies == [b"1"])
        with structlog.testing.capture_logs() as logs:
            used = time.process_time()
            started = time.monotonic()
            await place.js.consumer_delete(place.stream, "d")
            await eventually(lambda: _exists(place), 25)
            await place.js.publish(place.subject(), b"2")
            await eventually(lambda: b"2" in served.bodies, 25)
            took_s = time.monotonic() - started
            assert took_s < 25
            assert time.process_time() - used < max(0.5, 0.2 * took_s)
        assert len(logs) < 10
        await eventually(lambda: served.puller.problem is None)


async def test_a_durable_deleted_in_mid_fetch_is_made_again(place: Place) -> None:
    async with Served(place) as served:
        for n in range(200):
            await place.js.publish(place.subject(), b"%d" % n)
            if n == 100:
                await place.js.consumer_delete(place.stream, "d")
        await eventually(lambda: len(set(served.bodies)) == 200, 25)
        for n in range(200, 220):
            await place.js.publish(place.subject(), b"%d" % n)
        await eventually(lambda: len(set(served.bodies)) == 220, 25)


async def test_a_durable_deleted_again_and_again_makes_no_hot_loop(place: Place) -> None:
    async with Served(place) as served:
        with structlog.testing.capture_logs() as logs:
            used = time.process_time()
            for _ in range(20):
                with contextlib.suppress(ConsumerMissing):
                    await place.js.consumer_delete(place.stream, "d")
                await asyncio.sleep(0.05)
            assert time.process_time() - used < 0.6
        assert len(logs) < 60
        await place.js.publish(place.subject(), b"x")
        await eventually(lambda: b"x" in served.bodies, 25)


async def test_a_stream_that_vanished_is_a_problem_and_no_hot_loop(place: Place) -> None:
    async with Served(place) as served:
        await place.js.stream_delete(place.stream)
        await eventually(lambda: isinstance(served.puller.problem, StreamMissing), 20)
        with structlog.testing.capture_logs() as logs:
            used = time.process_time()
            await asyncio.sleep(1.5)
            assert time.process_time() - used < 0.3
        assert len(logs) <= 3


async def test_what_is_being_worked_on_is_not_handed_out_again(place: Place) -> None:
    """Neither what a handler has, nor what waits here until one is free."""
    config = CONFIG | {"ack_wait": 1_000_000_000}
    await place.js.consumer_create(place.stream, config | {"durable_name": "d"})
    done: list[Delivery] = []

    async def slow(delivery: Delivery) -> None:
        await asyncio.sleep(1.5)
        await delivery.ack()
        done.append(delivery)

    for _ in range(4):
        await place.js.publish(place.subject("a"), b"1")
    puller = Puller(place.js, place.stream, "d", config=config, batch=3)
    running = asyncio.create_task(puller.run(slow, in_flight=1))
    await eventually(lambda: len(done) == 4, 30)
    await puller.stop()
    await running
    assert [delivery.delivered for delivery in done] == [1, 1, 1, 1]
    assert (await place.js.consumer_info(place.stream, "d")).redelivered == 0


async def test_what_hangs_in_a_handler_is_handed_out_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.bus.puller.LONGEST_WORK_MS", 1_000)
    config = CONFIG | {"ack_wait": 1_000_000_000}
    await place.js.consumer_create(place.stream, config | {"durable_name": "d"})
    seen: list[int] = []

    async def hangs_once(delivery: Delivery) -> None:
        seen.append(delivery.delivered)
        if delivery.delivered == 1:
            await asyncio.Event().wait()
        await delivery.ack()

    await place.js.publish(place.subject("a"), b"1")
    puller = Puller(place.js, place.stream, "d", config=config)
    running = asyncio.create_task(puller.run(hangs_once, in_flight=2))
    await eventually(lambda: seen == [1, 2], 30)
    await puller.stop(limit_ms=100)
    await asyncio.gather(running, return_exceptions=True)


async def test_what_failed_while_the_broker_was_away_comes_again_on_its_return(
    own_server: Callable[..., Server],
) -> None:
    broker = await asyncio.to_thread(own_server("main").start)
    async with connected(broker.worker_options()) as connection:
        place = await new_place(JetStream(connection))
        gone, tried = asyncio.Event(), asyncio.Event()

        class FailsOnce(Served):
            async def handle(self, delivery: Delivery) -> None:
                if delivery.delivered == 1:
                    tried.set()
                    await gone.wait()
                    raise ConnectionError
                await super().handle(delivery)

        async with FailsOnce(place) as served:
            await place.js.publish(place.subject("a"), b"1")
            await tried.wait()
            await asyncio.to_thread(broker.stop)
            await eventually(lambda: not connection.connected)
            gone.set()
            await asyncio.to_thread(broker.start)
            # The durable's ack_wait is 30 s: without the owed answer it would come only then.
            await eventually(lambda: len(served.seen) == 1, 15)
            assert served.seen[0].delivered == 2


async def test_the_broker_may_go_and_come_back(own_server: Callable[..., Server]) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c))
        async with Served(place) as served:
            await place.js.publish(place.subject(), b"1")
            await eventually(lambda: served.bodies == [b"1"])
            with structlog.testing.capture_logs() as logs:
                await asyncio.to_thread(server.kill)
                used = time.process_time()
                await asyncio.sleep(1.0)
                assert time.process_time() - used < 0.3
                await asyncio.to_thread(server.start)
                assert await c.wait_connected(10_000)
                await place.js.publish(place.subject(), b"2")
                await eventually(lambda: b"2" in served.bodies, 10)
            assert len(logs) < 10


async def test_stopping_finishes_what_is_in_hand_and_gives_back_the_rest(place: Place) -> None:
    release = asyncio.Event()
    held = 0

    class Held(Served):
        async def handle(self, delivery: Delivery) -> None:
            nonlocal held
            held += 1
            await release.wait()
            await super().handle(delivery)

    async with Held(place, in_flight=2) as served:
        for n in range(8):
            await place.js.publish(place.subject(), b"%d" % n)
        await eventually(lambda: held == 2)
        stopping = asyncio.create_task(served.puller.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        release.set()
        assert await stopping
        assert served.bodies == [b"0", b"1"]

    async with Served(place) as other:
        await eventually(lambda: len(other.seen) == 6, 5)
        assert set(other.bodies) == {b"%d" % n for n in range(2, 8)}


async def test_stopping_does_not_wait_for_a_handler_that_hangs(place: Place) -> None:
    begun = asyncio.Event()

    class Hung(Served):
        async def handle(self, delivery: Delivery) -> None:
            begun.set()
            await asyncio.Event().wait()

    async with Hung(place) as served:
        await place.js.publish(place.subject(), b"")
        await begun.wait()
        started = time.monotonic()
        assert not await served.puller.stop(200)
        assert time.monotonic() - started < 1.5
        assert served.puller.busy == 0


async def test_a_right_to_pull_that_is_missing_is_a_problem_at_once(tmp_path: Path) -> None:
    users = [
        conf.User("worker", "w", "W"),
        conf.User("some", "s", "W", publish=("x.>",), subscribe=(">",)),
    ]
    text = conf.render([], users, store_dir=tmp_path / "s", listen="127.0.0.1:-1")
    server = Server(tmp_path, text)
    await asyncio.to_thread(server.start)
    try:
        async with connected(ConnectOptions((server.url,), user="some", password="s")) as c:
            puller = Puller(JetStream(c), "S", "d", config=CONFIG)
            task = asyncio.create_task(puller.run(_never, in_flight=1))
            with structlog.testing.capture_logs() as logs:
                used = time.process_time()
                await eventually(lambda: isinstance(puller.problem, Denied), 3)
                await asyncio.sleep(1)
                assert time.process_time() - used < 0.3
            assert len(logs) < 10
            await puller.stop()
            await task
    finally:
        server.kill()


async def _never(delivery: Delivery) -> None:
    raise AssertionError


async def _exists(place: Place) -> bool:
    try:
        await place.js.consumer_info(place.stream, "d")
    except ConsumerMissing:
        return False
    return True


async def test_who_was_stopped_for_long_knows_that_others_may_have_what_is_here(
    place: Place,
) -> None:
    config = CONFIG | {"ack_wait": 600_000_000, "durable_name": "d"}
    await place.js.consumer_create(place.stream, config)
    puller = Puller(place.js, place.stream, "d", config=config)
    seen: list[Delivery] = []
    release = asyncio.Event()

    async def hold(delivery: Delivery) -> None:
        seen.append(delivery)
        await release.wait()
        await delivery.ack()

    serving = asyncio.create_task(puller.run(hold, in_flight=4))
    try:
        await place.js.publish(place.subject(), b"")
        await eventually(lambda: len(seen) == 1)
        # Who only takes long says so meanwhile.
        beats = puller._beat + 3 * 3
        await eventually(lambda: puller._beat >= beats)
        assert (len(seen), seen[0].lapses()) == (1, 0)
        time.sleep(0.7)  # noqa: ASYNC251 - the process is stopped
        assert seen[0].lapses() == 1
        await eventually(lambda: len(seen) == 2)
        assert (seen[1].delivered, seen[0].lapses(), seen[1].lapses()) == (2, 1, 0)
        release.set()
    finally:
        await puller.stop()
        serving.cancel()
        await asyncio.wait((serving,))
