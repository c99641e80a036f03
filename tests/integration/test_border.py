"""Whatever reply subject, header or body a client chooses, nobody writes for it.

Streams and workers are in one account, clients in another. What a client could try: let the broker
acknowledge, or a worker answer, onto a subject where it may not publish itself; or let a header
make the broker schedule, roll up, expire, deduplicate or trace its way there.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client as RawClient
from nats.aio.msg import Msg

from schemas import headers as h
from schemas import strict_json, subjects
from schemas.admission import LeaseLost
from schemas.names import Names, kv_stream
from schemas.roles import Role
from schemas.subjects import Checkpoint, Speaker
from tests.support.production import ENDPOINT, GRANTS, NAMES, Production, Rights, stored
from tests.support.running import RunningWorker
from tests.support.server import WORKER_PASSWORD
from tests.support.space import Space
from worker import identity
from worker.bus import conf, users

UID = "a1" * 13
VICTIM = Speaker("victim", "v1" * 13)
OWNER = Speaker("owner", "h1" * 13)


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    one = Production(tmp_path_factory.mktemp("border") / "broker")
    yield one
    one.stop()


def in_ms(ms: int) -> int:
    return time.time_ns() // 1_000_000 + ms


def targets(names: Names, victims: Checkpoint) -> dict[str, str]:
    """Where a client would like the broker or the worker to write."""
    armed = subjects.own_timer(names, victims)
    kv = f"$KV.{names.records_bucket}"
    return {
        **{kind: subjects.timer(names, armed, kind) for kind in sorted(subjects.TIMER_KINDS)},
        "spec": f"{kv}.{subjects.spec_key(victims)}",
        "status": f"{kv}.{subjects.status_key(victims)}",
        "prompt": f"{kv}.{subjects.prompt_key(victims)}",
        "answer": f"{kv}.{subjects.answer_key(victims, 'a')}",
        "payload": f"$KV.{names.payloads_bucket}.victim.request",
        "key": f"$KV.{names.keys_bucket}.space",
        "snapshot": f"$O.{names.snapshots_bucket}.M.x",
        "settle fact": subjects.settle_fact(names, victims),
        "fact": subjects.checkpoint_fact(names, "resumed", victims, 1),
        "result": subjects.result(names, VICTIM, "cp", "resume", "7"),
        "grant": subjects.grant(names, VICTIM, "request", 1),
        "beat": subjects.heartbeat(names, VICTIM),
        "resume": subjects.checkpoint_command(names, OWNER, "resume", victims),
        "expire": subjects.checkpoint_command(names, VICTIM, "expire", victims),
        "stop": subjects.command(names, VICTIM, "cap", "stop", "alice"),
        "tick": subjects.command(names, Speaker("_worker", UID), "sys", "tick"),
        "query": subjects.query(names, VICTIM, "sys", "status"),
        "purge": f"$JS.API.STREAM.PURGE.{names.log_stream}",
        "delete": f"$JS.API.STREAM.DELETE.{names.ept_stream}",
    }


def questions(names: Names, role: Role) -> dict[str, str]:
    """What a role may publish that the broker acknowledges or a worker answers."""
    own = Speaker(GRANTS[role].principal, UID)
    target = Checkpoint(ENDPOINT, "own")
    asks = {"query": subjects.query(names, own, "sys", "status"), "rights": users.USER_INFO}
    match role:
        case Role.MINTER:
            asks["command"] = subjects.checkpoint_command(names, own, "repair", target)
        case Role.HOLDER:
            asks["command"] = subjects.checkpoint_command(names, own, "resume", target)
        case Role.OPERATOR:
            asks["command"] = subjects.command(names, own, "adm", "drain")
        case Role.CONNECTOR:
            asks["command"] = subjects.command(names, own, "adm", "admit")
            asks["payload"] = f"$KV.{names.payloads_bucket}.{own.principal}.request"
        case Role.DELEGATE:
            asks["command"] = subjects.command(names, own, "cap", "stop", "alice")
        case Role.WITNESS:
            asks["command"] = subjects.command(names, own, "sys", "evidence")
    if role is not Role.OBSERVER:
        result = subjects.result(names, own, "cp", "resume", "1")
        asks["read back"] = f"$JS.API.DIRECT.GET.{names.res_stream}.{result}"
    else:
        fact = subjects.checkpoint_fact(names, "waiting", target, 1)
        asks["read back"] = f"$JS.API.DIRECT.GET.{names.res_stream}.{fact}"
    return asks


async def settled_down(
    client: RawClient, worker: RawClient, names: Names, asked: Iterable[str]
) -> None:
    """Wait until everything that was published before has been acknowledged and answered.

    A stream takes messages in order, so once it has acknowledged one more on the same subject it
    has acknowledged all before it, wherever those acknowledgements were sent.
    """
    for subject in asked:
        for _ in range(2):
            await client.request(subject, b"{}", timeout=5)
    info = await consumer(worker, names)
    async with asyncio.timeout(10):
        while info["num_pending"] or info["num_ack_pending"]:
            await asyncio.sleep(0.02)
            info = await consumer(worker, names)
    await worker.flush()


async def consumer(worker: RawClient, names: Names) -> dict[str, Any]:
    subject = f"$JS.API.CONSUMER.INFO.{names.cmd_stream}.{names.cp_durable}"
    return strict_json.loads((await worker.request(subject, b"")).data)


def changed(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], names: Names, own: str
) -> set[str]:
    """Subjects that changed and are neither the client's own nor the worker's own doing.

    Answers to what earlier tests said may still be on their way; the victims say nothing at all.
    """
    prefix = names.prefix
    others = [f"{prefix}.res.{grant.principal}." for grant in GRANTS.values()]
    fine = (
        f"{prefix}.cmd.{own}.",
        f"{prefix}.res.{own}.",
        *others,
        f"{prefix}.cmd._worker",
        f"$KV.{names.payloads_bucket}.{own}.",
        f"$KV.{names.leases_bucket}.",
    )
    return {
        subject
        for stream in before.keys() | after.keys()
        for subject in before[stream].keys() | after[stream].keys()
        if before[stream].get(subject) != after[stream].get(subject)
        and not subject.startswith(fine)
    }


async def victims_of(production: Production) -> Checkpoint:
    """A checkpoint that waits for somebody else, everything about it said."""
    target = Checkpoint(ENDPOINT, identity.new_uid())
    async with production.client(Role.MINTER, identity.new_uid()) as minter:
        await minter.cp.mint(ENDPOINT, target.token, deadline_at_ms=in_ms(600_000), holder=OWNER)
    client, _ = await production.raw(Role.OBSERVER)
    fact = subjects.checkpoint_fact(NAMES, "waiting", target, 1)
    for _ in range(250):
        if not status_of(await client.request(f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{fact}")):
            break
        await asyncio.sleep(0.02)
    await client.close()
    return target


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.WORKER])
async def test_no_reply_subject_makes_anybody_write_there(
    production: Production, role: Role
) -> None:
    client, rights = await production.raw(role)
    worker, _ = await production.raw(Role.WORKER)
    beats = await listen(worker, f"{NAMES.prefix}.hb.victim.>")
    victims, own = await victims_of(production), GRANTS[role].principal
    before = await stored(worker, NAMES)
    for reply in targets(NAMES, victims).values():
        for subject in questions(NAMES, role).values():
            await client.publish(subject, b"{}", reply=reply)
    await settled_down(client, worker, NAMES, questions(NAMES, role).values())
    assert rights.violations == []
    assert changed(before, await stored(worker, NAMES), NAMES, own) == set()
    assert beats.empty()
    async with production.client(Role.OPERATOR, UID) as operator:
        assert (await operator.cp.show(ENDPOINT, victims.token)).checkpoint.state == "waiting"
    await client.close()
    await worker.close()


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.WORKER])
async def test_no_trace_is_sent_where_its_asker_may_not_publish(
    production: Production, role: Role
) -> None:
    """Message tracing publishes on demand; the broker asks for the asker's own right to."""
    client, rights = await production.raw(role)
    worker, _ = await production.raw(Role.WORKER)
    beats = await listen(worker, f"{NAMES.prefix}.hb.victim.>")
    victims, own = await victims_of(production), GRANTS[role].principal
    before = await stored(worker, NAMES)
    for subject in questions(NAMES, role).values():
        for to in targets(NAMES, victims).values():
            for only in ({}, {"Nats-Trace-Only": "true"}):
                await client.publish(subject, b"{}", headers={"Nats-Trace-Dest": to, **only})
    await settled_down(client, worker, NAMES, questions(NAMES, role).values())
    refused = {violation.removeprefix("publish ") for violation in rights.violations}
    assert refused == {to.lower() for to in targets(NAMES, victims).values()}
    assert changed(before, await stored(worker, NAMES), NAMES, own) == set()
    assert beats.empty()
    await client.close()
    await worker.close()


