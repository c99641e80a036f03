"""Keys with revisions: a marker is never absence, and the compare-and-set decides."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.integration.bus_server import Place, connected, new_place
from tests.support.proxy import proxy_to
from tests.support.server import Server
from worker.bus.errors import CasLost, StreamMissing
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket, Entry
from worker.bus.window import GroupPublisher


@pytest.fixture
async def bucket(server: Server) -> AsyncIterator[Bucket]:
    async with connected(server.worker_options()) as c:
        js = JetStream(c)
        place: Place = await new_place(js)
        name = place.prefix
        await js.stream_create(
            {
                "name": f"KV_{name}",
                "subjects": [f"$KV.{name}.>"],
                "storage": "file",
                "max_msgs_per_subject": 1,
                "allow_atomic": True,
                "allow_rollup_hdrs": True,
                "allow_msg_ttl": True,
                "subject_delete_marker_ttl": 60_000_000_000,
                "deny_delete": True,
                "discard": "new",
            }
        )
        yield Bucket(js, name, GroupPublisher(js, f"KV_{name}", atomic=True))


async def test_a_key_is_created_changed_and_read_with_its_revision(bucket: Bucket) -> None:
    assert await bucket.read("a.b") is None
    first = await bucket.put_if("a.b", b"1", 0, {"X": "1"})
    entry = await bucket.read("a.b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("a.b", b"1", first)
    assert entry.headers["X"] == "1"
    assert not entry.deleted
    second = await bucket.put_if("a.b", b"2", first)
    assert second > first
    with pytest.raises(CasLost):
        await bucket.put_if("a.b", b"3", first)
    entry = await bucket.read("a.b")
    assert entry is not None
    assert entry.value == b"2"


async def test_a_deletion_marker_is_not_absence(bucket: Bucket) -> None:
    revision = await bucket.put_if("k", b"1", 0)
    marker = await bucket.delete_if("k", revision)
    entry = await bucket.read("k")
    assert entry is not None
    assert entry.deleted
    assert (entry.value, entry.revision) == (b"", marker)
    with pytest.raises(CasLost):
        await bucket.put_if("k", b"again", 0)


async def test_a_purge_marker_of_another_client_is_not_absence(bucket: Bucket) -> None:
    js = bucket._js
    await bucket.put_if("k", b"1", 0)
    await js.publish(
        bucket.subject("k"), b"", headers={"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
    )
    entry = await bucket.read("k")
    assert entry is not None
    assert entry.deleted
    with pytest.raises(CasLost):
        await bucket.put_if("k", b"again", 0)


async def test_a_marker_of_expiry_is_not_absence(bucket: Bucket) -> None:
    await bucket.put_if("k", b"1", 0, {"Nats-TTL": "1s"})
    for _ in range(100):
        entry = await bucket.read("k")
        if entry is None or entry.deleted:
            break
        await asyncio.sleep(0.05)
    assert entry is not None
    assert entry.deleted
    assert entry.headers["Nats-Marker-Reason"] == "MaxAge"


async def test_a_value_may_be_empty_without_being_deleted(bucket: Bucket) -> None:
    await bucket.put_if("k", b"", 0)
    entry = await bucket.read("k")
    assert entry is not None
    assert not entry.deleted


async def test_several_keys_are_written_together_or_not_at_all(bucket: Bucket) -> None:
    assert await bucket.put_all([("a", b"1", None, 0), ("b", b"2", {"X": "1"}, 0)]) == [1, 2]
    with pytest.raises(CasLost):
        await bucket.put_all([("c", b"", None, 0), ("a", b"", None, 7), ("d", b"", None, 0)])
    assert await bucket.read("c") is None
    assert await bucket.read("d") is None
    assert await bucket.put_all([("a", b"3", None, 1), ("c", b"", None, 0)]) == [3, 4]


async def test_of_many_writers_of_one_revision_one_wins(bucket: Bucket) -> None:
    first = await bucket.put_if("k", b"0", 0)
    results = await asyncio.gather(
        *(bucket.put_if("k", b"%d" % n, first) for n in range(30)), return_exceptions=True
    )
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, CasLost) for result in results) == 29


async def test_a_missing_bucket_is_not_a_missing_key(bucket: Bucket) -> None:
    await bucket._js.stream_delete(bucket.stream)
    with pytest.raises(StreamMissing):
        await bucket.read("k")


async def test_a_scan_gives_each_key_once_in_order_of_revision(bucket: Bucket) -> None:
    for n in range(1_200):
        await bucket.put_if(f"x.{n}", b"%d" % n, 0)
    await bucket.put_if("y.1", b"", 0)
    await bucket.put_if("x.5", b"new", 6)
    await bucket.delete_if("x.7", 8)
    found = [entry async for entry in bucket.scan("x.>")]
    assert len(found) == 1_200
    assert [e.revision for e in found] == sorted(e.revision for e in found)
    by_key = {e.key: e for e in found}
    assert by_key["x.5"].value == b"new"
    assert by_key["x.7"].deleted
    assert [entry async for entry in bucket.scan("z.>")] == []


async def test_a_scan_is_not_over_by_the_word_of_a_copy_that_lags(
    bucket: Bucket, server: Server
) -> None:
    for key in ("a", "b", "c"):
        await bucket.put_if(key, b"", 0)

    def of_a_copy_that_lags(data: bytes) -> bytes:
        return data.replace(b'"num_pending":3', b'"num_pending":0')

    async with (
        proxy_to(server.port, of_a_copy_that_lags) as link,
        connected(server.worker_options(), servers=(link.url,)) as c,
    ):
        js = JetStream(c)
        far = Bucket(js, bucket.name, GroupPublisher(js, bucket.stream, atomic=True))
        assert [entry.key async for entry in far.scan()] == ["a", "b", "c"]


async def test_a_watch_gives_every_change_past_a_revision(bucket: Bucket) -> None:
    await bucket.put_if("a", b"1", 0)
    second = await bucket.put_if("b", b"2", 0)
    changes = bucket.watch(after_revision=second - 1)
    assert (await anext(changes)).key == "b"
    third = await bucket.delete_if("a", 1)
    change: Entry = await anext(changes)
    assert (change.key, change.revision, change.deleted) == ("a", third, True)
    await changes.aclose()  # type: ignore[attr-defined]  # an async generator behind the protocol
