"""The pipeline: read the log, fold it, hand on what it says; three things at once, each bounded.

The file's watermark alone says where to read. Whatever keeps a batch from being folded stops the
fold with a reason and nothing half done; the batch waits, and is tried again where that can help
(a full disk, a clock that is behind).
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from schemas.commands.sys import Rebase, Ruleset
from worker import metrics
from worker.bus.errors import BusError, GapError, StreamMissing
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.bus.reader import LogReader
from worker.ledger import regression, rulesets, store
from worker.ledger.database import Database
from worker.ledger.epochs import UNBOUND, Bound
from worker.ledger.errors import (
    BehindLog,
    Diverged,
    FoldFailed,
    LedgerError,
    Regressed,
    StampAhead,
    StorageFull,
)
from worker.ledger.fold import Batch
from worker.ledger.marks import Remembered
from worker.ledger.publisher import Publisher
from worker.ledger.system import Stop
from worker.ledger.watch import LogWatch

BATCH: Final = 1_000
"""Most commands of one transaction."""

QUEUE: Final = 4
"""Batches that wait for the fold; beyond, reading waits."""

AHEAD_MS: Final = 60_000
"""A command stamped further ahead of this worker's clock is not folded."""

DROP_AFTER_S: Final = 0.25
"""An idle fold drops the rows that were said after so long."""

CONTRADICTED: Final = 3
"""How often in a row the broker's clock must contradict a stamp of its own, a second apart."""

ALARM_S: Final = 6.0
"""How long another replica's alarm holds if it is not repeated."""

_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_log = structlog.get_logger("tidegate.ledger")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the fold does not go on.

    Attributes:
        reason: Stable kebab-case word.
        message: One sentence.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Position:
    """Where the fold stands, as the event loop knows it: committed, on disk.

    Attributes:
        epoch: The log's epoch.
        watermark: Sequence of the last command folded.
        now_ms: Log time.
        chain: Chain value of the last result.
        ruleset: In force.
        due_at_ms: When time alone changes something next; ``None`` if it does not.
        ticks: Ticks folded since the start.
        bound: What stamps before this epoch's beginning are believed.
    """

    epoch: int
    watermark: int
    now_ms: int
    chain: str
    ruleset: int
    due_at_ms: int | None
    ticks: int = 0
    bound: Bound = UNBOUND