def header_tricks(names: Names, victims: Checkpoint) -> list[dict[str, str]]:
    """Headers by which a broker schedules, rolls up, expires, counts, batches or deduplicates."""
    to = targets(names, victims)
    past, future = "@at 2020-01-01T00:00:00Z", "@at 2100-01-01T00:00:00Z"
    return [
        *({h.SCHEDULE: past, h.SCHEDULE_TARGET: to[k]} for k in ("fire", "armed", "status")),
        {h.SCHEDULE: future, h.SCHEDULE_TARGET: to["fire"], h.SCHEDULE_TTL: "1s"},
        {h.SCHEDULE_TARGET: to["fire"]},
        {"Nats-Schedule-Source": to["armed"], h.SCHEDULE: past, h.SCHEDULE_TARGET: to["fire"]},
        {h.SCHEDULER: to["armed"], h.SCHEDULE_NEXT: "purge"},
        {
            h.SCHEDULER: to["armed"],
            h.SCHEDULE_NEXT: "purge",
            h.EXPECTED_LAST_SUBJECT_SEQ: "1",
            h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: to["armed"],
        },
        {h.ROLLUP: "all"},
        {h.ROLLUP: "sub"},
        {h.TTL: "1s"},
        {h.TTL: "never"},
        {h.MSG_ID: "somebody-elses-command-id"},
        {h.KV_OPERATION: "PURGE"},
        {h.KV_OPERATION: "DEL"},
        {h.MARKER_REASON: "MaxAge"},
        {h.EXPECTED_STREAM: names.ept_stream},
        {h.EXPECTED_LAST_SUBJECT_SEQ: "0", h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: to["status"]},
        {h.BATCH_ID: "b", h.BATCH_SEQUENCE: "1", h.BATCH_COMMIT: "1"},
        {"Nats-Incr": "+1"},
        {h.STATUS: "503"},
        {h.STATUS: "404", h.DESCRIPTION: "No Messages"},
        {h.CAUSE: f"holder/{'c' * 22}"},
        {h.COMMAND: f"{'c' * 22}"},
        {"Nats-Service-Error-Code": "400"},
    ]


