"""One turn of a connector, from the queue to its end; ``Connector.turn`` makes it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeVar

from schemas.admission import ADMITTED, QUEUED, SEATED, SealedPayload, TurnView
from schemas.codes import BadInput, Code
from schemas.commands.adm import Failure, IntentIdentity, Payload, PayloadQuery
from schemas.commands.sys import ProcessIdentity
from worker import logs
from worker.bus.errors import Unavailable
from worker.client import Client, new_command_id
from worker.client.admission import Fence, Ruled
from worker.client.errors import CallTimeout, Failed, NobodyThere, QueryTimeout, Refused
from worker.errors import TidegateError
from worker.sealing.payloads import PayloadTaken, sealed_bytes
from worker.sealing.sealer import Sealer

SETTLE_S: Final = 5.0
"""How long the end of a block waits for its turn to be settled; it goes on in the background."""

LOOK_FIRST_S: Final = 1.0
LOOK_MOST_S: Final = 10.0
RETRY_S: Final = 0.2
RETRY_MOST_S: Final = 2.0

Channel = Literal["stdin", "pty", "http", "other"]
Phase = Literal["outside", "queued", "seated", "intending", "dispatched", "settled"]

T = TypeVar("T")

log = logs.get()


class TurnError(TidegateError):
    """A turn could not be run.

    Attributes:
        request_id: The turn.
    """

    code = Code.FAILED_PRECONDITION
    reason = "turn-not-run"

    def __init__(self, request_id: str, message: str, *, reason: str | None = None) -> None:
        self.request_id = request_id
        super().__init__(f"turn {request_id}: {message}", reason=reason)


class NotAdmitted(TurnError):
    """The turn will get no seat here.

    Attributes:
        request_id: The turn.
        state: Where it is.
    """

    reason = "not-admitted"

    def __init__(self, request_id: str, state: str) -> None:
        self.state = state
        what = "another connector runs it" if state in SEATED | {QUEUED} else f"it is {state}"
        super().__init__(request_id, f"no seat here, {what}")


class LeaseLost(TurnError):
    """The seat is no longer ours; whatever we do with the turn now is too late.

    Attributes:
        request_id: The turn.
        generation: Of the lost lease.
        why: What took it, as in ``schemas.admission.LeaseLost``; ``fenced`` if a verb found out.
            A query never finds out: the worker that answers it may be behind.
    """

    code = Code.FENCED
    reason = "lease-lost"

    def __init__(self, request_id: str, generation: int, why: str) -> None:
        self.generation = generation
        self.why = why
        super().__init__(request_id, f"its seat is lost: {why}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a turn asks for; see ``Connector.turn``."""

    request_id: str
    prompt: bytes | None = field(repr=False)
    fields: dict[str, Any]


class Home(Protocol):
    """What a turn needs of its connector; see ``worker.connector.Connector``."""

    @property
    def sealer(self) -> Sealer:
        """What opens prompts."""
        ...

    @property
    def closed(self) -> bool:
        """Whether nothing is carried out for a turn any more."""
        ...

    def intent_identity(self, child: int | ProcessIdentity | None) -> IntentIdentity:
        """This process and its child."""
        ...

    def admit_turn(self, turn: "Turn") -> None:
        """A block begins."""
        ...

    def forget_turn(self, turn: "Turn") -> None:
        """A block has ended."""
        ...

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that outlives a cancelled block."""
        ...

    async def seal(self, wish: Wish, *, generation: int = 1, key: int | None = None) -> Payload:
        """Put the turn's prompt."""
        ...


