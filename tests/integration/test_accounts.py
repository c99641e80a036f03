"""``nats.conf`` on the real server: each user can do its part, and nothing else."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as RawClient
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from schemas import strict_json, subjects
from schemas.codes import Code
from schemas.commands import KEYS, LEDGER_PLANES
from schemas.commands.sys import witness_of
from schemas.names import kv_stream
from schemas.roles import QUERY_ROLES, VERB_ROLES, Role
from schemas.subjects import Checkpoint, Speaker
from tests.support.cp import until
from tests.support.process import command, environment
from tests.support.processes import family
from tests.support.production import (
    CONF,
    ENDPOINT,
    GRANTS,
    NAMES,
    PASSWORDS,
    PERSON,
    Production,
    api,
    conf_arguments,
    conf_environment,
    stored,
)
from tests.support.running import RunningWorker
from tests.support.space import Space
from tests.support.turns import Turn, refused
from worker import identity
from worker.bus.errors import Denied
from worker.client.errors import Refused
from worker.evidence.identity import identify
from worker.evidence.procfs import LinuxProc
from worker.evidence.verdicts import Observer
from worker.evidence.witness import Witness
from worker.settings import Settings

CLIENTS = [role for role in Role if role is not Role.WORKER]
VICTIM = Speaker("victim", "v1" * 13)
VICTIMS = Checkpoint(ENDPOINT, "victims")


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    one = Production(tmp_path_factory.mktemp("production") / "broker")
    yield one
    one.stop()


def in_ms(ms: int) -> int:
    return time.time_ns() // 1_000_000 + ms


_numbers = iter(range(1_000_000))


def fresh(prefix: str = "t") -> str:
    return f"{prefix}-{next(_numbers)}"


def test_the_file_is_the_one_that_setup_prints() -> None:
    printed = command(["setup", "--print-conf"], environment())
    assert printed.stdout == CONF.read_text()
    named = ["--endpoint", "a.b", "--person", "p-1", "--host", "rack 7", "--host", "h2"]
    more = command(["setup", "--print-conf", "--space", "one,two", *named], environment())
    assert "tidegate.two.cmd.minter.*.cp.mint.a_b.*" in more.stdout
    assert "tidegate.one.cmd.delegate.*.cap.stop.p-1" in more.stdout
    assert "alice" not in more.stdout
    for host in ("rack 7", "h2"):
        principal = witness_of(host)
        assert f"tidegate.two.cmd.{principal}.*.sys.evidence" in more.stdout
        assert f'user: "{principal.removeprefix("_")}"' in more.stdout
    assert "host-1" not in more.stdout
    here = command(["setup", "--print-conf"], environment(host="rack-9"))
    assert "tidegate.main.cmd._witness-rack-9.*.sys.evidence" in here.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--endpoint", "A_b"],
        ["--person", "p.1"],
        ["--host", " "],
        ["--host", "a\nb"],
        ["--host", "a_b", "--host", "a-b"],
    ],
)
def test_setup_prints_no_rights_for_what_cannot_be_named(arguments: list[str]) -> None:
    assert command(["setup", "--print-conf", *arguments], environment()).returncode == 2
    assert command(["setup", *arguments], environment()).returncode == 2


@pytest.mark.parametrize("missing", [*PASSWORDS, "NATS_STORE_DIR"])
def test_the_server_does_not_start_without_what_the_environment_must_hold(
    missing: str, tmp_path: Path
) -> None:
    env = {name: value for name, value in conf_environment(tmp_path).items() if name != missing}
    done = subprocess.run(
        [*conf_arguments(tmp_path), "-t"],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode != 0
    assert missing in done.stdout + done.stderr


def test_what_is_acknowledged_is_on_the_disk_and_nobody_is_let_in_without_a_password() -> None:
    text = CONF.read_text()
    assert "sync_interval: always" in text
    assert "no_auth_user" not in text
    for shown in ("cert_file", "ca_file", "cipher: chachapoly", "key: $NATS_STORE_KEY"):
        assert shown in text
    passwords = [line for line in text.splitlines() if "password:" in line]
    assert len(passwords) == len(Role)
    assert all("password: $NATS_" in line for line in passwords)
    assert text.count('default_permissions: { publish: { deny: ">" }') == 2


async def listen(client: RawClient, subject: str) -> asyncio.Queue[Msg]:
    """Everything that arrives on a subject."""
    heard: asyncio.Queue[Msg] = asyncio.Queue()

    async def put(message: Msg) -> None:
        heard.put_nowait(message)

    await client.subscribe(subject, cb=put)
    await client.flush()
    return heard


async def test_a_minter_pauses_moves_repairs_and_looks_on_its_endpoint(
    production: Production,
) -> None:
    token, uid = fresh(), identity.new_uid()
    listener, rights = await production.raw(Role.MINTER)
    heard = await listen(listener, f"{NAMES.prefix}.fact.cp.*.{ENDPOINT}.>")
    async with production.client(Role.MINTER, uid) as minter:
        minted = await minter.cp.mint(ENDPOINT, token, deadline_at_ms=in_ms(600_000))
        moved = await minter.cp.heartbeat(
            ENDPOINT, token, generation=1, deadline_at_ms=in_ms(900_000)
        )
        assert (minted.word, moved.word) == ("minted", "extended")
        assert (await minter.cp.repair(ENDPOINT, token)).repairs == ()
        with pytest.raises(Refused) as caught:
            await minter.cp.expire(ENDPOINT, token)
        assert caught.value.reason == "not-due"
        assert (await minter.cp.show(ENDPOINT, token)).checkpoint.generation == 2
        assert token in [item.token for item in (await minter.cp.list(endpoint=ENDPOINT)).items]
        waited = await minter.query("cp", "wait", wait_body(token))
        assert waited.outcome == "still_waiting"
        assert (await minter.query("sys", "status", {})).data["ready"] is True
    result = subjects.result(NAMES, Speaker("minter", uid), "cp", "mint", minted.result.id)
    looked_up = await listener.request(f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{result}")
    assert strict_json.loads(looked_up.data) == minted.result.to_object()
    async with asyncio.timeout(5):
        facts = [(await heard.get()).subject for _ in range(2)]
    assert facts == [
        f"{NAMES.prefix}.fact.cp.waiting.{ENDPOINT}.{token}.1",
        f"{NAMES.prefix}.fact.cp.extended.{ENDPOINT}.{token}.2",
    ]
    assert rights.violations == []
    await listener.close()


def wait_body(token: str) -> dict[str, Any]:
    return {"endpoint": ENDPOINT, "token": token, "timeout_ms": 0}


async def mint_for(production: Production, holder: Speaker, deadline_ms: int = 600_000) -> str:
    """A checkpoint that waits for ``holder``."""
    token = fresh()
    async with production.client(Role.MINTER, identity.new_uid()) as minter:
        await minter.cp.mint(ENDPOINT, token, deadline_at_ms=in_ms(deadline_ms), holder=holder)
    return token


async def test_a_holder_resumes_its_own_and_nobody_elses(production: Production) -> None:
    own, other_life, other = (
        Speaker("holder", identity.new_uid()),
        Speaker("holder", identity.new_uid()),
        Speaker("somebody", identity.new_uid()),
    )
    tokens = [await mint_for(production, who) for who in (own, other_life, other)]
    async with production.client(Role.HOLDER, own.uid) as holder:
        resumed = await holder.cp.resume(ENDPOINT, tokens[0], answer="yes")
        assert resumed.checkpoint.settled_holder is not None
        assert resumed.checkpoint.settled_holder.id == "holder"
        for token in tokens[1:]:
            with pytest.raises(Refused) as caught:
                await holder.cp.resume(ENDPOINT, token)
            assert (caught.value.code, caught.value.reason) == (
                Code.PERMISSION_DENIED,
                "not-the-holder",
            )
            assert (await holder.cp.show(ENDPOINT, token)).checkpoint.state == "waiting"


async def test_an_operator_expires_and_repairs_anybodys(production: Production) -> None:
    token = await mint_for(production, Speaker("somebody", identity.new_uid()), 400)
    async with production.client(Role.OPERATOR, identity.new_uid()) as operator:
        settled = await operator.cp.wait_settled(ENDPOINT, token, timeout_ms=10_000)
        assert settled.state == "expired"
        assert (await operator.cp.expire(ENDPOINT, token)).word == "already_settled"
        assert (await operator.cp.repair(ENDPOINT, token)).repairs == ()
        with pytest.raises(Refused) as caught:
            await operator.cp.expire("elsewhere", fresh())
        assert caught.value.reason == "unknown-checkpoint"


async def test_an_observer_looks_on(production: Production) -> None:
    listener, rights = await production.raw(Role.OBSERVER)
    heard = await listen(listener, f"{NAMES.prefix}.fact.cp.>")
    holder = Speaker("holder", identity.new_uid())
    token = await mint_for(production, holder)
    async with production.client(Role.OBSERVER, identity.new_uid()) as observer:
        assert (await observer.cp.show(ENDPOINT, token)).checkpoint.state == "waiting"
        assert (await observer.query("cp", "wait", wait_body(token))).outcome == "still_waiting"
        assert (await observer.query("sys", "status", {})).outcome == "status"
    async with asyncio.timeout(5):
        fact = await heard.get()
    assert fact.subject.endswith(f".{token}.1")
    stored = f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{fact.subject}"

    async def looked_up() -> bytes:
        return (await listener.request(stored)).data

    # The broker hands a fact to listeners before it is stored.
    assert await until(looked_up) == fact.data
    assert rights.violations == []
    await listener.close()


def keys_of(role: Role, plane: str, verb: str) -> list[str]:
    """Keys that a role's credential may name behind a verb, with something in every place."""
    mine = {"<endpoint>": ENDPOINT, "<user>": PERSON, "<mint key>": "k" * 16}
    return [
        "".join(f".{mine.get(part, fresh())}" for part in key.split(".") if part)
        for key in KEYS[plane, verb]
    ]


