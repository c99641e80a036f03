"""People with caps: a platform mints them, agents act under them, and people say Stop."""

import asyncio
import contextlib
import itertools
from dataclasses import dataclass

from tests.nemesis.history.recorder import RecordedClient
from tests.nemesis.traffic.actor import CALL_MS, Actor, now_ms
from worker.client import new_command_id
from worker.errors import TidegateError

USERS = ("ann", "ben", "cem")
CAPS = (10, 100)
LIFE_S = (2.0, 12.0)

_keys = itertools.count(1)


@dataclass
class Known:
    """What a platform believes of a person's cap."""

    second: int = 1_000
    cap: int = 10


_known: dict[str, Known] = {}


def forget() -> None:
    """Another history begins."""
    _known.clear()


class _Speaking(Actor):
    """Lives of one principal, each doing the same again and again."""

    principal = "somebody"

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            async with self.life(self.principal) as client:
                until = loop.time() + self.rng.uniform(*LIFE_S)
                while client is not None and loop.time() < until and not self.stopping.is_set():
                    with contextlib.suppress(TidegateError):
                        await self.act(client, self.rng.choice(USERS))
                # What is still in the air is cut off with the life, or waited for.
                await self.finish(self.rng.choice([0.0, 0.0, 10.0]))

    async def act(self, client: RecordedClient, user: str) -> None:
        raise NotImplementedError


class Platform(_Speaking):
    """Reserves and confirms; sometimes late, sometimes with a wrong expiry."""

    principal = "platform"

    async def act(self, client: RecordedClient, user: str) -> None:
        key, cap = f"key-{next(_keys):012d}", self.rng.randint(*CAPS)
        latest = now_ms() + self.rng.randint(3_000, 60_000)
        told = await self.insist(
            lambda id_: client.cap.reserve(
                user,
                key,
                latest_expires_at_ms=latest,
                cap=cap,
                command_id=id_,
                timeout_ms=CALL_MS,
            )
        )
        assert told.cap is not None
        second = told.cap.expires_at_ms
        await self.pause(0, 0.4)
        wrong = self.rng.random() < 0.1
        await self.insist(
            lambda id_: client.cap.confirm(
                user,
                key,
                grant_expires_at_ms=second + (1 if wrong else 0),
                command_id=id_,
                timeout_ms=CALL_MS,
            )
        )
        _known[user] = Known(second, cap)
        await self.pause(0.1, 0.8)


class Agent(_Speaking):
    """Asks the send gate, several times at once, and again under the same id when in doubt."""

    principal = "agent"

    async def act(self, client: RecordedClient, user: str) -> None:
        known = _known.get(user, Known())
        amount = self.rng.randint(1, known.cap + 5)
        self.begin(self._authorize(client, user, known, amount))
        await self.pause(0.02, 0.15)

    async def _authorize(
        self, client: RecordedClient, user: str, known: Known, amount: int
    ) -> None:
        command_id = new_command_id()
        for _ in range(self.rng.randint(1, 3)):
            told = await client.authorize(
                user,
                amount=amount,
                grant_expires_at_ms=known.second,
                command_id=command_id,
                timeout_ms=self.rng.choice([300, 1_500, CALL_MS]),
            )
            if told.result is not None and self.rng.random() < 0.7:
                return


class Person(_Speaking):
    """Stops, revokes and bumps."""

    principal = "person"

    async def act(self, client: RecordedClient, user: str) -> None:
        verb = self.rng.choice(["stop", "stop", "revoke", "bump"])
        second = _known.get(user, Known()).second
        body = {"expires_at_ms": second} if verb == "revoke" else {}
        await self.insist(
            lambda id_: client.call("cap", verb, (user,), body, command_id=id_, timeout_ms=CALL_MS)
        )
        await client.cap.show(user, timeout_ms=CALL_MS)
        await self.pause(0.2, 1.5)