@pytest.mark.parametrize("role", [Role.MINTER, Role.HOLDER, Role.CONNECTOR, Role.DELEGATE])
async def test_no_header_reaches_beyond_ones_own_subject(
    production: Production, role: Role
) -> None:
    client, rights = await production.raw(role)
    worker, _ = await production.raw(Role.WORKER)
    victims, own = await victims_of(production), GRANTS[role].principal
    before = await stored(worker, NAMES)
    for name, subject in questions(NAMES, role).items():
        if name in ("command", "payload"):
            for headers in header_tricks(NAMES, victims):
                await client.publish(subject, b"{}", headers=headers)
    await settled_down(client, worker, NAMES, questions(NAMES, role).values())
    assert rights.violations == []
    assert changed(before, await stored(worker, NAMES), NAMES, own) == set()
    async with production.client(Role.OPERATOR, UID) as operator:
        shown = await operator.cp.show(ENDPOINT, victims.token)
        assert shown.checkpoint.state == "waiting"
        assert shown.checkpoint.generation == 1
    await client.close()
    await worker.close()


async def test_nobodys_sealed_prompt_goes_by_anothers_rollup(production: Production) -> None:
    client, _ = await production.raw(Role.CONNECTOR)
    worker, _ = await production.raw(Role.WORKER)
    kept = f"$KV.{NAMES.payloads_bucket}.neighbour.request"
    await worker.request(kept, b"sealed")
    for how in ("all", "sub"):
        reply = await client.request(
            f"$KV.{NAMES.payloads_bucket}.connector.request", b"x", headers={h.ROLLUP: how}
        )
        assert strict_json.loads(reply.data)["error"]["err_code"] == 10111
    assert (await stored(worker, NAMES))[kv_stream(NAMES.payloads_bucket)][kept] == 1
    await client.close()
    await worker.close()


async def test_a_result_is_read_back_by_its_exact_subject_and_by_nothing_in_the_body(
    production: Production,
) -> None:
    client, _ = await production.raw(Role.HOLDER)
    own = Speaker("holder", UID)
    absent = subjects.result(NAMES, own, "cp", "resume", "999999999")
    subject = f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{absent}"
    assert status_of(await client.request(subject, b"")) == "404"
    for body in (
        b'{"seq":1}',
        b'{"next_by_subj":">"}',
        b'{"last_by_subj":"' + f"{NAMES.prefix}.res.>".encode() + b'"}',
        b'{"multi_last":[">"]}',
        b'{"batch":100,"seq":1}',
        b'{"start_time":"2020-01-01T00:00:00Z"}',
    ):
        reply = await client.request(subject, body)
        assert status_of(reply) == "408"
        assert reply.data == b""
    await client.close()


def status_of(reply: Msg) -> str | None:
    return (reply.headers or {}).get("Status")