@pytest.mark.parametrize("role", CLIENTS)
async def test_every_command_of_a_role_is_stored_under_its_own_name(
    production: Production, role: Role
) -> None:
    """Whether or not a plane is served here; the body is refused by whoever serves it."""
    client, rights = await production.raw(role)
    uid, principal = identity.new_uid(), GRANTS[role].principal
    for (plane, verb), allowed in VERB_ROLES.items():
        if role in allowed:
            for key in keys_of(role, plane, verb):
                subject = f"{NAMES.prefix}.cmd.{principal}.{uid}.{plane}.{verb}{key}"
                ack = strict_json.loads((await client.request(subject, b"not json")).data)
                stream = NAMES.log_stream if plane in LEDGER_PLANES else NAMES.cmd_stream
                assert ack["stream"] == stream
    assert rights.violations == []
    await client.close()


async def test_a_connector_beats_and_keeps_sealed_prompts_under_its_name(
    production: Production,
) -> None:
    client, rights = await production.raw(Role.CONNECTOR)
    key, uid = fresh(), identity.new_uid()
    ack = await client.request(
        f"$KV.{NAMES.payloads_bucket}.connector.{key}",
        b"sealed",
        headers={"Nats-Expected-Last-Subject-Sequence": "0", "Nats-TTL": "60s"},
    )
    assert strict_json.loads(ack.data)["stream"] == kv_stream(NAMES.payloads_bucket)
    await client.publish(f"{NAMES.prefix}.hb.connector.{uid}", b"")
    await client.subscribe(f"{NAMES.prefix}.grant.connector.{uid}.>")
    await client.flush()
    assert rights.violations == []
    await client.close()


