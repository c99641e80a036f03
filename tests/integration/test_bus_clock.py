"""The broker's time between two bounds, whatever the clocks of this machine say."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from tests.integration.bus_server import Place, connected, freeze, new_place
from tests.support.server import Server
from tests.support.wall_clock import WallClock
from worker.bus.clock import DRIFT_PPM, BrokerClock
from worker.bus.errors import StreamMissing, Unknown
from worker.bus.jetstream import JetStream

DAY_S = 86_400


def _off_by(seconds: int) -> Callable[[], int]:
    return lambda: time.time_ns() + seconds * 10**9


@pytest.fixture
async def place(server: Server) -> AsyncIterator[Place]:
    async with connected(server.worker_options()) as c:
        yield await new_place(JetStream(c))


async def test_the_bounds_hold_the_brokers_own_timestamps(place: Place) -> None:
    clock = BrokerClock(place.js, place.stream, time.monotonic)
    await clock.refresh()
    for _ in range(50):
        before = clock.lower_ms()
        ack = await place.js.publish(place.subject(), b"")
        after = clock.upper_ms()
        stored = await place.js.message(place.stream, ack.seq)
        assert stored is not None
        assert before <= stored.time_ns / 1e6 <= after
    assert clock.ready
    assert clock.uncertainty_ms < 100


async def test_nothing_is_known_before_the_first_answer(place: Place) -> None:
    clock = BrokerClock(place.js, place.stream, time.monotonic)
    assert not clock.ready
    assert clock.uncertainty_ms > 1 << 60


@pytest.mark.parametrize("skew_s", [-3_600.0, 3_600.0, 1e6])
async def test_the_zero_of_the_monotonic_clock_does_not_matter(place: Place, skew_s: float) -> None:
    clock = BrokerClock(place.js, place.stream, lambda: time.monotonic() + skew_s)
    await clock.refresh()
    assert clock.lower_ms() - 1 <= time.time() * 1000 <= clock.upper_ms() + 1


async def test_refreshing_narrows_the_bounds_and_time_widens_them(place: Place) -> None:
    now_s = 1_000.0
    clock = BrokerClock(place.js, place.stream, lambda: now_s)
    await clock.refresh()
    assert clock.uncertainty_ms == 1
    narrow = clock.upper_ms() - clock.lower_ms()
    now_s += 3_600
    wide = clock.upper_ms() - clock.lower_ms()
    assert wide - narrow == pytest.approx(2 * 3_600_000 * DRIFT_PPM / 1e6)
    assert not clock.ready


async def test_a_clock_that_was_set_starts_anew(place: Place) -> None:
    off_s = 0.0
    clock = BrokerClock(place.js, place.stream, lambda: time.monotonic() + off_s)
    await clock.refresh()
    off_s = 500.0
    await clock.refresh()
    assert "not known" in clock.trouble, "one look is not believed alone"
    looking = asyncio.create_task(clock.run())
    try:
        while clock.trouble:  # noqa: ASYNC110 - a clock tells nobody
            await asyncio.sleep(0.01)
    finally:
        looking.cancel()
    assert (clock.jumps, round(clock.last_jump_ms / 1_000)) == (1, -500)
    assert abs(clock.lower_ms() - time.time() * 1000) < 1_000


async def test_a_broker_that_does_not_answer_leaves_the_bounds_drifting(
    own_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c))
        clock = BrokerClock(place.js, place.stream, time.monotonic)
        await clock.refresh()
        before = clock.lower_ms()
        await freeze(server.pid)
        with pytest.raises(Unknown):
            await clock.refresh(100)
        assert clock.ready
        assert clock.lower_ms() > before


async def test_a_missing_stream_is_not_a_time(place: Place) -> None:
    await place.js.stream_delete(place.stream)
    with pytest.raises(StreamMissing):
        await BrokerClock(place.js, place.stream, time.monotonic).refresh()


async def test_a_look_that_contradicts_those_before_it_is_not_believed_alone(
    own_server: Callable[..., Server],
) -> None:
    """The broker's own clock is a day ahead for one look."""
    server = await asyncio.to_thread(own_server("main").start)
    broker = WallClock(server.pid)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c))
        clock = BrokerClock(place.js, place.stream, time.monotonic)
        await clock.refresh()
        with broker.ahead(DAY_S):
            await clock.refresh()
        assert "not known" in clock.trouble
        assert clock.lower_ms() <= time.time() * 1_000 < clock.upper_ms() - DAY_S * 900
        assert clock.jumps == 1
        await clock.refresh()
        assert clock.ready
        assert clock.lower_ms() - 1 <= time.time() * 1_000 <= clock.upper_ms() + 1
        assert clock.jumps == 1


@pytest.mark.parametrize("seconds", [-DAY_S, -61, 61, DAY_S])
async def test_while_the_two_clocks_are_apart_the_bounds_hold_for_either(
    place: Place, seconds: int
) -> None:
    clock = BrokerClock(place.js, place.stream, time.monotonic, _off_by(-seconds))
    await clock.refresh()
    assert "this machine's" in clock.trouble
    assert ("ahead" in clock.trouble) == (seconds > 0)
    now_ms = time.time() * 1_000
    assert clock.lower_ms() <= min(now_ms, now_ms - seconds * 1_000) + 1_000
    assert clock.upper_ms() >= max(now_ms, now_ms - seconds * 1_000) - 1_000


async def test_clocks_that_are_less_than_a_minute_apart_do_not_matter(place: Place) -> None:
    for seconds in (-50, 50):
        clock = BrokerClock(place.js, place.stream, time.monotonic, _off_by(seconds))
        await clock.refresh()
        assert clock.ready
        assert clock.upper_ms() - clock.lower_ms() < 1_000


async def test_bounds_that_nobody_renewed_for_a_minute_count_for_nothing(place: Place) -> None:
    now_s = 1_000.0
    clock = BrokerClock(place.js, place.stream, lambda: now_s)
    await clock.refresh()
    now_s += 59
    assert clock.trouble == ""
    now_s += 2
    assert "for a minute" in clock.trouble


async def test_stamps_of_a_server_that_is_a_little_ahead_cost_no_look_each(place: Place) -> None:
    """Another server of the cluster leads the stream of commands than is asked for the time."""
    conn = place.js.connection
    clock = BrokerClock(place.js, place.stream, time.monotonic)
    await clock.refresh()
    asked = conn._requests._next
    for _ in range(20):
        await clock.look_at_stamp(int(clock.upper_ms()) + 20)
    assert conn._requests._next == asked
    await clock.look_at_stamp(int(clock.upper_ms()) + 2_000)
    assert conn._requests._next == asked + 1
