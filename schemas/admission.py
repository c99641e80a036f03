"""What results, grants, facts and queries of the admission plane show (spec/admission.md)."""

from typing import Annotated, Final, Literal

from pydantic import Field

from schemas.commands.adm import Failure, IntentIdentity, PolicyValues
from schemas.commands.sys import Fence, Owner
from schemas.model import Closed, Message, Traced
from schemas.strict_json import JsonObject
from schemas.tokens import Count, Generation, HexDigest, Instant, Label, Name

QUEUED: Final = "queued"
ADMITTED: Final = "admitted"
STARTING: Final = "starting"
DISPATCH_INTENT: Final = "dispatch_intent"
ACTIVE: Final = "active"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
QUEUE_TIMEOUT: Final = "queue_timeout"
DISPATCH_AMBIGUOUS: Final = "dispatch_ambiguous"
RECOVERY_REQUIRED: Final = "recovery_required"

TurnState = Literal[
    "queued",
    "admitted",
    "starting",
    "dispatch_intent",
    "active",
    "completed",
    "failed",
    "cancelled",
    "queue_timeout",
    "dispatch_ambiguous",
    "recovery_required",
]

BEFORE_INTENT: Final = frozenset({ADMITTED, STARTING})
"""A lease in these was certainly not dispatched."""

STARTS: Final = frozenset({ADMITTED, STARTING, DISPATCH_INTENT})
"""What ``max_concurrent_starts`` counts."""

DEBT: Final = frozenset({DISPATCH_AMBIGUOUS, RECOVERY_REQUIRED})
"""With a lease: a seat that only evidence or an operator frees."""

SEATED: Final = frozenset(
    {ADMITTED, STARTING, DISPATCH_INTENT, DISPATCH_AMBIGUOUS, ACTIVE, RECOVERY_REQUIRED}
)
"""States that may have a lease; all but ``recovery_required`` always have one."""

TERMINAL: Final = frozenset({COMPLETED, FAILED, CANCELLED, QUEUE_TIMEOUT})
"""States without a lease that nothing leaves."""

JournalKind = Literal[
    "request_enqueued",
    "request_cancelled",
    "request_abandoned",
    "request_queue_timed_out",
    "request_admitted",
    "request_starting",
    "request_dispatch_intent",
    "request_active",
    "request_dispatch_ambiguous",
    "request_provider_terminal",
    "request_released",
    "request_recovery_required",
    "request_recovery_seat_released",
    "request_requeued",
    "request_adopted",
    "request_resolved",
    "queued_owner_dead",
    "policy_claimed",
    "policy_drain_started",
    "policy_drain_completed",
]

Block = Literal[
    "seats", "starts", "pacing", "drain", "cooldown", "silence", "payload", "order", "empty"
]
"""What keeps a turn from its seat.

``seats``, ``starts``, ``pacing`` and ``drain`` block everyone; ``cooldown`` (of the model) and
``silence`` (of the owner) skip a turn; ``payload``: it waits for a new prompt; ``order``: another
turn goes first; ``empty``: nothing waits.
"""

Suspicion = Literal["heartbeat_expired", "identity_unverifiable"]
"""Why a lease's owner is not trusted to be alive."""


class LeaseView(Closed):
    """A seat that is held.

    Attributes:
        lease_id: Part of the fence.
        generation: Part of the fence.
        owner: Part of the fence: who runs the turn.
        admitted_at_ms: Since when.
        start_deadline_at_ms: When it goes back to the queue; until intent only.
    """

    lease_id: Name
    generation: Generation
    owner: Owner
    admitted_at_ms: Instant
    start_deadline_at_ms: Instant | None = None


class TurnView(Closed):
    """A turn as results and queries show it.

    Attributes:
        request_id: Its name.
        state: Where it is; the phase of its lease, if it has one.
        generation: Counts admissions that were taken back, from 1.
        owner: The connector process that queued it; ``lease`` says which one runs it.
        session_id: As enqueued.
        agent_id: As enqueued.
        fingerprint: As enqueued.
        provider: As enqueued.
        model: As enqueued.
        grant: As enqueued.
        priority: As enqueued.
        enqueued_at_ms: When it was enqueued first.
        deadline_at_ms: When waiting ends.
        lease: The seat it holds.
        payload_key_version: The key that sealed its prompt, if it has one.
        awaits_payload: Whether it waits for its prompt to be sealed again, with that key.
        settled_at_ms: When it settled.
        reason: Why it ended, where the state does not say.
        failure: Why it failed, in its owner's words.
    """

    request_id: Name
    state: TurnState
    generation: Generation
    owner: Owner
    session_id: Label
    agent_id: Label
    fingerprint: Label
    provider: Label
    model: Label
    grant: Literal["push", "pull"]
    priority: Annotated[int, Field(ge=-100, le=100)]
    enqueued_at_ms: Instant
    deadline_at_ms: Instant
    lease: LeaseView | None = None
    payload_key_version: Generation | None = None
    awaits_payload: bool | None = None
    settled_at_ms: Instant | None = None
    reason: str | None = None
    failure: Failure | None = None


