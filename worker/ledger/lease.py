"""Which replica publishes: a lease in a bucket, for speed alone.

Every replica derives the same rows, and every row is created, never overwritten, so two that
publish at once do no harm. The holder says in the lease how far it has come; the others drop their
rows up to there, and compare chain values on the way. A holder that is silent for a second has lost
it (DESIGN section 5).
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from worker.bus.errors import BusError, CasLost, StreamMissing
from worker.bus.kv import Bucket

KEY: Final = "publisher"
RENEW_MS: Final = 300
TAKE_OVER_MS: Final = 1_000

_log = structlog.get_logger("tidegate.ledger")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the results' stream is complete.

    Attributes:
        epoch: The log's epoch.
        through: Everything that commands up to this sequence say is stored.
        chain_seq: The last command up to there that got a result; 0 if none did.
        chain: The chain value of that result.
    """

    epoch: int
    through: int
    chain_seq: int
    chain: str


class Lease:
    """One replica's view of the publishing lease.

    Attributes:
        held: Whether this replica publishes.
        told: What the present or last holder said of its progress, if it is another replica.
        changed: Set whenever one of the two changes.
        other_alive: Whether another replica holds it and was heard within a second.

    Args:
        bucket: The leases' bucket.
        replica: This replica's id.
        progress: What to say of our own progress.
        abstain: Whether this replica has nothing to publish, since its fold stands still.
    """

    def __init__(
        self,
        bucket: Bucket,
        replica: str,
        progress: Callable[[], Progress],
        abstain: Callable[[], bool],
    ) -> None:
        self._bucket = bucket
        self._replica = replica
        self._progress = progress
        self._abstain = abstain
        self._revision = 0
        self._seen_at = 0.0
        self.held = False
        self.told: Progress | None = None
        self.changed = asyncio.Event()
        self.other_alive = False

    async def run(self) -> None:
        """Hold it, or watch it, until cancelled."""
        while True:
            try:
                await self._step()
            except StreamMissing:
                # Without the bucket everybody publishes, which is slower and just as right.
                self._become(held=True)
            except BusError as error:
                _log.debug("lease_step_failed", error=error.message)
            await asyncio.sleep(RENEW_MS / 1000)

    async def release(self) -> None:
        """Let another replica have it at once."""
        if not self.held:
            return
        self._become(held=False)
        try:
            self._revision = await self._bucket.put_if(KEY, self._record(""), self._revision)
        except BusError as error:
            _log.debug("lease_not_released", error=error.message)

    async def _step(self) -> None:
        if self._abstain():
            await self.release()
            await self._look(take=False)
        elif self.held and self._revision:
            try:
                await self._write()
            except CasLost:
                await self._look(take=True)
        else:
            await self._look(take=True)

    async def _look(self, *, take: bool) -> None:
        entry = await self._bucket.read(KEY)
        now = asyncio.get_running_loop().time()
        holder = ""
        if entry is not None and not entry.deleted:
            holder = self._read(entry.value)
        revision = 0 if entry is None else entry.revision
        if revision != self._revision:
            self._revision = revision
            self._seen_at = now
        silent = (now - self._seen_at) * 1000 >= TAKE_OVER_MS
        self.other_alive = holder not in ("", self._replica) and not silent
        if take and not self.other_alive:
            try:
                await self._write()
            except CasLost:
                self._become(held=False)
        else:
            self._become(held=False)

    async def _write(self) -> None:
        self._revision = await self._bucket.put_if(KEY, self._record(self._replica), self._revision)
        self.other_alive = False
        self._become(held=True)

    def _record(self, holder: str) -> bytes:
        progress = self._progress()
        return json.dumps(
            {
                "holder": holder,
                "epoch": progress.epoch,
                "through": progress.through,
                "chain_seq": progress.chain_seq,
                "chain": progress.chain,
            }
        ).encode()

    def _read(self, value: bytes) -> str:
        try:
            record = json.loads(value)
            holder = str(record["holder"])
            told = Progress(
                int(record["epoch"]),
                int(record["through"]),
                int(record["chain_seq"]),
                str(record["chain"]),
            )
        except (ValueError, KeyError, TypeError):
            return ""
        if holder != self._replica and told != self.told:
            self.told = told
            self.changed.set()
        return holder

    def _become(self, *, held: bool) -> None:
        if held != self.held:
            self.held = held
            self.changed.set()
            _log.info("publisher_lease_taken" if held else "publisher_lease_lost")
