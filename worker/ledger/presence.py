"""Which replicas fold this space's log: each says so now and then, and remembers the others.

After a log regression the replica that has folded most decides, and only a replica that knows of no
other may do so by itself. What is remembered is kept in the file, since the broker's own memory is
what regressed; it is forgotten a day after the last that was heard: a lone survivor is alone again.
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
"""What a replica that is no more has said goes by itself, in the bucket and in others' files."""

REMEMBERED_MS: Final = 24 * 3_600_000
GRAIN_MS: Final = 3_600_000
"""When a peer was heard is noted to the hour that ends then, so that the file is seldom written."""

PREFIX: Final = "replica"
PEERS: Final = "peers"
"""Local note: the other replicas to when each was heard, ms, as a JSON object; before, a list."""

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
        greeted: Set when another replica says that it has come.

    Args:
        js: Where.
        bucket: The leases' bucket.
        standing: Where this replica stands.
        remember: Keeps a note about peers in the file, if it changed.
        greet: Tells the others that this replica has come.
        now_ms: The earlier of the broker's time and this machine's, so that neither clock alone
            makes anybody old; 0 while the broker's is not known.
    """

    def __init__(
        self,
        js: JetStream,
        bucket: Bucket,
        standing: Callable[[], Standing],
        remember: Callable[[str], Awaitable[None]],
        greet: Callable[[], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._js = js
        self._bucket = bucket
        self._standing = standing
        self._remember = remember
        self._greet = greet
        self._now_ms = now_ms
        self._heard: dict[str, int | None] = {}
        self.greeted = asyncio.Event()

    @property
    def peers(self) -> frozenset[str]:
        """Ids of the other replicas that were heard within a day."""
        return frozenset(self._heard)

    def recall(self, note: str) -> None:
        """Take over what the file says of peers; of whom it says no instant is heard now."""
        said = json.loads(note) if note else {}
        self._heard = dict(said) if isinstance(said, dict) else dict.fromkeys(said)

    def met(self, replica: str) -> None:
        """Note that another replica has just said something."""
        self._heard[replica] = self._now_ms() or None

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
        """See who else is there, remember whoever is new, forget who was not heard for a day."""
        own, now_ms = self._standing().replica, self._now_ms()
        async for entry in self._bucket.scan(f"{PREFIX}.*"):
            name = entry.key.removeprefix(f"{PREFIX}.")
            if name == own:
                continue
            if entry.deleted:
                self._heard.pop(name, None)
            else:
                self._heard[name] = entry.time_ns // 1_000_000
        if now_ms:
            self._heard = {
                name: now_ms if at_ms is None else min(at_ms, now_ms + GRAIN_MS)
                for name, at_ms in self._heard.items()
                if at_ms is None or now_ms - at_ms < REMEMBERED_MS
            }
        await self._remember(json.dumps(self._note(), sort_keys=True))

    def _note(self) -> dict[str, int | None]:
        return {
            name: None if at_ms is None else -(-at_ms // GRAIN_MS) * GRAIN_MS
            for name, at_ms in self._heard.items()
        }
