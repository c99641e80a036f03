"""Tidegate spoken in plain NATS, and a Cotal-style owner that knows nothing of Tidegate.

The worker is a process of its own. Everything on the other side is subjects and bytes, written out
here as the reference has them.
"""

import ast
import base64
import hashlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.errors import NoRespondersError

from schemas.names import Names
from tests.support import plain
from tests.support.plain import Plain, Stored, Streams, compact
from tests.support.process import WorkerProcess, space_environment
from tests.support.server import WORKER_PASSWORD, Server
from tests.support.space import Space

ALICE, ALICE_UID = "alice", "0123456789abcdefghijklmnop"
BOB, BOB_UID = "bob", "zyxwvutsrqponmlkjihgfedcba"
_spaces = itertools.count()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rfc3339(at_ms: int) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms // 1000))
    return f"{seconds}.{at_ms % 1000:03d}Z"


@pytest.fixture
def cotal(server: Server, tmp_path: Path) -> Space:
    """A space of a Cotal deployment, not set up yet."""
    return Space(server, Names("cotal", f"c{next(_spaces):03d}"), tmp_path / "data")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start_one(space: Space, **settings: object) -> WorkerProcess:
        log = tmp_path / f"interop-{len(started)}.log"
        one = WorkerProcess(space_environment(space, **settings), log)
        started.append(one)
        return one.wait_ready()

    yield start_one
    for one in started:
        one.kill()


@pytest.fixture
async def streams(server: Server) -> AsyncIterator[Streams]:
    one = await Streams.connect(server.url, "worker", WORKER_PASSWORD)
    yield one
    await one.nc.close()


def test_the_plain_client_knows_nothing_of_this_code_base() -> None:
    tree = ast.parse(Path(plain.__file__).read_text())
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported == {
        "asyncio",
        "base64",
        "json",
        "secrets",
        "dataclasses",
        "typing",
        "nats",
    }


class Scene:
    """What both roots are played with."""

    def __init__(self, space: Space, streams: Streams) -> None:
        self.root, self.space = space.names.root, space.names.space
        self.prefix = f"{self.root}.{self.space}"
        self.kv = f"$KV.{self.root}_records_{self.space}"
        self.records = f"KV_{self.root}_records_{self.space}"
        self.streams = streams
        digest = hashlib.sha256(b"tidegate/instance/1\0" + self.space.encode()).digest()
        alphabet = "abcdefghijklmnopqrstuvwxyz234567"
        bits = int.from_bytes(digest, "big") << 4
        self.instance = "".join(alphabet[bits >> shift & 31] for shift in range(255, -1, -5))[:26]

    def timer(self, endpoint: str, token: str, kind: str) -> str:
        return f"{self.prefix}.ept.{endpoint}.{self.instance}.0.{token}.{kind}"

    async def record(self, key: str) -> bytes | None:
        found = await self.streams.last(self.records, f"{self.kv}.{key}")
        return None if found is None else found.data

    async def fact(self, endpoint: str, token: str) -> bytes | None:
        subject = f"{self.prefix}.epf.{endpoint}.cp.{token}"
        found = await self.streams.last(f"EPF_{self.space}", subject)
        return None if found is None else found.data


