"""Three servers: the connection moves on, and a stream's leader may die."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.names import Names
from tests.integration.bus_server import connected, eventually, free_port
from tests.support.server import Server
from worker.bus.errors import Unavailable, Unknown
from worker.bus.jetstream import JetStream, Outgoing
from worker.bus.options import ConnectOptions
from worker.bus.pull import LogReader
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
