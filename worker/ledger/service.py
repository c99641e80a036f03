"""The ledger as a component of the worker: everything of one space's fold, wired together."""

import asyncio
import contextlib
import errno
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from schemas.names import Names, kv_stream
from schemas.results import Refusal, Verdict
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker import metrics
from worker.bus.connection import Connection
from worker.bus.errors import StreamMissing, Unavailable
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket
from worker.bus.window import GroupPublisher
from worker.errors import StartRefused
from worker.ledger import counting, store
from worker.ledger.bystander import Bystander
from worker.ledger.control import Control
from worker.ledger.database import Database
from worker.ledger.digests import Digests
from worker.ledger.divergence import NOTE as DIVERGED
from worker.ledger.divergence import Divergence, noted
from worker.ledger.errors import BehindLog, Diverged, Regressed, StorageFull
from worker.ledger.keeper import Keeper
from worker.ledger.lease import Lease
from worker.ledger.operations import Operations
from worker.ledger.plane import Plane, Query
from worker.ledger.presence import PEERS, Presence, Standing
from worker.ledger.publisher import Publisher
from worker.ledger.questions import Questions
from worker.ledger.recovery import Recovery
from worker.ledger.regression import MetRebase
from worker.ledger.rulesets import KNOWN
from worker.ledger.runner import Runner
from worker.ledger.snapshots import Snapshots
from worker.ledger.space_key import SpaceKey
from worker.ledger.spans import LedgerSpans
from worker.ledger.ticker import Ticker
from worker.ledger.tx import OutRow
from worker.ledger.watch import LogWatch
from worker.queries import QueryHandler
from worker.settings import Settings
from worker.spaces import LEDGER_FILE, space_dir

WORKER: Final = "_worker"
BEHIND_MS: Final = 5_000
"""A fold that has not reached where the log was so long ago is behind: not ready."""

DRAIN_S: Final = 1.5
ROOM_PAUSE_S: Final = 1.0
"""How often a file for which there was no room at the start is tried again."""

PROBE: Final = "probe"
"""Name of the note that ``write_probe`` writes."""

_log = structlog.get_logger("tidegate.ledger")