class Turn:
    """One turn of a connector; see ``Connector.turn``.

    Attributes:
        request_id: The turn.
        fence: Its seat; raises until it has one.
        traceparent: W3C trace context of the command that enqueued it, to be continued; ``None``
            if that had none, or until it is known.
        left: Set once its block has ended.
    """

    def __init__(self, connector: Home, client: Client, wish: Wish) -> None:
        self.request_id = wish.request_id
        self.traceparent: str | None = None
        self._connector = connector
        self._client = client
        self._wish = wish
        self._phase: Phase = "outside"
        self._seat: asyncio.Future[Fence] | None = None
        self._fence: Fence | None = None
        self._lost: LeaseLost | None = None
        self._after: str | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled_by_us = False
        self.left = asyncio.Event()

    @property
    def fence(self) -> Fence:
        """The seat."""
        if self._fence is None:
            raise TurnError(self.request_id, "it has no seat yet", reason="no-seat")
        return self._fence

    async def __aenter__(self) -> Self:
        self._connector.admit_turn(self)
        self._seat = asyncio.get_running_loop().create_future()
        try:
            await self._enqueue()
            self._fence = await self._wait_for_seat(self._seat)
        except BaseException:
            await self._leave()
            raise
        self._phase = "seated"
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lost is not None:
            self._connector.forget_turn(self)
            if kind is None or (kind is asyncio.CancelledError and self._only_we_cancelled()):
                raise self._lost from error
            return
        cancelled = kind is None or issubclass(kind, asyncio.CancelledError)
        await self._leave("cancelled" if cancelled else "failed")

    async def prompt(self) -> bytes:
        """The prompt, opened; only before ``active``.

        Raises:
            LeaseLost: The seat is lost.
            Refused: There is no prompt, it was destroyed, or the worker that was asked does not
                know this seat; a query is no proof that it is lost, the next verb finds out.
            SealRefused: It cannot be opened with our keys.
        """
        fence = self.fence
        body = PayloadQuery(
            request_id=fence.request_id,
            lease_id=fence.lease_id,
            generation=fence.generation,
            after=self._after,
        )
        answer = await self._persist(lambda: self._client.query("adm", "payload", body))
        sealed = SealedPayload.from_object(answer.data)
        return self._connector.sealer.open(self.request_id, sealed_bytes(sealed))

    async def start(self) -> None:
        """The turn is being prepared.

        Raises:
            LeaseLost: The seat is lost.
        """
        await self._step(lambda id_: self._client.adm.start(self.fence, command_id=id_))

    async def intent(
        self, child: int | ProcessIdentity | None = None, *, channel: Channel = "pty"
    ) -> None:
        """About to write to the provider; it has returned before anything may be written.

        Args:
            child: Process id or identity of the process that talks to the provider.
            channel: How the provider is reached; ``http`` has no child.

        Raises:
            LeaseLost: The seat is lost: nothing may be written.
            NoEvidence: The child has ended: nothing may be written.
        """
        identity = self._connector.intent_identity(child)
        self._phase = "intending"
        await self._step(
            lambda id_: self._client.adm.intent(self.fence, identity, channel, command_id=id_)
        )
        self._phase = "dispatched"

    async def active(self) -> None:
        """The provider has the turn; its prompt is destroyed.

        Raises:
            LeaseLost: The seat is lost.
        """
        await self._step(lambda id_: self._client.adm.active(self.fence, command_id=id_))

    async def ambiguous(self) -> None:
        """We cannot tell whether the provider has the turn: a debt, and the end of the block."""
        await self._settle(lambda id_: self._client.adm.ambiguous(self.fence, command_id=id_))

    async def complete(
        self,
        outcome: Literal["completed", "failed", "cancelled"] = "completed",
        *,
        failure: Failure | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        """The turn is over.

        Args:
            outcome: How.
            failure: Why, if it failed; ``provider_capacity`` lets the model rest.
            retry_after_ms: The provider's wish.

        Raises:
            LeaseLost: The seat is lost.
        """
        await self._settle(
            lambda id_: self._client.adm.complete(
                self.fence,
                outcome,
                failure=failure,
                retry_after_ms=retry_after_ms,
                command_id=id_,
            )
        )

    async def abandon(self, outcome: Literal["failed", "cancelled"] = "cancelled") -> None:
        """Our word that nothing was written: over, and never queued again."""
        await self._settle(
            lambda id_: self._client.adm.abandon(self.fence, outcome, command_id=id_)
        )

    async def recover(self) -> None:
        """We cannot say how the turn ended: a debt that keeps its seat."""
        await self._settle(lambda id_: self._client.adm.recover(self.fence, command_id=id_))

    def granted(self, lease_id: str, generation: int, traceparent: str | None = None) -> None:
        """A seat was given to this turn."""
        if self._seat is not None and not self._seat.done():
            self.traceparent = traceparent or self.traceparent
            # A lease is named after the command that gave it.
            self._after = "-".join(lease_id.split("-")[:2])
            self._seat.set_result(Fence(self.request_id, lease_id, generation))

    def lost(self, lease_id: str, generation: int, why: str) -> None:
        """A seat of this turn was taken away; the block is cancelled at once if it was ours."""
        if self._fence is None or (self._fence.lease_id, self._fence.generation) != (
            lease_id,
            generation,
        ):
            return
        self._lose(why)

    def close(self) -> bool:
        """The connector closes: stop waiting for a seat.

        Returns:
            Whether it was waited for; then the turn is taken back now.
        """
        return self._seat is not None and not self._seat.done() and self._seat.cancel()

    def _only_we_cancelled(self) -> bool:
        # The same bookkeeping as asyncio.timeout's: whoever else cancelled the task gets its way.
        if self._task is None or not self._cancelled_by_us:
            return False
        return self._task.uncancel() <= self._cancelling

    def _lose(self, why: str) -> None:
        if self._lost is not None or self._phase == "settled":
            return
        self._phase = "settled"
        self._lost = LeaseLost(self.request_id, self.fence.generation, why)
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task():
            self._cancelled_by_us = task.cancel()

    async def _enqueue(self) -> None:
        payload = None if self._wish.prompt is None else await self._sealed()
        command_id = new_command_id()
        self._phase = "queued"
        try:
            ruled = await self._persist(
                lambda: self._client.adm.enqueue(
                    self.request_id, **self._wish.fields, payload=payload, command_id=command_id
                )
            )
        except Refused:
            # The id stands for something else, which is not ours to cancel.
            self._phase = "outside"
            raise
        if self.traceparent is None:
            # The grant says it too, and may have been first; a grant that is missed says nothing.
            self.traceparent = ruled.result.traceparent
        self._after = self._after or ruled.result.id
        if ruled.turn.state != QUEUED:
            self._look_at(TurnView.from_object(ruled.result.data))

    async def _sealed(self) -> Payload:
        try:
            return await self._persist(lambda: self._connector.seal(self._wish))
        except PayloadTaken:
            # An operator may have sent the turn back after its prompt was destroyed.
            turn = await self._persist(lambda: self._client.adm.request(self.request_id))
            if not turn.awaits_payload:
                raise
            return await self._persist(
                lambda: self._connector.seal(
                    self._wish, generation=turn.generation, key=turn.payload_key_version
                )
            )

    async def _wait_for_seat(self, seat: asyncio.Future[Fence]) -> Fence:
        """Wait for the grant, looking now and then in case its message was missed."""
        pause_s = LOOK_FIRST_S
        while True:
            await asyncio.wait({seat}, timeout=pause_s)
            if seat.cancelled():
                raise TurnError(self.request_id, "the connector closes", reason="connector-closed")
            if seat.done():
                return seat.result()
            pause_s = min(2 * pause_s, LOOK_MOST_S)
            try:
                view = await self._client.adm.request(self.request_id, after=self._after)
            except (QueryTimeout, NobodyThere, Unavailable, Refused) as error:
                # A worker that is behind knows no better; only a command's result is a verdict.
                log.debug("turn_not_looked_at", request_id=self.request_id, error=error)
            else:
                self._look_at(view)

    def _look_at(self, turn: TurnView) -> None:
        if turn.state == QUEUED and turn.owner.uid == self._client.speaker.uid:
            return
        lease = turn.lease
        ours = lease is not None and lease.owner.uid == self._client.speaker.uid
        if lease is not None and ours and turn.state == ADMITTED:
            self.granted(lease.lease_id, lease.generation)
            return
        self._phase = "outside"
        raise NotAdmitted(self.request_id, turn.state)

    async def _step(self, call: Callable[[str], Awaitable[Ruled]]) -> Ruled:
        """A verb under the fence, carried out once however often it must be asked for."""
        command_id = new_command_id()
        try:
            ruled = await self._persist(lambda: call(command_id))
        except Refused as refused:
            if refused.code is Code.FENCED:
                self._lose("fenced")
                if self._lost is not None:
                    raise self._lost from refused
            raise
        self._after = ruled.result.id
        return ruled

    async def _settle(self, call: Callable[[str], Awaitable[Ruled]]) -> None:
        await self._step(call)
        self._phase = "settled"

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        pause_s = RETRY_S
        while True:
            if self._lost is not None:
                raise self._lost
            if self._connector.closed:
                raise TurnError(
                    self.request_id, "the connector was left", reason="connector-closed"
                )
            try:
                return await call()
            except (CallTimeout, QueryTimeout, NobodyThere, Unavailable, Failed) as error:
                if isinstance(error, Failed) and not error.retryable:
                    raise
                log.info("turn_waits_for_the_platform", request_id=self.request_id, error=error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    async def _leave(self, outcome: Literal["failed", "cancelled"] = "cancelled") -> None:
        """Settle what is not settled; it is waited for a while, and not given up when cancelled."""
        task = self._connector.in_background(self._settle_rest(outcome))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), SETTLE_S)

    async def _settle_rest(self, outcome: Literal["failed", "cancelled"]) -> None:
        try:
            match self._phase:
                case "queued":
                    await self._take_back()
                case "seated" | "intending":
                    await self.abandon(outcome)
                case "dispatched":
                    await self.recover()
        except (TidegateError, BadInput) as error:
            # Start timeout, silence and evidence do what is left to do.
            log.warning("turn_not_settled", request_id=self.request_id, error=error)
        finally:
            self._connector.forget_turn(self)

    async def _take_back(self) -> None:
        """Cancel while queued; a seat that came meanwhile is given back."""
        try:
            await self._persist(lambda: self._client.adm.cancel(self.request_id))
        except Refused as refused:
            if refused.reason != "wrong-state" or refused.result.data.get("state") != ADMITTED:
                return
            after = refused.result.id
            turn = await self._persist(
                lambda: self._client.adm.request(self.request_id, after=after)
            )
            lease = turn.lease
            if lease is not None and lease.owner.uid == self._client.speaker.uid:
                self._fence = Fence(self.request_id, lease.lease_id, lease.generation)
                await self.abandon("cancelled")
