"""Tells live callers at once when their command will have to wait.

While the fold stands still or is far behind, a caller would wait in vain. It gets ``unavailable``
where it listens for its result, said past the stream, so nothing keeps it: the command stays in the
log, its real result comes when it is folded, and until then whoever asked for an authorization has
been refused (DESIGN section 5).
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from schemas import envelope, headers, results, strict_json, subjects, tokens
from schemas.codes import BadInput, Code
from schemas.results import Refusal
from worker import metrics
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.bus.reader import LogReader
from worker.ledger.runner import Runner
from worker.ledger.watch import LogWatch

LIVE_MS: Final = 5_000
"""A caller is taken to wait for so long."""

FAR: Final = 10_000
"""A fold that works answers a command this close to its watermark soon enough."""

LOOK_S: Final = 0.2
_MOST_BACK: Final = 2_000
_log = structlog.get_logger("tidegate.ledger")


class Bystander:
    """Answers for a fold that cannot.

    Attributes:
        told: Callers that were told to come back.

    Args:
        js: The workers' account.
        runner: The fold.
        watch: The log's state.
        why: Why commands are not folded now; ``None`` while they are, here or elsewhere.
    """

    def __init__(
        self,
        js: JetStream,
        runner: Runner,
        watch: LogWatch,
        *,
        why: Callable[[], str | None],
    ) -> None:
        self._js = js
        self._runner = runner
        self._watch = watch
        self._why = why
        self._told_to = 0
        self.told = 0

    async def run(self) -> None:
        """Stand by until cancelled."""
        while True:
            if self._why() is not None:
                try:
                    await self._answer()
                except BusError as error:
                    _log.debug("bystander_waits", error=error.message)
            await asyncio.sleep(LOOK_S)

    async def _answer(self) -> None:
        info = await self._watch.refresh()
        watermark = self._runner.position.watermark
        if info.last_seq < self._told_to:
            self._told_to = 0
        start = max(watermark, self._told_to, info.first_seq - 1, info.last_seq - _MOST_BACK) + 1
        reader = await LogReader.open(self._js, info.name, start)
        try:
            while (why := self._why()) is not None:
                for message in await reader.next_batch(256, int(LOOK_S * 1000)):
                    self._told_to = message.seq
                    await self._tell(message, why)
        finally:
            await reader.close()

    async def _tell(self, message: StoredMessage, why: str) -> None:
        here, now_ms = self._runner.position, self._watch.now_ms()
        halted = self._runner.trouble is not None
        soon = not halted and message.seq - here.watermark < FAR
        if soon or message.time_ms < now_ms - LIVE_MS:
            return
        names = self._runner.database.names
        try:
            command = subjects.parse_command(names, message.subject)
        except BadInput:
            return
        if (command.plane, command.verb) == ("sys", "tick"):
            return
        given = message.headers.single(headers.COMMAND) or ""
        result_id = f"{here.epoch}-{message.seq}"
        refusal = Refusal(Code.UNAVAILABLE, "not-folding", f"commands are not folded now: {why}")
        result = results.build(
            refusal,
            command_id=given if tokens.is_command_id(given) else result_id,
            result_id=result_id,
            at_ms=max(here.now_ms, message.time_ms),
        )
        subject = subjects.result(names, command.speaker, command.plane, command.verb, result_id)
        trace = envelope.traceparent_of(message.headers)
        carried = None if trace is None else {headers.TRACEPARENT: trace}
        heard = subjects.let_out(names, subject)
        await self._js.connection.publish(heard, strict_json.dumps(result), headers=carried)
        self.told += 1
        metrics.TOLD_UNAVAILABLE.inc()
