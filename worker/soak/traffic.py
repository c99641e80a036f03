"""Steady mixed traffic: short stories of every plane, each of which must end as it must."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from schemas.records import PromptRecord
from worker.bench.ground import pipeline
from worker.client import Client, Refused
from worker.client.caps import PERMIT_LAPSED
from worker.connector import Connector
from worker.errors import TidegateError
from worker.sealing import keyfiles
from worker.sealing.keyring import KeyRing
from worker.sealing.sealer import Sealer
from worker.soak.ground import SoakGround
from worker.soak.tally import Tally

ENDPOINT: Final = "soak.runs"
SEATS: Final = 32
PEOPLE: Final = 200
AGENTS: Final = 20
CAP: Final = 100
FILL: Final = 4_500
"""Checkpoints settled beforehand, more than the worker remembers, so that no memory fills later."""

PERMIT_MS: Final = 2_000
"""How long a permit lasts."""

MOST_AT_ONCE: Final = 200
PRUNE_S: Final = 30.0
KEEP_MS: Final = 60_000
FAR_MS: Final = 3_600_000
SHORT_MS: Final = 2_500
SETTLE_MS: Final = 30_000
PROMPT: Final = b"a prompt of some length " * 20

Story = Callable[[int], Awaitable[None]]


class Unexpected(TidegateError):
    """A step of a story did not end as it must."""


class Traffic:
    """Starts one story after another at a steady rate.

    Attributes:
        tally: What was done and what went wrong.
        started: Stories begun.
        late: Stories that could not begin in time, because too many were under way.

    Args:
        run: Speaks for runs and connectors.
        other: Another principal.
        operator: An operator.
        connector: Takes turns.
        tally: Counts.
        seed: Where chance comes from.
    """

    def __init__(
        self,
        run: Client,
        other: Client,
        operator: Client,
        connector: Connector,
        tally: Tally,
        seed: int,
    ) -> None:
        self._client = run
        self._other = other
        self._operator = operator
        self._connector = connector
        self._chance = random.Random(seed)  # noqa: S311 - which story comes next is no secret
        self._people = deque(f"person-{number}" for number in range(PEOPLE))
        self._running: set[asyncio.Task[None]] = set()
        self.tally = tally
        self.started = 0
        self.late = 0

    @classmethod
    @asynccontextmanager
    async def on(cls, place: SoakGround, tally: Tally, seed: int) -> "AsyncIterator[Traffic]":
        """Traffic on a ground whose worker is ready; what is under way is cut off at the end."""
        ring = KeyRing(keyfiles.default_dir(place.folder / "connector"))
        await asyncio.to_thread(ring.init)
        async with (
            place.client("runs") as run,
            place.client("others") as other,
            place.client("_op-soak") as operator,
            Connector(run, sealer=Sealer(ring, place.names.space)) as connector,
        ):
            await operator.adm.claim_policy(1, max_active_turns=SEATS, max_concurrent_starts=SEATS)
            await operator.cap.minting(True, permit_ms=PERMIT_MS)
            one = cls(run, other, operator, connector, tally, seed)
            try:
                yield one
            finally:
                await one.cut_off()

    async def fill(self) -> None:
        """Settle more checkpoints than the worker remembers."""

        async def one(number: int) -> None:
            token = f"fill-{number}"
            await self._client.cp.mint(ENDPOINT, token, deadline_at_ms=_in(FAR_MS))
            await self._client.cp.resume(ENDPOINT, token)

        await pipeline(FILL, one)

    async def run(self, per_s: float) -> None:
        """Begin stories at a rate, and keep the ledger pruned, for ever."""
        began, number = time.monotonic(), 0
        pruning = asyncio.create_task(self._prune(), name="soak-prune")
        try:
            while True:
                await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
                if len(self._running) < MOST_AT_ONCE:
                    self._begin(number)
                else:
                    self.late += 1
                number += 1
        finally:
            pruning.cancel()
            await asyncio.gather(pruning, return_exceptions=True)

    async def end(self, limit_s: float) -> None:
        """Let what is under way come to its end, and see that nothing is left behind."""
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=limit_s)
            if left:
                self.tally.fault(f"{len(left)} stories did not come to an end")
        policy = await self._operator.adm.policy()
        if policy.seats or policy.queued:
            self.tally.fault(f"{policy.seats} seats and {policy.queued} queued turns were left")
        page = await self._client.cp.list(endpoint=ENDPOINT)
        if page.items:
            self.tally.fault(f"{len(page.items)} checkpoints were left waiting")

    async def cut_off(self) -> None:
        """Cancel what is under way."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, number: int) -> None:
        stories: Sequence[tuple[str, Story]] = (
            ("a checkpoint", self._checkpoint),
            ("a turn", self._turn),
            ("a cap", self._cap),
        )
        name, story = stories[number % len(stories)]
        self.started += 1
        task = asyncio.create_task(self._tell(name, story, number), name=f"soak-{number}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _tell(self, name: str, story: Story, number: int) -> None:
        try:
            await story(number)
        except TidegateError as error:
            self.tally.fault(f"{name}: {type(error).__name__}: {error.message}")

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_S)
            body: dict[str, Any] | None = {"before_at_ms": _in(-KEEP_MS)}
            try:
                while body is not None:
                    with self.tally.timed("sys.prune"):
                        answer = await self._operator.query("sys", "prune", body, timeout_ms=30_000)
                    after = (answer.data.get("result_data") or {}).get("next")
                    body = None if after is None else {**body, "after": after}
            except TidegateError as error:
                self.tally.fault(f"pruning: {type(error).__name__}: {error.message}")

    async def _checkpoint(self, number: int) -> None:
        token, kind = f"c{number}", self._chance.random()
        cp, timed = self._client.cp, self.tally.timed
        if kind < 0.2:
            with timed("cp.mint"):
                await cp.mint(ENDPOINT, token, deadline_at_ms=_in(SHORT_MS))
            with timed("cp.wait"):
                settled = await cp.wait_settled(ENDPOINT, token, timeout_ms=SETTLE_MS)
            _must(settled.state == "expired", f"a deadline ended in {settled.state}")
            return
        prompt = PromptRecord(v=1, title="Go on?", choices=["yes", "no"])
        with timed("cp.mint"):
            await cp.mint(ENDPOINT, token, deadline_at_ms=_in(FAR_MS), prompt=prompt)
        if kind < 0.4:
            with timed("cp.heartbeat"):
                await cp.heartbeat(ENDPOINT, token, generation=1, deadline_at_ms=_in(2 * FAR_MS))
        if kind < 0.5:
            await self._refused(
                self._other.cp.resume(ENDPOINT, token), "not-the-holder", "cp.resume refused"
            )
        if kind < 0.6:
            with timed("cp.show"):
                await cp.show(ENDPOINT, token)
        with timed("cp.resume"):
            await cp.resume(ENDPOINT, token, answer="yes")

    async def _turn(self, number: int) -> None:
        request_id, kind = f"t{number}", self._chance.random()
        fields: dict[str, Any] = {
            "session_id": f"session-{number % AGENTS}",
            "agent_id": f"agent-{number % AGENTS}",
            "fingerprint": f"{request_id:0<64}",
            "provider": "acme",
            "model": f"model-{number % 3}",
        }
        timed = self.tally.timed
        if kind < 0.15:
            adm = self._connector.adm
            with timed("adm.enqueue"):
                await adm.enqueue(request_id, grant="pull", **fields)
            with timed("adm.cancel"):
                await adm.cancel(request_id)
            return
        prompt = PROMPT if kind < 0.5 else None
        began = time.perf_counter()
        async with self._connector.turn(request_id, prompt=prompt, **fields) as turn:
            self.tally.took("adm.seat", time.perf_counter() - began)
            if prompt is not None:
                with timed("adm.payload"):
                    _must(await turn.prompt() == PROMPT, "a prompt came back changed")
            with timed("adm.start"):
                await turn.start()
            if kind > 0.9:
                with timed("adm.abandon"):
                    await turn.abandon()
                return
            with timed("adm.intent"):
                await turn.intent(channel="http")
            with timed("adm.active"):
                await turn.active()
            with timed("adm.complete"):
                await turn.complete()

    async def _cap(self, number: int) -> None:
        if not self._people:
            self.late += 1
            return
        user, key, kind = self._people.popleft(), f"soak-key-{number:08d}", self._chance.random()
        cap, timed = self._client.cap, self.tally.timed
        try:
            with timed("cap.reserve"):
                reserved = await cap.reserve(user, key, latest_expires_at_ms=_in(FAR_MS), cap=CAP)
            expiry = reserved.cap.expires_at_ms if reserved.cap is not None else 0
            with timed("cap.confirm"):
                await cap.confirm(user, key, grant_expires_at_ms=expiry)
            for amount in (1, CAP):
                await self._authorize(user, amount, expiry, "")
            if kind < 0.5:
                with timed("cap.stop"):
                    await cap.stop(user)
                await self._authorize(user, 1, expiry, "stopped")
            elif kind < 0.7:
                with timed("cap.bump"):
                    await cap.bump(user)
                await self._authorize(user, 1, expiry, "stopped")
            else:
                with timed("cap.revoke"):
                    await cap.revoke(user, expires_at_ms=expiry)
                await self._authorize(user, 1, expiry, "none-active")
        finally:
            self._people.append(user)

    async def _authorize(self, user: str, amount: int, expiry: int, reason: str) -> None:
        began = time.perf_counter()
        found = await self._client.cap.authorize(user, amount=amount, grant_expires_at_ms=expiry)
        took_s = time.perf_counter() - began
        if found.reason == PERMIT_LAPSED and took_s * 1000 >= PERMIT_MS:
            # The machine was slower than the permit lasts, and the answer rightly a no.
            self.tally.took("cap.authorize too late", took_s)
            return
        self.tally.took("cap.authorize refused" if reason else "cap.authorize", took_s)
        _must(found.reason == reason, f"an authorization ended in {found.reason or 'a permit'}")

    async def _refused(self, call: Awaitable[object], reason: str, verb: str) -> None:
        began = time.perf_counter()
        try:
            await call
        except Refused as refused:
            _must(refused.reason == reason, f"{verb} with {refused.reason}, not {reason}")
            self.tally.took(verb, time.perf_counter() - began)
            return
        raise Unexpected(f"{verb}: it was not")


def _must(so: bool, otherwise: str) -> None:
    if not so:
        raise Unexpected(otherwise)


def _in(wait_ms: int) -> int:
    """A whole second so far from now; the broker runs on this machine, so its clock is ours."""
    return (time.time_ns() // 1_000_000 + wait_ms) // 1_000 * 1_000
