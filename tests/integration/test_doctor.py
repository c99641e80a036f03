"""What the doctor finds on a broker: each thing broken as it breaks, on a real server."""

import asyncio
import contextlib
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas import subjects
from schemas.names import Names, kv_stream, object_stream
from schemas.roles import Role
from schemas.subjects import Checkpoint, Speaker
from tests.integration.bus_server import free_port
from tests.support.cp import until
from tests.support.doctor import DECLARED, of, possible, provokes, read, saw, the
from tests.support.ledger import a_log, folding
from tests.support.process import WorkerProcess, command, data_of, environment, space_environment
from tests.support.proxy import proxy_to
from tests.support.running import running
from tests.support.server import WORKER_PASSWORD, Server, spaces_of
from tests.support.space import Space
from worker import identity
from worker.bus import conf, users
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing
from worker.bus.topology import SpaceTopology, TopologySettings
from worker.doctor import examination
from worker.doctor import space as space_checks
from worker.doctor.findings import Check, Finding, Severity
from worker.inventory import confirm
from worker.planes import PLANES
from worker.spaces import topology_of

NAMES = Names("tidegate", "main")
UID = "d" * 26


async def examine(space: Space, monitor_url: str | None = None, **settings: Any) -> list[Finding]:
    return await examination.examine(space.settings(**settings), monitor_url=monitor_url)


@asynccontextmanager
async def js_of(space: Space) -> AsyncIterator[JetStream]:
    conn = await space.connect("test-breaks")
    try:
        yield JetStream(conn)
    finally:
        await conn.close()


async def change(js: JetStream, stream: str, **settings: Any) -> None:
    await js.stream_update({**(await js.stream_info(stream)).config, **settings})


async def follow(js: JetStream, fix: str) -> None:
    """Do what a fix says with the broker's API, word by word as a shell would take it."""
    words = shlex.split(fix.partition("; ")[0])
    while words:
        assert words[:2] == ["nats", "request"], words
        reply = await js.connection.request(words[2], words[3].encode())
        assert "error" not in json.loads(reply.data), reply.data
        words = words[5:]


def report_of(done: subprocess.CompletedProcess[str]) -> list[Finding]:
    """What ``tidegate doctor --json`` found; its exit code says whether there is a danger."""
    findings = read(data_of(done.stdout)["findings"])
    in_danger = any(finding.severity is Severity.DANGER for finding in findings)
    assert done.returncode == int(in_danger), done.stderr
    assert "Traceback" not in done.stderr
    return findings


SKEWED = """
import sys, time
seconds, nanoseconds, off_s = time.time, time.time_ns, int(sys.argv.pop(1))
time.time = lambda: seconds() + off_s
time.time_ns = lambda: nanoseconds() + off_s * 10**9
from worker.cli.main import run
run()
"""
FAKETIME = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]