async def test_a_connector_queues_a_turn_and_gets_its_seat(production: Production) -> None:
    uid, request_id = identity.new_uid(), fresh("r")
    listener, rights = await production.raw(Role.CONNECTOR)
    grants = await listen(listener, f"{NAMES.prefix}.grant.connector.{uid}.>")
    enqueue = {
        "session_id": "s",
        "agent_id": "a",
        "fingerprint": "f",
        "provider": "p",
        "model": "m",
    }
    async with production.client(Role.CONNECTOR, uid) as connector:
        await connector.call("adm", "enqueue", (request_id,), enqueue)
        async with asyncio.timeout(10):
            grant = strict_json.loads((await grants.get()).data)
        fence = {"lease_id": grant["lease_id"], "generation": grant["generation"]}
        for verb, more in (("start", {}), ("abandon", {"outcome": "cancelled"})):
            result = await connector.call("adm", verb, (request_id,), fence | more)
            assert result.status == "ok"
        assert (await connector.query("adm", "queue", {})).outcome
    assert rights.violations == []
    await listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")
async def test_a_witness_with_another_hosts_login_ends_and_says_so(
    production: Production, tmp_path: Path
) -> None:
    grant = GRANTS[Role.WITNESS]
    env = environment(
        nats_url=production.url,
        nats_user=grant.name,
        nats_password=PASSWORDS[grant.variable],
        spaces=NAMES.space,
        data_dir=tmp_path,
    )
    done = await asyncio.to_thread(command, ["witness", "--host", "host-2"], env)
    assert done.returncode == 3
    last = done.stderr.splitlines()
    assert any("may not speak as _witness-host-2" in line and "--host" in line for line in last)
    assert "witness_ready" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")