async def play(space: Space, streams: Streams, url: str) -> None:
    """Pause, arm, move, resume and expire, and look at every byte that was written."""
    it = Scene(space, streams)
    alice = await Plain.connect(url, it.prefix, ALICE, ALICE_UID)
    bob = await Plain.connect(url, it.prefix, BOB, BOB_UID)
    first, second = now_ms() + 60_000, now_ms() + 120_000
    holder = f'{{"id":"{ALICE}","lifecycleUid":"{ALICE_UID}"}}'

    # pause and arm
    mint = f'{{"v":1,"deadline_at_ms":{first},"holder":{holder}}}'.encode()
    command_id = "intent-0000000000000001"
    minted = await bob.send("mint", "acme.runs", "t-1", mint, command_id)
    result = json.loads(minted.data)
    assert minted.headers is not None
    assert minted.headers["Tidegate-Command"] == command_id
    assert minted.subject == f"{it.prefix}.res.{BOB}.{BOB_UID}.cp.mint.{result['id']}"
    assert (
        minted.data
        == (
            f'{{"v":1,"command_id":"{command_id}","id":"{result["id"]}","at_ms":{result["at_ms"]},'
            f'"status":"ok","outcome":"minted","data":{{"endpoint":"acme.runs","token":"t-1",'
            f'"state":"waiting","generation":1,"deadline_at_ms":{first},"holder":{holder}}}}}'
        ).encode()
    )
    spec = await it.record("cp.acme_runs.t-1.spec")
    assert spec is not None
    minted_at = json.loads(spec)["mintedAt"]
    assert (
        spec
        == (
            f'{{"v":1,"token":"t-1","holder":{holder},"mintedAt":{minted_at},'
            f'"initialDeadline":{first}}}'
        ).encode()
    )
    waiting = await streams.last(it.records, f"{it.kv}.cp.acme_runs.t-1.status")
    assert waiting is not None
    assert (
        waiting.data
        == (
            f'{{"state":"waiting","deadlineGeneration":1,"deadline":{first},'
            f'"observedSpecRevision":{json.loads(waiting.data)["observedSpecRevision"]}}}'
        ).encode()
    )
    assert json.loads(waiting.data)["observedSpecRevision"] >= 1
    assert waiting.headers["Tidegate-Cause"] == f"{BOB}/{command_id}"
    armed_subject = it.timer("acme_runs", "t-1", "armed")
    armed = await streams.last(f"EPT_{it.space}", armed_subject)
    assert armed is not None
    assert armed.data == (f'{{"v":1,"timerId":"t-1","generation":1,"deadline":{first}}}'.encode())
    assert armed.headers["Nats-Schedule"] == f"@at {rfc3339(first)}"
    assert armed.headers["Nats-Schedule-Target"] == it.timer("acme_runs", "t-1", "fire")
    assert armed.headers["Nats-Expected-Last-Subject-Sequence"] == "0"

    # the same intent again is the same outcome, under a sequence of its own
    again = json.loads((await bob.send("mint", "acme.runs", "t-1", mint, command_id)).data)
    assert (again["status"], again["data"]) == ("ok", result["data"])
    assert sequence(again) > sequence(result)

    # move the deadline
    beat = f'{{"v":1,"generation":1,"deadline_at_ms":{second}}}'.encode()
    moved = json.loads((await bob.send("heartbeat", "acme.runs", "t-1", beat)).data)
    assert (moved["outcome"], moved["data"]["generation"]) == ("extended", 2)
    rearmed = await streams.last(f"EPT_{it.space}", armed_subject)
    assert rearmed is not None
    assert json.loads(rearmed.data) == {
        "v": 1,
        "timerId": "t-1",
        "generation": 2,
        "deadline": second,
    }

    # a wrong resume, then the holder's, then a late one
    wrong = json.loads((await bob.send("resume", "acme.runs", "t-1", b'{"v":1}')).data)
    assert wrong["error"]["code"] == "permission-denied"
    answer = b'{"v":1,"answer":{"b":[true,null],"a":"\xc3\xa9"}}'
    resumed = json.loads((await alice.send("resume", "acme.runs", "t-1", answer)).data)
    assert (resumed["status"], resumed["outcome"]) == ("ok", "resumed")
    answer_id = resumed["data"]["answer_id"]
    canonical = '{"artifact":null,"by":"alice","token":"t-1","value":{"a":"é","b":[true,null]}}'
    digest = hashlib.sha256(canonical.encode()).digest()
    assert answer_id == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    filed = await it.record(f"answer.acme_runs.t-1.{answer_id}")
    assert filed is not None
    assert (
        filed
        == (
            f'{{"v":1,"token":"t-1","answerId":"{answer_id}","value":{{"b":[true,null],"a":"é"}},'
            f'"by":"alice","at":{json.loads(filed)["at"]}}}'
        ).encode()
    )
    settled_ts = resumed["data"]["settled_at_ms"]
    assert settled_ts < second
    assert (
        await it.record("cp.acme_runs.t-1.status")
        == (
            f'{{"state":"resumed","deadlineGeneration":2,"deadline":{second},'
            f'"observedSpecRevision":{json.loads(waiting.data)["observedSpecRevision"]},'
            f'"settledGeneration":2,"settledHolder":{holder},"settledAnswerId":"{answer_id}",'
            f'"settledTs":{settled_ts}}}'
        ).encode()
    )
    assert (
        await it.fact("acme_runs", "t-1")
        == (
            f'{{"v":1,"token":"t-1","settle":"resumed","generation":2,"holder":{holder},'
            f'"answerId":"{answer_id}","ts":{settled_ts}}}'
        ).encode()
    )
    assert await streams.last(f"EPT_{it.space}", armed_subject) is None
    late = json.loads((await alice.send("resume", "acme.runs", "t-1", b'{"v":1}')).data)
    assert (late["error"]["code"], late["outcome"]) == ("conflict", "already-resumed")

    # another one expires
    soon = now_ms() + 400
    body = f'{{"v":1,"deadline_at_ms":{soon}}}'.encode()
    await alice.send("mint", "acme.runs", "t-2", body)
    waited = await alice.ask("wait", {"endpoint": "acme.runs", "token": "t-2", "timeout_ms": 5_000})
    assert (waited["status"], waited["outcome"]) == ("ok", "settled")
    assert waited["data"]["state"] == "expired"
    at_ms = waited["data"]["settled_at_ms"]
    assert soon <= at_ms <= soon + 2_000
    assert (
        await it.record("cp.acme_runs.t-2.status")
        == (
            f'{{"state":"expired","deadlineGeneration":1,"deadline":{soon},'
            f'"observedSpecRevision":{json.loads(waiting.data)["observedSpecRevision"]},'
            f'"settledGeneration":1,"settledTs":{at_ms}}}'
        ).encode()
    )
    assert await it.fact("acme_runs", "t-2") == (
        f'{{"v":1,"token":"t-2","settle":"expired","generation":1,"ts":{at_ms}}}'.encode()
    )
    too_late = json.loads((await alice.send("resume", "acme.runs", "t-2", b'{"v":1}')).data)
    assert too_late["error"]["code"] == "expired"

    # queries say the same, and every command had exactly one result
    shown = await alice.ask("show", {"endpoint": "acme.runs", "token": "t-1"})
    assert shown["data"]["status"] == json.loads(await it.record("cp.acme_runs.t-1.status") or b"")
    assert shown["data"]["answer"]["value"] == {"b": [True, None], "a": "é"}
    for speaker in (alice, bob):
        ids = [json.loads(m.data)["id"] for ms in speaker.results.values() for m in ms]
        assert len(set(ids)) == len(ids)
        await speaker.nc.close()


