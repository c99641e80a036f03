"""Answers that are lost, late, or a replica's that is behind; the judge is what was written."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas import strict_json
from schemas.codes import Code
from schemas.results import Refusal, Verdict
from schemas.subjects import Speaker
from tests.integration.test_admission_connector import (
    HOST,
    LIMIT_S,
    PROMPT,
    Scene,
    a_turn,
    scene,
    until,
)
from tests.support.proxy import Proxy, proxy_to
from tests.support.space import speaker
from worker.admission.plane import PLANE
from worker.admission.queries import payload_place
from worker.bus.options import ConnectOptions
from worker.client import Client
from worker.client.errors import Refused
from worker.connector import Connector, LeaseLost
from worker.ledger.plane import Query, View
from worker.ledger.testing import FoldDriver
from worker.queries import QueryHandler, QueryService

__all__ = ["scene"]


class Provider:
    """The outside: a file to which every dispatch of a turn appends one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, who: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{who}\n")

    def got(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []


@asynccontextmanager
async def behind(scene: Scene) -> AsyncIterator[tuple[Proxy, Connector]]:
    """A connector whose link to the broker is ours to break."""
    async with (
        proxy_to(scene.space.server.port) as proxy,
        Client(ConnectOptions((proxy.url,)), speaker("conn"), scene.space.names.space) as client,
        Connector(client, host=HOST, sealer=scene.sealer) as connector,
    ):
        yield proxy, connector


async def dispatch(
    connector: Connector, provider: Provider, who: str, started: asyncio.Event
) -> None:
    async with a_turn(connector) as turn:
        await turn.start()
        started.set()
        await turn.intent(channel="http")
        provider.write(who)
        await turn.active()
        await turn.complete()


async def send_back(scene: Scene) -> None:
    """An operator who has looked: nothing was written. Possible once the connector is suspect."""

    async def resolve() -> bool | None:
        try:
            await scene.operator.adm.resolve("r1", "confirmed_not_dispatched", "looked there")
        except Refused:
            return None
        return True

    await until(resolve)


@pytest.mark.parametrize("fate", ["lost", "late"])
async def test_an_ok_from_before_an_operators_decision_dispatches_nothing(
    scene: Scene, tmp_path: Path, fate: str
) -> None:
    provider, held = Provider(tmp_path / "provider"), bytearray()
    started, answered = asyncio.Event(), asyncio.Event()

    def keep(data: bytes) -> bytes:
        if b".adm.intent." not in data and not held:
            return data
        held.extend(data)
        answered.set()
        return b""

    async with behind(scene) as (proxy, first):
        running_first = asyncio.create_task(dispatch(first, provider, "first", started))
        await started.wait()
        proxy.from_server = keep
        await asyncio.wait_for(answered.wait(), LIMIT_S)
        proxy.open.clear()
        await send_back(scene)
        second = await scene.connector()
        await dispatch(second, provider, "second", asyncio.Event())
        if fate == "late":  # and nothing else: not even that the lease is lost
            proxy.inject(bytes(held))
            for _ in range(5):
                assert (await scene.view("r1")).state == "completed"
        proxy.from_server = None
        proxy.open.set()
        proxy.cut()
        with pytest.raises(LeaseLost):
            await running_first
    assert provider.got() == ["second"]
    assert (await scene.view("r1")).state == "completed"


class Behind:
    """A replica that has folded nothing of the log yet, and says so when it is asked to wait."""

    def __init__(self, driver: FoldDriver) -> None:
        self.driver = driver
        self.asked = asyncio.Event()

    def handlers(self) -> Mapping[tuple[str, str], QueryHandler]:
        queries: dict[str, Query] = {**PLANE.queries, "payload": payload_place}
        return {("adm", name): self.handler(query) for name, query in queries.items()}

    def handler(self, query: Query) -> QueryHandler:
        async def answer(speaker: Speaker, raw: bytes) -> Verdict:
            self.asked.set()
            if isinstance(strict_json.loads(raw).get("after"), str):
                return Refusal(Code.UNAVAILABLE, "not-reached", "the fold has not reached it")
            driver = self.driver
            return query(View(driver.db, driver.names, 0, 1, 0, 2, speaker), raw)

        return answer


@asynccontextmanager
async def a_replica_behind(scene: Scene, folder: Path) -> AsyncIterator[Behind]:
    """It answers nine queries of ten."""
    replica = Behind(FoldDriver(folder / "behind.db", [PLANE], names=scene.space.names))
    conn = await scene.space.connect()
    service = QueryService(
        conn, service_id="behind", version="0.0.0", started_at="", clock_ns=lambda: 0
    )
    for _ in range(9):
        service.add(scene.space.names, replica.handlers())
    await service.start()
    try:
        yield replica
    finally:
        await service.stop()
        await conn.close()
        replica.driver.close()


async def test_no_seat_is_lost_on_the_word_of_a_replica_that_is_behind(
    scene: Scene, tmp_path: Path
) -> None:
    provider = Provider(tmp_path / "provider")
    async with a_replica_behind(scene, tmp_path) as replica:
        connector = await scene.connector()
        for number in range(6):
            async with a_turn(connector, f"r{number}", prompt=PROMPT) as turn:
                assert await turn.prompt() == PROMPT
                await turn.start()
                await turn.intent(channel="http")
                provider.write(turn.request_id)
                await turn.active()
                await turn.complete()
        assert replica.asked.is_set()
    assert provider.got() == [f"r{number}" for number in range(6)]
    assert (await scene.operator.adm.leases()).leases == []


async def test_a_seat_is_waited_for_while_a_replica_knows_no_such_turn(
    scene: Scene, tmp_path: Path
) -> None:
    await scene.operator.adm.drain(0)
    async with a_replica_behind(scene, tmp_path) as replica:
        connector = await scene.connector()
        turn = a_turn(connector)
        waiting = asyncio.create_task(turn.__aenter__())
        await asyncio.wait_for(replica.asked.wait(), LIMIT_S)
        await scene.operator.adm.drain(8)
        await waiting
        await turn.__aexit__(None, None, None)
