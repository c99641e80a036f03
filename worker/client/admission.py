"""Typed calls of the admission plane (spec/admission.md, States)."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas.admission import (
    Block,
    EventsPage,
    Grant,
    LeasesPage,
    PlaceView,
    PolicyView,
    QueueView,
    RecoverablePage,
    TurnOutcome,
    TurnView,
)
from schemas.commands.adm import (
    Abandon,
    Active,
    Admit,
    Ambiguous,
    Cancel,
    Complete,
    Cooldown,
    Drain,
    Enqueue,
    EventsQuery,
    Failure,
    Intent,
    IntentIdentity,
    LeasesQuery,
    Payload,
    Policy,
    PolicyAssertion,
    PolicyQuery,
    QueueQuery,
    RecoverableQuery,
    RequestQuery,
    Resolve,
    Start,
)
from schemas.commands.adm import Recover as RecoverBody
from schemas.commands.sys import ProcessIdentity
from schemas.model import Body
from schemas.results import Result
from schemas.strict_json import JsonObject
from worker.client.checkpoints import Calls

LICENCE_S: Final = 2.0
"""How old an ``ok`` to an intent may be: whoever was silent for the policy's 4 s may have been
declared lost, and its turn given to another life."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What a verb shows to prove that the seat is still its own; the owner is who speaks.

    Attributes:
        request_id: The turn.
        lease_id: Its lease.
        generation: The lease's generation.
    """

    request_id: str
    lease_id: str
    generation: int

    def to_object(self) -> JsonObject:
        """As it stands in a body; the request id stands in the subject."""
        return {"v": 1, "lease_id": self.lease_id, "generation": self.generation}


@dataclass(frozen=True, slots=True)
class Ruled:
    """What a verb about a turn led to.

    Attributes:
        word: Stable word of the verb: ``queued``, ``idempotent``, ``adopted``, ``starting``, …
        turn: The turn in short.
        result: The whole result.
    """

    word: str
    turn: TurnOutcome
    result: Result


@dataclass(frozen=True, slots=True)
class Admitted:
    """What asking for a seat led to; true only if there was one.

    Attributes:
        grant: The seat; ``None`` if there was none.
        blocks: What blocked, if there was none.
        result: The whole result.
    """

    grant: Grant | None
    blocks: tuple[Block, ...]
    result: Result

    def __bool__(self) -> bool:
        """Whether a seat was given."""
        return self.grant is not None


class Admission:
    """The verbs and queries of the plane ``adm``; errors are those of ``Client.call``.

    A connector process is easier written with ``worker.connector.Connector``.
    """

    def __init__(self, client: Calls) -> None:
        self._client = client

    async def enqueue(
        self,
        request_id: str,
        *,
        session_id: str,
        agent_id: str,
        fingerprint: str,
        provider: str,
        model: str,
        grant: Literal["push", "pull"] = "push",
        priority: int = 0,
        payload: Payload | None = None,
        turn_timeout_ms: int | None = None,
        identity: ProcessIdentity | None = None,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Ruled:
        """Queue a turn; the same again is answered with what became of it.

        Args:
            request_id: Its name, unique in the space for ever.
            session_id: The conversation it belongs to.
            agent_id: Whose it is; fairness is between agents.
            fingerprint: What it is, for idempotency.
            provider: Whose seat.
            model: Which model.
            grant: Whether the seat is pushed or asked for with ``admit``.
            priority: -100..100, higher first.
            payload: Where its sealed prompt lies.
            turn_timeout_ms: Longest wait in the queue, if shorter than the policy's.
            identity: The connector process, so that its end can be proven.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            Refused: ``different-request``, ``request-id-taken`` or ``request-id-used``.
        """
        body = Enqueue.from_object(
            {
                "v": 1,
                "session_id": session_id,
                "agent_id": agent_id,
                "fingerprint": fingerprint,
                "provider": provider,
                "model": model,
                "grant": grant,
                "priority": priority,
                "payload": None if payload is None else payload.to_object(),
                "timeout_ms": turn_timeout_ms,
                "identity": None if identity is None else identity.to_object(),
            }
        )
        return await self._ruled((request_id,), body, command_id, timeout_ms)

    async def cancel(
        self, request_id: str, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> Ruled:
        """Take a queued turn back.

        Raises:
            Refused: ``wrong-state`` if it is not queued any more.
        """
        return await self._ruled((request_id,), Cancel(v=1), command_id, timeout_ms)

    async def admit(
        self,
        request_id: str | None = None,
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Admitted:
        """Take a seat for a pull turn of our principal: the choice, or the named one if it is."""
        key = () if request_id is None else (request_id,)
        result = await self._call(key, Admit(v=1), command_id, timeout_ms)
        if result.outcome == "none":
            return Admitted(None, tuple(result.data["blocks"]), result)
        grant = Grant.from_object({"v": 1, "at_ms": result.at_ms, **result.data})
        return Admitted(grant, (), result)

    async def start(
        self, fence: Fence, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> Ruled:
        """The turn is being prepared."""
        body = Start.from_object(fence.to_object())
        return await self._ruled((fence.request_id,), body, command_id, timeout_ms)

    async def intent(
        self,
        fence: Fence,
        identity: IntentIdentity,
        channel: Literal["stdin", "pty", "http", "other"],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Ruled:
        """About to write to the provider; nothing may be written before this has returned.

        An ``ok`` that took longer than ``LICENCE_S`` is old and is asked for again, under the same
        id: it is judged anew, at its own place in the log.

        Args:
            fence: The seat.
            identity: The connector and, but for ``http``, its child.
            channel: How the provider is reached.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            Refused: ``fenced``, ``different-intent`` or ``wrong-state``: nothing may be written.
        """
        body = Intent.from_object(
            {**fence.to_object(), "identity": identity.to_object(), "channel": channel}
        )
        now, command_id = asyncio.get_running_loop().time, command_id or secrets.token_urlsafe(16)
        while True:
            asked_at = now()
            ruled = await self._ruled((fence.request_id,), body, command_id, timeout_ms)
            if now() - asked_at <= LICENCE_S:
                return ruled

    async def active(
        self, fence: Fence, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> Ruled:
        """The provider has the turn."""
        body = Active.from_object(fence.to_object())
        return await self._ruled((fence.request_id,), body, command_id, timeout_ms)

    async def ambiguous(
        self, fence: Fence, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> Ruled:
        """Nobody knows whether the provider has the turn."""
        body = Ambiguous.from_object(fence.to_object())
        return await self._ruled((fence.request_id,), body, command_id, timeout_ms)

    async def complete(
        self,
        fence: Fence,
        outcome: Literal["completed", "failed", "cancelled"],
        *,
        failure: Failure | None = None,
        retry_after_ms: int | None = None,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Ruled:
        """The turn is over.

        Args:
            fence: The seat.
            outcome: How.
            failure: Only with ``failed``; ``provider_capacity`` lets the model rest.
            retry_after_ms: The provider's wish; it may lengthen that rest.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.
        """
        body = Complete.from_object(
            {
                **fence.to_object(),
                "outcome": outcome,
                "failure": None if failure is None else failure.to_object(),
                "retry_after_ms": retry_after_ms,
            }
        )
        return await self._ruled((fence.request_id,), body, command_id, timeout_ms)

    async def abandon(
        self,
        fence: Fence,
        outcome: Literal["failed", "cancelled"],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Ruled:
        """Our word that nothing was written: over, and never queued again."""
        body = Abandon.from_object({**fence.to_object(), "outcome": outcome})
        return await self._ruled((fence.request_id,), body, command_id, timeout_ms)

    async def recover(
        self, fence: Fence, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> Ruled:
        """We cannot say how the turn ended: a debt that keeps its seat."""
        body = RecoverBody.from_object(fence.to_object())
        return await self._ruled((fence.request_id,), body, command_id, timeout_ms)

    async def resolve(
        self,
        request_id: str,
        resolution: Literal[
            "confirmed_not_dispatched", "confirmed_completed", "acknowledged_unknown"
        ],
        evidence: str,
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Ruled:
        """Decide about a debt; an operator's verb.

        Raises:
            Refused: ``wrong-state`` if it is none.
        """
        body = Resolve.from_object({"v": 1, "resolution": resolution, "evidence": evidence})
        return await self._ruled((request_id,), body, command_id, timeout_ms)

    async def cooldown(
        self,
        provider: str,
        model: str,
        not_before_ms: int,
        *,
        replace: bool = False,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> int:
        """Let a model rest; an operator's verb.

        Args:
            provider: Whose model.
            model: The model.
            not_before_ms: Until when, a year from now at most.
            replace: Whether that holds even if the model would rest longer.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Returns:
            Until when it rests.
        """
        rest = {"provider": provider, "model": model, "not_before_ms": not_before_ms}
        body = Cooldown.from_object({"v": 1, **rest, **({"replace": True} if replace else {})})
        result = await self._call((), body, command_id, timeout_ms)
        return int(result.data["until_ms"])

    async def claim_policy(
        self,
        epoch: int,
        *,
        resume: bool = False,
        command_id: str | None = None,
        timeout_ms: int | None = None,
        **values: int | Mapping[str, int] | None,
    ) -> PolicyView:
        """Claim the policy; an operator's verb. Values left out take their defaults.

        Args:
            epoch: The epoch to claim: 1, or the one after that in force.
            resume: Whether the claim ends a drain that stands; else the drain's limit stays.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.
            values: As ``schemas.commands.adm.PolicyValues``.

        Raises:
            Refused: ``epoch-mismatch`` or ``claim-pending``.
        """
        resumes = {"resume": True} if resume else {}
        body = Policy.from_object({"v": 1, "epoch": epoch, **values, **resumes})
        result = await self._call((), body, command_id, timeout_ms)
        return PolicyView.from_object(result.data)

    async def assert_policy(
        self,
        believed: PolicyAssertion,
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> PolicyView:
        """Compare what is believed to be in force with what is; an operator's verb.

        Raises:
            Refused: ``policy-differs``.
        """
        body = Policy.from_object({"v": 1, "assert": believed.to_object()})
        result = await self._call((), body, command_id, timeout_ms)
        return PolicyView.from_object(result.data)

    async def drain(
        self, to: int, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> PolicyView:
        """Bring the seats to a limit, down or up; 0 pauses. An operator's verb.

        It stands until another drain comes, or a claim that resumes.
        """
        result = await self._call((), Drain.from_object({"v": 1, "to": to}), command_id, timeout_ms)
        return PolicyView.from_object(result.data)

    async def request(
        self, request_id: str, *, after: str | None = None, timeout_ms: int | None = None
    ) -> TurnView:
        """One turn.

        Args:
            request_id: Which.
            after: Id of a result that the answer must include.
            timeout_ms: How long to wait for the answer.

        Raises:
            Refused: ``no-such-request``.
        """
        body = RequestQuery.from_object({"request_id": request_id, "after": after})
        answer = await self._client.query("adm", "request", body, timeout_ms=timeout_ms)
        return TurnView.from_object(answer.data)

    async def place(self, request_id: str, *, timeout_ms: int | None = None) -> PlaceView:
        """Where a turn stands in the queue, and what keeps it there."""
        body = QueueQuery.from_object({"request_id": request_id})
        answer = await self._client.query("adm", "queue", body, timeout_ms=timeout_ms)
        return PlaceView.from_object(answer.data)

    async def queue(self, *, limit: int = 100, timeout_ms: int | None = None) -> QueueView:
        """The head of the queue, what blocks it, and models that rest."""
        body = QueueQuery.from_object({"limit": limit})
        answer = await self._client.query("adm", "queue", body, timeout_ms=timeout_ms)
        return QueueView.from_object(answer.data)

    async def leases(
        self,
        *,
        limit: int = 100,
        after_request_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> LeasesPage:
        """Every seat that is held, by request id."""
        body = LeasesQuery.from_object({"limit": limit, "after_request_id": after_request_id})
        answer = await self._client.query("adm", "leases", body, timeout_ms=timeout_ms)
        return LeasesPage.from_object(answer.data)

    async def recoverable(
        self,
        *,
        host: str | None = None,
        limit: int = 200,
        after_request_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> RecoverablePage:
        """What evidence, or an operator, could settle."""
        body = RecoverableQuery.from_object(
            {"host": host, "limit": limit, "after_request_id": after_request_id}
        )
        answer = await self._client.query("adm", "recoverable", body, timeout_ms=timeout_ms)
        return RecoverablePage.from_object(answer.data)

    async def policy(self, *, timeout_ms: int | None = None) -> PolicyView:
        """The policy in force and what is counted against it."""
        answer = await self._client.query("adm", "policy", PolicyQuery(), timeout_ms=timeout_ms)
        return PolicyView.from_object(answer.data)

    async def events(
        self, *, after: int = 0, limit: int = 100, timeout_ms: int | None = None
    ) -> EventsPage:
        """A page of the journal.

        Raises:
            Failed: ``journal-damaged``, or the space's key cannot be read now.
        """
        body = EventsQuery.from_object({"after": after, "limit": limit})
        answer = await self._client.query("adm", "events", body, timeout_ms=timeout_ms)
        return EventsPage.from_object(answer.data)

    async def _ruled(
        self, key: tuple[str, ...], body: Body, command_id: str | None, timeout_ms: int | None
    ) -> Ruled:
        result = await self._call(key, body, command_id, timeout_ms)
        return Ruled(result.outcome, outcome_of(result.data), result)

    async def _call(
        self, key: tuple[str, ...], body: Body, command_id: str | None, timeout_ms: int | None
    ) -> Result:
        return await self._client.call(
            body.PLANE, body.VERB, key, body, command_id=command_id, timeout_ms=timeout_ms
        )


def outcome_of(data: JsonObject) -> TurnOutcome:
    """The turn in short, from a result that shows it in short or whole."""
    short = {name: data[name] for name in TurnOutcome.model_fields if name in data}
    return TurnOutcome.from_object(short)