def sequence(result: dict[str, Any]) -> int:
    """The sequence in a result's id, behind what names the stream."""
    return int(result["id"].rpartition("-")[2])


async def test_a_plain_client_pauses_moves_resumes_and_expires(
    space: Space, streams: Streams, start: Callable[..., WorkerProcess]
) -> None:
    start(space)
    await play(space, streams, space.server.url)


async def test_with_root_cotal_all_of_it_is_the_same_under_cotals_names(
    cotal: Space, streams: Streams, start: Callable[..., WorkerProcess]
) -> None:
    await cotal.set_up()
    start(cotal)
    await play(cotal, streams, cotal.server.url)


async def test_a_result_that_was_not_heard_is_read_back_by_its_subject(
    space: Space, streams: Streams, start: Callable[..., WorkerProcess]
) -> None:
    start(space)
    prefix = f"tidegate.{space.names.space}"
    alice = await Plain.connect(space.server.url, prefix, ALICE, ALICE_UID)
    body = f'{{"v":1,"deadline_at_ms":{now_ms() + 60_000}}}'.encode()
    heard = await alice.send("mint", "runs", "t", body)
    stored = await streams.wait_last(f"RES_{space.names.space}", heard.subject)
    assert stored.data == heard.data
    read = await alice.nc.request(f"$JS.API.DIRECT.GET.RES_{space.names.space}.{heard.subject}")
    assert read.data == heard.data
    assert read.headers is not None
    assert read.headers["Nats-Subject"] == heard.subject
    await alice.nc.close()