async def listen(client: RawClient, subject: str) -> asyncio.Queue[Msg]:
    """Everything that arrives on a subject."""
    heard: asyncio.Queue[Msg] = asyncio.Queue()

    async def put(message: Msg) -> None:
        heard.put_nowait(message)

    await client.subscribe(subject, cb=put)
    await client.flush()
    return heard


async def test_a_result_that_was_replayed_to_somebody_else_convinces_nobody(
    production: Production,
) -> None:
    """A direct get may be answered onto a victim's result subject; only its own result counts.

    The attacker knows the victim's command id and has a result of the same id in store.
    """
    attacker, _ = await production.raw(Role.HOLDER)
    command_id, token = identity.new_uid(), identity.new_uid()
    own, theirs = Speaker("holder", UID), Speaker("minter", identity.new_uid())
    target = Checkpoint(ENDPOINT, token)
    results = await listen(attacker, subjects.results_of(NAMES, own))
    await attacker.publish(
        subjects.checkpoint_command(NAMES, own, "resume", target),
        b'{"v":1}',
        headers={h.COMMAND: command_id},
    )
    async with asyncio.timeout(5):
        stored_result = await results.get()
    production.worker.send(signal.SIGSTOP)
    account_w, _ = await production.raw(Role.WORKER)
    spy, _ = await production.raw(Role.MINTER)
    try:
        async with production.client(Role.MINTER, theirs.uid) as minter:
            body = {"deadline_at_ms": in_ms(600_000)}
            call = asyncio.create_task(
                minter.call("cp", "mint", (ENDPOINT, token), body, command_id=command_id)
            )
            for _ in range(250):
                info = await consumer(account_w, NAMES)
                if info["num_pending"] + info["num_ack_pending"]:
                    break
                await asyncio.sleep(0.02)
            heard = await listen(spy, subjects.results_of(NAMES, theirs))
            for seq in range(100):
                result_id = f"1-{seq}"
                await attacker.publish(
                    f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{stored_result.subject}",
                    b"",
                    reply=subjects.result(NAMES, theirs, "cp", "mint", result_id),
                )
            async with asyncio.timeout(5):
                forged = [await heard.get() for _ in range(100)]
            assert {message.data for message in forged} == {stored_result.data}
            done, _ = await asyncio.wait({call}, timeout=0.5)
            assert not done
            production.worker.send(signal.SIGCONT)
            async with asyncio.timeout(15):
                result = await call
            assert result.outcome == "minted"
            assert result.command_id == command_id
    finally:
        production.worker.send(signal.SIGCONT)
        for client in (attacker, account_w, spy):
            await client.close()


@pytest.fixture
async def anybody(space: Space) -> AsyncIterator[tuple[RawClient, RawClient]]:
    """A client without credentials and the worker's user, at a broker as a worker starts it."""
    rights = Rights([])
    client = await nats.connect(space.server.url, error_cb=rights.heard)
    worker = await nats.connect(space.server.url, user=conf.WORKER_USER, password=WORKER_PASSWORD)
    yield client, worker
    await client.close()
    await worker.close()


PRIVATE = (
    "armed",
    "fire",
    "cancel",
    "spec",
    "status",
    "prompt",
    "answer",
    "key",
    "snapshot",
    "settle fact",
    "fact",
    "result",
    "grant",
    "purge",
    "delete",
)
"""What even a client that may say anything in C cannot reach."""


async def test_a_local_client_without_credentials_reaches_no_timer_record_fact_or_result(
    anybody: tuple[RawClient, RawClient], worker: RunningWorker, space: Space
) -> None:
    client, account_w = anybody
    names = space.names
    async with space.client() as minter:
        await minter.cp.mint(ENDPOINT, "victims", deadline_at_ms=in_ms(600_000), holder=OWNER)
    victims, own = Checkpoint(ENDPOINT, "victims"), Speaker("mallory", UID)
    to = targets(names, victims)
    # Observers are told after the result.
    while not await holds(account_w, subjects.checkpoint_fact(names, "waiting", victims, 1)):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    before = await stored(account_w, names)
    command = subjects.checkpoint_command(names, own, "repair", Checkpoint(ENDPOINT, "own"))
    schedule = subjects.timer(names, subjects.Timer("e", UID, "0", "t", "schedule"), "schedule")
    payload = f"$KV.{names.payloads_bucket}.mallory.request"
    query = subjects.query(names, own, "sys", "status")
    result = subjects.result(names, own, "cp", "repair", "1")
    read_back = f"$JS.API.DIRECT.GET.{names.res_stream}.{result}"
    for name in PRIVATE:
        await client.publish(to[name], b'{"v":1}')
        for subject in (command, schedule, payload, query, read_back):
            await client.publish(subject, b"{}", reply=to[name])
            for trace in ({}, {"Nats-Trace-Only": "true"}):
                headers = {"Nats-Trace-Dest": to[name], **trace}
                await client.publish(subject, b"{}", reply=to[name], headers=headers)
    for headers in header_tricks(names, victims):
        for subject in (command, schedule, payload):
            await client.publish(subject, b"{}", headers=headers)
    # An acknowledgement or an answer becomes nobody's command either.
    for name in ("resume", "expire", "stop", "tick", "query", "payload", "schedule", "beat"):
        for subject in (command, schedule, payload, query, read_back):
            await client.publish(subject, b"{}", reply=to[name])
    await settled_down(client, account_w, names, (command, schedule, payload, query, read_back))
    after = await stored(account_w, names)
    new = changed(before, after, names, own.principal)
    assert new <= {schedule}
    assert after[names.ept_stream] == before[names.ept_stream]
    async with space.client("_op") as operator:
        assert (await operator.cp.show(ENDPOINT, "victims")).checkpoint.state == "waiting"


