"""Serving a durable consumer: pull, hand out, and survive whatever happens to it."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas import headers as names
from worker import logs
from worker.bus.comparison import Severity, compare_durable
from worker.bus.delivery import PROGRESS, Delivery
from worker.bus.errors import BusError, ConsumerMissing, Unavailable
from worker.bus.jetstream import JetStream
from worker.bus.messages import NS_PER_MS, ConsumerInfo
from worker.bus.pulling import PullLink

Handler = Callable[[Delivery], Awaitable[None]]

TICK_S: Final = 1.0
BACKOFF_MS: Final = (100, 250, 500, 1_000, 2_000, 5_000)
NAK_MS: Final = (250, 1_000, 2_000, 5_000, 10_000, 30_000)
STOP_LIMIT_MS: Final = 3_000
BEATS: Final = 3
"""How often progress is told within one ``ack_wait``."""

MISSED_BEATS: Final = 2
"""After how many beats without a word another worker may soon have what is here."""

MAX_OWED: Final = 10_000
"""Answers kept for the broker's return; what is beyond is delivered again after ``ack_wait``."""

LONGEST_WORK_MS: Final = 120_000
"""For how long progress is told of one delivery; what hangs longer is handed out again."""

PROVE_EVERY_S: Final = 10.0
"""How often the durable is compared with what it has to be."""

LOG_EVERY_S: Final = 30.0
_log = logs.get("tidegate.bus")


@dataclass(frozen=True, slots=True)
class _Held:
    """Since when a message is here: the beat, and the lapses there had been."""

    beat: int
    lapses: int


