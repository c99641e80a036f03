"""Hears the beats of connectors in one space and reports who fell silent, and who is back."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from schemas import strict_json, subjects, tokens
from schemas.codes import BadInput
from schemas.commands.sys import Liveness, Owner
from schemas.names import Names
from schemas.subjects import Speaker
from worker import logs
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.subscription import Msg, Subscription
from worker.errors import TidegateError
from worker.evidence.liveness import Change, Watch

OWN_BEAT_MS: Final = 500
LOOK_MS: Final = 250
IN_FLIGHT: Final = 32
OWN_BEATS_KEPT: Final = 256

Report = Callable[[Liveness], Awaitable[str]]
"""Puts one liveness into the log and returns its result's outcome.

A ``TidegateError`` means that it is not, or not surely, there.
"""

log = logs.get()


class Heartbeats:
    """Watches the owners of one space; a component of the worker.

    Silence is a suspicion, and frees nothing that may have been dispatched.

    Args:
        conn: The worker's connection; it must be allowed to speak and to listen on ``hb.…``.
        names: The space.
        worker: Who we are; our own beats carry this name.
        report: Puts a change into the log.
        monotonic_ms: A clock that never goes back.
        broker_ms: The broker's clock, as well as it is known.
        silence_ms: The policy's; asked at every look.
        random_hex: Makes what only we can say in a beat of ours.
    """

    name = "heartbeats"

    def __init__(
        self,
        conn: Connection,
        names: Names,
        worker: Speaker,
        report: Report,
        *,
        monotonic_ms: Callable[[], int],
        broker_ms: Callable[[], int],
        silence_ms: Callable[[], int],
        random_hex: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._conn = conn
        self._head = f"{names.prefix}.hb."
        self._own_subject = subjects.heartbeat(names, worker)
        self._report = report
        self._monotonic_ms = monotonic_ms
        self._broker_ms = broker_ms
        self._silence_ms = silence_ms
        self._random_hex = random_hex
        self._own_beats: dict[bytes, int] = {}
        self._own_sent_ms = -OWN_BEAT_MS
        self._reconnects = -1
        self._subscription: Subscription | None = None
        self._reports: dict[Speaker, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self.watch = Watch(monotonic_ms())

    async def start(self) -> None:
        """Listen.

        Raises:
            Denied: The broker's permissions refuse it.
        """
        self._subscription = await self._conn.subscribe(f"{self._head}*.*", self._on_beat)

    async def run(self) -> None:
        """Beat, look and report until stopped."""
        while not self._stopping.is_set():
            self.look()
            try:
                async with asyncio.timeout(LOOK_MS / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Report nothing more; what is on its way may land or not, and is true either way."""
        self._stopping.set()
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        reports = list(self._reports.values())
        for task in reports:
            task.cancel()
        await asyncio.gather(*reports, return_exceptions=True)

    def not_ready(self) -> list[str]:
        """Deafness delays suspicion and endangers nothing, so it is no reason."""
        return []

    def look(self) -> None:
        """One look; ``run`` does it four times a second."""
        now_ms = self._monotonic_ms()
        if not self._conn.connected or self._conn.reconnects != self._reconnects:
            self._reconnects = self._conn.reconnects
            self._own_beats.clear()
            self.watch.disturbed(now_ms)
        self.watch.silence_ms = self._silence_ms()
        if now_ms - self._own_sent_ms >= OWN_BEAT_MS:
            self._beat(now_ms)
        for change in self.watch.look(now_ms):
            if len(self._reports) >= IN_FLIGHT:
                break
            if change.owner not in self._reports:
                task = asyncio.create_task(self._send(change), name="report-liveness")
                self._reports[change.owner] = task

    def _beat(self, now_ms: int) -> None:
        mark = self._random_hex()
        body = strict_json.dumps({"v": 1, "mark": mark})
        try:
            self._conn.send(self._own_subject, b"", body)
        except BusError as error:
            log.debug("own_beat_not_sent", error=error)
            return
        self._own_sent_ms = now_ms
        self._own_beats[body] = now_ms
        while len(self._own_beats) > OWN_BEATS_KEPT:
            del self._own_beats[next(iter(self._own_beats))]

    async def _on_beat(self, msg: Msg) -> None:
        if msg.subject == self._own_subject:
            # What we did not say does not prove that we hear, whoever said it in our name.
            if (sent_ms := self._own_beats.get(msg.data)) is not None:
                self._hear_own(msg.data, sent_ms)
            return
        principal, _, uid = msg.subject.removeprefix(self._head).partition(".")
        if principal.startswith(tokens.RESERVED_PREFIX):
            return
        try:
            owner = Speaker(principal, uid)
        except BadInput:
            return
        self.watch.beat(owner, self._monotonic_ms())

    def _hear_own(self, body: bytes, sent_ms: int) -> None:
        while (first := next(iter(self._own_beats))) != body:
            # Beats come back in order, so this one was dropped, and with it perhaps others'.
            del self._own_beats[first]
            self.watch.disturbed(sent_ms)
        del self._own_beats[body]
        self.watch.own_beat(sent_ms)

    async def _send(self, change: Change) -> None:
        body = Liveness(
            v=1,
            owner=Owner(principal=change.owner.principal, uid=change.owner.uid),
            state=change.state,
            seen_at_ms=max(0, self._broker_ms() - (self._monotonic_ms() - change.heard_ms)),
        )
        try:
            outcome = await self._report(body)
        except TidegateError as error:
            log.info("liveness_not_reported", owner=change.owner.principal, error=error)
            self.watch.not_reported(change, self._monotonic_ms())
        else:
            if outcome == "fresh":
                # The log knows of a later command, or its clock is not that far yet.
                self.watch.not_reported(change, self._monotonic_ms())
            else:
                self.watch.reported(change)
            say = log.info if outcome in ("suspected", "cleared") else log.debug
            say(
                "liveness_reported",
                owner=change.owner.principal,
                uid=change.owner.uid,
                state=change.state,
                outcome=outcome,
            )
        finally:
            del self._reports[change.owner]
