"""Everybody at once."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas import strict_json
from schemas.codes import BadInput
from tests.nemesis.arena.arena import Arena
from tests.nemesis.history import events
from tests.nemesis.traffic import people
from tests.nemesis.traffic.actor import PAUSE_S, Actor
from tests.nemesis.traffic.people import Agent, Person, Platform
from tests.nemesis.traffic.runs import Runner
from tests.nemesis.traffic.turns import Connector, Operator
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.subscription import Msg
from worker.client.hearing import is_stored

LAST_WORK_S = 15.0
SHORT_LAST_WORK_S = 3.0
SHORT_LONGEST_MS = 2_500


class Crowd:
    """All the traffic of one history.

    Args:
        arena: Where.
        seed: Of everybody's choices.
        short: Whether the run is a short one: deadlines are nearer, the end is sooner.
    """

    def __init__(self, arena: Arena, seed: int, *, short: bool) -> None:
        rng = random.Random(seed)
        self._arena = arena
        self._stop = asyncio.Event()
        people.forget()

        def more() -> int:
            return rng.randrange(1 << 30)

        self.operator = Operator(arena, more(), self._stop)
        self._actors: list[Actor] = [self.operator]
        self._actors += [Runner(arena, more(), self._stop) for _ in range(2)]
        self._actors += [Platform(arena, more(), self._stop) for _ in range(2)]
        self._actors += [Agent(arena, more(), self._stop) for _ in range(3)]
        self._actors += [Person(arena, more(), self._stop) for _ in range(2)]
        self._actors += [
            Connector(arena, more(), self._stop, principal=f"connector-{number % 2}")
            for number in range(4)
        ]
        self._last_work_s = SHORT_LAST_WORK_S if short else LAST_WORK_S
        for actor in self._actors:
            if short and isinstance(actor, Runner):
                actor.longest_ms = SHORT_LONGEST_MS
        self._running: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        await self.operator.prepare()
        self._running = [asyncio.create_task(actor.run()) for actor in self._actors]

    async def end(self) -> None:
        """Begin nothing new, wait for what runs or cut it off; nobody may have met a defect."""
        self._stop.set()
        _, late = await asyncio.wait(self._running, timeout=self._last_work_s)
        for task in late:
            task.cancel()
        ended = await asyncio.gather(*self._running, return_exceptions=True)
        for actor in self._actors:
            await actor.finish(0)
        defects = [error for actor in self._actors for error in actor.defects]
        defects += [error for error in ended if isinstance(error, Exception)]
        if defects:
            raise ExceptionGroup("traffic", [e for e in defects if isinstance(e, Exception)])


@asynccontextmanager
async def observing(arena: Arena) -> AsyncIterator[None]:
    """Somebody in the clients' account who hears every public fact."""

    async def on_fact(msg: Msg) -> None:
        if not is_stored(arena.names, msg):
            return  # read back by somebody who chose this subject for the answer
        try:
            body = strict_json.loads(msg.data)
        except BadInput:
            body = {"not": "json"}
        arena.recorder.add(
            events.Heard(at_ns=arena.recorder.clock_ns(), subject=msg.subject, body=body)
        )

    while True:
        try:
            conn = await Connection.open(arena.client_options(), name="observer")
            break
        except BusError:
            await asyncio.sleep(PAUSE_S)
    try:
        await conn.subscribe(f"{arena.names.prefix}.fact.>", on_fact)
        yield
    finally:
        await conn.close()
