"""Where a command stands: in which stream, after what, and whether it may have been judged before.

One sequence has one verdict for as long as it can be delivered, which is longer than its result
stands. So what may have been judged, and whose result would be gone by now, is not judged again.
"""

import enum
from typing import Final

from schemas import subjects
from schemas.codes import BadInput
from schemas.names import Names
from schemas.subjects import Checkpoint
from worker.bus.delivery import Delivery
from worker.bus.jetstream import JetStream
from worker.bus.messages import NS_PER_MS, StreamInfo, parse_instant_ns
from worker.checkpoints.context import Clock

LOOKED_BACK: Final = 2_000
"""Sequences before a command's among which a mint in work is looked for."""

MINTS_LOOKED_AT: Final = 16
IN_WORK_MS: Final = 600_000
"""A mint that is older and has no result is not waited for."""

RESULTS_LOOKED_MS: Final = 10_000
"""How long what is known of the results' stream is taken for true."""


class MintBefore(enum.Enum):
    """What became of a mint that is stored before a command of the same token."""

    IN_WORK = enum.auto()
    ACCEPTED = enum.auto()


class Sequence:
    """The stream of commands as it counts now.

    A stream that is made anew counts from 1 again while results of the old one still stand; so the
    id of a result names the stream, too, by the instant at which it was made.

    Attributes:
        epoch: When the stream was made, ms since 1970.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        clock: The broker's now.
    """

    def __init__(self, js: JetStream, names: Names, clock: Clock) -> None:
        self._js = js
        self._names = names
        self._clock = clock
        self._looked_ms = 0
        self._reached = 0
        self._results: StreamInfo | None = None
        self.epoch = 0

    async def look(self) -> None:
        """Learn which stream there is; what it holds already may have been served before."""
        info = await self._js.stream_info(self._names.cmd_stream)
        epoch = parse_instant_ns(info.created) // NS_PER_MS
        self._looked_ms = max(self._looked_ms, info.ts_ms)
        if epoch != self.epoch:
            self.epoch, self._reached = epoch, info.last_seq

    async def is_first(self, delivery: Delivery) -> bool:
        """Take note of a delivery; whether it goes beyond every earlier one.

        First deliveries come in the order of the stream. One that does not belongs to a durable
        that was lost and made again, or to a stream that was.
        """
        if delivery.stream_seq <= self._reached and delivery.time_ms >= self._looked_ms:
            await self.look()
        beyond = delivery.stream_seq > self._reached
        self._reached = max(self._reached, delivery.stream_seq)
        return beyond

    def result_id(self, seq: int) -> str:
        """The id of the result of the command at a sequence."""
        return f"{self.epoch}-{seq}"

    async def is_forgotten(self, delivery: Delivery) -> bool:
        """Whether a command that has no result may have had one that is gone.

        Only the durable knows whether it handed out a command before, and a durable that was made
        again does not know what the one before it did.
        """
        if await self._would_stand(delivery.time_ms):
            return False
        if delivery.delivered > 1:
            return True
        durable = await self._js.consumer_info(self._names.cmd_stream, self._names.cp_durable)
        return delivery.time_ms <= durable.created_ms

    async def mint_before(self, target: Checkpoint, delivery: Delivery) -> MintBefore | None:
        """Whether a mint of this token is stored before a command, and not refused."""
        pattern = f"{self._names.prefix}.cmd.*.*.cp.mint.{target.wire_endpoint}.{target.token}"
        seq = max(1, delivery.stream_seq - LOOKED_BACK)
        for _ in range(MINTS_LOOKED_AT):
            found = await self._js.next_message(self._names.cmd_stream, seq, pattern)
            if found is None or found.seq >= delivery.stream_seq:
                return None
            if self._clock.upper_ms() - found.time_ms < IN_WORK_MS:
                answered = await self._answer_of(found.subject, found.seq)
                if answered is None:
                    return MintBefore.IN_WORK
                if answered:
                    return MintBefore.ACCEPTED
            seq = found.seq + 1
        return None

    async def _answer_of(self, subject: str, seq: int) -> bool | None:
        """Whether a mint was accepted; ``None`` if it has no result yet."""
        try:
            speaker = subjects.parse_command(self._names, subject).speaker
        except BadInput:
            return False
        where = subjects.result(self._names, speaker, "cp", "mint", self.result_id(seq))
        found = await self._js.last_message(self._names.res_stream, where)
        return None if found is None else b'"status":"ok"' in found.data

    async def _would_stand(self, time_ms: int) -> bool:
        """Whether a result, had there been one since ``time_ms``, would still be there."""
        now_ms = self._clock.upper_ms()
        known = self._results
        if known is None or now_ms - known.ts_ms >= RESULTS_LOOKED_MS:
            known = await self._js.stream_info(self._names.res_stream)
            self._results = known
        kept_ms = known.config.get("max_age", 0) // NS_PER_MS
        made_ms = parse_instant_ns(known.created) // NS_PER_MS
        return made_ms < time_ms and (kept_ms == 0 or now_ms < time_ms + kept_ms)
