"""Sealed prompts over a real broker: put once, read under the fence, destroyed at dispatch."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas import headers as h
from schemas.commands.adm import Payload
from schemas.subjects import payload_key
from tests.support.proctable import ProcTable, process
from tests.support.running import running
from tests.support.space import Space, speaker
from tests.support.turns import Turn, policy, recovering, refused, until
from worker.bus.connection import Connection
from worker.bus.errors import CasLost, Unknown
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket, Entry
from worker.bus.subscription import Msg
from worker.bus.window import GroupPublisher
from worker.client import Client
from worker.client.errors import Refused
from worker.sealing import keyfiles
from worker.sealing.keyring import KeyRing
from worker.sealing.payloads import PayloadTaken, PayloadWriter, PutUnknown
from worker.sealing.sealer import Sealer

SENTINEL = b"SENTINEL-93ab-what-the-agent-was-asked"
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Owner:
    """A client, its keys, and its way to the payload bucket."""

    client: Client
    sealer: Sealer
    writer: PayloadWriter

    async def put(self, request_id: str, content: bytes = SENTINEL, **more: int) -> Payload:
        given = {"lifetime_ms": HOUR_MS, "now_ms": now_ms(), **more}
        return await self.writer.put(request_id, content, **given)

    def turn(self, request_id: str) -> Turn:
        return Turn(self.client, request_id, process(100, host="nowhere"))


@dataclass
class Scene:
    """A worker, the bucket as the worker sees it, and owners with one set of keys."""

    space: Space
    operator: Client
    bucket: Bucket
    stack: AsyncExitStack
    folder: Path

    async def owner(self, name: str = "alice", *, loses: int = 0) -> Owner:
        """A new life of a principal; of its first puts, some lose their acknowledgement."""
        client = await self.stack.enter_async_context(self.space.client(speaker(name)))
        ring = KeyRing(self.folder)
        ring.init()

        async def find(request_id: str, generation: int) -> Payload | None:
            body = {"request_id": request_id, "generation": generation}
            try:
                return Payload.from_object((await client.query("adm", "sealed", body)).data)
            except Refused as error:
                if error.reason != "no-payload":
                    raise
                return None

        sealer = Sealer(ring, self.space.names.space)
        conn = Loses(client.conn, loses)
        return Owner(client, sealer, PayloadWriter(conn, self.space.names, name, sealer, find))

    async def stored(self, request_id: str, generation: int = 1) -> Entry | None:
        return await self.bucket.read(payload_key("alice", request_id, generation))


@dataclass
class Loses:
    """A client's connection on which acknowledgements get lost after the broker stored."""

    conn: Connection
    times: int
    requests: int = 0

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = 2_000,
    ) -> Msg:
        self.requests += 1
        reply = await self.conn.request(subject, data, headers=headers, timeout_ms=timeout_ms)
        if self.requests <= self.times:
            raise Unknown("the acknowledgement was lost")
        return reply


