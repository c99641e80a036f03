"""Reading a log in order, and following part of a stream across interruptions."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.integration.bus_server import Place, connected, eventually, new_place
from tests.support.frames import FrameProxy, Passing, frames_to
from tests.support.proxy import proxy_to
from tests.support.server import Server
from worker.bus.errors import GapError, StreamMissing
from worker.bus.follow import Batch, FilteredReader, Follower
from worker.bus.jetstream import JetStream, Outgoing
from worker.bus.messages import StoredMessage
from worker.bus.pull import LogReader


@pytest.fixture
async def js(server: Server) -> AsyncIterator[JetStream]:
    async with connected(server.worker_options()) as c:
        yield JetStream(c)


@pytest.fixture
async def link(server: Server) -> AsyncIterator[FrameProxy]:
    """Between a reader and the broker; everybody else goes past it."""
    async with frames_to(server.port) as proxy:
        yield proxy


@pytest.fixture
async def far(server: Server, link: FrameProxy) -> AsyncIterator[JetStream]:
    """Reads through the link."""
    async with connected(server.worker_options(), servers=(link.url,)) as c:
        yield JetStream(c)


@pytest.fixture
async def place(js: JetStream) -> Place:
    return await new_place(js, allow_atomic=True)


async def _fill(place: Place, count: int, start: int = 0) -> None:
    for at in range(start, start + count, 500):
        some = range(at, min(at + 500, start + count))
        await place.js.publish_batch([Outgoing(place.subject(n), b"%d" % n) for n in some])


async def _read(
    reader: LogReader | FilteredReader, count: int, wait_ms: int = 3_000
) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while len(found) < count:
        batch = await reader.next_batch(300, wait_ms)
        assert batch, f"nothing came after {len(found)} messages"
        found += batch
    return found


async def test_every_sequence_is_exactly_the_next(place: Place) -> None:
    await _fill(place, 7_000)
    reader = await LogReader.open(place.js, place.stream, 1)
    found = await _read(reader, 7_000)
    assert [m.seq for m in found] == list(range(1, 7_001))
    assert found[41] == await place.js.message(place.stream, 42)
    assert reader.pending == 0
    assert reader.expected == 7_001
    assert await reader.next_batch(10, 50) == []
    await place.js.publish(place.subject("live"), b"")
    (live,) = await reader.next_batch(10, 3_000)
    assert live.seq == 7_001
    await reader.close()


async def test_reading_begins_in_the_middle_or_at_what_does_not_exist_yet(place: Place) -> None:
    await _fill(place, 10)
    middle = await LogReader.open(place.js, place.stream, 6)
    assert [m.seq for m in await _read(middle, 5)] == [6, 7, 8, 9, 10]
    future = await LogReader.open(place.js, place.stream, 11)
    assert await future.next_batch(10, 50) == []
    await _fill(place, 2, 10)
    assert [m.seq for m in await _read(future, 2)] == [11, 12]
    await middle.close()
    await future.close()


async def test_strange_headers_are_read_like_any_other(place: Place) -> None:
    for headers in ({"Status": "503"}, {"Status": "404"}, {"Status": "100"}, None):
        await place.js.publish(place.subject(), b"", headers=headers)
    reader = await LogReader.open(place.js, place.stream, 1)
    found = await _read(reader, 4)
    assert [m.seq for m in found] == [1, 2, 3, 4]
    assert found[0].headers == {"Status": "503"}
    await reader.close()


async def test_large_messages_come_in_portions(place: Place) -> None:
    big = b"x" * 900_000
    for n in range(30):
        await place.js.publish(place.subject(n), big)
    reader = await LogReader.open(place.js, place.stream, 1)
    found = await _read(reader, 30)
    assert [m.seq for m in found] == list(range(1, 31))
    assert all(m.data == big for m in found)
    await reader.close()


async def test_a_hole_in_the_log_is_a_gap(place: Place) -> None:
    await _fill(place, 10)
    await place.js.message_delete(place.stream, 4)
    reader = await LogReader.open(place.js, place.stream, 1)
    with pytest.raises(GapError) as caught:
        await _read(reader, 10)
    assert (caught.value.expected, caught.value.found) == (4, 5)
    await reader.close()


async def test_a_log_trimmed_above_the_start_is_a_gap(place: Place) -> None:
    await _fill(place, 10)
    await place.js.stream_purge(place.stream, below_seq=6)
    reader = await LogReader.open(place.js, place.stream, 3)
    with pytest.raises(GapError) as caught:
        await reader.next_batch(10, 3_000)
    assert (caught.value.expected, caught.value.found) == (3, 6)
    await reader.close()


async def test_a_stream_that_is_missing_is_said_to_be(js: JetStream) -> None:
    with pytest.raises(StreamMissing):
        await LogReader.open(js, "NOT_THERE", 1)


async def test_a_consumer_that_vanished_is_a_gap_soon(place: Place) -> None:
    reader = await LogReader.open(place.js, place.stream, 1)
    assert await reader.next_batch(1, 20) == []
    await place.js.consumer_delete(place.stream, reader._name)
    with pytest.raises(GapError):
        await reader.next_batch(1, 20_000)
    await reader.close()


async def test_a_broker_that_restarted_is_a_gap_and_reading_goes_on(
    own_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c), allow_atomic=True)
        await _fill(place, 10)
        reader = await LogReader.open(place.js, place.stream, 1)
        assert len(await _read(reader, 10)) == 10
        await asyncio.to_thread(server.kill)
        with pytest.raises(GapError) as caught:
            await reader.next_batch(10, 5_000)
        assert caught.value.expected == 11
        await reader.close()
        await asyncio.to_thread(server.start)
        assert await c.wait_connected(10_000)
        await _fill(place, 5, 10)
        again = await LogReader.open(place.js, place.stream, caught.value.expected)
        assert [m.seq for m in await _read(again, 5)] == [11, 12, 13, 14, 15]
        await again.close()


async def test_closing_leaves_no_consumer_behind(place: Place) -> None:
    reader = await LogReader.open(place.js, place.stream, 1)
    assert (await place.js.stream_info(place.stream)).consumers == 1
    await reader.close()

    async def gone() -> bool:
        return (await place.js.stream_info(place.stream)).consumers == 0

    await eventually(gone)


async def test_following_a_filter_to_the_end_and_beyond(place: Place) -> None:
    await _fill(place, 20)
    follower = Follower(place.js, place.stream, place.subject(">"), start_seq=11)
    batches = follower.batches(7)
    seen: list[int] = []
    async for batch in batches:
        seen += [m.seq for m in batch.messages]
        if batch.caught_up:
            break
    assert seen == list(range(11, 21))
    await _fill(place, 1, 20)
    follower = Follower(place.js, place.stream, place.subject(">"), start_seq=22)
    batches = follower.batches(7)
    assert await anext(batches) == Batch((), caught_up=True)
    await _fill(place, 1, 21)
    batch = await anext(batches)
    assert [m.seq for m in batch.messages] == [22]
    await batches.aclose()  # type: ignore[attr-defined]  # an async generator behind the protocol


async def test_following_survives_a_restart_without_a_loss_or_a_double(
    own_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c), allow_atomic=True)
        await _fill(place, 50)
        seen: list[int] = []

        async def follow() -> None:
            async for batch in Follower(place.js, place.stream, place.subject(">")).batches(16):
                seen.extend(m.seq for m in batch.messages)

        task = asyncio.create_task(follow())
        await eventually(lambda: len(seen) == 50)
        await asyncio.to_thread(server.kill)
        await eventually(lambda: not c.connected)
        await asyncio.to_thread(server.start)
        assert await c.wait_connected(10_000)
        await _fill(place, 50, 50)
        await eventually(lambda: len(seen) >= 100)
        assert seen == list(range(1, 101))
        task.cancel()
        await asyncio.wait((task,))


async def test_following_without_bodies(place: Place) -> None:
    await place.js.publish(place.subject("a"), b"body", headers={"X": "1"})
    reader = await FilteredReader.open(
        place.js, place.stream, place.subject("a"), headers_only=True
    )
    (found,) = await _read(reader, 1)
    assert found.data == b""
    assert found.headers["X"] == "1"
    await reader.close()


async def test_following_a_stream_that_vanished_ends(place: Place) -> None:
    follower = Follower(place.js, place.stream, place.subject(">")).batches(10)
    assert (await anext(follower)).caught_up
    await place.js.stream_delete(place.stream)
    with pytest.raises(StreamMissing):
        async with asyncio.timeout(20):
            await anext(follower)


def _delivered(place: Place) -> Callable[[Passing], bool]:
    """The messages that consumers of the place are handed."""
    head = f"$JS.ACK.{place.stream}.".encode()
    return lambda passing: passing.down and passing.frame.reply.startswith(head)


def _asks(place: Place) -> Callable[[Passing], bool]:
    """What a reader asks its consumer for."""
    head = f"$JS.API.CONSUMER.MSG.NEXT.{place.stream}."
    return lambda passing: not passing.down and passing.about.startswith(head)


async def test_a_log_whose_last_messages_were_lost_on_their_way_is_a_gap(
    place: Place, far: JetStream, link: FrameProxy
) -> None:
    await _fill(place, 5)
    reader = await LogReader.open(far, place.stream, 1)
    assert len(await _read(reader, 5)) == 5
    # The consumer takes them for delivered and goes on beating; nothing follows that shows a hole.
    lost = link.rule("drop", _delivered(place), times=3)
    await _fill(place, 3, 5)
    await lost.met.wait()
    async with asyncio.timeout(30):
        with pytest.raises(GapError) as caught:
            await _read(reader, 1, 30_000)
    assert caught.value.expected == 6
    await reader.close()
    again = await LogReader.open(far, place.stream, caught.value.expected)
    assert [m.seq for m in await _read(again, 3)] == [6, 7, 8]
    await again.close()


_SWALLOWED: dict[str, Callable[[Place], Callable[[Passing], bool]]] = {
    "messages": _delivered,
    "pulls": _asks,
    "subscription": lambda _: lambda passing: passing.frame.verb == b"SUB",
    "creation": lambda place: (
        lambda passing: (
            not passing.down and passing.about.startswith(f"$JS.API.CONSUMER.CREATE.{place.stream}")
        )
    ),
    "answer to creation": lambda place: (
        lambda passing: (
            passing.answers and passing.about.startswith(f"$JS.API.CONSUMER.CREATE.{place.stream}")
        )
    ),
}


@pytest.mark.parametrize("what", _SWALLOWED)
async def test_following_goes_on_whatever_was_swallowed(
    place: Place, far: JetStream, link: FrameProxy, what: str
) -> None:
    await _fill(place, 3)
    rule = link.rule("drop", _SWALLOWED[what](place), times=-1)
    follower = Follower(far, place.stream, place.subject(">")).batches(10)
    following = asyncio.ensure_future(anext(follower))
    await rule.met.wait()
    # What came by at once is gone; from now on everything passes, and nothing new is stored.
    await asyncio.sleep(0.5)
    rule.times = 0
    async with asyncio.timeout(30):
        batch = await following
    assert [m.seq for m in batch.messages] == [1, 2, 3]
    assert batch.caught_up
    await follower.aclose()  # type: ignore[attr-defined]  # an async generator behind the protocol


async def test_following_is_caught_up_although_what_was_counted_went_away(
    place: Place, far: JetStream, link: FrameProxy
) -> None:
    await _fill(place, 1)
    # Counted as pending when the consumer was made, and removed before it was delivered.
    held = link.rule("hold", _asks(place), times=-1)
    follower = Follower(far, place.stream, place.subject(">")).batches(10)
    following = asyncio.ensure_future(anext(follower))
    await held.met.wait()
    await place.js.stream_purge(place.stream)
    held.release()
    async with asyncio.timeout(30):
        assert await following == Batch((), caught_up=True)
    await follower.aclose()  # type: ignore[attr-defined]  # an async generator behind the protocol


async def test_following_is_not_caught_up_by_the_word_of_a_copy_that_lags(
    place: Place, server: Server
) -> None:
    await _fill(place, 3)

    def of_a_copy_that_lags(data: bytes) -> bytes:
        return data.replace(b'"num_pending":3', b'"num_pending":0')

    async with (
        proxy_to(server.port, of_a_copy_that_lags) as link,
        connected(server.worker_options(), servers=(link.url,)) as c,
    ):
        follower = Follower(JetStream(c), place.stream, place.subject(">")).batches(10)
        async with asyncio.timeout(30):
            batch = await anext(follower)
        assert [m.seq for m in batch.messages] == [1, 2, 3]
        assert batch.caught_up
        await follower.aclose()  # type: ignore[attr-defined]  # an async generator behind the protocol