class Runner:
    """Folds one space's log.

    Attributes:
        position: Where the fold stands.
        trouble: Why it does not go on; ``None`` while it does.
        moved: Notified whenever ``position`` changes.
        res_max_age_ms: How long a result can be heard; 0 is for ever.

    Args:
        js: The workers' account.
        stream: The log.
        publisher: Takes what batches say.
        watch: The log's state.
        wall_ms: This machine's clock, ms; only to refuse commands from the future.
        on_take: Told the last sequence of each batch before it is folded.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        publisher: Publisher,
        watch: LogWatch,
        *,
        wall_ms: Callable[[], int],
        on_take: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._js = js
        self._stream = stream
        self._publisher = publisher
        self._watch = watch
        self._wall_ms = wall_ms
        self._on_take = on_take
        self._database: Database | None = None
        self._applying: asyncio.Task[Batch] | None = None
        self._alarm = (0, 0.0)
        self._contradicted = 0
        self._doubted = asyncio.Event()
        self._doubt: Diverged | None = None
        self._queue: asyncio.Queue[Sequence[StoredMessage]] = asyncio.Queue(QUEUE)
        self._reading: asyncio.Task[None] | None = None
        self._next = 1
        self.res_max_age_ms = 0
        self.position = Position(1, 0, 0, store.NO_CHAIN, rulesets.FIRST, None)
        self.trouble: Trouble | None = None
        self.moved = asyncio.Condition()

    @property
    def database(self) -> Database:
        """The file that is folded into.

        Raises:
            LedgerError: None is open.
        """
        if self._database is None:
            raise LedgerError("the ledger is not open")
        return self._database

    @property
    def is_open(self) -> bool:
        """Whether there is a file."""
        return self._database is not None

    def oldest_heard_ms(self) -> int:
        """The instant before which nobody can hear a result any more; 0 if there is none."""
        if self.res_max_age_ms == 0:
            return 0
        return max(0, self._watch.now_ms() - self.res_max_age_ms)

    async def load(self) -> None:
        """Take over the file: its position, and the rows it still owes."""
        database = self.database
        position = await database.run(lambda: _position(database))
        rows = await database.run(database.fold.unsaid)
        await self._move(position)
        self._next = position.watermark + 1
        self._publisher.restart(position.epoch, position.watermark, rows)

    def heed(self, epoch: int) -> None:
        """Heed another replica's alarm: it folded more of this epoch's log than there is.

        A replica whose own file happens to fit would otherwise go on as if what the log lost, a
        Stop perhaps, had never been.
        """
        self._alarm = (epoch, asyncio.get_running_loop().time() + ALARM_S)

    def doubt(self, error: Diverged) -> None:
        """Fold nothing more in this epoch: it is not known whose file is right."""
        self._doubt = error
        self.halt(error.reason, error.message)
        self._doubted.set()

    def are_clocks_apart(self) -> bool:
        """Whether the broker's clock is not this machine's, within a minute."""
        return abs(self._watch.now_ms() - self._wall_ms()) > AHEAD_MS

    def ahead_ms(self) -> int:
        """How far log time is ahead of the broker's clock, if by more than a minute; else 0."""
        ahead_ms = self.position.now_ms - self._watch.now_ms()
        return ahead_ms if self._watch.info is not None and ahead_ms > AHEAD_MS else 0

    def is_ahead(self, time_ms: int) -> bool:
        """Whether an instant is too far ahead of this machine's clock to be folded."""
        return time_ms > self._wall_ms() + AHEAD_MS

    async def check_log(self, *, alone: bool = False) -> None:
        """Prove that the log is the one that was folded, and that it goes on where we stand.

        Args:
            alone: Go by this replica's own file alone, whatever others say.

        Raises:
            Regressed: It is another one, or an older copy.
            regression.MetRebase: It goes on in another epoch.
            BehindLog: It begins after our watermark.
            BusError: The broker did not answer.
        """
        if not alone:
            self._check_alarm()
        # In this order: what is folded and noted meanwhile is newer than the look at the log, and
        # would look lost.
        watermark = self.position.watermark
        remembered, notes = await self.database.read(
            lambda db, _: (Remembered.read(db), regression.Notes.read(db))
        )
        info = await self._watch.refresh()
        await regression.prove(self._js, info, watermark, remembered, notes)
        begun = await regression.find_rebase(
            self._js, self.database.names, info, watermark, self.position.epoch + 1
        )
        if begun is not None:
            # What lies before it belongs to the next epoch already, from its common part on.
            raise regression.MetRebase(begun)
        if info.first_seq > self.position.watermark + 1:
            raise BehindLog(self.position.watermark, info.first_seq)
        if notes.created != info.created:
            database = self.database
            await database.run(lambda: database.fold.note({regression.CREATED: info.created}))

    def _check_alarm(self) -> None:
        epoch, until_s = self._alarm
        if epoch == self.position.epoch and asyncio.get_running_loop().time() < until_s:
            why = "another replica folded more of it than it holds"
            raise Regressed(self.position.watermark, why, heard=True)

    async def run(self, recover: Callable[[LedgerError], Awaitable[None]]) -> None:
        """Fold until cancelled.

        Args:
            recover: Called when the log is not the one that was folded or has left us behind, and
                when a rebase is met; it returns when ``database`` and log fit again.

        Raises:
            Whatever ``recover`` raises.
        """
        while True:
            try:
                await self._run_until_it_does_not_fit()
            except LedgerError as error:
                self.halt(error.reason, error.message)
                await recover(error)
                self.resume()

    def halt(self, reason: str, message: str) -> None:
        """Say why the fold does not go on."""
        if self.trouble is None or self.trouble.reason != reason:
            _log.error("fold_stopped", reason=reason, error=message, at=self.position.watermark)
        self.trouble = Trouble(reason, message)

    def resume(self) -> None:
        """Say that it goes on."""
        if self.trouble is not None:
            _log.warning("fold_resumed", after=self.trouble.reason, at=self.position.watermark)
            self.trouble = None

    async def replace(self, database: Database) -> None:
        """Fold into this file from now on; one that was open before is closed already."""
        self._database = database
        await self.load()

    async def wait_for(self, epoch: int, seq: int, timeout_ms: int) -> bool:
        """Wait until a command has been folded; whether it was in time."""

        def reached() -> bool:
            here = self.position
            return here.epoch > epoch or (here.epoch == epoch and here.watermark >= seq)

        try:
            async with asyncio.timeout(timeout_ms / 1000), self.moved:
                await self.moved.wait_for(reached)
        except TimeoutError:
            return False
        return True

    async def wait_for_epoch(self, epoch: int) -> None:
        """Wait until the log goes on in an epoch."""
        async with self.moved:
            await self.moved.wait_for(lambda: self.position.epoch >= epoch)

    async def _run_until_it_does_not_fit(self) -> None:
        # Only the file knows: a commit may have happened and been reported as failed.
        await self.load()
        self._queue = asyncio.Queue(QUEUE)
        tasks = [
            asyncio.create_task(self._doubting(), name="doubt"),
            asyncio.create_task(self._read(), name="read-log"),
            asyncio.create_task(self._fold(), name="fold"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await self.settle()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _doubting(self) -> None:
        while True:
            await self._doubted.wait()
            self._check_doubt()
            self._doubted.clear()

    def _check_doubt(self) -> None:
        if self._doubt is not None and self._doubt.epoch == self.position.epoch:
            raise Diverged(self._doubt.epoch, self._doubt.seq)

    async def _read(self) -> None:
        """Read on for ever, opening anew whenever the order was lost."""
        failures = 0
        while True:
            try:
                await self.check_log()
                reader = await LogReader.open(self._js, self._stream, self._next)
            except BusError as error:
                failures = await self._wait_for_broker(error, failures)
                continue
            try:
                while True:
                    messages = await reader.next_batch(BATCH, 1_000)
                    if messages:
                        failures = 0
                        await self._queue.put(messages)
                        self._next = messages[-1].seq + 1
            except BusError as error:
                failures = await self._wait_for_broker(error, failures)
            finally:
                await reader.close()

    async def _wait_for_broker(self, error: BusError, failures: int) -> int:
        if isinstance(error, StreamMissing):
            self.halt(error.reason, f"the log {self._stream} is gone")
        elif failures == 0 and isinstance(error, GapError):
            _log.info("log_reopened", why=error.message)
        elif failures == 0:
            _log.warning("log_not_readable", reason=error.reason, error=error.message)
        await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
        return failures + 1

    async def _fold(self) -> None:
        while True:
            messages = await self._take()
            while messages:
                messages = await self._fold_some(messages)

    async def _take(self) -> list[StoredMessage]:
        """The next messages, as many as wait; drops said rows while there are none."""
        while True:
            try:
                async with asyncio.timeout(DROP_AFTER_S if self._publisher.owes else None):
                    messages = list(await self._queue.get())
            except TimeoutError:
                if self._publisher.said:
                    await self._drop_said()
                continue
            while len(messages) < BATCH and not self._queue.empty():
                messages.extend(self._queue.get_nowait())
            return messages

    async def _drop_said(self) -> None:
        said, self._publisher.said = self._publisher.said, []
        database = self.database
        try:
            await database.run(lambda: database.fold.drop(said))
        except StorageFull:
            # They go with the next batch that fits; saying them again would do no harm.
            self._publisher.said = said + self._publisher.said
            await asyncio.sleep(1)

    async def _fold_some(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Fold what can be folded now; returns what is left to try again."""
        await self._publisher.wait_for_room()
        self._check_alarm()
        self._check_doubt()
        limit_ms = self._wall_ms() + AHEAD_MS
        believed = self.position.bound.stamp_ms
        now = list(itertools.takewhile(lambda m: believed(m.seq, m.time_ms) <= limit_ms, messages))
        if not now:
            await self._look_at_clocks(messages[0])
            return messages
        self._contradicted = 0
        try:
            batch = await self._apply(now)
        except StorageFull as error:
            self.halt(error.reason, error.message)
            await asyncio.sleep(1)
            return messages
        except FoldFailed as error:
            cause = error.__cause__
            _log.error("fold_failed", seq=error.seq, kind=type(cause).__name__, exc_info=cause)
            self.halt(error.reason, error.message)
            await asyncio.sleep(10)
            return messages
        if batch.stop is not None:
            await self._stopped_by(batch.stop, messages[batch.applied])
        elif self.trouble is not None:
            self.resume()
        return messages[batch.applied :]

    async def _look_at_clocks(self, message: StoredMessage) -> None:
        """Say whose clock is wrong, and wait a second.

        Raises:
            StampAhead: It is the stamp: again and again the broker's own clock contradicts it.
        """
        await asyncio.sleep(1)
        try:
            await self._watch.refresh()
        except BusError as error:
            _log.debug("clock_not_asked_for", error=error.message)
            return
        ahead_ms = message.time_ms - max(self._watch.now_ms(), self._wall_ms())
        if ahead_ms > AHEAD_MS:
            wrong = StampAhead(message.seq, message.time_ms, ahead_ms)
            self.halt(wrong.reason, wrong.message)
            self._contradicted += 1
            if self._contradicted >= CONTRADICTED:
                self._contradicted = 0
                raise wrong
            return
        self._contradicted = 0
        apart_s = abs(self._watch.now_ms() - self._wall_ms()) // 1000
        self.halt(
            "clock-behind",
            f"the command at {message.seq} is stamped more than {AHEAD_MS // 1000} s ahead of this "
            f"machine's clock, which is {apart_s} s from the broker's; set the wrong one right",
        )

    async def _apply(self, messages: Sequence[StoredMessage]) -> Batch:
        """Fold, and hand on what is said, even if the caller is cancelled meanwhile."""
        self._applying = asyncio.create_task(self._apply_whole(messages), name="apply")
        return await asyncio.shield(self._applying)

    async def settle(self) -> None:
        """Wait for a batch whose caller was cancelled."""
        if self._applying is not None:
            await asyncio.wait((self._applying,))

    async def _apply_whole(self, messages: Sequence[StoredMessage]) -> Batch:
        said, self._publisher.said = self._publisher.said, []
        database, ticks = self.database, self.position.ticks
        say_from_ms = self.oldest_heard_ms()
        last_seen = max(messages[-1].seq, self._watch.last_seq())
        notes = {regression.LAST_SEEN: str(last_seen)}
        self._on_take(messages[-1].seq)

        def work() -> tuple[Batch, Position]:
            batch = database.fold.apply_batch(
                messages, say_from_ms=say_from_ms, said=said, notes=notes
            )
            return batch, _position(database, ticks + batch.ticked)

        try:
            with metrics.FOLD_SECONDS.time():
                batch, position = await database.run(work)
        except (StorageFull, FoldFailed):
            self._publisher.said = said + self._publisher.said
            raise
        metrics.FOLD_BATCH.observe(batch.applied)
        self._publisher.offer(batch.rows, batch.watermark)
        await self._move(position)
        return batch

    async def _stopped_by(self, stop: Stop, message: StoredMessage) -> None:
        """The next command cannot be folded by this worker as it is.

        Raises:
            regression.MetRebase: It begins another epoch.
        """
        match stop.body:
            case Rebase():
                begun = regression.Beginning(stop.body, message.seq, message.time_ms)
                raise regression.MetRebase(begun)
            case Ruleset(version=version):
                self.halt(
                    stop.reason,
                    f"the command at {stop.seq} activates ruleset {version}, "
                    "which this version does not know; deploy one that does",
                )
                await asyncio.Event().wait()

    async def _move(self, position: Position) -> None:
        async with self.moved:
            self.position = position
            self.moved.notify_all()


def _position(database: Database, ticks: int = 0) -> Position:
    state = database.fold.state
    return Position(
        state.epoch,
        state.watermark,
        state.now_ms,
        state.chain,
        state.ruleset,
        database.fold.due_at(),
        ticks,
        database.fold.bound,
    )
