"""Connectors that share few seats, vanish with them, act under old fences; and an operator."""

import asyncio
import contextlib
import itertools

from schemas import subjects
from schemas.admission import DEBT, Grant, LeaseLost, SeatView
from schemas.codes import BadInput
from schemas.commands.adm import IntentIdentity
from schemas.commands.sys import ProcessIdentity
from tests.nemesis.history import events
from tests.nemesis.history.recorder import RecordedClient
from tests.nemesis.traffic.actor import CALL_MS, PAUSE_S, Actor
from worker.bus.errors import BusError
from worker.bus.subscription import Msg
from worker.client import Refused
from worker.client.admission import Fence
from worker.errors import TidegateError

SEATS = 4
MOST_SEATS = 6
START_TIMEOUT_MS = 2_500
LIFE_S = (3.0, 12.0)
TURNS_AT_ONCE = 3
WAIT_S = 8.0

_NOBODY = ProcessIdentity(host="elsewhere", boot_id="b", pid=1, start_ticks=1, pid_ns=1)
"""No observer looks at that host, so nothing is ever proven about a connector here."""

_numbers = itertools.count(1)


class Connector(Actor):
    """Lives of a connector; its wishes outlive it and are taken over by the next one."""

    def __init__(self, *args: object, principal: str) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # as Actor's
        self.principal = principal
        self._left: list[str] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            async with self.life(self.principal) as client:
                if client is None:
                    continue
                with contextlib.suppress(TidegateError):
                    await self._live(client, loop.time() + self.rng.uniform(*LIFE_S))
                # Vanish with all seats, or end them first.
                await self.finish(self.rng.choice([0.0, 10.0]))

    async def _live(self, client: RecordedClient, until: float) -> None:
        loop = asyncio.get_running_loop()
        ears = _Ears()
        await client.conn.subscribe(subjects.grants_of(client.names, client.speaker), ears.on_grant)
        await client.on_lease_lost(ears.on_lost)
        beating = self.begin(self._beat(client))
        slots = asyncio.Semaphore(TURNS_AT_ONCE)
        try:
            while loop.time() < until and not self.stopping.is_set():
                await slots.acquire()
                known = self._left and self.rng.random() < 0.5
                request = self._left.pop() if known else f"req-{next(_numbers)}"
                self.begin(self._turn(client, request, ears)).add_done_callback(
                    lambda _: slots.release()
                )
                await self.pause(0.05, 0.4)
        finally:
            beating.cancel()

    async def _beat(self, client: RecordedClient) -> None:
        subject = subjects.heartbeat(client.names, client.speaker)
        while True:
            with contextlib.suppress(BusError):
                await client.conn.publish(subject)
            await asyncio.sleep(1)

    async def _turn(self, client: RecordedClient, request: str, ears: "_Ears") -> None:
        settled = False
        try:
            pull = int(request.rpartition("-")[2]) % 4 == 0
            await self.insist(
                lambda id_: client.adm.enqueue(
                    request,
                    session_id="session",
                    agent_id=f"agent-{int(request.rpartition('-')[2]) % 3}",
                    fingerprint="f",
                    provider="acme",
                    model="m",
                    grant="pull" if pull else "push",
                    turn_timeout_ms=20_000,
                    command_id=id_,
                    timeout_ms=CALL_MS,
                )
            )
            fence = await (self._pulled(client, request) if pull else ears.granted(request))
            await self._work(client, fence)
            settled = True
        finally:
            if not settled:
                self._left.append(request)

    async def _pulled(self, client: RecordedClient, request: str) -> Fence:
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while loop.time() < until:
            told = await client.adm.admit(request, timeout_ms=CALL_MS)
            if told.grant is not None:
                return Fence(request, told.grant.lease_id, told.grant.generation)
            await asyncio.sleep(PAUSE_S)
        raise _NoSeat

    async def _work(self, client: RecordedClient, fence: Fence) -> None:
        adm = client.adm
        await self.insist(lambda id_: adm.start(fence, command_id=id_, timeout_ms=CALL_MS))
        if self.rng.random() < 0.3:
            await adm.request(fence.request_id, timeout_ms=CALL_MS)
        if self.rng.random() < 0.1:
            await self.pause(START_TIMEOUT_MS / 1_000, START_TIMEOUT_MS / 500)
        await self.insist(
            lambda id_: adm.intent(
                fence,
                IntentIdentity(connector=_NOBODY, child=None),
                "http",
                command_id=id_,
                timeout_ms=CALL_MS,
            )
        )
        self.arena.recorder.add(
            events.Written(
                at_ns=self.arena.recorder.clock_ns(),
                who=client.who,
                request_id=fence.request_id,
                generation=fence.generation,
            )
        )
        await self.insist(lambda id_: adm.active(fence, command_id=id_, timeout_ms=CALL_MS))
        await self.pause(0.05, 0.6)
        match self.rng.choice(["complete", "complete", "complete", "recover", "vanish"]):
            case "complete":
                await self.insist(
                    lambda id_: adm.complete(fence, "completed", command_id=id_, timeout_ms=CALL_MS)
                )
                await adm.request(fence.request_id, timeout_ms=CALL_MS)
            case "recover":
                await self.insist(
                    lambda id_: adm.recover(fence, command_id=id_, timeout_ms=CALL_MS)
                )
        if self.rng.random() < 0.3:
            # Whoever comes too late with its old fence is refused.
            await adm.abandon(fence, "failed", timeout_ms=CALL_MS)