class TurnOutcome(Closed):
    """Data of a verb's result: the turn in short.

    Attributes:
        request_id: The turn.
        state: Where it is now.
        generation: Of its lease, or the next one.
        deadline_at_ms: When waiting ends; while queued only.
        lease: Its seat; where the result hands it out.
    """

    request_id: Name
    state: TurnState
    generation: Generation
    deadline_at_ms: Instant | None = None
    lease: LeaseView | None = None


class Grant(Traced):
    """Body of ``grant.<owner>.<request id>.<generation>``, and data of an ``admitted`` result.

    Attributes:
        at_ms: When the seat was given; not in a result, which has its own.
        request_id: Which turn.
        generation: Part of the fence.
        lease_id: Part of the fence.
        session_id: As enqueued.
        agent_id: As enqueued.
        provider: As enqueued.
        model: As enqueued.
        start_deadline_at_ms: Intent must have been accepted by then, or the seat is given back.
        payload: Whether a sealed prompt can be had by the query ``adm.payload``.
    """

    at_ms: Instant
    request_id: Name
    generation: Generation
    lease_id: Name
    session_id: Label
    agent_id: Label
    provider: Label
    model: Label
    start_deadline_at_ms: Instant
    payload: bool


LossReason = Literal[
    "start-timeout", "owner-dead", "recovery", "seat-released", "confirmed-not-dispatched",
    "confirmed-completed", "acknowledged-unknown",
]  # fmt: skip


LEASE_LOST: Final = "lease_lost"
"""Stands for a verb in the subject of the message to the owner, and for a kind in the fact's."""


class LeaseLost(Traced):
    """Body of ``fact.adm.lease_lost.<request id>.<generation>`` and of the owner's message.

    Attributes:
        at_ms: When.
        request_id: Which turn.
        generation: Of the lost lease.
        lease_id: The lost lease.
        reason: Why.
        state: Where the turn is now.
    """

    at_ms: Instant
    request_id: Name
    generation: Generation
    lease_id: Name
    reason: LossReason
    state: TurnState


class JournalFact(Message):
    """Body of ``fact.adm.journal.<kind>``: identifier-free.

    Attributes:
        at_ms: When.
        sequence: Its place in the journal, without gaps.
        kind: What happened.
        from_: The state before, ``from`` on the wire.
        to: The state after.
        request: HMAC of the request id under the space's key; absent for the policy's events.
    """

    at_ms: Instant
    sequence: Generation
    kind: JournalKind
    from_: Annotated[TurnState | None, Field(alias="from")] = None
    to: TurnState | None = None
    request: HexDigest | None = None


class EventView(Closed):
    """One row of a page of the journal; fields as in ``JournalFact``."""

    sequence: Generation
    kind: JournalKind
    from_: Annotated[TurnState | None, Field(alias="from")] = None
    to: TurnState | None = None
    at_ms: Instant
    request: HexDigest | None = None


class EventsPage(Closed):
    """Answer of the query ``adm.events``.

    Attributes:
        events: In order.
        next_after: ``after`` of the next page; absent on the last one.
    """

    events: list[EventView]
    next_after: Count | None = None

    def to_object(self) -> JsonObject:
        """As ``Closed.to_object``, with the names on the wire."""
        return self.model_dump(exclude_none=True, by_alias=True)


class PolicyView(Closed):
    """The policy and what it is measured against.

    Attributes:
        epoch: 0 until it was claimed.
        policy: The values in force.
        seat_limit: Seats that may be held now: the policy's, or that of a drain.
        draining: Whether more seats are still held than that.
        drained_to: The limit of the drain that stands, whatever policies were claimed since.
        seats: Seats held, debt included.
        starts: Leases between admission and active.
        queued: Turns that wait.
        next_epoch: Claimed, and in force as soon as the drain ends.
        next_policy: Its values.
    """

    epoch: Count
    policy: PolicyValues
    seat_limit: Count
    draining: bool
    seats: Count
    starts: Count
    queued: Count
    drained_to: Count | None = None
    next_epoch: Generation | None = None
    next_policy: PolicyValues | None = None


