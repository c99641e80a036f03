"""``Connector``: the shortest correct way from a turn to its seat and to its end.

A connector process opens one ``Connector`` and runs each turn in a block::

    async with Connector(client) as connector:
        async with connector.turn("req-1", session_id="s", agent_id="a", ...) as turn:
            await turn.start()
            child = await spawn()
            await turn.intent(child.pid)  # returns only when the result is in
            await child.write(prompt)  # nothing may be written before
            await turn.active()
            await turn.complete("completed")

The block begins when the turn has its seat. Leaving it settles what is not settled: a turn that
was not dispatched is abandoned, one that may have been becomes a debt. If the seat is lost, the
block is cancelled at once and ``LeaseLost`` is raised (spec/admission.md, States).
"""

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from schemas import admission as views
from schemas import subjects
from schemas.codes import BadInput, Code
from schemas.commands.adm import IntentIdentity, Payload, SealedQuery
from schemas.commands.sys import ProcessIdentity
from worker import logs
from worker.bus.errors import BusError
from worker.bus.subscription import Msg, Subscription
from worker.client import Client
from worker.client.admission import Admission
from worker.client.errors import Refused
from worker.client.hearing import is_stored
from worker.errors import TidegateError
from worker.evidence.identity import identify
from worker.evidence.procfs import NoEvidence
from worker.evidence.verdicts import Observer, observer_of
from worker.sealing.payloads import PayloadWriter
from worker.sealing.sealer import Sealer
from worker.turns import SETTLE_S, LeaseLost, NotAdmitted, Turn, TurnError, Wish

__all__ = ["Connector", "LeaseLost", "NoSealer", "NotAdmitted", "Turn", "TurnError"]

BEAT_S: Final = 1.0

LONGEST_QUEUE_MS: Final = 1_800_000
SPARE_MS: Final = 600_000
"""How much longer than the longest wait a sealed prompt is kept, for clocks that differ."""

log = logs.get()


class NoSealer(TidegateError):
    """A turn with a prompt needs Connector(…, sealer=…)."""

    code = Code.FAILED_PRECONDITION
    reason = "no-sealer"


