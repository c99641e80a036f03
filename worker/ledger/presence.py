"""Which replicas fold this space's log: each says so now and then, and remembers the others.

After a log regression the replica that has folded most decides, and only a replica that knows of no
other may do so by itself. What is remembered is kept in the file, since the broker's own memory is
what regressed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from schemas import headers
from worker.bus.errors import BusError, StreamMissing
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket
from worker.ledger.errors import LedgerError

EVERY_S: Final = 10.0
KEY_TTL: Final = "24h"
"""What a replica that is no more has said goes by itself; others remember it in their files."""

PREFIX: Final = "replica"
PEERS: Final = "peers"
"""Local note: the other replicas that were ever seen, as a JSON list."""

_log = structlog.get_logger("tidegate.ledger")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one replica stands.

    Attributes:
        replica: Its id.
        epoch: Of the log.
        watermark: Sequence of the last command it folded.
        halted: Why its fold stands still; empty if it does not.
        rulesets: Rulesets it can fold under.
    """

    replica: str
    epoch: int
    watermark: int
    halted: str = ""
    rulesets: tuple[int, ...] = ()


class Presence:
    """One replica's presence.

    Attributes:
        peers: Ids of the other replicas that were ever seen.
        greeted: Set when another replica says that it has come.

    Args:
        js: Where.
        bucket: The leases' bucket.
        standing: Where this replica stands.
        remember: Keeps the ids of peers in the file, if they changed.
        greet: Tells the others that this replica has come.
    """

    def __init__(
        self,
        js: JetStream,
        bucket: Bucket,
        standing: Callable[[], Standing],
        remember: Callable[[frozenset[str]], Awaitable[None]],
        greet: Callable[[], Awaitable[None]],
    ) -> None:
        self._js = js
        self._bucket = bucket
        self._standing = standing
        self._remember = remember
        self._greet = greet
        self.greeted = asyncio.Event()
        self.peers: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Say and look until cancelled."""
        has_greeted = False
        while True:
            self.greeted.clear()
            try:
                await self.look()
                await self.say()
                if not has_greeted:
                    await self._greet()
                    has_greeted = True
            except StreamMissing:
                # Without the bucket nobody is seen, and an operator decides after a regression.
                _log.debug("no_leases_bucket")
            except (BusError, LedgerError) as error:
                _log.debug("presence_not_said", error=error.message)
            try:
                async with asyncio.timeout(EVERY_S):
                    await self.greeted.wait()
            except TimeoutError:
                continue

    async def say(self) -> None:
        """Say where we stand."""
        here = self._standing()
        body = json.dumps({"epoch": here.epoch, "watermark": here.watermark}).encode()
        subject = self._bucket.subject(f"{PREFIX}.{here.replica}")
        await self._js.publish(subject, body, headers={headers.TTL: KEY_TTL})

    async def look(self) -> None:
        """See who else is there, and remember whoever is new."""
        own = self._standing().replica
        seen = set(self.peers)
        async for entry in self._bucket.scan(f"{PREFIX}.*"):
            name = entry.key.removeprefix(f"{PREFIX}.")
            if name == own:
                continue
            if entry.deleted:
                seen.discard(name)
            else:
                seen.add(name)
        self.peers = frozenset(seen)
        await self._remember(self.peers)
