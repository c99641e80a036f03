"""Streams on a real server: expectations, absence and loss told apart, batches."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.integration.bus_server import Place, connected, freeze, new_place
from tests.support.server import Server
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.errors import (
    CasLost,
    ConsumerMissing,
    JetStreamMissing,
    NameTaken,
    Rejected,
    ScheduleRefused,
    StreamMissing,
    TooLarge,
    Unavailable,
    Unknown,
)
from worker.bus.jetstream import MAX_BATCH, JetStream, Outgoing
from worker.bus.options import ConnectOptions


@pytest.fixture
async def js(server: Server) -> AsyncIterator[JetStream]:
    async with connected(server.worker_options()) as c:
        yield JetStream(c)


@pytest.fixture
async def place(js: JetStream) -> Place:
    return await new_place(js, allow_atomic=True)


async def test_what_was_stored_is_read_back_whole(place: Place) -> None:
    before_ms = time.time_ns() // 1_000_000
    ack = await place.js.publish(place.subject("a"), b"\x00body", headers={"X": "ü", "Y": "2"})
    assert (ack.stream, ack.seq) == (place.stream, 1)
    for found in (
        await place.js.last_message(place.stream, place.subject("a")),
        await place.js.message(place.stream, 1),
        await place.js.next_message(place.stream, 1, place.subject(">")),
        await place.js.direct_last(place.stream, place.subject("a")),
    ):
        assert found is not None
        assert found.subject == place.subject("a")
        assert found.data == b"\x00body"
        assert found.headers == {"X": "ü", "Y": "2"}
        assert found.seq == 1
        assert abs(found.time_ms - before_ms) < 2_000
        assert found.time_ns // 1_000_000 == found.time_ms
        assert found.stream == place.stream


async def test_absence_and_a_missing_stream_are_never_confused(place: Place) -> None:
    js = place.js
    assert await js.last_message(place.stream, place.subject("never")) is None
    assert await js.message(place.stream, 99) is None
    assert await js.direct_last(place.stream, place.subject("never")) is None
    await js.stream_delete(place.stream)
    with pytest.raises(StreamMissing):
        await js.last_message(place.stream, place.subject("never"))
    with pytest.raises(StreamMissing):
        await js.message(place.stream, 1)
    with pytest.raises(StreamMissing):
        await js.stream_info(place.stream)
    with pytest.raises(Unavailable):
        await js.direct_last(place.stream, place.subject("never"))
    with pytest.raises(Unavailable) as caught:
        await js.publish(place.subject(), b"")
    assert not isinstance(caught.value, Unknown)


async def test_compare_and_set_on_the_own_subject(place: Place) -> None:
    js, subject = place.js, place.subject("k")
    first = await js.publish(subject, b"1", expect_last_subject_seq=0)
    with pytest.raises(CasLost):
        await js.publish(subject, b"2", expect_last_subject_seq=0)
    await js.publish(place.subject("other"), b"")
    await js.publish(subject, b"2", expect_last_subject_seq=first.seq)
    with pytest.raises(CasLost):
        await js.publish(subject, b"3", expect_last_subject_seq=first.seq)


async def test_compare_and_set_on_another_subject(place: Place) -> None:
    js = place.js
    guard = await js.publish(place.subject("guard"), b"")
    await js.publish(
        place.subject("a"),
        b"",
        expect_last_subject_seq=guard.seq,
        expect_subject=place.subject("guard"),
    )
    await js.publish(place.subject("guard"), b"")
    with pytest.raises(CasLost):
        await js.publish(
            place.subject("b"),
            b"",
            expect_last_subject_seq=guard.seq,
            expect_subject=place.subject("guard"),
        )


async def test_of_many_creates_of_one_subject_one_wins(place: Place) -> None:
    async def create() -> bool:
        try:
            await place.js.publish(place.subject("one"), b"", expect_last_subject_seq=0)
        except CasLost:
            return False
        return True

    assert sum(await asyncio.gather(*(create() for _ in range(50)))) == 1


async def test_a_publish_without_an_answer_is_unknown(
    own_server: Callable[..., Server],
) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c))
        await freeze(server.pid)
        with pytest.raises(Unknown):
            await place.js.publish(place.subject(), b"", timeout_ms=100)


async def test_a_batch_is_stored_together_with_one_sequence_each(place: Place) -> None:
    await place.js.publish(place.subject("first"), b"")
    seqs = await place.js.publish_batch(
        [Outgoing(place.subject(n), b"%d" % n, {"N": str(n)}, 0) for n in range(5)]
    )
    assert seqs == [2, 3, 4, 5, 6]
    for n, seq in enumerate(seqs):
        found = await place.js.message(place.stream, seq)
        assert found is not None
        assert (found.subject, found.data) == (place.subject(n), b"%d" % n)
        assert found.headers["N"] == str(n)


async def test_batches_that_overlap_keep_their_sequences(place: Place) -> None:
    async def batch(k: int) -> list[tuple[int, str]]:
        messages = [Outgoing(place.subject(f"{k}.{n}"), b"") for n in range(7)]
        seqs = await place.js.publish_batch(messages)
        return [(seq, message.subject) for seq, message in zip(seqs, messages, strict=True)]

    told = await asyncio.gather(*(batch(k) for k in range(20)))
    for seq, subject in [pair for pairs in told for pair in pairs]:
        found = await place.js.message(place.stream, seq)
        assert found is not None
        assert found.subject == subject


async def test_a_batch_with_one_loser_stores_nothing(place: Place) -> None:
    await place.js.publish(place.subject(2), b"old")
    with pytest.raises(CasLost):
        await place.js.publish_batch([Outgoing(place.subject(n), b"", None, 0) for n in range(4)])
    assert (await place.js.stream_info(place.stream)).messages == 1


async def test_a_stream_without_batches_refuses_them(js: JetStream) -> None:
    place = await new_place(js)
    with pytest.raises(Rejected):
        await js.publish_batch([Outgoing(place.subject(n)) for n in range(2)])
    assert await js.publish_batch([Outgoing(place.subject())]) == [1]


async def test_a_batch_that_cannot_be_sent_whole_is_not_begun(place: Place) -> None:
    huge = b"x" * (place.js.connection.max_payload + 1)
    with pytest.raises(TooLarge):
        await place.js.publish_batch([Outgoing(place.subject(1)), Outgoing(place.subject(2), huge)])
    with pytest.raises(ValueError, match="batch"):
        await place.js.publish_batch([])
    with pytest.raises(ValueError, match="batch"):
        await place.js.publish_batch([Outgoing(place.subject(n)) for n in range(MAX_BATCH + 1)])
    assert (await place.js.stream_info(place.stream)).messages == 0


async def test_the_largest_batch(place: Place) -> None:
    seqs = await place.js.publish_batch([Outgoing(place.subject(n)) for n in range(MAX_BATCH)])
    assert seqs == list(range(1, MAX_BATCH + 1))


async def test_a_schedule_on_a_stream_without_them_is_refused_by_number(place: Place) -> None:
    headers = {
        "Nats-Schedule": "@at 2030-01-01T00:00:00Z",
        "Nats-Schedule-Target": place.subject("t"),
    }
    with pytest.raises(ScheduleRefused):
        await place.js.publish(place.subject("s"), b"", headers=headers)


async def test_stream_info_tells_state_and_subjects(place: Place) -> None:
    for n in range(3):
        await place.js.publish(place.subject(f"a.{n}"), b"")
    await place.js.publish(place.subject("b"), b"")
    await place.js.message_delete(place.stream, 2)
    info = await place.js.stream_info(
        place.stream, subjects_filter=place.subject("a.*"), deleted=True
    )
    assert info.subjects == {place.subject("a.0"): 1, place.subject("a.2"): 1}
    assert (info.first_seq, info.last_seq, info.messages) == (1, 4, 3)
    assert info.deleted == (2,)
    assert abs(info.ts_ms - time.time() * 1000) < 2_000
    assert info.created


async def test_subjects_that_are_one_in_json_end_the_list_of_them(place: Place) -> None:
    for tail in ("\udcfe", "\udcff", "z"):
        await place.js.publish(place.subject(tail), b"")
    async with asyncio.timeout(10):
        info = await place.js.stream_info(place.stream, subjects_filter=place.subject("*"))
    assert set(info.subjects) == {place.subject("\ufffd"), place.subject("z")}
    pages = [page async for page in place.js.subject_pages(place.stream, place.subject("*"))]
    assert sorted(pages[0]) == [place.subject("z"), place.subject("\ufffd")]
    assert len(pages) == 1


async def test_purging_by_sequence_keeps_what_follows(place: Place) -> None:
    for n in range(10):
        await place.js.publish(place.subject(n), b"")
    assert await place.js.stream_purge(place.stream, below_seq=6) == 5
    info = await place.js.stream_info(place.stream)
    assert (info.first_seq, info.messages) == (6, 5)
    assert await place.js.stream_purge(place.stream, subject=place.subject(7)) == 1
    assert await place.js.stream_purge(place.stream, keep=1) == 3


async def test_creating_a_stream_twice(place: Place) -> None:
    config = dict((await place.js.stream_info(place.stream)).config)
    assert (await place.js.stream_create(config)).name == place.stream
    with pytest.raises(NameTaken):
        await place.js.stream_create(config | {"max_msgs": 7})
    assert (await place.js.stream_update(config | {"max_msgs": 7})).config["max_msgs"] == 7
    assert await place.js.stream_names(place.subject("x")) == [place.stream]


async def test_consumers_are_made_described_and_deleted(place: Place) -> None:
    js = place.js
    await js.publish(place.subject("a"), b"")
    config = {
        "durable_name": "d",
        "ack_policy": "explicit",
        "filter_subject": place.subject("a"),
    }
    made = await js.consumer_create(place.stream, config)
    assert made.pending == 1
    assert (await js.consumer_info(place.stream, "d")).config["filter_subject"] == place.subject(
        "a"
    )
    await js.consumer_create(place.stream, config)
    await js.consumer_delete(place.stream, "d")
    with pytest.raises(ConsumerMissing):
        await js.consumer_info(place.stream, "d")
    with pytest.raises(StreamMissing):
        await js.consumer_create("NOT_THERE", config)


async def test_a_server_without_jetstream_says_so(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.mkdir()
    server = Server(file, 'listen: "127.0.0.1:-1"\n')
    await asyncio.to_thread(server.start)
    try:
        c = await Connection.open(ConnectOptions((server.url,)), name="t")
        with pytest.raises(Unavailable):
            await JetStream(c).api("INFO", None)
        await c.close()
    finally:
        server.kill()


async def test_an_account_without_jetstream_says_so(server: Server) -> None:
    async with connected(server.client_options()) as c:
        with pytest.raises(JetStreamMissing):
            await JetStream(c).api("INFO", None)


async def test_a_clients_direct_get_crosses_the_border_and_its_api_does_not(
    tmp_path: Path,
) -> None:
    space = conf.Space("tidegate", "main")
    server = Server.two_accounts(tmp_path, [space])
    await asyncio.to_thread(server.start)
    try:
        async with connected(server.worker_options()) as w, connected(server.client_options()) as c:
            js = JetStream(w)
            await js.stream_create(
                {"name": "RES_main", "subjects": ["tidegate.main.res.>"], "allow_direct": True}
            )
            await js.publish("tidegate.main.res.p.u.1", b"told")
            found = await JetStream(c).direct_last("RES_main", "tidegate.main.res.p.u.1")
            assert found is not None
            assert found.data == b"told"
            assert await JetStream(c).direct_last("RES_main", "tidegate.main.res.p.u.2") is None
            with pytest.raises(JetStreamMissing):
                await JetStream(c).stream_info("RES_main")
    finally:
        server.kill()