async def test_a_local_client_without_credentials_has_no_jetstream(
    anybody: tuple[RawClient, RawClient], space: Space
) -> None:
    client, _ = anybody
    for name in ("INFO", "STREAM.LIST", f"STREAM.INFO.{space.names.ept_stream}"):
        reply = await client.request(f"$JS.API.{name}", b"")
        assert strict_json.loads(reply.data)["error"]["err_code"] == 10039


async def test_inside_the_workers_account_the_same_trick_would_work(
    anybody: tuple[RawClient, RawClient], space: Space
) -> None:
    """Why there are two accounts; and that the tests above would see it if there were one."""
    _, account_w = anybody
    names, victims = space.names, Checkpoint(ENDPOINT, "victims")
    to = targets(names, victims)
    command = subjects.checkpoint_command(names, VICTIM, "repair", victims)
    before = await stored(account_w, names)
    for name in ("settle fact", "status", "fact", "stop"):
        await account_w.publish(command, b"{}", reply=to[name])
    await account_w.publish(
        command, b"{}", headers={"Nats-Trace-Dest": to["result"], "Nats-Trace-Only": "true"}
    )
    await account_w.flush()
    expected = {to[name] for name in ("settle fact", "status", "fact", "stop", "result")}
    for _ in range(250):
        new = changed(before, await stored(account_w, names), names, VICTIM.principal)
        seen = new | {to[name] for name in ("stop", "result") if await holds(account_w, to[name])}
        if seen >= expected:
            break
        await asyncio.sleep(0.02)
    assert seen == expected


async def holds(account_w: RawClient, subject: str) -> bool:
    """Whether a stream holds a message of this very subject."""
    reply = await account_w.request("$JS.API.STREAM.NAMES", strict_json.dumps({"subject": subject}))
    (stream,) = strict_json.loads(reply.data)["streams"]
    query = strict_json.dumps({"last_by_subj": subject})
    found = await account_w.request(f"$JS.API.STREAM.MSG.GET.{stream}", query)
    return "message" in strict_json.loads(found.data)


async def test_a_public_fact_that_was_replayed_to_an_owner_takes_no_lease(
    anybody: tuple[RawClient, RawClient], space: Space
) -> None:
    """The fact of a lost lease reads like its owner's message; only what is said anew counts."""
    attacker, account_w = anybody
    names, prefix = space.names, space.names.prefix
    body = (
        b'{"v":1,"at_ms":1,"request_id":"r-1","generation":%d,"lease_id":"l-1",'
        b'"reason":"start-timeout","state":"queued"}'
    )
    fact = f"{prefix}.fact.adm.lease_lost.r-1.1.1-1-1"
    await account_w.request(fact, body % 1)
    victim = Speaker("connector", identity.new_uid())
    lost: asyncio.Queue[LeaseLost] = asyncio.Queue()
    async with space.client(victim) as client:
        await client.on_lease_lost(lost.put_nowait)
        spy = await listen(attacker, subjects.results_of(names, victim))
        aim = subjects.result(names, victim, "adm", "lease_lost", "1-2-1")
        await attacker.publish(f"$JS.API.DIRECT.GET.{names.res_stream}.{fact}", b"", reply=aim)
        async with asyncio.timeout(5):
            replayed = await spy.get()
        assert replayed.data == body % 1
        await account_w.request(aim, body % 2)
        async with asyncio.timeout(5):
            heard = await lost.get()
        assert heard.generation == 2
        assert lost.empty()