class _NoSeat(TidegateError):
    """No seat came in time."""


class _Ears:
    """What a connector hears of its seats."""

    def __init__(self) -> None:
        self._seats: dict[str, asyncio.Future[Fence]] = {}

    def _seat(self, request: str) -> asyncio.Future[Fence]:
        return self._seats.setdefault(request, asyncio.get_running_loop().create_future())

    async def on_grant(self, msg: Msg) -> None:
        with contextlib.suppress(BadInput):
            grant = Grant.from_bytes(msg.data)
            seat = self._seat(grant.request_id)
            if seat.done():
                self._seats[grant.request_id] = seat = asyncio.get_running_loop().create_future()
            seat.set_result(Fence(grant.request_id, grant.lease_id, grant.generation))

    def on_lost(self, lost: LeaseLost) -> None:
        # Some go on with a fence they were told is dead.
        return

    async def granted(self, request: str) -> Fence:
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.shield(self._seat(request))
        except TimeoutError:
            raise _NoSeat from None


class Operator(Actor):
    """Claims the policy, changes the seats, settles debts, lets new caps be minted."""

    async def prepare(self) -> None:
        async with self.life("_op") as client:
            assert client is not None
            await client.cap.minting(True, permit_ms=2_000)
            await client.adm.claim_policy(
                1,
                max_active_turns=SEATS,
                max_concurrent_starts=SEATS,
                start_timeout_ms=START_TIMEOUT_MS,
                adoption_timeout_ms=4_000,
                queue_timeout_ms=30_000,
            )

    async def run(self) -> None:
        while not self.stopping.is_set():
            async with self.life("_op") as client:
                if client is None:
                    continue
                for _ in range(self.rng.randint(2, 10)):
                    if self.stopping.is_set():
                        break
                    with contextlib.suppress(TidegateError):
                        await self._look(client)
                    await self.pause(0.3, 1.2)

    async def _look(self, client: RecordedClient) -> None:
        if self.rng.random() < 0.3:
            seats = self.rng.randint(1, MOST_SEATS)
            await self.insist(
                lambda id_: client.adm.drain(seats, command_id=id_, timeout_ms=CALL_MS)
            )
        page = await client.adm.leases(timeout_ms=CALL_MS)
        for seat in page.leases:
            if self._owed(seat):
                with contextlib.suppress(Refused):
                    await client.adm.resolve(
                        seat.request_id,
                        "acknowledged_unknown",
                        "nobody knows",
                        timeout_ms=CALL_MS,
                    )

    def _owed(self, seat: SeatView) -> bool:
        return seat.state in DEBT or seat.suspicion is not None