async def test_a_witness_vouches_for_its_host_and_for_nothing_else(
    production: Production, tmp_path: Path
) -> None:
    grant, proc = GRANTS[Role.WITNESS], LinuxProc()
    settings = Settings(
        nats_url=production.url,
        nats_user=grant.name,
        nats_password=PASSWORDS[grant.variable],
        data_dir=tmp_path,
        reaper_interval_ms=200,
    )
    witness = Witness(settings, Observer.at(grant.host, proc), uid=identity.new_uid())
    async with production.client(Role.CONNECTOR, identity.new_uid()) as connector:
        with family() as them, family() as others:
            gone, alive, elsewhere = (
                Turn(connector, fresh("r"), identify(of.connector.pid, host=host, reader=proc))
                for of, host in ((them, grant.host), (others, grant.host), (them, "host-2"))
            )
            for turn in (gone, alive, elsewhere):
                await turn.bring_to("active", channel="http")
            lie = {
                "request_id": elsewhere.request_id,
                "fence": {
                    **await elsewhere.fence(),
                    "request_id": elsewhere.request_id,
                    "owner": (await elsewhere.view())["lease"]["owner"],
                },
                "host": "host-2",
                "connector": elsewhere.connector.to_object(),
                "connector_state": "gone",
                "observed_at_ms": 0,
            }
            them.kill_connector()
            looking = asyncio.create_task(witness.run())
            try:
                await gone.become("recovery_required")
            finally:
                witness.stop()
                await looking
            async with production.client(Role.WITNESS, identity.new_uid()) as liar:
                assert await refused(liar.call("sys", "evidence", (), lie)) == "other-host"
            for turn in (alive, elsewhere):
                assert await turn.state() == "active"
                await turn.step("complete", outcome="completed")
    raw, rights = await production.raw(Role.WITNESS)
    never = [
        subjects.command(NAMES, Speaker(principal, VICTIM.uid), "sys", "evidence")
        for principal in ("_witness", "_witness-host-2", "_witness-host-11", "_worker", "_op")
    ]
    for subject in never:
        await raw.publish(subject, b"{}")
    await raw.flush()
    await raw.flush()
    assert rights.violations == [f"publish {subject}" for subject in never]
    await raw.close()


