"""Runs that pause: minted, resumed in time, late, twice and by others, extended, forgotten."""

import asyncio
import itertools

from tests.nemesis.history.recorder import RecordedClient
from tests.nemesis.traffic.actor import CALL_MS, Actor, now_ms

ENDPOINTS = ("runs", "review.eu")
LIFE_TOKENS = (3, 9)
AT_ONCE = 6
EDGE_MS = 60
LONGEST_MS = 7_000

_numbers = itertools.count(1)


class Runner(Actor):
    """Mints checkpoints as one principal, life after life, and settles most of them.

    Attributes:
        longest_ms: The latest deadline.
    """

    longest_ms = LONGEST_MS

    async def run(self) -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        while not self.stopping.is_set():
            async with self.life("runner") as client, self.life("stranger") as stranger:
                if client is None or stranger is None:
                    continue
                for _ in range(self.rng.randint(*LIFE_TOKENS)):
                    if self.stopping.is_set():
                        break
                    await slots.acquire()
                    work = self.begin(self._checkpoint(client, stranger))
                    work.add_done_callback(lambda _: slots.release())
                    await self.pause(0.05, 0.4)
                    if self.rng.random() < 0.05:
                        work.cancel()
                # A life may end with calls in the air.
                await self.finish(self.rng.choice([0.0, 0.5, 20.0]))

    async def _checkpoint(self, client: RecordedClient, stranger: RecordedClient) -> None:
        endpoint, token = self.rng.choice(ENDPOINTS), f"tok-{next(_numbers)}"
        deadline = now_ms() + self.rng.randint(400, self.longest_ms)
        plan = self.rng.choice(
            ["expire", "resume", "resume", "edge", "edge", "race", "extend", "hurry", "stranger"]
        )

        async def resume(by: RecordedClient, answer: str) -> None:
            await self.insist(
                lambda id_: by.cp.resume(
                    endpoint, token, answer=answer, command_id=id_, timeout_ms=CALL_MS
                )
            )

        async def extend(generation: int, to: int) -> None:
            await self.insist(
                lambda id_: client.cp.heartbeat(
                    endpoint,
                    token,
                    generation=generation,
                    deadline_at_ms=to,
                    command_id=id_,
                    timeout_ms=CALL_MS,
                )
            )

        await self.insist(
            lambda id_: client.cp.mint(
                endpoint, token, deadline_at_ms=deadline, command_id=id_, timeout_ms=CALL_MS
            )
        )
        if self.rng.random() < 0.3:
            await client.cp.show(endpoint, token, timeout_ms=CALL_MS)
        left_ms = max(0, deadline - now_ms())
        match plan:
            case "resume":
                await asyncio.sleep(self.rng.random() * left_ms / 1_000)
                await resume(client, "yes")
            case "edge":
                edge_ms = left_ms + self.rng.randint(-EDGE_MS, EDGE_MS)
                await asyncio.sleep(max(0, edge_ms) / 1_000)
                await resume(client, "just so")
            case "race":
                await asyncio.sleep(self.rng.random() * left_ms / 1_000)
                first = self.begin(resume(client, "yes"))
                second = self.begin(resume(client, "no"))
                third = self.begin(self._expire(client, endpoint, token))
                await asyncio.gather(first, second, third)
            case "extend":
                await asyncio.sleep(0.5 * left_ms / 1_000)
                later = now_ms() + self.rng.randint(500, self.longest_ms)
                first = self.begin(extend(1, later))
                second = self.begin(extend(1, later + 300))
                await asyncio.gather(first, second)
                await resume(client, "after all")
            case "hurry":
                await extend(1, now_ms() + self.rng.randint(100, 600))
            case "stranger":
                await resume(stranger, "mine")

    async def _expire(self, client: RecordedClient, endpoint: str, token: str) -> None:
        await client.cp.expire(endpoint, token, timeout_ms=CALL_MS)
