"""The checkpoint plane of one space: everything wired, started and stopped in order."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from schemas.limits import MAX_SAFE_INTEGER
from schemas.names import Names, kv_stream
from schemas.results import Refusal
from schemas.strict_json import JsonObject
from schemas.subjects import Checkpoint
from worker import logs, metrics
from worker.bus.clock import BrokerClock, seconds_since_boot
from worker.bus.connection import Connection
from worker.bus.delivery import Delivery
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket
from worker.bus.puller import Handler, Puller
from worker.bus.topology import durable_configs
from worker.bus.window import GroupPublisher
from worker.bus.wire import WireClient
from worker.checkpoints.commands import CommandHandler
from worker.checkpoints.feed import Feed
from worker.checkpoints.guard import Guard
from worker.checkpoints.index import Change, FactSeen, Filter, SettledSeen, WaitingSeen
from worker.checkpoints.looking import look, whole
from worker.checkpoints.lost import Losses
from worker.checkpoints.minting import Minter
from worker.checkpoints.queries import CheckpointQueries
from worker.checkpoints.records import Records
from worker.checkpoints.repair import Repairer
from worker.checkpoints.sequence import Sequence
from worker.checkpoints.settle import Settled, Settler
from worker.checkpoints.sweep import LEARNED_GRACE_MS, Sweep
from worker.checkpoints.verbs import Verbs
from worker.checkpoints.waiters import Waiters
from worker.errors import TidegateError
from worker.queries import QueryHandler
from worker.settings import Settings
from worker.timers.fires import FireHandler
from worker.timers.hands import Hands
from worker.timers.requests import RequestHandler
from worker.timers.wheel import Coordinate, Wheel
from worker.timers.writer import TimerWriter

log = logs.get()

NOT_READY_NAK_MS = 1_000


class CheckpointPlane:
    """Serves the checkpoints of one space; any number of replicas may.

    Args:
        conn: The worker's connection, in the workers' account.
        names: The space.
        settings: The worker's settings.
        replica: This worker's id, kept in its data directory.
        monotonic: Seconds that never go back; the only clock of this machine that takes part.
        wall_ns: This machine's time of day. It decides nothing; while it is more than a minute away
            from the broker's, nothing is decided.
    """

    def __init__(
        self,
        conn: Connection,
        names: Names,
        settings: Settings,
        replica: str,
        *,
        monotonic: Callable[[], float] = seconds_since_boot,
        wall_ns: Callable[[], int],
    ) -> None:
        self.name = "checkpoints"
        self._conn = conn
        self._names = names
        self._settings = settings
        self._cause = f"_worker/{replica}"
        self._js = js = JetStream(conn)
        self._clock = BrokerClock(js, names.ept_stream, monotonic, wall_ns)
        self._directory = settings.data_dir / names.space
        self._waiters = Waiters()
        self._hands = Hands()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._looked_at = -1

        self._kv = GroupPublisher(js, kv_stream(names.records_bucket), atomic=True)
        self._epf = GroupPublisher(js, names.epf_stream, atomic=True)
        self._ept = GroupPublisher(js, names.ept_stream, atomic=True)
        self._res = GroupPublisher(js, names.res_stream, atomic=True)
        self._records = Records(js, names, Bucket(js, names.records_bucket, self._kv), self._epf)
        self._writer = TimerWriter(
            js, names, self._ept, self._records.prove, budget_ms=settings.arm_budget_ms
        )
        self._settler = Settler(js, names, self._records, self._writer, self._res, self._on_settled)
        self._wheel = (
            Wheel(self._clock, self._expire_coordinate, horizon_ms=settings.wheel_horizon_ms)
            if settings.wheel
            else None
        )
        self._guard = Guard(
            js,
            names,
            self._clock,
            self._records,
            self._directory / "settled.db",
            self._cause,
            self._highest,
        )
        self._feed = Feed(
            js,
            names,
            self._clock,
            self._directory / "waiting.db",
            self._on_change,
            self._settler.settled_lately,
            lambda rows: self._losses.suspect(rows),
        )
        self._losses = Losses(names.space, self._clock, self._feed, self._records, self._directory)
        parts = (names, self._clock, self._records, self._settler, self._writer)
        self._minter = Minter(*parts, self._offer)
        self._repairer = Repairer(js, *parts, self._res, self._offer)
        self._sweep = Sweep(
            js,
            names,
            self._clock,
            self._feed,
            self._records,
            self._repairer,
            self._wheel,
            cause=f"{self._cause}-sweep",
            interval_ms=settings.sweep_interval_ms,
        )
        self._sequence = Sequence(js, names, self._clock)
        self._commands = CommandHandler(
            js,
            names,
            self._clock,
            self._records,
            self._res,
            self._minter,
            Verbs(*parts, self._offer, names_answers=settings.answer_id_in_status),
            self._repairer,
            self._sequence,
            ack_wait_ms=settings.ack_wait_ms,
        )
        self._requests = RequestHandler(names, self._clock, self._writer)
        self._fires = FireHandler(
            names,
            self._clock,
            self._records.prove,
            self._writer,
            self._expire_fired,
            self._settler.settled_lately,
            self._hands,
        )
        configs = durable_configs(names, ack_wait_ms=settings.ack_wait_ms)
        self._pullers = {
            stream: Puller(js, stream, durable, config=configs[durable])
            for stream, durable in (
                (names.cmd_stream, names.cp_durable),
                (names.ept_req_stream, names.timers_durable),
                (names.ept_stream, names.fires_durable),
            )
        }

    def queries(self) -> Mapping[tuple[str, str], QueryHandler]:
        """The plane's queries."""
        return CheckpointQueries(self._records, self._feed, self._waiters).handlers()

    def status(self) -> JsonObject:
        """What ``sys.status`` shows of the plane."""
        return {
            "epoch": self._sequence.epoch,
            "clock_uncertainty_ms": min(self._clock.uncertainty_ms, 2**53 - 1),
            "clock_apart_ms": self._clock.apart_ms,
            "clock_jumps": self._clock.jumps,
            "clock_last_jump_ms": self._clock.last_jump_ms,
            "wheel": None if self._wheel is None else len(self._wheel),
            "index_caught_up": self._feed.caught_up.is_set(),
            "regressed": list(self._guard.regressed),
            # Due, and without a spec that can be read, so they never settle; all else is served.
            "stuck": [f"{one.endpoint}/{one.token}" for one in self._sweep.stuck],
            "commands_handled": self._pullers[self._names.cmd_stream].handled,
        }

    async def sample(self) -> None:
        """Bring the plane's gauges up to date."""
        space = self._names.space
        metrics.CLOCK_UNCERTAINTY.labels(space).set(self._clock.uncertainty_ms / 1000)
        metrics.STREAMS_REGRESSED.labels(space).set(len(self._guard.regressed))
        if not self._feed.is_whole:
            return
        metrics.PENDING.labels(space).set(await self._feed.count())
        now_ms = int(self._clock.lower_ms())
        overdue = await self._feed.find(Filter(before_ms=now_ms), 1)
        passed_ms = now_ms - overdue[0].deadline_ms if overdue else 0
        metrics.OVERDUE_SECONDS.labels(space).set(passed_ms / 1000)

    def not_ready(self) -> list[str]:
        """Why checkpoints would not be served now."""
        reasons = []
        if self._clock.trouble:
            reasons.append(self._clock.trouble)
        if self._guard.regressed:
            reasons.append(f"streams have gone back in time: {', '.join(self._guard.regressed)}")
        elif self._look_owed():
            reasons.append("the streams were not looked at yet since the broker came back")
        reasons += [trouble for trouble in (self._guard.missing, self._feed.trouble) if trouble]
        if not self._feed.is_built:
            reasons.append("the list of waiting checkpoints is being built")
        reasons += [
            f"{stream}: {puller.problem.message}"
            for stream, puller in self._pullers.items()
            if puller.problem is not None
        ]
        return reasons

    async def start(self) -> None:
        """Learn the broker's time, look for a regression, open the index."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._clock.refresh()
        await self._learn_batches()
        await self._sequence.look()
        await self._guard.open()
        await self._check_streams()
        await self._feed.open()
        await self._conn.on_connect(self._reconnected)

    async def _learn_batches(self) -> None:
        """Find out which streams take atomic batches; those of a foreign space may not."""
        for publisher in (self._kv, self._epf, self._ept, self._res):
            info = await self._js.stream_info(publisher.stream)
            if not info.config.get("allow_atomic"):
                publisher.without_batches()
                if publisher is self._kv:
                    self._records.without_batches()

    async def run(self) -> None:
        """Serve until stopped; whatever of it ends first ends the plane."""
        names = self._names
        work = [
            self._clock.run(),
            self._guard.run(self._look_owed, self._check_streams),
            self._feed.run(),
            self._sweep.run(self._may_act),
            self._losses.run(self._may_act),
            self._pullers[names.cmd_stream].run(
                self._gated(self._commands.handle), in_flight=self._settings.cp_in_flight
            ),
            self._pullers[names.ept_req_stream].run(
                self._gated(self._requests.handle), in_flight=self._settings.cp_in_flight
            ),
            self._pullers[names.ept_stream].run(
                self._gated(self._fires.handle), in_flight=4 * self._settings.cp_in_flight
            ),
        ]
        if self._wheel is not None:
            work.append(self._wheel.run())
        self._tasks = [asyncio.create_task(step) for step in work]
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait({*self._tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            if not self._stopping.is_set():
                await task
                raise TidegateError("a part of the checkpoint plane ended by itself")

    async def stop(self) -> None:
        """Take nothing new, finish what is in hand, close the files."""
        self._stopping.set()
        self._conn.off_connect(self._reconnected)
        await asyncio.gather(
            *(puller.stop(limit_ms=2_500) for puller in self._pullers.values()),
            return_exceptions=True,
        )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._wheel is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._wheel.drain()
        for publisher in (self._kv, self._epf, self._ept, self._res):
            await publisher.close(timeout_ms=200)
        await self._guard.close()
        await self._feed.close()

    def _highest(self) -> Mapping[str, int]:
        written = {
            publisher.stream: publisher.highest for publisher in (self._kv, self._epf, self._ept)
        }
        return {stream: max(seq, self._feed.last.get(stream, 0)) for stream, seq in written.items()}

    def _may_act(self) -> bool:
        return (
            self._clock.ready
            and not self._guard.regressed
            and self._conn.connected
            and self._looked_at == self._conn.reconnects
        )

    def _look_owed(self) -> bool:
        """Whether the streams were not looked at since the last reconnect, or are to be mended."""
        looked = self._looked_at == self._conn.reconnects
        return self._conn.connected and (bool(self._guard.regressed) or not looked)

    def _gated(self, handle: Handler) -> Handler:
        """Give deliveries back while the plane must not act; they come again in a second.

        The second passes here: a broker whose clock jumps meanwhile would wait until the jump.
        """

        async def gated(delivery: Delivery) -> None:
            await self._clock.look_at_stamp(delivery.time_ms)
            if self._may_act():
                await handle(delivery)
            else:
                await asyncio.sleep(NOT_READY_NAK_MS / 1000)
                await delivery.nak()

        return gated

    def _offer(self, coordinate: Coordinate) -> None:
        if self._wheel is not None:
            self._wheel.offer(coordinate)

    def _on_settled(self, settled: Settled) -> None:
        self._records.forget_waiting(settled.target, 0)
        if self._wheel is not None:
            self._wheel.discard(settled.target, settled.status.record.deadlineGeneration)
        self._guard.note(settled)
        self._waiters.tell(settled.target)

    def _on_change(self, change: Change) -> None:
        match change:
            case WaitingSeen():
                self._records.forget_waiting(change.target, change.revision)
                self._offer(
                    Coordinate(
                        change.target,
                        change.generation,
                        change.deadline_ms,
                        change.revision,
                        change.spec_revision,
                        grace_ms=LEARNED_GRACE_MS,
                    )
                )
            case SettledSeen(target=target):
                self._records.forget_waiting(target, 0)
                if change.deleted:
                    self._records.forget_spec(target)
                if self._wheel is not None:
                    self._wheel.discard(target, MAX_SAFE_INTEGER)
                self._waiters.tell(target)
            case FactSeen(target=target):
                # Should the status still read waiting, it has fallen behind and is to be looked at.
                self._records.forget_waiting(target, 0)
                if self._wheel is not None:
                    self._wheel.discard(target, MAX_SAFE_INTEGER)
                self._waiters.tell(target)

    async def _expire_coordinate(self, coordinate: Coordinate) -> None:
        """The wheel's settlement; what it cannot finish the fire or the sweep will."""
        async with self._hands.hold(coordinate.target):
            if self._may_act() and not self._settler.settled_lately(
                coordinate.target, coordinate.generation
            ):
                await self._expire_in_hand(coordinate)

    async def _expire_in_hand(self, coordinate: Coordinate) -> None:
        cause = f"{self._cause}-wheel"
        try:
            if coordinate.own:
                now_ms = int(self._clock.lower_ms())
                if now_ms < coordinate.deadline_ms:
                    # The broker's clock was set back since the wheel looked at it.
                    self._offer(coordinate)
                    return
                await self._settler.expire_coordinate(coordinate, now_ms, cause)
            else:
                await self._expire_looked_at(
                    coordinate.target, coordinate.generation, cause, "wheel"
                )
        except BusError as error:
            log.debug("wheel_put_off", space=self._names.space, reason=error.reason)
        except TidegateError as error:
            log.exception(
                "expiry_refused",
                space=self._names.space,
                token=coordinate.target.token,
                reason=error.reason,
            )

    async def _expire_fired(self, target: Checkpoint, generation: int) -> str:
        return await self._expire_looked_at(target, generation, f"{self._cause}-fire", "fire")

    async def _expire_looked_at(
        self, target: Checkpoint, generation: int, cause: str, by: str
    ) -> str:
        """Look at the checkpoint at the leader, then settle that generation if it is due."""
        it = whole(target, await look(self._records, target))
        if isinstance(it, Refusal):
            return "not-waiting"
        record = it.status.record
        if record.state != "waiting":
            # Its timer stands or has fired: whoever settled it may have been cut off.
            await self._settler.finish(target, it.status, won=False, by=by)
            return "not-waiting"
        if it.fact is not None:
            await self._settler.restore_from_fact(target, it.status, it.fact, cause)
            return "not-waiting"
        now_ms = int(self._clock.lower_ms())
        if record.deadlineGeneration != generation or now_ms < record.deadline:
            return "stale"
        outcome = await self._settler.expire(target, it.status, now_ms, cause, by=by)
        if outcome.won:
            return "settled"
        return "stale" if outcome.status.record.state == "waiting" else "not-waiting"

    async def _check_streams(self) -> None:
        reconnects = self._conn.reconnects
        if self._looked_at != reconnects:
            # The broker that answers now may be another one, with another clock.
            await self._clock.refresh()
        await self._guard.check(self._settler, self._forget)
        if self._looked_at != reconnects:
            self._looked_at = reconnects
            # The wheel let go of what became due while nothing might be done.
            self._sweep.ask()

    async def _forget(self) -> None:
        """Forget everything that was learned of streams which have gone back in time."""
        self._records.forget()
        self._writer.forget()
        if self._wheel is not None:
            self._wheel.clear()
        self._feed.rebuild()
        self._sweep.ask()

    async def _reconnected(self, client: WireClient) -> None:
        """After a reconnect nothing remembered is trusted until the streams were looked at."""
        if self._stopping.is_set():
            return
        self._records.forget()
        self._writer.forget()
        if self._wheel is not None:
            self._wheel.clear()
        try:
            await self._check_streams()
        except BusError as error:
            log.warning("guard_put_off", space=self._names.space, reason=error.reason)
        self._sweep.ask()