def doctor_off_by(offset_s: int, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``tidegate doctor`` on a machine whose wall clock is off.

    With libfaketime every call of the process for the time of day is; without it, Python's.
    """
    if FAKETIME:
        preload = {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": f"{offset_s:+d}s"}
        env = {**env, **preload, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        return command(["doctor", "--json"], env)
    return subprocess.run(
        [sys.executable, "-c", SKEWED, str(offset_s), "doctor", "--json"],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


# A space in order, and each of its parts out of order.


async def test_a_space_in_order_with_a_worker_has_no_danger(space: Space) -> None:
    async with running(space.settings()):
        findings = await examine(space)
    bad = [finding for finding in findings if finding.severity is Severity.DANGER]
    assert bad == []
    assert {finding.check for finding in findings} >= {
        Check.SERVER,
        Check.MAX_PAYLOAD,
        Check.STREAM_SETTINGS,
        Check.DURABLES,
        Check.CLOCK,
        Check.BACKLOG,
        Check.SNAPSHOTS,
        Check.RIGHTS,
        Check.WORKERS,
    }
    the(Check.WORKERS, findings, Severity.FINE, "a worker answers")


@provokes((Check.SPACE, Severity.DANGER))
async def test_a_space_that_is_not_set_up(bare_space: Space) -> None:
    found = the(Check.SPACE, await examine(bare_space), Severity.DANGER, "not set up")
    assert f"tidegate setup --new --space {bare_space.names.space}" in found.fix


@provokes((Check.STREAM_MISSING, Severity.DANGER))
async def test_a_stream_that_is_gone(space: Space) -> None:
    async with js_of(space) as js:
        await js.stream_delete(space.names.ept_stream)
    findings = await examine(space)
    the(
        Check.STREAM_MISSING, findings, Severity.DANGER, space.names.ept_stream, "every armed timer"
    )


@provokes((Check.STREAM_ANEW, Severity.DANGER))
async def test_a_stream_that_was_made_anew(space: Space) -> None:
    names, settings = space.names, space.settings()
    async with js_of(space) as js:
        survey = await topology_of(js.connection, names, settings).survey()
        assert confirm(settings.data_dir, names, survey) == []
        config = survey.found[names.epf_stream].config
        await js.stream_delete(names.epf_stream)
        await js.stream_create(config)
    found = the(Check.STREAM_ANEW, await examine(space), Severity.DANGER, names.epf_stream)
    assert "tidegate setup --confirm-streams" in found.fix


@pytest.mark.parametrize(
    ("stream", "settings", "severity", "words"),
    [
        ("ept_stream", {"max_age": 3_600_000_000_000}, Severity.DANGER, "never fire"),
        ("ept_stream", {"max_msgs": 1_000}, Severity.DANGER, "never fire"),
        (
            "log_stream",
            {"max_bytes": 10_000_000, "discard": "old"},
            Severity.DANGER,
            "every admission and cap command",
        ),
        ("cmd_stream", {"max_age": 600_000_000_000}, Severity.DANGER, "max_age is 600 s"),
        ("res_stream", {"allow_atomic": False}, Severity.WARNING, "allow_atomic is off"),
        ("res_stream", {"republish": None}, Severity.WARNING, "nobody hears what is stored"),
        (
            "res_stream",
            {"republish": {"src": ">", "dest": "elsewhere.>", "headers_only": True}},
            Severity.WARNING,
            "republish is > on elsewhere.>, headers only",
        ),
        ("res_stream", {"max_age": 7_200_000_000_000}, Severity.WARNING, "7200 s"),
    ],
)
@provokes((Check.STREAM_SETTINGS, Severity.WARNING), (Check.STREAM_SETTINGS, Severity.DANGER))
async def test_a_stream_whose_settings_could_lose_something_is_mended_as_told(
    space: Space, stream: str, settings: Mapping[str, Any], severity: Severity, words: str
) -> None:
    name = str(getattr(space.names, stream))
    async with js_of(space) as js:
        await change(js, name, **settings)
        found = [
            finding
            for finding in of(Check.STREAM_SETTINGS, await examine(space))
            if finding.severity is severity
        ]
        assert found
        assert any(words in f"{one.found} {one.endangers}" for one in found), found
        for one in found:
            saw(one, severity)
            await follow(js, one.fix.removeprefix("if it is not meant: "))
        the(Check.STREAM_SETTINGS, await examine(space), Severity.FINE)


@pytest.mark.parametrize("order", [1, -1])
async def test_the_cures_of_one_stream_do_not_undo_each_other(space: Space, order: int) -> None:
    async with js_of(space) as js:
        await change(
            js,
            space.names.ept_stream,
            max_age=86_400_000_000_000,
            max_msgs=10**6,
            allow_direct=False,
        )
        await change(js, space.names.res_stream, republish=None, max_msgs=10**6)
        found = of(Check.STREAM_SETTINGS, await examine(space))
        assert len([one for one in found if one.severity is Severity.DANGER]) >= 2
        for one in found[::order]:
            await follow(js, one.fix.removeprefix("if it is not meant: "))
        left = of(Check.STREAM_SETTINGS, await examine(space))
        assert not [one for one in left if one.severity is Severity.DANGER], left
        if order == 1:
            assert [one.severity for one in left] == [Severity.FINE]


@provokes((Check.STREAM_SETTINGS, Severity.DANGER))
async def test_a_rollup_that_a_bucket_allows(space: Space) -> None:
    stream = kv_stream(space.names.payloads_bucket)
    async with js_of(space) as js:
        await change(js, stream, allow_rollup_hdrs=True)
        found = the(Check.STREAM_SETTINGS, await examine(space), Severity.DANGER, "rollup header")
        await follow(js, found.fix)
    the(Check.STREAM_SETTINGS, await examine(space), Severity.FINE)


@provokes((Check.STREAM_SETTINGS, Severity.DANGER))
async def test_a_setting_that_the_broker_cannot_change_back(space: Space) -> None:
    stream = space.names.log_stream
    async with js_of(space) as js:
        config = dict((await js.stream_info(stream)).config)
        await js.stream_delete(stream)
        await js.stream_create({**config, "storage": "memory"})
    found = the(Check.STREAM_SETTINGS, await examine(space), Severity.DANGER, "storage is memory")
    assert "cannot change storage" in found.fix


@provokes((Check.SPACE, Severity.DANGER))
async def test_a_stream_of_another_space(space: Space) -> None:
    async with js_of(space) as js:
        config = dict((await js.stream_info(space.names.epf_stream)).config)
        config["metadata"] = {**config["metadata"], "tidegate-space-id": "f" * 32}
        await js.stream_update(config)
    the(Check.SPACE, await examine(space), Severity.DANGER, space.names.epf_stream, "backup")


@provokes((Check.DURABLES, Severity.WARNING), (Check.STREAM_SETTINGS, Severity.DANGER))
async def test_a_durable_that_is_gone_and_one_that_is_wrong(space: Space) -> None:
    names = space.names
    async with js_of(space) as js:
        config = dict((await js.consumer_info(names.cmd_stream, names.cp_durable)).config)
        await js.consumer_delete(names.cmd_stream, names.cp_durable)
        the(Check.DURABLES, await examine(space), Severity.WARNING, names.cp_durable)
        await js.consumer_create(names.cmd_stream, {**config, "max_deliver": 3})
        findings = await examine(space)
        the(Check.DURABLES, findings, Severity.FINE)
        found = the(Check.STREAM_SETTINGS, findings, Severity.DANGER, "max_deliver is 3")
        await follow(js, found.fix)
    the(Check.STREAM_SETTINGS, await examine(space), Severity.FINE)


@provokes((Check.CHECKPOINTS, Severity.DANGER))
async def test_a_status_whose_spec_is_gone(space: Space) -> None:
    bucket = space.names.records_bucket
    key = f"$KV.{bucket}.cp.review_eu.tok-lost"
    status = {
        "state": "waiting",
        "deadlineGeneration": 1,
        "deadline": 1_000_000_000_000,
        "observedSpecRevision": 1,
    }
    async with js_of(space) as js:
        the(Check.CHECKPOINTS, await examine(space), Severity.FINE)
        await js.publish(f"{key}.status", json.dumps(status).encode())
        await js.publish(f"$KV.{bucket}.cp.review_eu.tok-closed.status", b"")
        found = the(
            Check.CHECKPOINTS,
            await examine(space),
            Severity.DANGER,
            "1 waiting checkpoints",
            "cp.review_eu.tok-lost.status",
        )
        assert found.fix.endswith(f"nats kv del -f {bucket} cp.review_eu.tok-lost.status")
        # What that command publishes.
        await js.publish(f"{key}.status", b"", headers={"KV-Operation": "DEL"})
    the(Check.CHECKPOINTS, await examine(space), Severity.FINE)


@provokes((Check.BACKLOG, Severity.WARNING), (Check.WORKERS, Severity.DANGER))
async def test_commands_that_nobody_serves(space: Space) -> None:
    alice = Speaker("alice", UID)
    async with js_of(space) as js:
        await asyncio.gather(
            *(
                js.publish(
                    subjects.checkpoint_command(
                        space.names, alice, "expire", Checkpoint("runs", f"t{n}")
                    ),
                    b'{"v":1}',
                )
                for n in range(space_checks.BACKLOG_WARNING)
            )
        )
    findings = await examine(space)
    the(Check.BACKLOG, findings, Severity.WARNING, f"{space_checks.BACKLOG_WARNING} to deliver")
    the(Check.WORKERS, findings, Severity.DANGER, "no worker answers", "tidegate run")


async def put_commands(js: JetStream, names: Names, count: int) -> None:
    subject = subjects.command(names, Speaker("desk", UID), "cap", "stop", "maria")
    await asyncio.gather(*(js.publish(subject, b'{"v":1}') for _ in range(count)))


@provokes((Check.SNAPSHOTS, Severity.DANGER))
async def test_a_log_that_no_snapshot_reaches(space: Space) -> None:
    async with js_of(space) as js:
        await put_commands(js, space.names, 20)
        await js.stream_purge(space.names.log_stream, below_seq=11)
    found = the(Check.SNAPSHOTS, await examine(space), Severity.DANGER, "begins at 11")
    assert "tidegate ledger snapshot" in found.fix


@provokes((Check.SNAPSHOTS, Severity.WARNING))
async def test_a_log_that_outgrew_its_newest_snapshot(space: Space) -> None:
    async with js_of(space) as js:
        await put_commands(js, space.names, 201)
    findings = await examine(space, snapshot_commands=100)
    the(Check.SNAPSHOTS, findings, Severity.WARNING, "no snapshot was taken in 202 commands")


@pytest.mark.parametrize(
    ("limit_mib", "count"),
    [
        (1, 3_000),
        # The real limit, in a broker that really needs a gigabyte for it.
        pytest.param(
            space_checks.RESULTS_WARNING_MIB,
            2_700_000,
            marks=[pytest.mark.long, pytest.mark.timeout(900)],
        ),
    ],
)
@provokes((Check.RESULTS, Severity.WARNING))
async def test_results_that_fill_the_brokers_memory(
    space: Space, monkeypatch: pytest.MonkeyPatch, limit_mib: int, count: int
) -> None:
    monkeypatch.setattr(space_checks, "RESULTS_WARNING_MIB", limit_mib)
    names, alice, batch = space.names, Speaker("alice", UID), 1_000
    async with js_of(space) as js:
        the(Check.RESULTS, await examine(space), Severity.FINE, "0 results")
        for start in range(0, count, batch):
            told = (
                subjects.result(names, alice, "cp", "mint", f"{start + n}") for n in range(batch)
            )
            await js.publish_batch([Outgoing(subject, b"{}") for subject in told])
        found = the(Check.RESULTS, await examine(space), Severity.WARNING, f"{count} results")
        told_mib = re.search(r"about (\d+) MiB", found.found)
        assert told_mib is not None
        assert limit_mib <= int(told_mib[1]) <= limit_mib * 1.2
        assert names.res_stream in found.fix
        # What the fix says: a shorter age, of the stream and of the setting together.
        short = space.settings(res_max_age_ms=60_000)
        assert "TIDEGATE_RES_MAX_AGE_MS" in found.fix
        await change(js, names.res_stream, max_age=1_000_000_000, duplicate_window=10**9)

        async def gone() -> bool:
            (finding,) = of(Check.RESULTS, await examination.examine(short))
            return finding.severity is Severity.FINE

        await until(gone, limit_s=60)


@pytest.mark.parametrize(
    ("offset_s", "severity", "words"),
    [
        (0, Severity.FINE, "ms from the broker's"),
        (5, Severity.WARNING, "clock is 5"),
        (-70, Severity.DANGER, "clock is -7"),
    ],
)
@provokes((Check.CLOCK, Severity.WARNING), (Check.CLOCK, Severity.DANGER))
def test_a_machine_whose_clock_is_wrong(
    space: Space, offset_s: int, severity: Severity, words: str
) -> None:
    findings = report_of(doctor_off_by(offset_s, space_environment(space)))
    the(Check.CLOCK, findings, severity, words)


@provokes((Check.SNAPSHOTS, Severity.WARNING))
async def test_snapshots_that_cannot_be_listed(space: Space) -> None:
    async with js_of(space) as js:
        await js.stream_delete(object_stream(space.names.snapshots_bucket))
    found = the(Check.SNAPSHOTS, await examine(space), Severity.WARNING, "cannot be listed")
    assert space.names.snapshots_bucket in found.fix


@provokes((Check.WORKERS, Severity.DANGER))
async def test_a_worker_that_is_not_ready_says_why(space: Space) -> None:
    async with running(space.settings()) as one, js_of(space) as js:
        await js.stream_delete(space.names.log_stream)

        async def noticed() -> bool:
            return bool(one.worker.not_ready())

        await until(noticed)
        findings = await examine(space, data_dir=space.data_dir.with_name("elsewhere"))
        the(Check.WORKERS, findings, Severity.DANGER, "ledger")


class DeafSpace(Space):
    """A space with a worker's user that may not read the snapshots."""

    LOGIN = "deaf"

    @classmethod
    def user(cls, names: Names) -> conf.User:
        right = "$JS.API.CONSUMER.CREATE."
        readable = (kv_stream(names.leases_bucket), names.log_stream)
        rights = (f"{right}{stream}.>" for stream in readable)
        # All workers are one user in production, so their answers have one place to go to.
        answers = f"_INBOX_{conf.WORKER_USER}.>"
        return changed(made(Role.WORKER, cls.LOGIN), *rights, answers, less=right)

    async def connect(self, name: str = "test-deaf") -> Connection:
        login: dict[str, Any] = {
            "user": self.LOGIN,
            "password": "p",
            "inbox_prefix": f"_INBOX_{self.LOGIN}",
        }
        options = replace(self.server.worker_options(), **login)
        return await Connection.open(options, name=name)


async def set_back_behind(server: Server, space: Space, knows: Path) -> None:
    """Replace the broker's store by a copy from before what a worker folded last."""
    store = server.directory / "store"
    await asyncio.to_thread(server.stop)
    older = Path(shutil.copytree(store, server.directory / "older"))
    await asyncio.to_thread(server.start)
    async with a_log(space) as log, folding(space, knows, planes=PLANES) as one:
        await one.said(await log.mixed(3))
    await asyncio.to_thread(server.stop)
    shutil.rmtree(store)
    shutil.move(older, store)
    await asyncio.to_thread(server.start)


@provokes((Check.WORKERS, Severity.WARNING))
async def test_a_worker_that_did_not_follow_into_a_new_epoch(tmp_path: Path) -> None:
    """The store was set back, one worker began an epoch, and another cannot read of it."""
    users_of = (
        conf.User(conf.WORKER_USER, WORKER_PASSWORD, "W"),
        conf.User(conf.CLIENT_USER, None, "C"),
        DeafSpace.user(NAMES),
    )
    server = server_of(tmp_path / "s", users=users_of)
    follows, stays = tmp_path / "a", tmp_path / "b"
    async with a_space_on(server) as space:
        for data_dir in (stays, follows):
            async with a_log(space) as log, folding(space, data_dir, planes=PLANES) as one:
                await one.said(await log.mixed(2))
        await set_back_behind(server, space, follows)
        async with folding(space, follows, planes=PLANES) as one:
            await one.until(lambda: one.ledger.status()["halted"] == "log-regressed")
            await one.ledger.queries()["sys", "rebase"](Speaker("_op", UID), b'{"v":1}')
            await one.until(lambda: one.ledger.status()["epoch"] == 2)
        async with running(space.settings(data_dir=follows)):
            deaf = DeafSpace(server, NAMES, space.data_dir)
            async with folding(deaf, stays, planes=PLANES) as other:
                await other.until(lambda: other.ledger.status()["halted"] == "rebase")
                words = ("not in the same epoch", "in epoch 1 (rebase)", "in epoch 2", "snapshot")
                the(Check.WORKERS, await examine(space), Severity.WARNING, *words)
            # As the fix says, with its rights given back.
            async with folding(space, stays, planes=PLANES) as other:
                await other.until(lambda: other.ledger.status()["epoch"] == 2)
                the(Check.WORKERS, await examine(space), Severity.FINE, "2 workers")


@provokes((Check.WORKERS, Severity.WARNING))
async def test_an_older_ruleset_is_told_until_the_newer_is_activated(bare_space: Space) -> None:
    """A space of an earlier version, whose log does not begin with the newest ruleset."""
    async with js_of(bare_space) as js:
        await SpaceTopology(js, bare_space.names, TopologySettings()).create("5" * 32)
    async with running(bare_space.settings()):
        found = the(Check.WORKERS, await examine(bare_space), Severity.WARNING, "ruleset 2")
        assert "tidegate ledger ruleset 3" in found.fix
        fix = commands_in(found.fix)
        await asyncio.to_thread(shell, fix, space_environment(bare_space))
        the(Check.WORKERS, await examine(bare_space), Severity.FINE)


# The broker as a whole.


def server_of(directory: Path, **options: Any) -> Server:
    """A server with the two accounts and what a test changes about it."""
    directory.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {
        "store_dir": directory / "store",
        "listen": "127.0.0.1:-1",
        "no_auth_user": conf.CLIENT_USER,
    }
    given_users = options.pop("users", None) or (
        conf.User(conf.WORKER_USER, WORKER_PASSWORD, "W"),
        conf.User(conf.CLIENT_USER, None, "C"),
    )
    patch: Callable[[str], str] = options.pop("patch", str)
    text = conf.render(spaces_of("tidegate", ["main"]), given_users, **{**given, **options})
    return Server(directory, patch(text))


@asynccontextmanager
async def a_space_on(server: Server) -> AsyncIterator[Space]:
    await asyncio.to_thread(server.start)
    try:
        space = Space(server, NAMES, server.directory / "data")
        await space.set_up()
        yield space
    finally:
        await asyncio.to_thread(server.kill)


@provokes((Check.BROKER, Severity.DANGER))
async def test_a_broker_that_is_not_there(space: Space) -> None:
    findings = await examine(space, nats_url=f"nats://127.0.0.1:{free_port()}")
    the(Check.BROKER, findings, Severity.DANGER)
    assert of(Check.SETTINGS, findings), "what can be looked at is looked at all the same"


@provokes((Check.BROKER, Severity.DANGER))
async def test_a_password_that_is_wrong(space: Space) -> None:
    found = the(Check.BROKER, await examine(space, nats_password="wrong"), Severity.DANGER)
    assert found.fix.startswith("correct TIDEGATE_NATS_USER")


@provokes((Check.SERVER, Severity.DANGER))
async def test_a_server_below_the_floor(space: Space) -> None:
    def older(data: bytes) -> bytes:
        return data.replace(b'"version":"2.1', b'"version":"1.1') if b"INFO" in data else data

    async with proxy_to(space.server.port, older) as proxy:
        the(Check.SERVER, await examine(space, nats_url=proxy.url), Severity.DANGER, "too old")


@provokes((Check.SERVER, Severity.DANGER))
async def test_a_server_without_jetstream(tmp_path: Path, space: Space) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    server = await asyncio.to_thread(Server(plain, "listen: 127.0.0.1:-1\n").start)
    try:
        findings = await examine(space, nats_url=server.url, nats_user=None, nats_password=None)
        the(Check.SERVER, findings, Severity.DANGER, "JetStream is not enabled")
    finally:
        await asyncio.to_thread(server.kill)


def monitor_of(server: Server) -> str:
    for path in server.directory.glob("*.ports"):
        return str(json.loads(path.read_text())["monitoring"][0])
    raise AssertionError("the server has no monitoring port")


@provokes((Check.SYNC, Severity.WARNING), (Check.SYNC, Severity.DANGER))
async def test_whether_the_broker_syncs_is_asked_of_its_monitoring(tmp_path: Path) -> None:
    for sync in (True, False):
        directory = tmp_path / f"sync-{sync}"
        server = server_of(directory, sync_always=sync, extra='http: "127.0.0.1:-1"')
        async with a_space_on(server) as space:
            the(Check.SYNC, await examine(space), Severity.WARNING, "--monitor")
            closed = f"http://127.0.0.1:{free_port()}"
            the(Check.SYNC, await examine(space, closed), Severity.WARNING, "does not answer")
            findings = await examine(space, monitor_of(server))
            if sync:
                the(Check.SYNC, findings, Severity.FINE)
            else:
                the(Check.SYNC, findings, Severity.DANGER, "sync_interval: always")


@provokes((Check.BROKER_SPACE, Severity.WARNING), (Check.BROKER_SPACE, Severity.DANGER))
async def test_a_store_that_is_nearly_full(tmp_path: Path) -> None:
    def limited(text: str) -> str:
        return text.replace("jetstream: enabled", "jetstream: { max_file: 1MB, max_mem: 1MB }")

    async with a_space_on(server_of(tmp_path / "s", patch=limited)) as space:
        the(Check.BROKER_SPACE, await examine(space), Severity.FINE, "the account")
        async with js_of(space) as js:
            subject = subjects.result(NAMES, Speaker("alice", UID), "cp", "mint", "1")
            await js.publish(subject, bytes(800_000))
            the(Check.BROKER_SPACE, await examine(space), Severity.WARNING)
            await js.publish(f"{subject}1", bytes(180_000))
        the(Check.BROKER_SPACE, await examine(space), Severity.DANGER, "trim")


@provokes((Check.BROKER_SPACE, Severity.DANGER))
async def test_a_store_that_is_small_is_seen_by_its_monitoring(tmp_path: Path) -> None:
    def limited(text: str) -> str:
        return text.replace("sync_interval: always", "sync_interval: always, max_file_store: 2MB")

    server = server_of(tmp_path / "s", patch=limited, extra='http: "127.0.0.1:-1"')
    async with a_space_on(server) as space, js_of(space) as js:
        for number in range(2):
            subject = subjects.result(NAMES, Speaker("alice", UID), "cp", "mint", f"{number}")
            await js.publish(subject, bytes(950_000))
        findings = await examine(space, monitor_of(server))
        the(Check.BROKER_SPACE, findings, Severity.DANGER, "the server")


@provokes((Check.MAX_PAYLOAD, Severity.DANGER))
async def test_a_payload_limit_that_refuses_records(tmp_path: Path) -> None:
    async with a_space_on(server_of(tmp_path / "s", extra="max_payload: 128KB")) as space:
        the(Check.MAX_PAYLOAD, await examine(space), Severity.DANGER, "max_payload: 1MB")


@provokes(
    (Check.ANONYMOUS, Severity.WARNING),
    (Check.ANONYMOUS, Severity.DANGER),
    (Check.ENCRYPTION, Severity.WARNING),
)
async def test_a_door_that_is_open_to_anybody(space: Space) -> None:
    the(Check.ANONYMOUS, await examine(space), Severity.WARNING, "may do everything there")
    # The same broker, reached by an address that is not the loopback's.
    far = await examine(space, nats_url=f"nats://0.0.0.0:{space.server.port}")
    the(Check.ANONYMOUS, far, Severity.DANGER, "no_auth_user")
    the(Check.ENCRYPTION, far, Severity.WARNING, "tls://")


@provokes((Check.REPLICAS, Severity.WARNING))
async def test_streams_on_one_server_are_a_warning(space: Space) -> None:
    the(Check.REPLICAS, await examine(space), Severity.WARNING, "TIDEGATE_REPLICAS=3")


@provokes(
    (Check.CLUSTER, Severity.WARNING),
    (Check.CLUSTER, Severity.DANGER),
    (Check.BROKER, Severity.DANGER),
)
async def test_a_cluster_that_lost_a_server(tmp_path: Path) -> None:
    routes = [free_port() for _ in range(3)]
    others = ", ".join(json.dumps(f"nats://127.0.0.1:{port}") for port in routes)
    servers = []
    for number, port in enumerate(routes):
        cluster = f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{others}] }}'
        extra = f"server_name: n{number}\n{cluster}"
        server = server_of(tmp_path / f"n{number}", extra=extra, sync_always=False)
        servers.append(await asyncio.to_thread(server.start))
    try:
        urls = ",".join(server.url for server in servers)
        space = Space(servers[0], NAMES, tmp_path / "data")
        settings: dict[str, Any] = {"nats_url": urls, "replicas": 3}
        conn = await Connection.open(
            replace(servers[0].worker_options(), servers=tuple(urls.split(","))), name="test-setup"
        )
        js = JetStream(conn)
        # One space whose streams are on every server, and one whose are on one server each.
        lonely = replace(space, names=Names("tidegate", "lonely"))
        topologies = [
            SpaceTopology(js, NAMES, TopologySettings(replicas=3)),
            SpaceTopology(js, lonely.names, TopologySettings(replicas=1)),
        ]

        async def set_up() -> bool:
            try:
                for number, topology in enumerate(topologies):
                    await topology.create(f"{number}" * 32)
            except (BusError, TimeoutError):
                return False
            return True

        await until(set_up, limit_s=30)

        async def current() -> bool:
            found = of(Check.CLUSTER, await examine(space, **settings))
            return [finding.severity for finding in found] == [Severity.FINE]

        await until(current, limit_s=30)
        where = (await js.api(f"STREAM.INFO.{lonely.names.log_stream}", None))["cluster"]["leader"]
        victim = int(where.removeprefix("n"))
        rest = [number for number in range(3) if number != victim]
        await conn.close()
        await asyncio.to_thread(servers[victim].kill)

        async def noticed() -> Finding | None:
            found = of(Check.CLUSTER, await examine(space, **settings))
            return next((finding for finding in found if where in finding.found), None)

        saw(await until(noticed, limit_s=30), Severity.WARNING)

        async def leaderless() -> Finding | None:
            found = of(Check.CLUSTER, await examine(lonely, nats_url=urls))
            return next((one for one in found if one.severity is Severity.DANGER), None)

        saw(await until(leaderless, limit_s=30), Severity.DANGER, lonely.names.log_stream)
        await asyncio.to_thread(servers[rest[0]].kill)

        async def silent() -> Finding | None:
            found = of(Check.BROKER, await examine(space, **settings))
            return next((one for one in found if "did not answer" in one.found), None)

        saw(await until(silent, limit_s=30), Severity.DANGER)
    finally:
        for server in servers:
            await asyncio.to_thread(server.kill)


