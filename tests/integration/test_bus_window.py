"""Grouped publishing: fast together, and each caller with its own verdict."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from tests.integration.bus_server import Place, connected, freeze, new_place
from tests.support.server import Server
from worker.bus.errors import CasLost, Rejected, TooLarge, Unavailable, Unknown
from worker.bus.jetstream import JetStream, Outgoing
from worker.bus.window import GroupPublisher


@pytest.fixture
async def js(server: Server) -> AsyncIterator[JetStream]:
    async with connected(server.worker_options()) as c:
        yield JetStream(c)


@pytest.fixture
async def place(js: JetStream) -> Place:
    return await new_place(js, allow_atomic=True)


async def _contents(place: Place) -> dict[str, list[tuple[int, bytes]]]:
    """Bodies per subject in stream order."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    info = await place.js.stream_info(place.stream)
    for seq in range(info.first_seq, info.last_seq + 1):
        message = await place.js.message(place.stream, seq)
        assert message is not None
        found.setdefault(message.subject, []).append((seq, message.data))
    return found


async def test_a_lone_message_leaves_as_a_plain_publish(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    assert await group.publish(place.subject(), b"1", headers={"X": "1"}) == 1
    found = await place.js.message(place.stream, 1)
    assert found is not None
    assert found.headers == {"X": "1"}


async def test_what_waits_together_leaves_together(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    seqs = await asyncio.gather(*(group.publish(place.subject(n), b"%d" % n) for n in range(500)))
    assert sorted(seqs) == list(range(1, 501))
    assert group.batches <= 4
    for n, seq in enumerate(seqs[:20]):
        found = await place.js.message(place.stream, seq)
        assert found is not None
        assert found.subject == place.subject(n)


async def test_losers_in_a_batch_get_their_own_verdict(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    taken = {3, 50, 51, 199}
    for n in taken:
        await place.js.publish(place.subject(n), b"old")
    results = await asyncio.gather(
        *(group.publish(place.subject(n), b"new", expect_last_subject_seq=0) for n in range(200)),
        return_exceptions=True,
    )
    for n, result in enumerate(results):
        assert isinstance(result, CasLost if n in taken else int), n
    contents = await _contents(place)
    assert len(contents) == 200
    for n in range(200):
        ((seq, body),) = contents[place.subject(n)]
        assert body == (b"old" if n in taken else b"new")
        assert n in taken or results[n] == seq
    assert group.waiting == 0


async def test_messages_of_one_subject_keep_their_order(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True, max_batch=16, max_in_flight=4)
    order = random.Random(7)
    sent: dict[int, list[bytes]] = {}
    tasks = []
    for n in range(1_000):
        k = order.randrange(20)
        sent.setdefault(k, []).append(b"%d" % n)
        tasks.append(asyncio.ensure_future(group.publish(place.subject(k), b"%d" % n)))
        if order.random() < 0.05:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    contents = await _contents(place)
    for k, bodies in sent.items():
        assert [body for _, body in contents[place.subject(k)]] == bodies


async def test_a_chain_of_compare_and_sets_handed_in_together(place: Place) -> None:
    """The second writer of a subject waits for the first one's verdict, then loses by number."""
    group = GroupPublisher(place.js, place.stream, atomic=True)
    results = await asyncio.gather(
        *(group.publish(place.subject("k"), b"", expect_last_subject_seq=0) for _ in range(10)),
        return_exceptions=True,
    )
    assert results[0] == 1
    assert all(isinstance(result, CasLost) for result in results[1:])


async def test_a_message_that_guards_another_subject_is_not_overtaken(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    guard = await group.publish(place.subject("guard"), b"")
    moved, guarded = await asyncio.gather(
        group.publish(place.subject("guard"), b""),
        group.publish(
            place.subject("a"),
            b"",
            expect_last_subject_seq=guard,
            expect_subject=place.subject("guard"),
        ),
        return_exceptions=True,
    )
    assert moved == guard + 1
    assert isinstance(guarded, CasLost)


async def test_groups_share_a_batch_and_stay_whole(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    await place.js.publish(place.subject("5.b"), b"old")

    def parts(k: int) -> list[Outgoing]:
        return [Outgoing(place.subject(f"{k}.{part}"), b"new", None, 0) for part in "abc"]

    results = await asyncio.gather(
        *(group.publish_all(parts(k)) for k in range(20)), return_exceptions=True
    )
    contents = await _contents(place)
    for k, result in enumerate(results):
        if k == 5:
            assert isinstance(result, CasLost)
            assert place.subject("5.a") not in contents
            assert place.subject("5.c") not in contents
        else:
            assert not isinstance(result, BaseException)
            told = [(seq, b"new") for seq in result]
            assert [contents[place.subject(f"{k}.{p}")][0] for p in "abc"] == told


async def test_a_group_must_make_sense(place: Place, js: JetStream) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    assert await group.publish_all([]) == []
    with pytest.raises(ValueError, match="one subject"):
        await group.publish_all([Outgoing(place.subject()), Outgoing(place.subject())])
    single = GroupPublisher(js, place.stream, atomic=False)
    with pytest.raises(ValueError, match="atomic"):
        await single.publish_all([Outgoing(place.subject(1)), Outgoing(place.subject(2))])
    with pytest.raises(ValueError, match="line break"):
        await group.publish(place.subject(), b"", headers={"X": "a\r\nb"})


async def test_without_batches_messages_leave_one_by_one(js: JetStream) -> None:
    place = await new_place(js)
    group = GroupPublisher(js, place.stream, atomic=False)
    seqs = await asyncio.gather(*(group.publish(place.subject(n), b"") for n in range(200)))
    assert sorted(seqs) == list(range(1, 201))
    assert group.batches == 200


async def test_a_stream_that_takes_no_batches_after_all_costs_only_time(js: JetStream) -> None:
    place = await new_place(js)
    group = GroupPublisher(js, place.stream, atomic=True)
    seqs = await asyncio.gather(*(group.publish(place.subject(n), b"") for n in range(100)))
    assert sorted(seqs) == list(range(1, 101))


async def test_one_message_that_is_too_large_fails_alone(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    huge = b"x" * (place.js.connection.max_payload + 1)
    results = await asyncio.gather(
        *(group.publish(place.subject(n), huge if n == 30 else b"") for n in range(100)),
        return_exceptions=True,
    )
    for n, result in enumerate(results):
        assert isinstance(result, TooLarge if n == 30 else int)


async def test_a_message_the_broker_rejects_fails_alone(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    results = await asyncio.gather(
        *(
            group.publish(
                place.subject(n),
                b"",
                headers={"Nats-Schedule": "@at 2030-01-01T00:00:00Z"} if n == 3 else None,
            )
            for n in range(20)
        ),
        return_exceptions=True,
    )
    assert [n for n, result in enumerate(results) if isinstance(result, BaseException)] == [3]
    assert not isinstance(results[3], Rejected)


async def test_a_timeout_is_unknown_for_everybody_in_the_batch(
    own_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c), allow_atomic=True)
        group = GroupPublisher(place.js, place.stream, atomic=True, timeout_ms=200)
        await freeze(server.pid)
        results = await asyncio.gather(
            *(group.publish(place.subject(n), b"") for n in range(30)), return_exceptions=True
        )
        assert all(isinstance(result, Unknown) for result in results)
        assert len({id(result) for result in results}) == 30
        assert group.waiting == 0


async def test_a_broker_that_is_away_is_unavailable_for_everybody(
    own_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c), allow_atomic=True)
        group = GroupPublisher(place.js, place.stream, atomic=True)
        await group.publish(place.subject("before"), b"")
        await asyncio.to_thread(server.stop)
        results = await asyncio.gather(
            *(group.publish(place.subject(n), b"") for n in range(30)), return_exceptions=True
        )
        assert all(isinstance(result, Unavailable) for result in results)
        await asyncio.to_thread(server.start)
        assert await c.wait_connected(10_000)
        await group.publish(place.subject("after"), b"")


async def test_cancelled_callers_hold_nobody_up(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True, max_in_flight=1)
    tasks = [
        asyncio.create_task(group.publish(place.subject(n % 5), b"%d" % n)) for n in range(100)
    ]
    await asyncio.sleep(0)
    for task in tasks[1::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, int) for result in results[::2])
    assert group.waiting == 0
    assert await group.publish(place.subject(0), b"") > 0


async def test_closing_waits_for_what_was_handed_in(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True)
    tasks = [asyncio.create_task(group.publish(place.subject(n), b"")) for n in range(300)]
    await asyncio.sleep(0)
    assert await group.close()
    assert all(task.done() or group.waiting == 0 for task in tasks)
    assert sorted(await asyncio.gather(*tasks)) == list(range(1, 301))
    with pytest.raises(Unavailable):
        await group.publish(place.subject(), b"")


async def test_too_many_that_wait_are_refused_not_kept(place: Place) -> None:
    group = GroupPublisher(place.js, place.stream, atomic=True, max_waiting=10)
    results = await asyncio.gather(
        *(group.publish(place.subject(n), b"") for n in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, int) for result in results) == 10
    assert sum(isinstance(result, Unavailable) for result in results) == 10