class Owner:
    """An endpoint of a Cotal space that keeps its checkpoints itself and wants only its timers."""

    endpoint = "mesh_wait"
    instance = "abcdefghijklmnopqrstuvwxyz"
    epoch = "3"
    holder = '{"id":"u_abc.worker","lifecycleUid":"u_meshwait"}'

    def __init__(self, space: Space, streams: Streams) -> None:
        self.space = space.names.space
        self.streams = streams
        self.prefix = f"cotal.{self.space}"
        self.kv = f"$KV.cotal_records_{self.space}"

    def timer(self, token: str, kind: str) -> str:
        return f"{self.prefix}.ept.{self.endpoint}.{self.instance}.{self.epoch}.{token}.{kind}"

    def key(self, token: str, record: str) -> str:
        return f"{self.kv}.cp.{self.endpoint}.{token}.{record}"

    def waiting(self, generation: int, deadline: int, revision: int) -> bytes:
        return (
            f'{{"state":"waiting","deadlineGeneration":{generation},"deadline":{deadline},'
            f'"observedSpecRevision":{revision}}}'
        ).encode()

    def timer_body(self, token: str, generation: int, deadline: int) -> bytes:
        return (
            f'{{"v":1,"timerId":"{token}","generation":{generation},"deadline":{deadline}}}'
        ).encode()

    async def mint(self, token: str, deadline: int) -> tuple[int, int]:
        """Spec and status, one after the other; their revisions."""
        spec = (
            f'{{"v":1,"token":"{token}",'
            f'"goal":{{"caller":{{"owner":"u_abc","actor":"worker","uid":"x y"}},'
            f'"goalId":"any/goal"}},'
            f'"obligations":[{{"v":1,"space":"{self.space}","requestId":"r-1",'
            f'"signer":{{"keyId":"k"}},"attenuations":["a"],"iat":-1,"exp":2,"sig":"s"}}],'
            f'"holder":{self.holder},"mintedAt":{now_ms()},"initialDeadline":{deadline}}}'
        ).encode()
        revision = await self.streams.put(self.key(token, "spec"), spec, 0)
        status = await self.streams.put(
            self.key(token, "status"), self.waiting(1, deadline, revision), 0
        )
        return revision, status

    async def schedule(
        self,
        token: str,
        generation: int,
        deadline: int,
        headers: dict[str, str] | None = None,
    ) -> bool:
        """Ask for a timer, and wait until that was dealt with; whether the broker took it."""
        body = self.timer_body(token, generation, deadline)
        return await self.request(token, body, headers)

    async def request(self, token: str, body: bytes, headers: dict[str, str] | None = None) -> bool:
        seq = await self.streams.publish(self.timer(token, "schedule"), body, headers)
        await self.streams.handled(f"EPT_REQ_{self.space}", f"timers_{self.space}", seq)
        return seq > 0

    async def armed(self, token: str) -> Stored | None:
        return await self.streams.last(f"EPT_{self.space}", self.timer(token, "armed"))

    async def status(self, token: str) -> dict[str, Any]:
        found = await self.streams.last(f"KV_cotal_records_{self.space}", self.key(token, "status"))
        assert found is not None
        status: dict[str, Any] = json.loads(found.data)
        return status

    def fact(self, token: str) -> str:
        return f"{self.prefix}.epf.{self.endpoint}.cp.{token}"


@pytest.fixture
async def owner(cotal: Space, streams: Streams) -> Owner:
    await cotal.set_up()
    return Owner(cotal, streams)