# Credentials.


def changed(user: conf.User, *more: str, less: str = "\0") -> conf.User:
    publish = tuple(subject for subject in user.publish or () if less not in subject)
    return replace(user, password="p", publish=(*publish, *more))


def made(role: Role, name: str, **grant: Any) -> conf.User:
    return users.user(users.Grant(role, name, **grant), [NAMES])


USERS = (
    changed(made(Role.WORKER, "worker")),
    changed(made(Role.WORKER, "curbed"), less=".armed"),
    changed(made(Role.WORKER, "firing"), "tidegate.main.ept.*.*.*.*.fire"),
    replace(made(Role.WORKER, "boss"), password="p", publish=None, subscribe=None),
    changed(made(Role.HOLDER, "holder")),
    changed(made(Role.HOLDER, "writer"), "tidegate.main.res.>", "$KV.tidegate_records_main.>"),
    changed(made(Role.HOLDER, "two-faced"), "tidegate.main.cmd.victim.*.cp.resume.*.*"),
    changed(made(Role.MINTER, "deaf", endpoints=("runs",)), less="qry.deaf.*.cp.wait"),
    conf.User("anyone", "p", "C"),
    conf.User("shop", "p", "C", publish=("shop.>",), subscribe=("shop.>", "_INBOX_shop.>")),
    conf.User("mute", "p", "C", publish=("shop.>",), subscribe=("_INBOX_mute.>",)),
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    """A space on a server with good and bad users."""
    server = server_of(tmp_path_factory.mktemp("guarded") / "s", users=USERS, no_auth_user=None)
    server.start()
    space = Space(server, NAMES, server.directory / "data")
    env = credential(space, "boss")
    assert command(["setup", "--new"], env).returncode == 0
    yield space
    server.kill()


def credential(space: Space, name: str) -> dict[str, str]:
    return space_environment(space, nats_user=name, nats_password="p")


async def as_user(space: Space, name: str) -> list[Finding]:
    return await examine(space, nats_user=name, nats_password="p")


@pytest.mark.parametrize(
    ("name", "severity", "words"),
    [
        ("worker", Severity.FINE, "no other"),
        ("curbed", Severity.DANGER, "lacks: publish tidegate.main.ept.*.*.*.*.armed"),
        ("firing", Severity.WARNING, "publish tidegate.main.ept.*.*.*.*.fire"),
        ("boss", Severity.WARNING, "everything in its account"),
        ("holder", Severity.FINE, "has the rights of holder"),
        ("writer", Severity.DANGER, "publish $KV.tidegate_records_main.>"),
        ("deaf", Severity.DANGER, ""),
        ("anyone", Severity.DANGER, "may speak as anyone"),
        ("shop", Severity.WARNING, "does not tell this user its rights"),
    ],
)
@provokes((Check.RIGHTS, Severity.WARNING), (Check.RIGHTS, Severity.DANGER))
async def test_a_credential_is_judged_by_its_rights(
    guarded: Space, name: str, severity: Severity, words: str
) -> None:
    the(Check.RIGHTS, await as_user(guarded, name), severity, words)


@provokes((Check.RIGHTS, Severity.DANGER))
async def test_whoever_speaks_in_two_names_is_found_out(guarded: Space) -> None:
    found = of(Check.RIGHTS, await as_user(guarded, "two-faced"))
    assert any("two-faced, victim" in finding.found for finding in found)
    for finding in found:
        saw(finding, Severity.DANGER)


async def test_nobody_comes_in_without_credentials(guarded: Space) -> None:
    the(Check.ANONYMOUS, await as_user(guarded, "worker"), Severity.FINE)


# The command.


def test_the_command_tells_machines_and_its_exit_code_says_danger(
    guarded: Space,
) -> None:
    done = command(["doctor", "--json"], credential(guarded, "curbed"))
    assert done.returncode == 1, done.stderr
    report = data_of(done.stdout)
    bad = [one for one in report["findings"] if one["severity"] == "danger"]
    assert {"rights", "workers"} <= {one["check"] for one in bad}
    assert all(one["endangers"] and one["fix"] for one in bad)


def test_a_danger_is_gone_once_its_fix_is_followed(
    space: Space, process_worker: Callable[..., WorkerProcess]
) -> None:
    env = space_environment(space)
    before = command(["doctor"], env)
    assert before.returncode == 1
    assert before.stdout.startswith("danger ")
    assert before.stdout.rstrip().endswith("fine")
    assert "fix: start one: tidegate run" in before.stdout
    process_worker().wait_ready()
    after = command(["doctor"], env)
    assert after.returncode == 0, after.stdout
    assert "0 danger" in after.stdout


def test_without_any_broker_it_says_what_it_can(tmp_path: Path) -> None:
    env = environment(data_dir=tmp_path / "none", retention="1d")
    done = command(["doctor", "--json"], env)
    assert done.returncode == 1
    findings = {one["check"]: one for one in data_of(done.stdout)["findings"]}
    assert findings["broker"]["severity"] == "danger"
    assert findings["settings"]["severity"] == "warning"
    assert "TIDEGATE_RETENTION" in findings["settings"]["found"]


# A new user: what is printed is done as it stands, and the finding is gone.


def commands_in(fix: str) -> str:
    """The command that a fix gives, up to where its sentence goes on."""
    found = re.search(r"\b(?:chmod|chown|mv|tidegate|nats) .*?(?=, | \(|; |$)", fix)
    assert found, fix
    return found[0]


def doctor(env: Mapping[str, str]) -> list[Finding]:
    return report_of(command(["doctor", "--json"], env))


def open_the_folder(space: Space) -> None:
    space.data_dir.mkdir(mode=0o700)
    space.data_dir.chmod(0o755)


def open_an_identity(space: Space) -> None:
    space.data_dir.mkdir(mode=0o700)
    identity.init(space.data_dir, "maria", identity.new_uid())
    for path in space.data_dir.rglob("*.json"):
        path.chmod(0o644)


def set_nothing_up(space: Space) -> None:
    """It was never done."""


@pytest.mark.parametrize(
    ("breaks", "check"),
    [
        (open_the_folder, Check.DATA_DIRECTORY),
        (open_an_identity, Check.PRIVATE_FILES),
        (set_nothing_up, Check.SPACE),
    ],
)
def test_the_printed_command_cures_what_was_found(
    bare_space: Space, breaks: Callable[[Space], None], check: Check
) -> None:
    breaks(bare_space)
    env = space_environment(bare_space)
    (found,) = of(check, doctor(env))
    shell(commands_in(saw(found, Severity.DANGER).fix), env)
    assert {one.severity for one in of(check, doctor(env))} <= {Severity.FINE}


@provokes((Check.SNAPSHOTS, Severity.WARNING))
async def test_the_printed_command_takes_the_snapshot_that_is_late(space: Space) -> None:
    env = space_environment(space, snapshot_commands=100)
    async with js_of(space) as js:
        await put_commands(js, space.names, 201)
    async with running(space.settings(snapshot_commands=1_000)):
        found = the(Check.SNAPSHOTS, await asyncio.to_thread(doctor, env), Severity.WARNING)
        await asyncio.to_thread(shell, commands_in(found.fix), env)
        the(Check.SNAPSHOTS, await asyncio.to_thread(doctor, env), Severity.FINE, "1 snapshot; ")


def shell(line: str, env: Mapping[str, str]) -> None:
    """Run a line as it was printed, in a shell that finds our command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={**env, "PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)


# A small disk.


def in_a_namespace() -> list[str] | None:
    """How a command gets mounts of its own here: as root, or as an unprivileged user may."""
    for words in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [*words, "mount", "-t", "tmpfs", "x", "/mnt"], check=False, capture_output=True
            )
            if tried.returncode == 0:
                return words
    return None


@pytest.mark.parametrize(("size_mib", "severity"), [(64, Severity.DANGER), (512, Severity.WARNING)])
@provokes((Check.DISK_SPACE, Severity.DANGER), (Check.DISK_SPACE, Severity.WARNING))
def test_a_disk_that_is_nearly_full(space: Space, size_mib: int, severity: Severity) -> None:
    words = in_a_namespace()
    if words is None:
        pytest.skip("no file system can be mounted here")
    space.data_dir.mkdir(mode=0o700)
    script = 'mount -t tmpfs -o "size=$1m,mode=700" small "$2" && shift 2 && exec "$@"'
    doctor_there = [sys.executable, "-m", "worker.cli.main", "doctor", "--json"]
    done = subprocess.run(
        [*words, "sh", "-c", script, "sh", str(size_mib), str(space.data_dir), *doctor_there],
        env=space_environment(space),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    the(Check.DISK_SPACE, report_of(done), severity, f"{size_mib} MiB are free")


# Every finding, and a test that has really seen it.


def test_every_finding_is_provoked_by_a_test_that_breaks_the_thing() -> None:
    for module in ("tests.unit.test_doctor_local", "tests.unit.test_doctor_rights"):
        importlib.import_module(module)
    untested = possible() - DECLARED.keys()
    assert not untested, "no test provokes these findings"
    assert DECLARED.keys() <= possible(), "no finding is like that any more"
    for (check, severity), tests in DECLARED.items():
        for test in tests:
            assert severity in severities_of(test), f"{test.__name__} never asks for {check}"


def severities_of(test: Callable[..., Any]) -> set[Severity]:
    """How bad a parametrized test expects it to be; anything if it does not say."""
    for mark in getattr(test, "pytestmark", ()):
        names = (
            [name.strip() for name in mark.args[0].split(",")]
            if isinstance(mark.args[0], str)
            else list(mark.args[0])
        )
        if mark.name == "parametrize" and "severity" in names:
            return {case[names.index("severity")] for case in mark.args[1]}
    return set(Severity)