class Puller:
    """Feeds the messages of one durable consumer to a handler, several at a time.

    The handler acknowledges. What it raises is logged and the message is refused with a growing
    delay. While a message is here the broker is told again and again that it is being worked on, so
    that ``ack_wait`` may be short: it says how long nobody misses a process that was killed or
    stopped. One that was stopped finds out by ``Delivery.lapses`` before it acts. A durable that
    vanished is made again from ``config``, and so is one that was changed so that it would leave
    messages out; one that was paused is named. While the broker is away nothing is asked and
    nothing spins.

    Args:
        js: Where.
        stream: The stream.
        durable: The consumer.
        config: Its configuration, to make it again.
        batch: Messages that may wait here beyond those being handled; 0 is as many again.

    Attributes:
        problem: Why nothing can be pulled now, ``None`` if all is well.
        handled: Deliveries handled since the start.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        durable: str,
        *,
        config: Mapping[str, Any],
        batch: int = 0,
    ) -> None:
        self._js = js
        self._stream = stream
        self._durable = durable
        self._config = dict(config) | {"durable_name": durable}
        self._prefetch = batch
        self._owed: list[Delivery] = []
        self._queue: deque[tuple[bytes, bytes, bytes, bytes]] = deque()
        self._here: dict[bytes, _Held] = {}
        self._beat = 0
        self._beat_at_s = float("inf")
        self._lapses = 0
        self._beat_s: float = config["ack_wait"] / NS_PER_MS / 1000 / BEATS
        self._longest_beats: float = LONGEST_WORK_MS / 1000 / self._beat_s
        self._workers: set[asyncio.Task[None]] = set()
        self._link: PullLink | None = None
        self._handle: Handler | None = None
        self._in_flight = 0
        self._stop = asyncio.Event()
        self._done: asyncio.Event = asyncio.Event()
        self._last_log = float("-inf")
        self._suppressed = 0
        self._held_up: BusError | None = None
        self._stood_before = 0
        self.problem: BusError | None = None
        self.handled = 0

    @property
    def busy(self) -> int:
        """Deliveries in the handler's hands."""
        return len(self._workers)

    async def run(self, handle: Handler, *, in_flight: int) -> None:
        """Serve until ``stop``, with at most ``in_flight`` calls of ``handle`` at once.

        Raises:
            Denied: We may not even listen for messages.
        """
        self._handle = handle
        self._in_flight = in_flight
        connection = self._js.connection
        link = PullLink(connection, self._stream, self._durable, self._on_message)
        self._link = link
        progress = asyncio.create_task(self._tell_progress(), name=f"{self._durable}-progress")
        try:
            await link.open()
            await self._feed(link, in_flight + (self._prefetch or in_flight))
            await self._drain(link)
        finally:
            progress.cancel()
            for worker in self._workers:
                worker.cancel()
            await link.close()
            self._done.set()

    async def stop(self, limit_ms: int = STOP_LIMIT_MS) -> bool:
        """Take no new work, give back what waits, and finish what is in hand.

        Returns:
            Whether everything in hand was finished within ``limit_ms``; what was not is cancelled
            and will be delivered again.
        """
        self._stop.set()
        if self._link is None:
            return True
        self._link.wake.set()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._done.wait()
        except TimeoutError:
            workers = list(self._workers)
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers, timeout=0.5)
            return False
        return True

    async def _feed(self, link: PullLink, limit: int) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        prove_at = clock() + PROVE_EVERY_S
        while not self._stop.is_set():
            link.wake.clear()
            if link.cut:
                if not await self._wait_for_broker(link):
                    continue
                link.forget()
                self._pay()
            if link.overdue:
                _log.warning("pull_forgotten", durable=self._durable, silent_ms=link.silent_ms)
                link.forget()
                failures = await self._look(link, failures)
                continue
            if link.trouble is not None:
                failures = await self._look(link, failures)
                continue
            if clock() >= prove_at:
                prove_at = clock() + PROVE_EVERY_S
                await self._prove()
            if link.early_ends > 1:
                await self._pause(BACKOFF_MS[min(link.early_ends - 2, len(BACKOFF_MS) - 1)])
            if link.outstanding:
                failures = 0
                self.problem = self._held_up
            free = limit - link.outstanding - len(self._queue) - len(self._workers)
            if free > 0 and (free * 2 >= limit or not link.outstanding):
                try:
                    link.pull(free)
                except BusError as error:
                    self.problem = error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await link.wake.wait()

    def _pay(self) -> None:
        """Send the answers that were owed while the broker was away."""
        owed, self._owed = self._owed, []
        for delivery in owed:
            delivery.resend()
            if delivery.unsent is not None:
                self._owed.append(delivery)

    async def _tell_progress(self) -> None:
        """Tell the broker of everything that is here, at every beat."""
        clock = asyncio.get_running_loop().time
        self._beat_at_s = clock()
        while True:
            await asyncio.sleep(self._beat_s)
            self._lapses, self._beat_at_s = self._lapsed(), clock()
            for reply, held in self._here.items():
                if self._beat - held.beat < self._longest_beats:
                    with contextlib.suppress(BusError):
                        self._js.connection.send(reply.decode(), b"", PROGRESS)
            self._beat += 1

    def _lapsed(self) -> int:
        """How often this process was silent for so long that others may have what is here."""
        silent_s = asyncio.get_running_loop().time() - self._beat_at_s
        return self._lapses + (silent_s >= MISSED_BEATS * self._beat_s)

    def _held(self) -> _Held:
        return _Held(self._beat, self._lapsed() + self._js.connection.reconnects)

    def _lapses_since(self, held: _Held) -> int:
        given_up = self._beat - held.beat >= self._longest_beats
        return self._held().lapses - held.lapses + given_up

    async def _wait_for_broker(self, link: PullLink) -> bool:
        connection = self._js.connection
        if connection.connected:
            return True
        return await connection.wait_connected(int(TICK_S * 1000))

    async def _look(self, link: PullLink, failures: int) -> int:
        """Find out why a pull failed, and make the durable again if that is why."""
        trouble, link.trouble = link.trouble, None
        try:
            await self._js.consumer_info(self._stream, self._durable)
        except ConsumerMissing:
            try:
                await self._js.consumer_create(self._stream, self._config)
            except BusError as error:
                trouble = error
            else:
                _log.warning("durable_remade", stream=self._stream, durable=self._durable)
                trouble = None
        except BusError as error:
            trouble = error
        self.problem = trouble
        if trouble is None and failures == 0:
            return 1
        if trouble is not None:
            self._log_rarely("pull_failed", error=trouble.message, reason=trouble.reason)
        await self._pause(BACKOFF_MS[min(failures, len(BACKOFF_MS) - 1)])
        return failures + 1

    async def _prove(self) -> bool:
        """Compare the durable with what it has to be: nothing else tells that it leaves work out.

        What it was never asked to deliver it passes over for good, so one with another filter is
        not corrected but made anew: whatever is delivered again is recognised.

        Returns:
            Whether it will be made anew.
        """
        try:
            info = await self._js.consumer_info(self._stream, self._durable)
            differences = compare_durable(self._stream, self._config, info.config)
            wrong = [one for one in differences if one.severity is Severity.DANGER]
            self._held_up = None
            if info.paused:
                self._held_up = Unavailable(f"the durable {self._durable} is paused")
            elif wrong:
                shown = "; ".join(map(str, wrong))
                _log.warning("durable_differs", durable=self._durable, differences=shown)
                # Our pulls end with it, and whoever finds it missing makes it again.
                await self._js.consumer_delete(self._stream, self._durable)
                return True
            else:
                await self._urge(info)
        except BusError as error:
            self._log_rarely("durable_not_proven", error=error.message, reason=error.reason)
        return False

    async def _urge(self, info: ConsumerInfo) -> None:
        """Have another server lead the durable if the leader's copy of the stream stands still.

        It beats like any other, and delivers nothing of what the stream's own leader holds.

        Raises:
            BusError: It could not be done.
        """
        before, self._stood_before = self._stood_before, 0
        if not info.waiting or info.ack_pending >= info.config.get("max_ack_pending", 1):
            return
        seq, subject = info.delivered_seq + 1, self._config["filter_subject"]
        if await self._js.next_message(self._stream, seq, subject) is None:
            return
        if before != seq:
            self._stood_before = seq
            return
        self._log_rarely("durable_stands_still", delivered_seq=info.delivered_seq)
        await self._js.consumer_step_down(self._stream, self._durable)

    async def _pause(self, wait_ms: int) -> None:
        """Wait, or until ``stop``; what arrives meanwhile does not cut it short."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._stop.wait()

    async def _drain(self, link: PullLink) -> None:
        await link.close()
        while self._queue:
            raw = self._queue.popleft()
            with_us = self._delivery(raw)
            self._here.pop(raw[1], None)
            if with_us is not None:
                await with_us.nak()
        while self._workers:
            await asyncio.wait(list(self._workers))

    def _on_message(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        self._queue.append((subject, reply, header, data))
        self._here[reply] = self._held()
        if len(self._workers) < self._in_flight and not self._stop.is_set():
            worker = asyncio.create_task(self._work(), name=f"{self._durable}-handler")
            self._workers.add(worker)
            worker.add_done_callback(self._worker_done)

    def _worker_done(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if self._link is not None:
            self._link.wake.set()
        if not worker.cancelled() and worker.exception() is not None:
            _log.error("puller_worker_failed", exc_info=worker.exception())

    async def _work(self) -> None:
        while self._queue and not self._stop.is_set():
            raw = self._queue.popleft()
            try:
                delivery = self._delivery(raw)
                if delivery is not None:
                    await self._one(delivery)
            finally:
                self._here.pop(raw[1], None)

    def _delivery(self, raw: tuple[bytes, bytes, bytes, bytes]) -> Delivery | None:
        try:
            held = self._here.get(raw[1]) or self._held()
            return Delivery(self._js.connection, *raw, lambda: self._lapses_since(held))
        except (ValueError, IndexError):
            _log.exception("delivery_not_understood", durable=self._durable)
            return None

    async def _one(self, delivery: Delivery) -> None:
        handle = self._handle
        if handle is None:
            return
        try:
            if names.MSG_SIZE in delivery.headers and not delivery.data and await self._prove():
                # The durable was edited to leave bodies out; this one comes again, whole.
                return
            await handle(delivery)
        except Exception as error:
            self._log_rarely(
                "handler_failed",
                seq=delivery.stream_seq,
                delivered=delivery.delivered,
                error=type(error).__name__,
                exc_info=error,
            )
            if not delivery.settled:
                await delivery.nak(NAK_MS[min(delivery.delivered - 1, len(NAK_MS) - 1)])
        finally:
            self.handled += 1
            if delivery.unsent is not None and len(self._owed) < MAX_OWED:
                self._owed.append(delivery)

    def _log_rarely(self, event: str, **fields: Any) -> None:
        """At most a line per half minute and puller; the next one says how many were left out."""
        now = asyncio.get_running_loop().time()
        if now - self._last_log < LOG_EVERY_S:
            self._suppressed += 1
            return
        self._last_log = now
        suppressed, self._suppressed = self._suppressed, 0
        _log.warning(
            event, stream=self._stream, durable=self._durable, suppressed=suppressed, **fields
        )