@pytest.fixture
async def scene(space: Space, tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        settings = space.settings(host="here")
        await stack.enter_async_context(running(settings, recovering(ProcTable())))
        operator = await stack.enter_async_context(space.client("_op"))
        conn = await space.connect("test-bucket")
        stack.push_async_callback(conn.close)
        js = JetStream(conn)
        name = space.names.payloads_bucket
        bucket = Bucket(js, name, GroupPublisher(js, name, atomic=False))
        yield Scene(space, operator, bucket, stack, tmp_path / "owner" / "keys")


async def test_a_prompt_reaches_the_leases_owner_sealed_and_opens_there(scene: Scene) -> None:
    owner = await scene.owner()
    payload = await owner.put("r1")
    turn = await owner.turn("r1").bring_to("starting", payload=payload.to_object())
    sealed = await turn.sealed()
    assert SENTINEL not in sealed
    assert owner.sealer.open("r1", sealed) == SENTINEL
    entry = await scene.stored("r1")
    assert entry is not None
    assert (entry.value, entry.revision) == (sealed, payload.revision)


async def test_only_the_leases_owner_reads_it_and_only_under_its_fence(scene: Scene) -> None:
    owner, other = await scene.owner(), await scene.owner()
    payload = await owner.put("r1")
    await policy(scene.operator, max_active_turns=1)
    turn = await owner.turn("r1").bring_to("admitted", payload=payload.to_object())
    fence = {"request_id": "r1", **await turn.fence()}
    ask = other.client.query
    assert await refused(ask("adm", "payload", fence)) == "fenced"
    stale = {**fence, "generation": fence["generation"] + 1}
    assert await refused(owner.client.query("adm", "payload", stale)) == "fenced"
    queued = owner.turn("r2")
    assert await queued.enqueue(payload=(await owner.put("r2")).to_object()) == "queued"
    without = {**fence, "request_id": "r2"}
    assert await refused(owner.client.query("adm", "payload", without)) == "fenced"


@pytest.mark.parametrize("phase", ["active", "recovery_required"])
async def test_dispatch_destroys_exactly_what_was_enqueued(scene: Scene, phase: str) -> None:
    owner = await scene.owner()
    payload = await owner.put("r1")
    kept = await owner.put("r2")
    turn = owner.turn("r1")
    await turn.bring_to("dispatch_intent", channel="http", payload=payload.to_object())
    assert owner.sealer.open("r1", await turn.sealed()) == SENTINEL
    await turn.step("active" if phase == "active" else "recover")

    async def is_destroyed() -> bool:
        entry = await scene.stored("r1")
        return entry is not None and entry.deleted

    await until(is_destroyed, True, 5, "the payload's being destroyed")
    mark = await scene.stored("r1")
    assert mark is not None
    assert mark.headers[h.TTL] == "168h"
    assert await refused(turn.sealed()) == "wrong-state"
    other = await scene.stored("r2")
    assert other is not None
    assert (other.revision, other.deleted) == (kept.revision, False)
    with pytest.raises(PayloadTaken):
        await owner.put("r1")


async def test_a_later_revision_under_the_same_key_is_not_destroyed(scene: Scene) -> None:
    owner = await scene.owner()
    first, second = await owner.put("r1"), await owner.put("r2")
    turns = {"r1": first, "r2": second}
    for request_id, payload in turns.items():
        turn = owner.turn(request_id)
        await turn.bring_to("dispatch_intent", channel="http", payload=payload.to_object())
    key = payload_key("alice", "r1", 1)
    later = await scene.bucket.put_if(key, b"put by somebody since", first.revision)
    for request_id in turns:
        await owner.turn(request_id).step("active")

    async def is_destroyed() -> bool:
        entry = await scene.stored("r2")
        return entry is not None and entry.deleted

    # They are destroyed in the order of their commands.
    await until(is_destroyed, True, 5, "the second payload's being destroyed")
    entry = await scene.stored("r1")
    assert entry is not None
    assert (entry.revision, entry.deleted) == (later, False)


async def test_a_payload_that_expired_is_not_handed_out(scene: Scene) -> None:
    owner = await scene.owner()
    await policy(scene.operator, queue_timeout_ms=1_000)
    payload = await owner.put("r1", lifetime_ms=2_000)
    turn = await owner.turn("r1").bring_to("starting", payload=payload.to_object())
    assert owner.sealer.open("r1", await turn.sealed()) == SENTINEL

    async def look() -> str:
        try:
            await turn.sealed()
        except Refused as error:
            return error.reason
        return "found"

    await until(look, "payload-gone", 8, "what adm.payload says")
    assert payload.expires_at_ms <= now_ms()


async def test_a_put_whose_acknowledgement_was_lost_is_found_again(scene: Scene) -> None:
    owner = await scene.owner(loses=1)
    payload = await owner.put("r1")
    entry = await scene.stored("r1")
    assert entry is not None
    assert payload.revision == entry.revision
    assert owner.sealer.open("r1", entry.value) == SENTINEL
    turn = await owner.turn("r1").bring_to("starting", payload=payload.to_object())
    assert owner.sealer.open("r1", await turn.sealed()) == SENTINEL


async def test_a_broker_that_never_acknowledges_leaves_the_outcome_unknown(
    scene: Scene,
) -> None:
    owner = await scene.owner()
    silent = Loses(owner.client.conn, 0)

    async def never(*_: object, **__: object) -> Msg:
        silent.requests += 1
        raise Unknown("no acknowledgement")

    silent.request = never  # type: ignore[method-assign]  # a link on which nothing comes back
    owner.writer._conn = silent
    with pytest.raises(PutUnknown):
        await owner.put("r1")
    assert silent.requests == 5


async def test_a_new_life_finds_the_put_of_the_one_before_also_after_a_rotation(
    scene: Scene,
) -> None:
    first = await (await scene.owner()).put("r1")
    KeyRing(scene.folder).rotate(1)
    again = await (await scene.owner()).put("r1", now_ms=now_ms() + 60_000)
    assert again == first
    assert (await (await scene.owner()).put("r2")).key_version == 2


async def test_another_prompt_of_the_same_request_is_refused_and_replaces_nothing(
    scene: Scene,
) -> None:
    owner = await scene.owner()
    await owner.put("r1")
    before = await scene.stored("r1")
    with pytest.raises(PayloadTaken):
        await owner.put("r1", SENTINEL + b"!")
    assert await scene.stored("r1") == before


async def test_nobody_finds_what_another_principal_put(scene: Scene) -> None:
    await (await scene.owner()).put("r1")
    bob = await scene.owner("bob")
    question = bob.client.query("adm", "sealed", {"request_id": "r1"})
    assert await refused(question) == "no-payload"
    assert (await bob.put("r1", b"bob's")).revision > 1


async def test_a_generation_has_a_place_of_its_own(scene: Scene) -> None:
    owner = await scene.owner()
    first = await owner.put("r1")
    second = await owner.put("r1", generation=2, key_version=first.key_version)
    assert second.revision != first.revision
    assert second.content_fingerprint == first.content_fingerprint
    entry = await scene.stored("r1", 2)
    assert entry is not None
    assert owner.sealer.open("r1", entry.value) == SENTINEL


async def test_only_a_revision_that_is_still_there_can_be_deleted(scene: Scene) -> None:
    payload = await (await scene.owner()).put("r1")
    key = payload_key("alice", "r1", 1)
    with pytest.raises(CasLost):
        await scene.bucket.delete_if(key, payload.revision + 1)
    await scene.bucket.delete_if(key, payload.revision)
    entry = await scene.stored("r1")
    assert entry is not None
    assert entry.deleted


def holding(folder: Path, needle: bytes) -> list[Path]:
    """Files below a folder that hold some bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if needle in path.read_bytes()]


async def test_neither_a_prompt_nor_a_key_lies_anywhere_in_the_clear(
    scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    owner = await scene.owner()
    for number in range(3):
        payload = await owner.put(f"needle-{number}")
        turn = owner.turn(f"needle-{number}")
        await turn.bring_to("active", channel="http", payload=payload.to_object())
    with pytest.raises(PayloadTaken):
        await owner.put("needle-0", SENTINEL * 2)
    waiting = await owner.put("needle-waiting")
    await owner.turn("needle-waiting").enqueue(payload=waiting.to_object())
    key = keyfiles.read(scene.folder, 1)
    places = [scene.space.server.directory, scene.space.data_dir]
    for place in places:
        assert holding(place, b"needle-waiting"), f"the search finds what lies in {place}"
        for secret in (SENTINEL, SENTINEL.hex().encode(), key, key.hex().encode()):
            assert holding(place, secret) == []
    said = "".join(capfd.readouterr())
    assert SENTINEL.decode() not in said
    assert key.hex() not in said
