"""Three servers: the connection moves on, and a stream's leader may die."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.names import Names
from tests.integration.bus_server import connected, eventually, free_port
from tests.support.proxy import proxy_to
from tests.support.server import Server
from worker.bus import puller
from worker.bus.errors import Unavailable, Unknown
from worker.bus.jetstream import JetStream, Outgoing
from worker.bus.options import ConnectOptions
from worker.bus.pull import Delivery, LogReader, Puller
from worker.bus.topology import SpaceTopology, TopologySettings


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[list[Server]]:
    routes = [free_port() for _ in range(3)]
    servers = []
    for n, port in enumerate(routes):
        directory = tmp_path / f"n{n}"
        directory.mkdir()
        others = ", ".join(json.dumps(f"nats://127.0.0.1:{other}") for other in routes)
        server = Server(
            directory,
            f'server_name: n{n}\nlisten: "127.0.0.1:-1"\n'
            f"jetstream {{ store_dir: {json.dumps(str(directory / 'store'))} }}\n"
            f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{others}] }}\n',
        )
        servers.append(await asyncio.to_thread(server.start))
    yield servers
    for server in servers:
        await asyncio.to_thread(server.kill)


async def test_the_others_are_learned_and_the_leaders_death_is_survived(
    cluster: list[Server],
) -> None:
    async with connected(ConnectOptions((cluster[0].url,))) as c:
        js = JetStream(c)
        names = Names("tidegate", "main")
        topology = SpaceTopology(js, names, TopologySettings(replicas=3))

        async def set_up() -> bool:
            try:
                await topology.create("id")
            except Unavailable:
                return False
            return True

        await eventually(set_up, 30)
        assert await topology.refuse_danger() == []
        subject = f"{names.prefix}.cmd.a.u.cap.x"
        for n in range(20):
            await js.publish(f"{subject}.{n}", b"")
        res = f"{names.prefix}.res.a.u.cap.x"
        assert await js.publish_batch([Outgoing(f"{res}.{n}") for n in range(10)])

        leader = (await js.api(f"STREAM.INFO.{names.log_stream}", None))["cluster"]["leader"]
        await asyncio.to_thread(cluster[int(leader[1:])].kill)
        stored = 20

        async def publish() -> bool:
            nonlocal stored
            try:
                ack = await js.publish(f"{subject}.after", b"", timeout_ms=1_000)
            except (Unavailable, Unknown):
                return False
            stored = ack.seq
            return True

        await eventually(publish, 30)
        opened: list[LogReader] = []

        async def opens() -> bool:
            # The consumer's group elects a leader of its own, slowly on a busy machine.
            try:
                opened.append(await LogReader.open(js, names.log_stream, 1))
            except (Unavailable, Unknown):
                return False
            return True

        await eventually(opens, 60)
        (reader,) = opened
        seen: list[int] = []
        while len(seen) < stored:
            seen += [m.seq for m in await reader.next_batch(100, 5_000)]
        assert seen == list(range(1, stored + 1))
        await reader.close()


async def test_a_dead_server_is_replaced_by_one_that_was_learned(cluster: list[Server]) -> None:
    async with connected(ConnectOptions((cluster[0].url,))) as c:

        async def knows_others() -> bool:
            await c.flush()
            return len(c.server_info.get("connect_urls", ())) >= 2

        await eventually(knows_others)
        await asyncio.to_thread(cluster[0].kill)
        await eventually(lambda: c.reconnects == 1)
        assert await c.wait_connected(10_000)
        assert c.server_info["server_name"] in ("n1", "n2")


async def test_a_durable_whose_leader_stands_still_gets_another(
    cluster: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller, "PROVE_EVERY_S", 0.5)
    config = {
        "filter_subject": "s.>",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "max_deliver": -1,
        "ack_policy": "explicit",
        "ack_wait": 30_000_000_000,
        "max_ack_pending": 100,
        "num_replicas": 3,
    }

    def of_a_leader_that_stands_still(data: bytes) -> bytes:
        """It delivered nothing of the three messages."""
        reached = b'"delivered":{"consumer_seq":3,"stream_seq":'
        return data.replace(reached + b"3", reached + b"0")

    async with (
        connected(ConnectOptions((cluster[0].url,))) as near,
        proxy_to(cluster[0].port, of_a_leader_that_stands_still) as link,
        connected(ConnectOptions((link.url,))) as c,
    ):
        js = JetStream(near)

        async def set_up() -> bool:
            try:
                await js.stream_create({"name": "S", "subjects": ["s.>"], "num_replicas": 3})
                await js.consumer_create("S", config | {"durable_name": "d"})
            except (Unavailable, Unknown):
                return False
            return True

        async def leader() -> str:
            info = await js.api("CONSUMER.INFO.S.d", None)
            return str(info["cluster"].get("leader", ""))

        await eventually(set_up, 30)
        first = await leader()
        seen: list[bytes] = []

        async def handle(delivery: Delivery) -> None:
            seen.append(delivery.data)
            await delivery.ack()

        async def moved() -> bool:
            try:
                return await leader() not in ("", first)
            except (Unavailable, Unknown):
                return False

        serving = Puller(JetStream(c), "S", "d", config=config)
        task = asyncio.create_task(serving.run(handle, in_flight=4))
        for n in range(3):
            await js.publish("s.x", b"%d" % n)
        await eventually(lambda: len(seen) == 3, 30)
        assert await leader() == first
        await eventually(moved, 30)
        await serving.stop()
        await task