async def test_a_delegate_keeps_the_cap_of_its_person(production: Production) -> None:
    key, second = fresh("k" * 16), (in_ms(3_600_000) // 1000) * 1000
    async with (
        production.client(Role.OPERATOR, identity.new_uid()) as operator,
        production.client(Role.DELEGATE, identity.new_uid()) as delegate,
    ):
        await operator.call("cap", "minting", (), {"enabled": True})
        wanted = {"latest_expires_at_ms": second, "cap": 10}
        reserved = await delegate.call("cap", "reserve", (PERSON, key), wanted)
        second = reserved.data["expires_at_ms"]
        grant = {"grant_expires_at_ms": second}
        await delegate.call("cap", "confirm", (PERSON, key), grant)
        allowed = await delegate.call("cap", "authorize", (PERSON,), grant | {"amount": 5})
        assert allowed.outcome == "allowed"
        stopped = await operator.call("cap", "stop", (PERSON,), {})
        assert stopped.outcome == "stopped"
        with pytest.raises(Refused):
            await delegate.call("cap", "authorize", (PERSON,), grant | {"amount": 5})
        shown = await delegate.query("cap", "show", {"user": PERSON})
        assert shown.data["authority"]["authorizes"] is False


async def asked(client: RawClient, subject: str, body: dict[str, Any]) -> tuple[str, Any]:
    """A query by hand: its outcome and its data, or ``nobody`` if nothing came through."""
    try:
        answer = await client.request(subject, json.dumps(body).encode(), timeout=1)
    except (NoRespondersError, TimeoutError):
        return "nobody", {}
    said = json.loads(answer.data)
    return said["outcome"], said.get("data", {})


async def test_a_delegate_learns_nothing_of_anybody_elses_cap(production: Production) -> None:
    """Every query with every way to name another: beside the subject, or in the body alone."""
    uid, other = "a1" * 13, "bob"
    client, _ = await production.raw(Role.DELEGATE)
    head = f"{NAMES.prefix}.qry.{GRANTS[Role.DELEGATE].principal}.{uid}"
    own = f"{head}.cap.show.{PERSON}"
    assert (await asked(client, own, {"v": 1, "user": PERSON}))[0] == "shown"
    assert (await asked(client, own, {"v": 1, "user": other}))[0] == "subject-differs"
    for tail in ("show", f"show.{other}", f"show.{PERSON}.{other}", f"show.{other}.{PERSON}"):
        found = await asked(client, f"{head}.cap.{tail}", {"v": 1, "user": other})
        assert found == ("nobody", {}), tail
    for plane, name in QUERY_ROLES:
        if (plane, name) not in {("sys", "status"), ("cap", "show")}:
            found = await asked(client, f"{head}.{plane}.{name}", {"v": 1})
            assert found == ("nobody", {}), (plane, name)
    await client.close()
    async with production.client(Role.OPERATOR, uid) as operator:
        assert (await operator.cap.show(other)).user == other
        assert (await operator.cap.show(PERSON)).user == PERSON
    async with production.client(Role.DELEGATE, uid) as delegate:
        with pytest.raises(Denied):
            await delegate.cap.show(other)


async def test_a_witness_is_told_of_its_own_host_only(production: Production) -> None:
    client, _ = await production.raw(Role.WITNESS)
    own = GRANTS[Role.WITNESS]
    subject = f"{NAMES.prefix}.qry.{own.principal}.{'a1' * 13}.adm.recoverable"
    assert (await asked(client, subject, {"v": 1, "host": own.host}))[0] == "listed"
    for body in ({"v": 1}, {"v": 1, "host": "another"}, {"v": 1, "host": own.host.upper()}):
        assert (await asked(client, subject, body))[0] == "other-host"
    await client.close()


async def test_an_operator_looks_after_the_ledger(production: Production) -> None:
    async with production.client(Role.OPERATOR, identity.new_uid()) as operator:
        assert (await operator.query("sys", "snapshot", {})).outcome == "stored"
        assert (await operator.query("sys", "snapshots", {})).data["snapshots"]
        assert (await operator.query("sys", "trim", {})).outcome == "trimmed"
        pruned = await operator.query("sys", "prune", {"before_at_ms": 1})
        assert pruned.outcome in ("folded", "published")
        assert (await operator.query("sys", "digest", {})).outcome == "digest"


async def test_the_worker_needs_no_right_that_it_does_not_have(production: Production) -> None:
    """It has served all of the above with these rights alone; now a deadline passes, too."""
    listener, _ = await production.raw(Role.OBSERVER)
    facts = await listen(listener, f"{NAMES.prefix}.fact.cp.expired.>")
    await mint_for(production, Speaker("holder", identity.new_uid()), 300)
    async with asyncio.timeout(10):
        await facts.get()
    await listener.close()
    log = production.server_log()
    assert '"W/user:worker" - Publish Violation' not in log
    assert '"W/user:worker" - Subscription Violation' not in log
    assert not [e for e in production.worker.events() if "permission" in e["event"]]
    assert production.worker.readiness() == []


def commands_of_everybody(own: str) -> list[tuple[str, frozenset[Role], bool]]:
    """Subjects of every verb in many names; the roles that may, and if it is one's own."""
    uid = "a1" * 13
    found = []
    principals = {grant.principal for grant in GRANTS.values()} | {own, VICTIM.principal}
    for (plane, verb), allowed in VERB_ROLES.items():
        for key in KEYS[plane, verb]:
            for principal in sorted(principals):
                for ours in (True, False):
                    fill = {
                        "<endpoint>": ENDPOINT if ours else "elsewhere",
                        "<user>": PERSON if ours else "bob",
                        "<mint key>": "k" * 16,
                    }
                    tail = "".join(f".{fill.get(p, 'x')}" for p in key.split(".") if p)
                    head = f"{NAMES.prefix}.cmd.{principal}.{uid}.{plane}.{verb}"
                    found.append((head + tail, allowed, principal == own))
                    found.append((f"{head}{tail}.more.more", frozenset(), False))
    for (plane, name), allowed in QUERY_ROLES.items():
        for principal in sorted(principals):
            head = f"{NAMES.prefix}.qry.{principal}.{uid}.{plane}.{name}"
            if (plane, name) == ("cap", "show"):
                found.append((head, frozenset(), False))
                found += [(f"{head}.{who}", allowed, principal == own) for who in (PERSON, "bob")]
                head = f"{head}.{PERSON}"
            else:
                found.append((head, allowed, principal == own))
            found.append((f"{head}.more", frozenset(), False))
    return found


def scope_of(role: Role, subject: str) -> bool:
    """Whether a subject keeps to the endpoints or persons that a credential is for."""
    if role is Role.MINTER and ".cp." in subject and ".cmd." in subject:
        return f".{ENDPOINT}." in subject
    if role is Role.DELEGATE and ".cap." in subject:
        return f".{PERSON}" in subject
    return True


def places_nobody_in_c_may_write() -> list[str]:
    """What only the broker or a worker writes, what belongs to others, and the broker's API."""
    armed = subjects.own_timer(NAMES, VICTIMS)
    timers = [subjects.timer(NAMES, armed, kind) for kind in sorted(subjects.TIMER_KINDS)]
    kv = f"$KV.{NAMES.records_bucket}"
    streams = (NAMES.log_stream, NAMES.cmd_stream, NAMES.ept_stream, NAMES.res_stream)
    return [
        *timers,
        f"{kv}.{subjects.spec_key(VICTIMS)}",
        f"{kv}.{subjects.status_key(VICTIMS)}",
        f"{kv}.{subjects.prompt_key(VICTIMS)}",
        f"{kv}.{subjects.answer_key(VICTIMS, 'a')}",
        f"$KV.{NAMES.payloads_bucket}.victim.request",
        f"$KV.{NAMES.payloads_bucket}.connectors.request",
        f"$KV.{NAMES.keys_bucket}.space",
        f"$KV.{NAMES.leases_bucket}.publisher",
        f"$O.{NAMES.snapshots_bucket}.M.x",
        subjects.settle_fact(NAMES, VICTIMS),
        subjects.checkpoint_fact(NAMES, "resumed", VICTIMS, 1),
        subjects.result(NAMES, VICTIM, "cp", "resume", "7"),
        subjects.grant(NAMES, VICTIM, "request", 1),
        subjects.heartbeat(NAMES, VICTIM),
        f"{NAMES.prefix}.cmd.>",
        f"{NAMES.prefix}.cmd.*.*.cp.mint.{ENDPOINT}.t",
        f"{NAMES.prefix}.cmd.minter.a.b.cp.mint.{ENDPOINT}.t",
        f"{NAMES.prefix}.cmd.minter..cp.mint.{ENDPOINT}.t",
        "tidegate.other.cmd.minter.a.cp.mint.runs.t",
        "$JS.API.INFO",
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.CREATE.MINE",
        *(
            f"$JS.API.STREAM.{verb}.{one}"
            for one in streams
            for verb in ("INFO", "PURGE", "DELETE")
        ),
        *(f"$JS.API.STREAM.MSG.{verb}.{one}" for one in streams for verb in ("GET", "DELETE")),
        f"$JS.API.CONSUMER.CREATE.{NAMES.log_stream}",
        f"$JS.API.CONSUMER.MSG.NEXT.{NAMES.cmd_stream}.{NAMES.cp_durable}",
        f"$JS.API.CONSUMER.DELETE.{NAMES.cmd_stream}.{NAMES.cp_durable}",
        f"$JS.API.DIRECT.GET.{NAMES.res_stream}",
        f"$JS.API.DIRECT.GET.{NAMES.res_stream}.>",
        f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{NAMES.prefix}.res.victim.>",
        f"$JS.API.DIRECT.GET.{NAMES.res_stream}.{NAMES.prefix}.grant.victim.>",
        f"$JS.API.DIRECT.GET.{kv_stream(NAMES.records_bucket)}.{kv}.{subjects.status_key(VICTIMS)}",
        f"$JS.API.DIRECT.GET.{kv_stream(NAMES.payloads_bucket)}",
        f"$JS.ACK.{NAMES.cmd_stream}.{NAMES.cp_durable}.1.1.1.1.1",
        "$SYS.REQ.ACCOUNT.PING.CONNZ",
        "$SRV.PING",
        "_INBOX.anybody",
        "_INBOX_victim.abc",
        "_R_.abc",
    ]


async def said_since(worker: RawClient, before: dict[str, dict[str, int]]) -> set[str]:
    """Subjects of new messages but for answers and ticks, which the worker goes on writing."""
    ours = (f"{NAMES.prefix}.res.", f"{NAMES.prefix}.cmd._worker", f"$KV.{NAMES.leases_bucket}.")
    return {
        subject
        for stream, counts in (await stored(worker, NAMES)).items()
        for subject, count in counts.items()
        if count != before[stream].get(subject, 0) and not subject.startswith(ours)
    }


@pytest.mark.parametrize("role", CLIENTS)
async def test_a_user_may_publish_what_its_role_says_and_nothing_else(
    production: Production, role: Role
) -> None:
    client, rights = await production.raw(role)
    worker, _ = await production.raw(Role.WORKER)
    before = await stored(worker, NAMES)
    own = GRANTS[role].principal
    may: set[str] = set()
    may_not = set(places_nobody_in_c_may_write())
    for subject, allowed, is_own in commands_of_everybody(own):
        fine = role in allowed and is_own and scope_of(role, subject)
        (may if fine else may_not).add(subject)
    for subject in sorted(may | may_not):
        await client.publish(subject, b"{}")
    await client.flush()
    await client.flush()
    refused = {violation.removeprefix("publish ") for violation in rights.violations}
    assert refused == {subject.lower() for subject in may_not}
    kept = {subject for subject in may if subject.startswith(("$KV.", f"{NAMES.prefix}.cmd."))}
    # Streams take in what was published a moment later; whatever is refused never comes.
    for _ in range(250):
        new = await said_since(worker, before)
        if new >= kept:
            break
        await asyncio.sleep(0.02)
    assert new == kept
    assert all(subject.startswith(f"{NAMES.prefix}.cmd.{own}.") for subject in kept)
    await client.close()
    await worker.close()


@pytest.mark.parametrize("role", CLIENTS)
async def test_a_user_may_listen_to_its_own_and_nothing_else(
    production: Production, role: Role
) -> None:
    client, rights = await production.raw(role)
    prefix, own = NAMES.prefix, GRANTS[role].principal
    never = [
        ">",
        "$JS.>",
        "$JS.ACK.>",
        "$KV.>",
        "$SRV.>",
        "_INBOX.>",
        "_INBOX_victim.>",
        "_R_.>",
        "*.*.res.>",
        f"{prefix}.>",
        f"{prefix}.cmd.>",
        f"{prefix}.cmd.{own}.>",
        f"{prefix}.qry.>",
        f"{prefix}.hb.>",
        f"{prefix}.ept.>",
        f"{prefix}.epf.>",
        f"{prefix}.res.>",
        f"{prefix}.res.*.>",
        f"{prefix}.res.victim.>",
        f"{prefix}.grant.>",
        f"{prefix}.grant.victim.>",
        "tidegate.other.fact.>",
    ]
    watches = role in (Role.OPERATOR, Role.OBSERVER)
    facts = [f"{prefix}.fact.{plane}.>" for plane in ("cp", "adm", "cap", "sys")]
    of_role = {Role.HOLDER: facts[:1], Role.CONNECTOR: facts[1:2]}
    may = facts if watches else of_role.get(role, [])
    never += [subject for subject in (*facts, f"{prefix}.fact.>") if subject not in may]
    if role is Role.OBSERVER:
        never.append(f"{prefix}.res.{own}.>")
    else:
        may = [*may, f"{prefix}.res.{own}.>"]
    for subject in (*never, *may):
        await client.subscribe(subject)
    await client.flush()
    await client.flush()
    refused = {violation.removeprefix("subscription ") for violation in rights.violations}
    assert refused == {subject.lower() for subject in never}
    await client.close()


async def test_the_worker_neither_fires_nor_speaks_for_others_nor_takes_anything_away(
    production: Production,
) -> None:
    worker, rights = await production.raw(Role.WORKER)
    before = await stored(worker, NAMES)
    armed = subjects.own_timer(NAMES, VICTIMS)
    kv = kv_stream(NAMES.records_bucket)
    never = [
        subjects.timer(NAMES, armed, "fire"),
        subjects.timer(NAMES, armed, "schedule"),
        subjects.checkpoint_command(NAMES, VICTIM, "resume", VICTIMS),
        subjects.command(NAMES, Speaker("_op", VICTIM.uid), "cap", "stop", PERSON),
        subjects.query(NAMES, VICTIM, "cp", "show"),
        "$KV.others.key",
        *(f"$JS.API.STREAM.DELETE.{stream}" for stream in (NAMES.log_stream, kv)),
        *(f"$JS.API.STREAM.MSG.DELETE.{stream}" for stream in (NAMES.log_stream, kv)),
        *(
            f"$JS.API.STREAM.PURGE.{stream}"
            for stream in (NAMES.epf_stream, NAMES.ept_stream, NAMES.cmd_stream, kv)
        ),
        "$JS.API.ACCOUNT.PURGE.W",
        "$SYS.REQ.SERVER.PING",
        "tidegate.other.res.x",
    ]
    for subject in never:
        await worker.publish(subject, b"{}")
    for subject in (">", f"{NAMES.prefix}.cmd.>", f"{NAMES.prefix}.res.>", "_INBOX.>"):
        await worker.subscribe(subject)
    await worker.flush()
    await worker.flush()
    refused = {v.removeprefix("publish ") for v in rights.violations if v.startswith("publish")}
    assert refused == {subject.lower() for subject in never}
    assert len(rights.violations) == len(never) + 4
    assert await said_since(worker, before) == set()
    await worker.close()


async def test_streams_and_durables_are_listed_with_the_workers_login(
    production: Production,
) -> None:
    """As ``nats stream ls``, ``stream report`` and ``consumer report`` ask for them."""
    worker, rights = await production.raw(Role.WORKER)
    listed = await api(worker, "STREAM.LIST", {"offset": 0})
    named = await api(worker, "STREAM.NAMES", {"offset": 0})
    assert {one["config"]["name"] for one in listed["streams"]} == set(named["streams"])
    assert {NAMES.log_stream, NAMES.ept_stream} <= set(named["streams"])
    durables = await api(worker, f"CONSUMER.LIST.{NAMES.cmd_stream}", {"offset": 0})
    assert NAMES.cp_durable in {one["name"] for one in durables["consumers"]}
    assert (await api(worker, f"CONSUMER.NAMES.{NAMES.cmd_stream}", {"offset": 0}))["consumers"]
    assert rights.violations == []
    await worker.close()


async def test_a_user_that_was_added_without_rights_has_none(tmp_path: Path) -> None:
    """The accounts deny by default, so a line forgotten opens nothing."""
    text = CONF.read_text()
    account = text.index("  C {")
    users = text.index("users = [", account) + len("users = [")
    stray = '\n      { user: "stray", password: "stray" }'
    conf_file = tmp_path / "nats.conf"
    conf_file.write_text(text[:users] + stray + text[users:])
    one = Production(tmp_path / "broker", conf_file)
    try:
        client, rights = await one.raw_as("stray", "stray")
        for subject in (f"{NAMES.prefix}.cmd.stray.{VICTIM.uid}.cp.expire.runs.t", "x"):
            await client.publish(subject, b"{}")
        await client.subscribe(f"{NAMES.prefix}.fact.>")
        await client.flush()
        await client.flush()
        assert len(rights.violations) == 3
        await client.close()
    finally:
        one.stop()


async def test_every_query_that_a_worker_offers_stands_in_the_table_of_roles(
    worker: RunningWorker, space: Space
) -> None:
    conn = await space.connect()
    try:
        info = strict_json.loads((await conn.request("$SRV.INFO.tidegate")).data)
    finally:
        await conn.close()
    offered = {tuple(one["subject"].split(".")[5:7]) for one in info["endpoints"]}
    assert ("cp", "show") in offered
    assert offered <= QUERY_ROLES.keys()


async def test_nobody_answers_in_c_for_the_broker(production: Production) -> None:
    """JetStream is not enabled there, so no client can make streams of its own beside ours."""
    client, rights = await production.raw(Role.OPERATOR)
    with pytest.raises((NoRespondersError, TimeoutError)):
        await client.request("$JS.API.INFO", b"", timeout=0.5)
    assert rights.violations == ["publish $js.api.info"]
    await client.close()


def shell(
    production: Production, role: Role, data_dir: Path, arguments: str
) -> "subprocess.CompletedProcess[str]":
    """A command with one role's login, and nothing that says who speaks."""
    grant = GRANTS[role]
    env = environment(
        nats_url=production.url,
        nats_user=grant.name,
        nats_password=PASSWORDS[grant.variable],
        data_dir=data_dir,
    )
    return command(arguments.split(), env)


def test_commands_speak_as_whom_their_login_may(production: Production, tmp_path: Path) -> None:
    """Nobody has to know that an operator's principal is not its user's name."""
    user = tmp_path / "user"
    for role, arguments in (
        (Role.OPERATOR, "cap minting on"),
        (Role.OPERATOR, f"cap stop {PERSON}"),
        (Role.OPERATOR, "cp list"),
        (Role.OPERATOR, "adm policy"),
        (Role.OPERATOR, "adm leases"),
        (Role.MINTER, f"cp mint {ENDPOINT} speaks-by-itself -d +1h"),
        (Role.OPERATOR, f"cp repair {ENDPOINT} speaks-by-itself"),
        (Role.OBSERVER, "adm leases"),
        (Role.OBSERVER, "ledger digest"),
        (Role.OBSERVER, "ledger snapshots"),
        (Role.OPERATOR, "ledger digest"),
        (Role.WORKER, "ledger digest"),
        (Role.WITNESS, "status"),
        (Role.WORKER, "status"),
    ):
        done = shell(production, role, user, arguments)
        assert done.returncode == 0, f"{role} {arguments}: {done.stderr}"
    kept = {path.stem for path in user.rglob("*.json")}
    assert kept == {"identity"}, "who only looks keeps none"
    assert '"minter"' in (user / "identity.json").read_text()


@pytest.mark.parametrize(
    ("role", "arguments", "words"),
    [
        (Role.WORKER, f"cp mint {ENDPOINT} one -d +1h", "log in as a minter"),
        (Role.OBSERVER, f"cap stop {PERSON}", "log in as a delegate or an operator"),
        (Role.MINTER, "adm queue", "log in as a connector or an observer or an operator"),
        (Role.DELEGATE, "cap list", "log in as an observer or an operator"),
    ],
)
def test_a_login_that_may_not_is_told_whose_may(
    production: Production, tmp_path: Path, role: Role, arguments: str, words: str
) -> None:
    refused = shell(production, role, tmp_path / "user", arguments)
    assert refused.returncode == 3, refused.stderr
    plane, verb, *_ = arguments.split()
    assert f"user {GRANTS[role].name} may not {plane} {verb}" in refused.stderr
    assert words in refused.stderr
    assert f".{NAMES.space}." not in refused.stderr, "a subject says nothing to a person"


def test_whoever_has_the_workers_login_proves_and_keeps_the_ledger(
    production: Production, tmp_path: Path
) -> None:
    for arguments in ("ledger verify", f"ledger backup {tmp_path / 'kept.db'}"):
        done = shell(production, Role.WORKER, tmp_path / "user", arguments)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "kept.db").stat().st_size > 0
    for arguments in ("ledger verify", f"ledger backup {tmp_path / 'other.db'}", "setup"):
        refused = shell(production, Role.OPERATOR, tmp_path / "user", arguments)
        assert refused.returncode == 3, refused.stderr
        assert "worker" in refused.stderr, "it says whose login is needed"
        assert "$JS" not in refused.stderr
    assert not (tmp_path / "other.db").exists()