class PlaceView(Closed):
    """Where one turn stands in the queue.

    Attributes:
        request_id: Which turn.
        state: ``queued``, or why it has no place.
        position: 1 is first, in plain order over the whole queue; ``1000+`` beyond 1,000.
        eligible_position: As ``position``, among those that nothing but capacity keeps waiting.
        waited_ms: Since it was enqueued.
        deadline_at_ms: When waiting ends.
        priority: As enqueued.
        agent_id: As enqueued.
        provider: As enqueued.
        model: As enqueued.
        cooldown_until_ms: When its model's cooldown ends.
        blocks: What keeps it waiting now.
    """

    request_id: Name
    state: TurnState
    position: int | str | None = None
    eligible_position: int | str | None = None
    waited_ms: Count | None = None
    deadline_at_ms: Instant | None = None
    priority: int
    agent_id: Label
    provider: Label
    model: Label
    cooldown_until_ms: Instant | None = None
    blocks: list[Block]


class CooldownView(Closed):
    """A model that rests.

    Attributes:
        provider: Whose.
        model: Which.
        until_ms: Until when.
    """

    provider: Label
    model: Label
    until_ms: Instant


class QueueView(Closed):
    """Answer of the query ``adm.queue`` without a request id.

    Attributes:
        queued: Turns that wait.
        blocks: What keeps everyone waiting now.
        cooldowns: Models that rest, the first to end first, 1,000 at most.
        turns: The head of the queue in plain order.
    """

    queued: Count
    blocks: list[Block]
    cooldowns: list[CooldownView]
    turns: list[PlaceView]


class SeatView(Closed):
    """A held seat as ``adm.leases`` and ``adm.recoverable`` show it.

    Attributes:
        request_id: Which turn.
        state: The lease's phase.
        lease_id: Part of the fence.
        generation: Part of the fence.
        owner: Part of the fence.
        agent_id: For whom.
        provider: Whose seat.
        model: Which model.
        admitted_at_ms: Since when.
        start_deadline_at_ms: When it goes back to the queue; until intent only.
        debt_since_ms: Since when it is a debt.
        suspect_since_ms: Since when its owner is suspect.
        suspicion: Why.
        frees: What would free the seat.
    """

    request_id: Name
    state: TurnState
    lease_id: Name
    generation: Generation
    owner: Owner
    agent_id: Label
    provider: Label
    model: Label
    admitted_at_ms: Instant
    start_deadline_at_ms: Instant | None = None
    debt_since_ms: Instant | None = None
    suspect_since_ms: Instant | None = None
    suspicion: Suspicion | None = None
    frees: list[str]


class LeasesPage(Closed):
    """Answer of the query ``adm.leases``.

    Attributes:
        leases: By request id.
        next_after_request_id: Cursor of the next page; absent on the last one.
    """

    leases: list[SeatView]
    next_after_request_id: Name | None = None


class Recoverable(Closed):
    """A turn whose processes an observer should look at.

    Attributes:
        request_id: Which turn.
        state: Where it is.
        fence: The lease's full fence; absent for a queued turn.
        channel: How the provider is reached; once intent was accepted.
        identity: The processes to look at.
        seat: The seat, for people; absent for a queued turn.
    """

    request_id: Name
    state: TurnState
    fence: Fence | None = None
    channel: Literal["stdin", "pty", "http", "other"] | None = None
    identity: IntentIdentity | None = None
    seat: SeatView | None = None


class RecoverablePage(Closed):
    """Answer of the query ``adm.recoverable``.

    Attributes:
        turns: By request id.
        quarantined: Turns whose row could not be read; they hold up no other.
        next_after_request_id: Cursor of the next page; absent on the last one.
    """

    turns: list[Recoverable]
    quarantined: list[Name]
    next_after_request_id: Name | None = None


class SealedPayload(Closed):
    """Answer of the query ``adm.payload``: a prompt that only its client can open.

    Attributes:
        key_version: Version of the key file that sealed it.
        content_fingerprint: Keyed digest of the prompt.
        sealed: The sealed prompt, in base64.
    """

    key_version: Generation
    content_fingerprint: HexDigest
    sealed: str


class PayloadPlace(Closed):
    """Where the sealed prompt of a lease lies; never leaves the worker.

    Attributes:
        key: Key in the payload bucket.
        revision: Its revision.
        key_version: Version of the key file that sealed it.
        content_fingerprint: Keyed digest of the prompt.
    """

    key: str
    revision: Generation
    key_version: Generation
    content_fingerprint: HexDigest
