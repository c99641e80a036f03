"""A space's streams: made once, proved at every start, each difference by its name."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.names import Names, kv_stream
from tests.integration.bus_server import connected
from tests.support.server import Server
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.errors import ConsumerMissing
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.bus.topology import (
    FLOOR,
    Severity,
    SpaceTopology,
    TopologySettings,
    check_server,
    stream_configs,
)
from worker.errors import StartRefused


@pytest.fixture
async def js(server: Server) -> AsyncIterator[JetStream]:
    async with connected(server.worker_options()) as c:
        yield JetStream(c)


@pytest.fixture
def names() -> Names:
    return Names("bustest", f"s{secrets.token_hex(5)}")


@pytest.fixture
async def made(js: JetStream, names: Names) -> SpaceTopology:
    topology = SpaceTopology(js, names, TopologySettings())
    await topology.create("id-1")
    return topology


async def test_what_was_made_has_no_difference(made: SpaceTopology, js: JetStream) -> None:
    assert await made.verify() == []
    assert await made.verify("id-1") == []
    assert await made.refuse_danger("id-1") == []
    survey = await made.survey()
    assert survey.complete
    assert survey.space_ids == {"id-1"}
    for info in survey.found.values():
        assert info.config["metadata"]["tidegate-space-id"] == "id-1"
        assert info.config["storage"] == "file"


async def test_only_well_formed_planes_are_captured(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    p = f"{names.prefix}.cmd.a.u"
    for subject, stream in (
        (f"{p}.cp.mint.e.t", names.cmd_stream),
        (f"{p}.adm.enqueue.x", names.log_stream),
        (f"{p}.cap.stop", names.log_stream),
        (f"{p}.sys.tick", names.log_stream),
        (f"{names.prefix}.res.a.u.cp.mint.1", names.res_stream),
        (f"{names.prefix}.ept.e.i.0.t.armed", names.ept_stream),
        (f"{names.prefix}.ept.e.i.0.t.schedule", names.ept_req_stream),
        (f"{names.prefix}.epf.e.cp.t", names.epf_stream),
        (f"$KV.{names.records_bucket}.cp.e.t.spec", kv_stream(names.records_bucket)),
    ):
        assert await js.stream_names(subject) == [stream], subject
    for subject in (f"{p}.foo.x", f"{p}.cp", f"{names.prefix}.ept.e.i.0.t.other", names.prefix):
        assert await js.stream_names(subject) == [], subject


async def test_setup_refuses_a_space_that_exists(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    with pytest.raises(StartRefused, match="exists already"):
        await SpaceTopology(js, names, TopologySettings()).create("id-2")
    assert await made.verify("id-1") == []


async def test_a_setup_that_was_interrupted_goes_on_with_its_id(
    js: JetStream, names: Names
) -> None:
    topology = SpaceTopology(js, names, TopologySettings())
    await js.stream_create(stream_configs(names, TopologySettings(), "first")[0])
    assert await topology.create("second") == "first"
    assert await topology.verify("first") == []


async def test_a_lost_stream_is_reported_and_not_made_again(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    await js.publish(f"{names.prefix}.epf.e.cp.t", b"fact")
    await js.stream_delete(names.ept_stream)
    (difference,) = await made.verify()
    assert difference.severity is Severity.DANGER
    assert difference.what == names.ept_stream
    with pytest.raises(StartRefused, match=names.ept_stream):
        await made.refuse_danger()
    with pytest.raises(StartRefused, match="exists already"):
        await made.create("id-2")


async def test_another_space_id_is_refused(made: SpaceTopology) -> None:
    with pytest.raises(StartRefused, match=r"metadata\.tidegate-space-id is id-1, expected id-9"):
        await made.refuse_danger("id-9")


Change = dict[str, Any]
DANGERS: list[tuple[str, str, Change, str]] = [
    ("log_stream", "LOG limits", {"max_msgs": 100, "discard": "old"}, "max_msgs"),
    ("log_stream", "LOG age", {"max_age": 3_600_000_000_000}, "max_age"),
    ("log_stream", "LOG rollup", {"allow_rollup_hdrs": True}, "allow_rollup_hdrs"),
    ("cmd_stream", "CMD bytes", {"max_bytes": 1_000_000, "discard": "old"}, "max_bytes"),
    ("cmd_stream", "CMD age", {"max_age": 150_000_000_000}, "max_age"),
    ("cmd_stream", "CMD size", {"max_msg_size": 1_000}, "max_msg_size"),
    ("cmd_stream", "CMD per subject", {"max_msgs_per_subject": 1}, "max_msgs_per_subject"),
    ("cmd_stream", "CMD no ack", {"no_ack": True}, "no_ack"),
    ("cmd_stream", "CMD sealed", {"sealed": True, "max_age": 0}, "sealed"),
    ("ept_stream", "EPT age", {"max_age": 150_000_000_000}, "max_age"),
    ("epf_stream", "EPF age", {"max_age": 150_000_000_000}, "max_age"),
    ("res_stream", "RES direct", {"allow_direct": False}, "allow_direct"),
]


@pytest.mark.parametrize(
    ("stream", "change", "setting"),
    [(s, c, w) for s, _, c, w in DANGERS],
    ids=[label for _, label, _, _ in DANGERS],
)
async def test_a_setting_that_could_lose_data_is_refused_by_name(
    made: SpaceTopology, js: JetStream, names: Names, stream: str, change: Change, setting: str
) -> None:
    name = getattr(names, stream)
    config = dict((await js.stream_info(name)).config)
    await js.stream_update(config | change)
    found = {d.what: d for d in await made.verify()}
    assert found[f"{name}.{setting}"].severity is Severity.DANGER
    with pytest.raises(StartRefused, match=rf"{name}\.{setting} is "):
        await made.refuse_danger()


@pytest.mark.parametrize(
    "change",
    [
        {"description": "ours"},
        {"duplicate_window": 1_000_000_000},
        {"max_bytes": 10_000_000_000},
        {"max_age": 30 * 24 * 3_600_000_000_000},
        {"compression": "s2"},
    ],
)
async def test_an_operators_harmless_choice_is_left_alone(
    made: SpaceTopology, js: JetStream, names: Names, change: Change
) -> None:
    config = dict((await js.stream_info(names.cmd_stream)).config)
    await js.stream_update(config | change)
    differences = await made.refuse_danger()
    assert all(d.severity is Severity.HARMLESS for d in differences)
    assert (await js.stream_info(names.cmd_stream)).config[next(iter(change))] == next(
        iter(change.values())
    )


async def test_a_stream_on_other_subjects_or_in_memory_is_refused(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    config = dict((await js.stream_info(names.epf_stream)).config)
    await js.stream_delete(names.epf_stream)
    await js.stream_create(
        config | {"storage": "memory", "subjects": [f"{names.prefix}.epf.*.cp.one"]}
    )
    whats = {d.what for d in await made.verify() if d.severity is Severity.DANGER}
    assert whats == {f"{names.epf_stream}.storage", f"{names.epf_stream}.subjects"}


async def test_an_older_server_that_drops_a_setting_is_found_out(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    """A server that does not know schedules creates the stream without them, silently."""
    config = dict((await js.stream_info(names.ept_stream)).config)
    await js.stream_delete(names.ept_stream)
    for key in ("allow_msg_schedules", "allow_msg_ttl"):
        del config[key]
    await js.stream_create(config)
    whats = {d.what for d in await made.verify() if d.severity is Severity.DANGER}
    assert whats == {f"{names.ept_stream}.allow_msg_schedules", f"{names.ept_stream}.allow_msg_ttl"}


async def test_fewer_replicas_than_asked_for_are_a_danger(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    strict = SpaceTopology(js, names, TopologySettings(replicas=3))
    dangers = [d for d in await strict.verify() if d.severity is Severity.DANGER]
    assert len(dangers) == 11
    assert all(d.what.endswith(".num_replicas") for d in dangers)


async def test_durables_are_compared_and_remade(
    made: SpaceTopology, js: JetStream, names: Names
) -> None:
    await js.consumer_delete(names.cmd_stream, names.cp_durable)
    assert await made.verify() == []
    assert await made.remake_durables() == [names.cp_durable]
    info = await js.consumer_info(names.cmd_stream, names.cp_durable)
    assert info.config["ack_policy"] == "explicit"
    await js.consumer_delete(names.ept_stream, names.fires_durable)
    config = dict(info.config) | {
        "durable_name": names.fires_durable,
        "name": names.fires_durable,
        "filter_subject": f"{names.prefix}.ept.*.*.*.*.cancel",
        "max_deliver": 3,
        "ack_wait": 5_000_000_000,
    }
    await js.consumer_create(names.ept_stream, config)
    found = {d.what.rpartition(".")[2]: d.severity for d in await made.verify()}
    assert found == {
        "filter_subject": Severity.DANGER,
        "max_deliver": Severity.DANGER,
        "ack_wait": Severity.HARMLESS,
    }
    with pytest.raises(ConsumerMissing):
        await js.consumer_info(names.ept_req_stream, "other")


async def test_durables_that_wait_longer_than_planned_are_changed_and_nothing_else_of_them(
    js: JetStream, names: Names
) -> None:
    await SpaceTopology(js, names, TopologySettings(ack_wait_ms=30_000)).create("id")
    kept = (await js.consumer_info(names.cmd_stream, names.cp_durable)).config
    await js.consumer_create(names.cmd_stream, {**kept, "max_ack_pending": 77})
    topology = SpaceTopology(js, names, TopologySettings())
    durables = [names.cp_durable, names.timers_durable, names.fires_durable]
    assert sorted(await topology.shorten_waits()) == sorted(durables)
    info = await js.consumer_info(names.cmd_stream, names.cp_durable)
    assert info.config["ack_wait"] == TopologySettings().ack_wait_ms * 1_000_000
    assert info.config["max_ack_pending"] == 77
    assert await topology.shorten_waits() == []


async def test_the_settings_reach_the_streams(js: JetStream, names: Names) -> None:
    topology = SpaceTopology(js, names, TopologySettings(res_max_age_ms=90_000, ack_wait_ms=5_000))
    await topology.create("id")
    assert (await js.stream_info(names.res_stream)).config["max_age"] == 90_000 * 1_000_000
    info = await js.consumer_info(names.cmd_stream, names.cp_durable)
    assert info.config["ack_wait"] == 5_000 * 1_000_000
    other = SpaceTopology(js, names, TopologySettings())
    found = {d.what: d.severity for d in await other.verify()}
    assert set(found.values()) == {Severity.HARMLESS}
    assert f"{names.res_stream}.max_age" in found


async def test_the_server_is_checked(server: Server, tmp_path: Path) -> None:
    async with connected(server.worker_options()) as c:
        await check_server(c)
    async with connected(server.client_options()) as c:
        with pytest.raises(StartRefused, match="JetStream is not enabled"):
            await check_server(c)


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path, 'listen: "127.0.0.1:-1"\n')
    await asyncio.to_thread(server.start)
    try:
        c = await Connection.open(ConnectOptions((server.url,)), name="t")
        with pytest.raises(StartRefused, match="JetStream"):
            await check_server(c)
        await c.close()
    finally:
        server.kill()


async def test_a_server_below_the_floor_is_refused() -> None:
    below = (FLOOR[0], FLOOR[1], FLOOR[2] - 1)
    info = json.dumps({"version": ".".join(map(str, below)), "max_payload": 1 << 20})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"INFO {info}\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with connected(ConnectOptions((f"nats://127.0.0.1:{port}",))) as c:
            with pytest.raises(StartRefused, match=r"nats-server 2\.14\.2 is too old: 2\.14\.3"):
                await check_server(c)
    finally:
        listener.close()


async def test_clients_cannot_steer_the_brokers_answers(
    own_server: Callable[..., Server],
) -> None:
    """A reply subject of the client's choice writes nothing in the workers' account."""
    names = Names("tidegate", "main")
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as w, connected(server.client_options()) as c:
        js = JetStream(w)
        await SpaceTopology(js, names, TopologySettings()).create("id")
        target = f"{names.prefix}.ept.e.i.0.t.armed"
        command = f"{names.prefix}.cmd.someone.u.cp.mint.e.t"
        for reply in (
            target,
            f"$KV.{names.records_bucket}.cp.e.t.status",
            f"{names.prefix}.epf.e.cp.t",
        ):
            await c.publish(command, b"{}", reply=reply)
        ack = await JetStream(c).publish(command, b"{}")
        assert ack.seq == 4
        for stream in (names.ept_stream, names.epf_stream, kv_stream(names.records_bucket)):
            assert (await js.stream_info(stream)).last_seq == 0


def test_every_user_gets_what_it_was_given() -> None:
    users = [
        conf.User("a", "p", "C", publish=("x.>",), subscribe=()),
        conf.User("b", "p", "W", allow_responses=True),
        replace(conf.User("U" + "A" * 55, None, "C"), publish=()),
    ]
    text = conf.render([conf.Space("r", "s")], users, store_dir=Path("/store"))
    assert '{ user: "a", password: "p", permissions: { publish: { allow: ["x.>"] }, ' in text
    assert 'subscribe: { deny: [">"] }' in text
    assert "allow_responses: true" in text
    assert f'nkey: "U{"A" * 55}"' in text
    assert "sync_interval: always" in text
    assert text.count("r.s.cmd.>") == 2
    assert "password" not in repr(users[0])