@pytest.mark.parametrize("wheel", [True, False])
async def test_a_foreign_owner_gets_its_timer_its_fire_and_its_settle_fact(
    cotal: Space, owner: Owner, start: Callable[..., WorkerProcess], wheel: bool
) -> None:
    start(cotal, wheel=wheel)
    deadline = now_ms() + 1_500
    revision, _ = await owner.mint("t-1", deadline)
    await owner.schedule("t-1", 1, deadline)
    armed = await owner.streams.wait_last(f"EPT_{owner.space}", owner.timer("t-1", "armed"))
    assert armed.data == owner.timer_body("t-1", 1, deadline)
    assert armed.headers["Nats-Schedule"] == f"@at {rfc3339(deadline)}"
    assert armed.headers["Nats-Schedule-Target"] == owner.timer("t-1", "fire")
    assert now_ms() < deadline
    fire = await owner.streams.wait_last(f"EPT_{owner.space}", owner.timer("t-1", "fire"))
    assert now_ms() >= deadline
    assert fire.data == armed.data
    assert fire.headers["Nats-Scheduler"] == owner.timer("t-1", "armed")
    fact = await owner.streams.wait_last(f"EPF_{owner.space}", owner.fact("t-1"))
    ts = json.loads(fact.data)["ts"]
    assert fact.data == (
        f'{{"v":1,"token":"t-1","settle":"expired","generation":1,"ts":{ts}}}'.encode()
    )
    assert ts >= deadline
    assert await owner.status("t-1") == {
        "state": "expired",
        "deadlineGeneration": 1,
        "deadline": deadline,
        "observedSpecRevision": revision,
        "settledGeneration": 1,
        "settledTs": ts,
    }


async def test_a_foreign_owners_heartbeat_moves_its_timer(
    cotal: Space, owner: Owner, start: Callable[..., WorkerProcess]
) -> None:
    start(cotal)
    first, second = now_ms() + 60_000, now_ms() + 2_000
    revision, status = await owner.mint("t-1", first)
    await owner.schedule("t-1", 1, first)
    armed = await owner.armed("t-1")
    assert armed is not None
    await owner.streams.put(owner.key("t-1", "status"), owner.waiting(2, second, revision), status)
    # A coordinate that has passed and one that never was are dropped; the one in force is armed.
    await owner.schedule("t-1", 1, first)
    await owner.schedule("t-1", 2, second + 1)
    unmoved = await owner.armed("t-1")
    assert unmoved is not None
    assert unmoved.seq == armed.seq
    await owner.schedule("t-1", 2, second)
    moved = await owner.armed("t-1")
    assert moved is not None
    assert moved.data == owner.timer_body("t-1", 2, second)
    fact = await owner.streams.wait_last(f"EPF_{owner.space}", owner.fact("t-1"))
    assert json.loads(fact.data)["generation"] == 2


async def test_a_checkpoint_that_its_owner_resumed_is_left_as_it_is(
    cotal: Space, owner: Owner, start: Callable[..., WorkerProcess]
) -> None:
    worker = start(cotal)
    deadline = now_ms() + 1_200
    revision, status = await owner.mint("t-1", deadline)
    await owner.schedule("t-1", 1, deadline)
    ts = now_ms()
    resumed = (
        f'{{"state":"resumed","deadlineGeneration":1,"deadline":{deadline},'
        f'"observedSpecRevision":{revision},"settledGeneration":1,'
        f'"settledHolder":{owner.holder},"settledTs":{ts}}}'
    ).encode()
    await owner.streams.put(owner.key("t-1", "status"), resumed, status)
    await owner.streams.publish(
        owner.fact("t-1"),
        f'{{"v":1,"token":"t-1","settle":"resumed","generation":1,"holder":{owner.holder},'
        f'"ts":{ts}}}'.encode(),
        {"Nats-Expected-Last-Subject-Sequence": "0"},
    )
    fire = await owner.streams.wait_last(f"EPT_{owner.space}", owner.timer("t-1", "fire"))
    await owner.streams.handled(f"EPT_{owner.space}", f"fires_{owner.space}", fire.seq)
    assert await owner.status("t-1") == json.loads(resumed)
    fact = await owner.streams.last(f"EPF_{owner.space}", owner.fact("t-1"))
    assert fact is not None
    assert json.loads(fact.data)["settle"] == "resumed"
    assert worker.readiness() == []


