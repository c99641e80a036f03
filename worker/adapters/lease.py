"""One process at a time runs a thread: a lease made of checkpoints.

The n-th lease of a run is the checkpoint with the n-th token derived from the run's id. A token is
minted once for ever, so of all processes that want the n-th lease one gets it; its deadline is the
lease's end, a heartbeat renews it, and the next lease exists only after this one has settled.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from schemas.codes import Code
from worker.adapters.clock import BrokerTime
from worker.adapters.errors import Busy, LeaseLost
from worker.adapters.tokens import token_of
from worker.bus.errors import BusError, Denied
from worker.client import (
    CallTimeout,
    Client,
    Failed,
    NobodyThere,
    Outcome,
    QueryTimeout,
    Refused,
    new_command_id,
)
from worker.errors import TidegateError

T = TypeVar("T")

DEFAULT_LEASE_MS: Final = 30_000
LEAST_LEASE_MS: Final = 1_000
KIND: Final = "lease"
RELEASE_MS: Final = 2_000
"""How long giving a lease back may take; one that is not given back ends by itself."""

SOON_MS: Final = 250
RETRY_S: Final = 0.2
ONE_WAIT_MS: Final = 600_000


@dataclass(slots=True)
class _Held:
    token: str
    generation: int
    ends: float
    """Loop time before which nobody else can have it."""


class Leases:
    """The leases of one adapter.

    Args:
        client: An open client whose speaker may mint and extend at the endpoint.
        endpoint: Where the leases lie.
        lease_ms: How long a process that died keeps others away; at least 1,000.
        clock: The broker's time; taught by the way.
    """

    def __init__(self, client: Client, *, endpoint: str, lease_ms: int, clock: BrokerTime) -> None:
        if type(lease_ms) is not int or lease_ms < LEAST_LEASE_MS:
            raise ValueError(f"lease_ms must be whole milliseconds, at least {LEAST_LEASE_MS}")
        self._client = client
        self._endpoint = endpoint
        self._lease_ms = lease_ms
        self._clock = clock
        self._may_resume = True

    async def alone(
        self, run: str, work: Callable[[], Awaitable[T]], *, until: float | None = None
    ) -> T:
        """Do some work that nobody else does for this run meanwhile.

        Args:
            run: The run's id.
            work: What to do; it is cancelled if the lease cannot be kept.
            until: Loop time at which to stop waiting for somebody else's lease.

        Raises:
            Busy: Somebody else has the lease.
            LeaseLost: The lease ended before the work did.
        """
        held = await self._acquire(run, until)
        working = asyncio.ensure_future(work())
        keeping = asyncio.create_task(self._keep(run, held))
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await _end(working)
                keeping.result()
            return await working
        finally:
            ended = working.done()
            await _end(working)
            await _end(keeping)
            # What was cancelled may have left a thread behind, so that lease is not given back.
            if ended and not working.cancelled():
                await self._release(held)

    async def _acquire(self, run: str, until: float | None) -> _Held:
        number = await self._newest(run)
        taught = False
        while True:
            token = token_of(KIND, run, str(number))
            began = asyncio.get_running_loop().time()
            try:
                outcome = await self._client.cp.mint(
                    self._endpoint, token, deadline_at_ms=self._clock.now_ms() + self._lease_ms
                )
            except Refused as refused:
                if refused.reason in ("deadline-not-future", "deadline-too-far") and not taught:
                    self._clock.learn(refused.result)
                    taught = True
                    continue
                if refused.reason != "different-checkpoint":
                    raise
                if refused.result.data["state"] == "waiting":
                    await self._wait_for(run, token, until)
            else:
                held = self._held(token, outcome, began)
                if held is not None:
                    return held
                await self._wait_for(run, token, until)
            number += 1

    def _held(self, token: str, outcome: Outcome, began: float) -> _Held | None:
        """The lease, if this very mint made it and it is still worth something."""
        self._clock.learn(outcome.result)
        shown = outcome.checkpoint
        if outcome.word != "minted" or shown.state != "waiting":
            return None
        left_ms = shown.deadline_at_ms - outcome.result.at_ms
        return _Held(token, shown.generation, began + left_ms / 1000)

    async def _wait_for(self, run: str, token: str, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left_ms = ONE_WAIT_MS if until is None else int((until - loop.time()) * 1000)
            if left_ms <= 0:
                raise Busy(run)
            with contextlib.suppress(QueryTimeout):
                await self._client.cp.wait_settled(
                    self._endpoint, token, timeout_ms=min(left_ms, ONE_WAIT_MS)
                )
                return

    async def _newest(self, run: str) -> int:
        """The number of the newest lease that exists, 0 if there is none."""
        low, step = 0, 1
        while await self._exists(run, low + step):
            low += step
            step *= 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            if await self._exists(run, middle):
                low = middle
            else:
                high = middle
        return low

    async def _exists(self, run: str, number: int) -> bool:
        try:
            await self._client.cp.show(self._endpoint, token_of(KIND, run, str(number)))
        except Refused as refused:
            if refused.code is Code.NOT_FOUND:
                return False
            raise
        return True

    async def _keep(self, run: str, held: _Held) -> None:
        """Renew until cancelled.

        Raises:
            LeaseLost: It could not be renewed before its end.
        """
        loop = asyncio.get_running_loop()
        # A clock that was found wrong has given it a wrong end, which is put right at once.
        wrong_s = abs(held.ends - loop.time() - self._lease_ms / 1000)
        pause_s = 0.0 if wrong_s > self._lease_ms / 2000 else self._lease_ms / 3000
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._lease_ms / 3000
            try:
                async with asyncio.timeout_at(held.ends):
                    began = loop.time()
                    outcome = await self._extend(held)
            except (TimeoutError, Refused) as error:
                raise LeaseLost(run) from error
            self._clock.learn(outcome.result)
            shown = outcome.checkpoint
            held.generation = shown.generation
            held.ends = began + (shown.deadline_at_ms - outcome.result.at_ms) / 1000

    async def _extend(self, held: _Held) -> Outcome:
        """Send one heartbeat until its outcome is known: another one would contradict it."""
        command_id = new_command_id()
        deadline_at_ms = self._clock.now_ms() + self._lease_ms
        while True:
            try:
                return await self._client.cp.heartbeat(
                    self._endpoint,
                    held.token,
                    generation=held.generation,
                    deadline_at_ms=deadline_at_ms,
                    command_id=command_id,
                )
            except (CallTimeout, Failed, NobodyThere, BusError):
                await asyncio.sleep(RETRY_S)

    async def _release(self, held: _Held) -> None:
        """Give it back, as well as our rights and the broker allow."""
        with contextlib.suppress(TidegateError):
            if self._may_resume:
                try:
                    await self._client.cp.resume(self._endpoint, held.token, timeout_ms=RELEASE_MS)
                except Denied:
                    self._may_resume = False
                else:
                    return
            await self._client.cp.heartbeat(
                self._endpoint,
                held.token,
                generation=held.generation,
                deadline_at_ms=self._clock.now_ms() + SOON_MS,
                timeout_ms=RELEASE_MS,
            )


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