class Connector:
    """One life of a connector: beats, enqueues turns, hears of seats granted and lost.

    Use it as ``async with Connector(client) as connector``. Closing it takes back what is queued.

    Args:
        client: Open; it speaks as the connector. One life, one process: its uid is new.
        host: The host's id; the machine id if absent.
        sealer: Seals and opens prompts; needed only for turns that have one.
        identity: This process; found out by itself where the system tells.
    """

    def __init__(
        self,
        client: Client,
        *,
        host: str | None = None,
        sealer: Sealer | None = None,
        identity: ProcessIdentity | None = None,
    ) -> None:
        self._client = client
        self._sealer = sealer
        self._observer = _observer(host)
        self._identity = identity or self._identify(os.getpid())
        self._turns: dict[str, Turn] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._beats: asyncio.Task[None] | None = None
        self._grants: Subscription | None = None
        self._closing = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it has been left: nothing is carried out for a turn any more."""
        return self._closed

    @property
    def adm(self) -> Admission:
        """The plane's verbs and queries, for what a turn has no method for."""
        return self._client.adm

    @property
    def identity(self) -> ProcessIdentity:
        """This process, as an observer can recognise it."""
        return self._identity

    async def __aenter__(self) -> Self:
        conn, names, speaker = self._client.conn, self._client.names, self._client.speaker
        await self._client.on_lease_lost(self._on_lost)
        self._grants = await conn.subscribe(subjects.grants_of(names, speaker), self._on_grant)
        self._beats = asyncio.create_task(self._beat(), name="connector-beats")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        told = [turn for turn in self._turns.values() if turn.close()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                for turn in told:
                    await turn.left.wait()
                if self._background:
                    await asyncio.wait(self._background)
        self._closed = True
        late = list(self._background)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._grants is not None:
            await self._grants.unsubscribe()
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)

    def turn(
        self,
        request_id: str,
        *,
        session_id: str,
        agent_id: str,
        fingerprint: str,
        provider: str,
        model: str,
        priority: int = 0,
        prompt: bytes | None = None,
        queue_timeout_ms: int | None = None,
    ) -> "Turn":
        """One turn: ``async with connector.turn(...) as turn`` waits for its seat.

        The same call by another life of the principal takes over a turn that is still queued.

        Args:
            request_id: Its name, unique in the space for ever.
            session_id: The conversation it belongs to.
            agent_id: Whose it is; fairness is between agents.
            fingerprint: What it is: the same request id with another one is a conflict.
            provider: Whose seat.
            model: Which model.
            priority: -100..100, higher first.
            prompt: Sealed before it leaves this process; read back with ``turn.prompt()``.
            queue_timeout_ms: Longest wait for a seat, if shorter than the policy's.

        Raises:
            NotAdmitted: On entering: it timed out, was cancelled, or runs elsewhere.
            Refused: On entering: the request id stands for something else.
            PayloadTaken: On entering: it was dispatched before, or has another prompt.
        """
        fields: dict[str, Any] = {
            "session_id": session_id,
            "agent_id": agent_id,
            "fingerprint": fingerprint,
            "provider": provider,
            "model": model,
            "priority": priority,
            "turn_timeout_ms": queue_timeout_ms,
            "identity": self._identity,
        }
        return Turn(self, self._client, Wish(request_id, prompt, fields))

    def intent_identity(self, child: int | ProcessIdentity | None) -> IntentIdentity:
        """This process and its child, for an intent.

        Raises:
            NoEvidence: The child has ended, or cannot be identified.
        """
        named = self._identify(child) if isinstance(child, int) else child
        return IntentIdentity(connector=self._identity, child=named)

    def admit_turn(self, turn: "Turn") -> None:
        """A turn's block begins: hear of its seat.

        Raises:
            TurnError: The connector closes, or the turn has a block already.
        """
        if self._closing:
            raise TurnError(turn.request_id, "the connector closes", reason="connector-closed")
        if turn.request_id in self._turns:
            raise TurnError(turn.request_id, "it has a block already", reason="already-running")
        self._turns[turn.request_id] = turn

    def forget_turn(self, turn: "Turn") -> None:
        """A turn's block has ended."""
        if self._turns.get(turn.request_id) is turn:
            del self._turns[turn.request_id]
        turn.left.set()

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that outlives a cancelled block; closing the connector waits for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def seal(self, wish: Wish, *, generation: int = 1, key: int | None = None) -> Payload:
        """Put a turn's prompt; see ``PayloadWriter.put``."""
        writer = PayloadWriter(
            self._client.conn,
            self._client.names,
            self._client.speaker.principal,
            self.sealer,
            self._find_sealed,
        )
        longest_ms = wish.fields["turn_timeout_ms"] or LONGEST_QUEUE_MS
        return await writer.put(
            wish.request_id,
            wish.prompt or b"",
            lifetime_ms=longest_ms + SPARE_MS,
            now_ms=time.time_ns() // 1_000_000,
            generation=generation,
            key_version=key,
        )

    @property
    def sealer(self) -> Sealer:
        """What seals and opens prompts.

        Raises:
            NoSealer: None was given.
        """
        if self._sealer is None:
            raise NoSealer
        return self._sealer

    async def _find_sealed(self, request_id: str, generation: int) -> Payload | None:
        body = SealedQuery(request_id=request_id, generation=generation)
        try:
            answer = await self._client.query("adm", "sealed", body)
        except Refused as refused:
            if refused.code is Code.NOT_FOUND:
                return None
            raise
        return Payload.from_object(answer.data)

    async def _beat(self) -> None:
        subject = subjects.heartbeat(self._client.names, self._client.speaker)
        while True:
            with contextlib.suppress(BusError):
                await self._client.conn.publish(subject)
            await asyncio.sleep(BEAT_S)

    async def _on_grant(self, msg: Msg) -> None:
        if not is_stored(self._client.names, msg):
            return
        try:
            grant = views.Grant.from_bytes(msg.data).heard_with(msg.headers)
        except BadInput as bad:
            log.warning("grant_not_understood", subject=msg.subject, reason=bad.reason)
            return
        turn = self._turns.get(grant.request_id)
        if turn is not None:
            turn.granted(grant.lease_id, grant.generation, grant.traceparent)

    def _on_lost(self, lost: views.LeaseLost) -> None:
        turn = self._turns.get(lost.request_id)
        if turn is not None:
            turn.lost(lost.lease_id, lost.generation, lost.reason)

    def _identify(self, pid: int) -> ProcessIdentity:
        if self._observer is None:
            return _unprovable(pid)
        return identify(pid, host=self._observer.host, reader=self._observer.reader)


def _observer(host: str | None) -> Observer | None:
    try:
        return observer_of(host)
    except NoEvidence as error:
        log.info("no_process_evidence", reason=error.reason)
        return None


def _unprovable(pid: int) -> ProcessIdentity:
    """An identity where none can be proven: no observer's host has that name, so none judges it."""
    return ProcessIdentity(
        host=f"unprovable {platform.node() or 'host'}"[:256],
        boot_id="unknown",
        pid=pid,
        start_ticks=0,
        pid_ns=0,
    )
