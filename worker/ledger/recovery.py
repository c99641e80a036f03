"""Brings a ledger back to its log: from a snapshot, or into a new epoch after a regression.

Nothing is folded meanwhile. A new epoch begins with a command in the log itself, so that every
replica finds the same one, loads the same snapshot and folds the same messages after it
(DESIGN section 5, Log regression).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from schemas import headers, strict_json, subjects
from schemas.commands.sys import Rebase, Tick
from schemas.names import Names
from schemas.subjects import Speaker
from worker.bus.errors import BusError, CasLost
from worker.bus.jetstream import JetStream
from worker.bus.messages import StreamInfo
from worker.ledger import regression, rulesets, store
from worker.ledger.database import Database
from worker.ledger.epochs import adjust
from worker.ledger.errors import BehindLog, Diverged, LedgerError, Regressed, StampAhead
from worker.ledger.marks import Remembered
from worker.ledger.regression import Beginning, MetRebase
from worker.ledger.runner import Runner
from worker.ledger.snapshots import Snapshot, SnapshotDamaged, Snapshots
from worker.ledger.watch import LogWatch

AGAIN_S: Final = 2.0
_log = structlog.get_logger("tidegate.ledger")


class Recovery:
    """Recovers one space's ledger.

    Attributes:
        asked: Set when an operator asked this replica to begin a new epoch.

    Args:
        js: The workers' account.
        names: The space.
        worker: Who speaks in the log: a principal ``_worker…``.
        runner: The fold.
        watch: The log's state.
        snapshots: The space's snapshots.
        alone: Whether no other replica was ever seen.
        alarm: Tells the other replicas that the log regressed.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        worker: Speaker,
        runner: Runner,
        watch: LogWatch,
        snapshots: Snapshots,
        *,
        alone: Callable[[], bool],
        alarm: Callable[[], Awaitable[None]],
    ) -> None:
        self._js = js
        self._names = names
        self._worker = worker
        self._runner = runner
        self._watch = watch
        self._snapshots = snapshots
        self._alone = alone
        self._alarm = alarm
        self.asked = asyncio.Event()

    async def recover(self, error: LedgerError) -> None:
        """Do what the error asks for; returns when folding may be tried again."""
        try:
            match error:
                case Regressed():
                    if not error.heard:
                        await self._state_regression(error)
                    await self._after_regression(heard=error.heard)
                case Diverged():
                    # Alone neither: the other file may be the right one.
                    await self._after_doubt(by_itself=False, lasts=lambda: True)
                case StampAhead(time_ms=time_ms):
                    mended = self._runner.position.ruleset >= rulesets.MENDED
                    await self._after_doubt(
                        by_itself=mended and self._alone(),
                        lasts=lambda: self._runner.is_ahead(time_ms),
                    )
                case MetRebase():
                    await self._adopt(error.begun)
                case BehindLog():
                    await self.catch_up(error)
                case _:
                    _log.warning("log_read_anew", reason=error.reason, error=error.message)
                    await asyncio.sleep(AGAIN_S / 2)
        except BusError as trouble:
            _log.warning("recovery_waits", reason=trouble.reason, error=trouble.message)
            await asyncio.sleep(AGAIN_S)
        except LedgerError as trouble:
            self._runner.halt(trouble.reason, trouble.message)
            await asyncio.sleep(5 * AGAIN_S)

    async def from_newest(self, path: Path) -> Snapshot | None:
        """Put the newest snapshot that verifies at ``path``; ``None`` if there is none.

        Raises:
            BusError: The broker did not answer.
        """
        for snapshot in await self._snapshots.list():
            try:
                await self._snapshots.fetch(snapshot, path)
            except SnapshotDamaged as error:
                _log.error("snapshot_skipped", name=snapshot.name, error=error.message)
            else:
                await asyncio.to_thread(adjust, path)
                _log.info("started_from_snapshot", name=snapshot.name)
                return snapshot
        return None

    async def catch_up(self, error: BehindLog) -> None:
        """The log was trimmed beyond us: start from a snapshot that reaches into it.

        Raises:
            BehindLog: There is none.
        """
        here = self._runner.position
        for snapshot in await self._snapshots.list():
            ahead = (snapshot.epoch, snapshot.watermark) > (here.epoch, here.watermark)
            if ahead and snapshot.watermark + 1 >= error.first_seq and await self._load(snapshot):
                return
        raise error

    async def _after_regression(self, *, heard: bool) -> None:
        while True:
            if not heard:
                await self._alarm()
            info = await self._watch.refresh()
            database = self._runner.database
            remembered = await database.read(lambda db, _: Remembered.read(db))
            common = await regression.find_common(self._js, info, remembered)
            epoch = self._runner.position.epoch + 1
            begun = await regression.find_rebase(self._js, self._names, info, common, epoch)
            if begun is not None:
                await self._adopt(begun)
                return
            if (self._alone() and not heard) or self.asked.is_set():
                if await self._is_stale(info):
                    await asyncio.sleep(AGAIN_S)
                    return
                self.asked.clear()
                await self._begin_epoch(common)
                continue
            try:
                async with asyncio.timeout(AGAIN_S):
                    await self.asked.wait()
            except TimeoutError:
                # The right store may have been put back meanwhile.
                try:
                    await self._runner.check_log(alone=not heard)
                except Regressed:
                    continue
                except MetRebase as met:
                    await self._adopt(met.begun)
                return

    async def _after_doubt(self, *, by_itself: bool, lasts: Callable[[], bool]) -> None:
        """Stand still until the log goes on in another epoch, from a file that is not in doubt."""
        while lasts():
            try:
                await self._runner.check_log()
            except MetRebase as met:
                await self._adopt(met.begun)
                return
            except LedgerError as error:
                _log.warning("log_does_not_fit", reason=error.reason, error=error.message)
                return
            if by_itself or self.asked.is_set():
                self.asked.clear()
                await self._begin_epoch(self._runner.position.watermark)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self.asked.wait()

    async def _is_stale(self, info: StreamInfo) -> bool:
        """Whether the log goes on beyond the end that was told: a deposed leader told it.

        A leader that has been cut off answers reads for seconds from what it had, while the others
        have gone on. What is stored needs a majority, so a tick that is acknowledged stands behind
        everything that the log holds; one that cannot be stored proves nothing.

        Raises:
            BusError: The tick was not acknowledged.
        """
        database = self._runner.database
        notes = await database.read(lambda db, _: regression.Notes.read(db))
        folded = max(self._runner.position.watermark, notes.last_seen)
        if info.last_seq >= folded:
            return False
        subject = subjects.command(self._names, self._worker, "sys", "tick")
        ack = await self._js.publish(subject, Tick(v=1).to_bytes())
        if ack.seq > folded:
            _log.warning("log_told_by_a_deposed_leader", told=info.last_seq, stored=ack.seq)
        return ack.seq > folded

    async def _begin_epoch(self, common: int) -> None:
        """Store what was folded, and put the beginning of a new epoch into the log."""
        snapshot = await self._snapshots.take(self._runner.database)
        body = Rebase(
            v=1,
            epoch=snapshot.epoch + 1,
            digest=snapshot.digest,
            base=snapshot.watermark,
            common=common,
            snapshot=snapshot.name,
        )
        await self._js.publish(
            subjects.command(self._names, self._worker, "sys", "rebase"),
            body.to_bytes(),
            headers={headers.COMMAND: f"rebase-{snapshot.digest[:32]}-{snapshot.epoch + 1}"},
        )
        _log.warning("rebase_published", epoch=body.epoch, base=body.base, common=common)

    async def _adopt(self, begun: Beginning) -> None:
        """Load the snapshot that an epoch begins with, or a newer one of that epoch.

        Raises:
            SnapshotDamaged: There is none that verifies.
        """
        rebase = begun.rebase
        for snapshot in await self._snapshots.list():
            if snapshot.epoch >= rebase.epoch and await self._load(snapshot):
                return
            named = snapshot.name == rebase.snapshot and snapshot.digest == rebase.digest
            if named and await self._load(snapshot, begun):
                _log.warning("rebased", epoch=rebase.epoch, common=rebase.common)
                return
        raise SnapshotDamaged(
            f"the snapshot {rebase.snapshot} that epoch {rebase.epoch} begins with is not there"
        )

    async def _load(self, snapshot: Snapshot, begun: Beginning | None = None) -> bool:
        """Fold on from a snapshot; ``False`` if it does not verify."""
        old = self._runner.database
        arrived = old.path.with_name("arriving.db")
        try:
            await self._snapshots.fetch(snapshot, arrived)
        except SnapshotDamaged as error:
            _log.error("snapshot_skipped", name=snapshot.name, error=error.message)
            return False
        info = await self._watch.refresh()
        await asyncio.to_thread(adjust, arrived, info, begun)
        await old.close()
        await asyncio.to_thread(store.put_in_place, arrived, old.path)
        fresh = await Database.open(old.path, old.names, old.planes, rulesets=old.fold.rulesets)
        await self._runner.replace(fresh)
        _log.info("snapshot_loaded", name=snapshot.name, at=self._runner.position.watermark)
        return True

    async def _state_regression(self, error: Regressed) -> None:
        """State it in public, once per place at which it was found."""
        here = self._runner.position
        _log.error("log_regressed", watermark=here.watermark, why=error.why)
        fact_id = f"{here.epoch}-{here.watermark}-0"
        subject = subjects.ledger_fact(
            self._names, "sys", "log_regressed", (self._worker.uid,), fact_id
        )
        body = strict_json.dumps(
            {"v": 1, "at_ms": self._watch.now_ms(), "watermark": here.watermark, "why": error.why}
        )
        try:
            await self._js.publish(subject, body, expect_last_subject_seq=0)
        except CasLost:
            _log.debug("log_regression_stated_before")
        except BusError as trouble:
            _log.warning("log_regression_not_stated", error=trouble.message)