class LedgerPlane:
    """The fold of one space: the log in, results out, queries answered.

    Args:
        conn: The worker's connection, in the workers' account.
        names: The space.
        settings: The worker's settings.
        replica: This worker's id.
        planes: Planes to fold.
        rulesets: Rulesets this worker can fold under.
        wall_ms: This machine's clock, ms.
        monotonic: Seconds that never go back.
        jitter: Numbers in 0..1.
    """

    name = "ledger"

    def __init__(
        self,
        conn: Connection,
        names: Names,
        settings: Settings,
        replica: str,
        *,
        planes: Sequence[Plane],
        rulesets: frozenset[int] = KNOWN,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._names = names
        self._replica = replica
        self._planes = tuple(planes)
        self._rulesets = rulesets
        self._path = space_dir(settings.data_dir, names.space) / LEDGER_FILE
        js = self._js = JetStream(conn)
        worker = Speaker(WORKER, replica)
        leases = Bucket(
            js,
            names.leases_bucket,
            GroupPublisher(js, kv_stream(names.leases_bucket), atomic=False),
        )
        self._watch = LogWatch(js, names.log_stream, monotonic)
        self._key = SpaceKey(js, names)
        self._publisher = Publisher(
            js,
            names,
            space_key=self._key.get,
            oldest_ms=self._oldest_heard_ms,
            on_stored=self._count_stored,
        )
        self._spans = LedgerSpans(names.space)
        self._runner = Runner(
            js,
            names.log_stream,
            self._publisher,
            self._watch,
            wall_ms=wall_ms,
            on_take=self._spans.take,
        )
        self._lease = Lease(leases, replica, self._publisher.progress, abstain=self._is_halted)
        self._presence = Presence(
            js,
            leases,
            self._standing,
            self._remember_peers,
            greet=lambda: self._control.greet(),
            now_ms=lambda: min(wall_ms(), self._watch.now_ms()),
        )
        self._work_dir = self._path.parent / "snapshots"
        self._snapshots = Snapshots(js, names, planes, self._work_dir, wall_ms=wall_ms)
        self._digests = Digests(self._runner, planes, self._work_dir)
        self._recovery = Recovery(
            js,
            names,
            worker,
            self._runner,
            self._watch,
            self._snapshots,
            alone=self._is_alone,
            alarm=lambda: self._control.alarm(),
        )
        self._ticker = Ticker(js, names, worker, self._runner, self._watch, jitter=jitter)
        self._bystander = Bystander(js, self._runner, self._watch, why=self._why_not_folding)
        self._keeper = Keeper(
            js,
            self._runner,
            self._watch,
            self._snapshots,
            may=lambda: self._lease.held and not self._is_halted(),
            every_commands=settings.snapshot_commands,
            every_ms=settings.snapshot_interval_ms,
            keep_log_ms=settings.log_keep_ms,
        )
        self._control = Control(
            conn,
            names,
            self._standing,
            self._recovery.asked,
            self._presence.greeted,
            self._on_alarm,
            self._digests.get,
        )
        self._questions = Questions(self._runner, self._watch, self._planes, self._key)
        self._operations = Operations(
            js,
            names,
            worker,
            self._runner,
            self._keeper,
            self._snapshots,
            self._control,
            self._questions,
            self._digests,
        )
        self._divergence = Divergence(
            leases,
            epoch=lambda: self._runner.position.epoch,
            on_known=self._runner.doubt,
            note=self._note_divergence,
            alarm=lambda: self._control.alarm(),
        )
        self._goal = 0
        self._troubles: set[str] = set()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the file; one for which the disk has no room is opened as soon as there is some.

        Checkpoints are served by the same process, so a full disk must not keep it from starting.

        Raises:
            StartRefused: As ``_open``.
            BusError: The broker does not answer.
        """
        if not await self._open_if_there_is_room():
            self._runner.halt(StorageFull.reason, f"{self._path}: the disk is full")

    async def _open_if_there_is_room(self) -> bool:
        try:
            await self._open()
        except (StorageFull, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOSPC:
                raise
            return False
        return True

    async def _wait_for_room(self) -> None:
        while not self._runner.is_open:
            await asyncio.sleep(ROOM_PAUSE_S)
            with contextlib.suppress(Unavailable):
                if await self._open_if_there_is_room():
                    self._runner.resume()

    async def _open(self) -> None:
        """Open the file; one that is missing or was left behind begins at the newest snapshot.

        Raises:
            StartRefused: The file is not ours to write to, or is held by another process, or the
                log was trimmed beyond it and no snapshot reaches into the log.
            BusError: The broker does not answer.
        """
        # What a worker that was killed left behind of its copies.
        await asyncio.to_thread(shutil.rmtree, self._work_dir, ignore_errors=True)
        info = await self._js.stream_info(self._names.res_stream)
        self._runner.res_max_age_ms = int(info.config.get("max_age") or 0) // 1_000_000
        if not self._path.exists() or self._path.stat().st_size == 0:
            await self._recovery.from_newest(self._path)
        database = await Database.open(
            self._path, self._names, self._planes, rulesets=self._rulesets
        )
        await self._runner.replace(database)
        if known := await database.read(lambda db, _: noted(store.local(db, DIVERGED))):
            self._divergence.found(Diverged(*known))
        self._presence.recall(await database.read(lambda db, _: store.local(db, PEERS)))
        await self._ask_peers()
        with contextlib.suppress(StreamMissing):
            await self._divergence.look()
        try:
            await self._runner.check_log()
        except (Regressed, MetRebase) as error:
            # Recovered from while running: it may take a person.
            self._runner.halt(error.reason, error.message)
        except BehindLog as error:
            await self._catch_up(error)
        self._goal = self._watch.last_seq()
        await self._control.start()
        here = self._runner.position
        _log.info(
            "ledger_opened",
            watermark=here.watermark,
            epoch=here.epoch,
            sqlite=store.sqlite_version(),
        )

    async def run(self) -> None:
        """Fold, publish, tick and keep snapshots until cancelled."""
        await self._wait_for_room()
        if self._stopping.is_set():
            return
        parts = {
            "watch": self._watch.run(),
            "fold": self._runner.run(self._recovery.recover),
            "divergence": self._divergence.run(),
            "publish": self._publish(),
            "lease": self._lease.run(),
            "presence": self._presence.run(),
            "ticker": self._ticker.run(),
            "bystander": self._bystander.run(),
            "keeper": self._keeper.run(),
        }
        self._tasks = [
            asyncio.create_task(part, name=f"ledger-{name}") for name, part in parts.items()
        ]
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                await asyncio.wait(self._tasks)
                return
            for task in done:
                await task
        finally:
            for task in self._tasks:
                task.cancel()

    async def stop(self) -> None:
        """Fold nothing more, say what was folded, let another replica publish, close the file."""
        self._stopping.set()
        await self._control.stop()
        for task in self._tasks:
            if task.get_name() == "ledger-fold":
                task.cancel()
                await asyncio.wait({task})
        if self._lease.held:
            await self._publisher.drain(DRAIN_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        await self._lease.release()
        if self._runner.is_open:
            await self._runner.database.close()

    def queries(self) -> Mapping[tuple[str, str], QueryHandler]:
        """The planes' queries, and what operators ask of the ledger."""
        return {**self._operations.handlers(), **self._questions.handlers()}

    def serves_queries(self) -> bool:
        """Whether queries are better answered here than left to another replica."""
        lags = self._is_halted() or self._is_behind()
        return not (lags and self._lease.other_alive)

    def not_ready(self) -> list[str]:
        """Why commands would not be answered now."""
        reasons = []
        if (trouble := self._runner.trouble) is not None:
            reasons.append(f"{trouble.reason}: {trouble.message}")
        elif self._is_behind():
            behind = self._watch.last_seq() - self._runner.position.watermark
            reasons.append(f"behind: {behind} commands are not folded yet")
        if ahead_ms := self._runner.ahead_ms():
            reasons.append(
                f"log-time-ahead: log time is {ahead_ms // 1000} s ahead of the broker's clock and "
                "stands still until then, with pacing and deadlines; if that clock is right now: "
                "tidegate ledger clock"
            )
        if self._watch.trouble:
            reasons.append(f"the log does not answer: {self._watch.trouble}")
        if self._publisher.trouble and self._lease.held:
            reasons.append(f"results cannot be stored: {self._publisher.trouble}")
        if self._publisher.undeleted:
            reasons.append(
                f"payloads of settled turns cannot be deleted: {self._publisher.undeleted}"
            )
        return reasons

    def status(self) -> JsonObject:
        """What ``sys.status`` shows of it."""
        here, trouble, last = self._runner.position, self._runner.trouble, self._keeper.last
        return {
            "epoch": here.epoch,
            "watermark": here.watermark,
            "lag": max(0, self._watch.last_seq() - here.watermark),
            "lag_ms": self._watch.behind_ms(here.watermark),
            "log_time_ms": here.now_ms,
            "chain": here.chain,
            "ruleset": here.ruleset,
            "rulesets": sorted(self._rulesets),
            "schema_version": store.schema_version(),
            "sqlite": store.sqlite_version(),
            "due_at_ms": here.due_at_ms,
            "ticks_sent": self._ticker.sent,
            "halted": None if trouble is None else trouble.reason,
            "publishes": self._lease.held,
            "published": self._publisher.published,
            "unpublished": self._publisher.backlog,
            "told_unavailable": self._bystander.told,
            "peers": sorted(self._presence.peers),
            "snapshot": None if last is None else {"name": last.name, "watermark": last.watermark},
            "settings": dict(self._keeper.settings),
        }

    async def sample(self) -> None:
        """Bring the ledger's gauges up to date."""
        space, here, last = self._names.space, self._runner.position, self._keeper.last
        lag = max(0, self._watch.last_seq() - here.watermark)
        metrics.FOLD_LAG_COMMANDS.labels(space).set(lag)
        metrics.FOLD_LAG_SECONDS.labels(space).set(self._watch.behind_ms(here.watermark) / 1000)
        metrics.OUTBOX_DEPTH.labels(space).set(self._publisher.backlog)
        metrics.PUBLISHES.labels(space).set(self._lease.held)
        since = here.watermark - (0 if last is None else last.watermark)
        metrics.SNAPSHOT_LAG_COMMANDS.labels(space).set(since)
        trouble = self._runner.trouble
        if trouble is not None:
            self._troubles.add(trouble.reason)
        for reason in self._troubles:
            stands = trouble is not None and trouble.reason == reason
            metrics.FOLD_STOPPED.labels(space, reason).set(stands)

    async def write_probe(self) -> None:
        """Prove that the file takes a write: one note, in a transaction of its own.

        Raises:
            LedgerError: It does not, or there is no file.
        """
        database = self._runner.database
        await database.run(lambda: database.fold.note({PROBE: str(self._watch.now_ms())}))

    async def read(self, query: Query, speaker: Speaker, raw: bytes) -> Verdict:
        """Answer a plane's query as the query service would."""
        return await self._questions.ask(query, speaker, raw)

    async def wait_for(self, result_id: str) -> Refusal | None:
        """Wait, 5 s at most, until the fold has reached a result; ``None`` if it has.

        Raises:
            BadInput: It is not a result id.
        """
        return await self._questions.wait_for(result_id)

    async def _publish(self) -> None:
        while True:
            try:
                await self._publisher.run(self._lease)
            except Diverged as error:
                self._divergence.found(error)
                # The next epoch's rows are another file's.
                await self._runner.wait_for_epoch(error.epoch + 1)

    async def _note_divergence(self, known: str) -> None:
        database = self._runner.database
        await database.run(lambda: database.fold.note({DIVERGED: known}))

    async def _catch_up(self, error: BehindLog) -> None:
        try:
            await self._recovery.catch_up(error)
        except BehindLog as behind:
            raise StartRefused(behind.message) from behind

    async def _remember_peers(self, noted: str) -> None:
        database = self._runner.database
        if await database.read(lambda db, _: store.local(db, PEERS)) != noted:
            await database.run(lambda: database.fold.note({PEERS: noted}))

    async def _ask_peers(self) -> None:
        """Hear from the other replicas whether the log is the one they folded."""
        try:
            await self._presence.look()
        except StreamMissing:
            return
        peers = self._presence.peers
        for one in await self._control.standings(peers) if peers else ():
            if one.replica != self._replica:
                self._on_alarm(one)

    def _on_alarm(self, standing: Standing) -> None:
        self._presence.met(standing.replica)
        if standing.halted == Regressed.reason:
            self._runner.heed(standing.epoch)
        elif standing.halted == Diverged.reason:
            self._divergence.found(Diverged(standing.epoch, standing.watermark))

    def _standing(self) -> Standing:
        here, trouble = self._runner.position, self._runner.trouble
        halted = "" if trouble is None else trouble.reason
        return Standing(
            self._replica, here.epoch, here.watermark, halted, tuple(sorted(self._rulesets))
        )

    def _count_stored(self, rows: Sequence[OutRow]) -> None:
        counting.count_stored(rows, self._watch.now_ms())
        self._spans.tell(rows)

    def _oldest_heard_ms(self) -> int:
        return self._runner.oldest_heard_ms()

    def _is_alone(self) -> bool:
        return not self._presence.peers

    def _is_halted(self) -> bool:
        return self._runner.trouble is not None

    def _is_behind(self) -> bool:
        """Whether what was in the log at the start, or seconds ago, is not folded yet."""
        watermark = self._runner.position.watermark
        return watermark < max(self._goal, self._watch.last_seq_before(BEHIND_MS))

    def _why_not_folding(self) -> str | None:
        if self._lease.other_alive:
            return None
        if (trouble := self._runner.trouble) is not None:
            return trouble.reason
        return "this worker is behind" if self._is_behind() else None