SCHEDULER_HEADERS = [
    {"Nats-Schedule-Target": "x"},
    {"Nats-Schedule-TTL": "1s"},
    {"Nats-Scheduler": "x"},
    {"nats-schedule-target": "x"},
    {"Nats-Schedule-Rollup": "sub"},
    {"Nats-Schedule-Source": "x"},
]


async def test_a_request_that_asks_for_more_than_its_timer_arms_nothing(
    cotal: Space, owner: Owner, start: Callable[..., WorkerProcess]
) -> None:
    worker = start(cotal)
    deadline = now_ms() + 60_000
    await owner.mint("t-1", deadline)
    # Of some the broker itself says no; whatever it stores, the writer refuses.
    taken = [await owner.schedule("t-1", 1, deadline, headers) for headers in SCHEDULER_HEADERS]
    for body in (
        b"",
        b"{}",
        b"\xff",
        owner.timer_body("t-2", 1, deadline),
        owner.timer_body("t-1", 2, deadline),
        owner.timer_body("t-1", 1, deadline + 1),
        owner.timer_body("t-1", 0, deadline),
        owner.timer_body("t-1", 1, 2**53),
        owner.timer_body("t-1", 1, 253402300799999),
        owner.timer_body("t-1", 1, deadline).replace(b"}", b',"v":1}'),
        owner.timer_body("t-1", 1, deadline).replace(b"}", b',"more":1}'),
        owner.timer_body("t-1", 1, deadline).replace(b"1,", b"true,", 1),
    ):
        assert await owner.request("t-1", body)
    await owner.schedule("unknown", 1, deadline)
    assert await owner.armed("t-1") is None
    assert await owner.armed("unknown") is None
    await owner.schedule("t-1", 1, deadline, {"traceparent": "00-0-0-00", "X-Mine": "1"})
    assert await owner.armed("t-1") is not None
    assert worker.readiness() == []
    refused = [event for event in worker.events() if event["event"] == "timer_request_refused"]
    for_headers = [event for event in refused if event["code"] == "permission-denied"]
    assert len(for_headers) == sum(taken)
    assert sum(taken) >= 4


async def test_a_request_of_another_space_or_arity_is_taken_by_nobody(
    cotal: Space, owner: Owner, start: Callable[..., WorkerProcess]
) -> None:
    start(cotal)
    good = owner.timer("t-1", "schedule")
    for subject in (
        good.replace(owner.space, "elsewhere"),
        good.replace(".schedule", ""),
        good + ".more",
        good.replace(".schedule", ".wait"),
    ):
        with pytest.raises(NoRespondersError):
            await owner.streams.nc.request(subject, b"{}", timeout=2)


async def test_an_answer_that_amends_another_is_shown_and_not_called_garbled(
    cotal: Space, owner: Owner, start: Callable[..., WorkerProcess]
) -> None:
    """A foreign amendment carries ``supersedes`` and an id that is not its content's digest."""
    start(cotal)
    deadline = now_ms() + 60_000
    revision, status = await owner.mint("t-1", deadline)
    amendment = "r" * 43
    record = {
        "v": 1,
        "token": "t-1",
        "answerId": amendment,
        "value": None,
        "artifact": "",
        "by": "u_abc.worker",
        "at": now_ms(),
        "supersedes": "a" * 43,
    }
    key = f"{owner.kv}.answer.{owner.endpoint}.t-1.{amendment}"
    await owner.streams.put(key, compact(record), 0)
    resumed = (
        f'{{"state":"resumed","deadlineGeneration":1,"deadline":{deadline},'
        f'"observedSpecRevision":{revision},"settledGeneration":1,'
        f'"settledHolder":{owner.holder},"settledAnswerId":"{amendment}","settledTs":1}}'
    ).encode()
    await owner.streams.put(owner.key("t-1", "status"), resumed, status)
    operator = await Plain.connect(cotal.server.url, owner.prefix, "_op", BOB_UID)
    shown = await operator.ask("show", {"endpoint": "mesh.wait", "token": "t-1"})
    assert shown["status"] == "ok"
    assert shown["data"]["answer"]["supersedes"] == "a" * 43
    assert shown["data"]["checkpoint"]["holder"] == json.loads(owner.holder)
    await operator.nc.close()
