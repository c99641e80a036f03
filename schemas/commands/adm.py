"""Bodies of the admission verbs (spec/admission.md, States).

The subject's key is the request id, but for admit (none or a request id) and for cooldown, policy
and drain (none).
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from schemas.commands.sys import ProcessIdentity
from schemas.model import Body, Closed, Query
from schemas.strict_json import JsonObject
from schemas.tokens import Count, Generation, HexDigest, Instant, Label, Name

MAX_QUEUE_TIMEOUT_MS = 1_800_000
Limit = Annotated[int, Field(ge=1, le=1_000_000)]
Duration = Annotated[int, Field(ge=0, le=31_536_000_000)]
ResultId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,16}-[0-9]{1,16}$")]
Timeout = Annotated[int, Field(ge=1, le=31_536_000_000)]
QueueTimeout = Annotated[int, Field(ge=1, le=MAX_QUEUE_TIMEOUT_MS)]
LOWEST_PRIORITY = -100
HIGHEST_PRIORITY = 100
Priority = Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)]
EVERYONE_ELSE = "*"
"""Stands for every principal that ``max_priority`` does not name."""

Bounds = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z0-9_-]{1,64})$")], Priority],
    Field(max_length=1_000),
]
MENDED = 3
"""The ruleset since which the fields below that say so exist."""


class Payload(Closed):
    """Where a sealed prompt lies; the prompt itself never enters a command.

    Attributes:
        key_version: Version of the key file that sealed it.
        content_fingerprint: Keyed digest of the prompt.
        expires_at_ms: When the sealed copy goes; at or after the queue deadline.
        revision: Its revision in the payload bucket.
    """

    key_version: Generation
    content_fingerprint: HexDigest
    expires_at_ms: Instant
    revision: Generation


class Enqueue(Body):
    """Ask for a seat for one turn.

    Attributes:
        session_id: The conversation the turn belongs to.
        agent_id: Who it is for; fairness is between agents.
        fingerprint: What the turn is, for idempotency.
        provider: Whose seat.
        model: Which model; cooldowns are per provider and model.
        grant: ``push``: the fold admits by itself; ``pull``: the connector asks with ``admit``.
        priority: -100..100, higher first.
        payload: Where the sealed prompt lies.
        timeout_ms: Shorter than the policy's queue timeout.
        identity: The connector process, so that its end can be proven while queued.
    """

    PLANE = "adm"
    VERB = "enqueue"

    session_id: Label
    agent_id: Label
    fingerprint: Label
    provider: Label
    model: Label
    grant: Literal["push", "pull"] = "push"
    priority: Priority = 0
    payload: Payload | None = None
    timeout_ms: QueueTimeout | None = None
    identity: ProcessIdentity | None = None


class Cancel(Body):
    """Take a queued turn back."""

    PLANE = "adm"
    VERB = "cancel"


class Admit(Body):
    """Take a seat for a pull request of the caller's principal."""

    PLANE = "adm"
    VERB = "admit"


class Fenced(Body):
    """A body that carries the lease's fence.

    Attributes:
        lease_id: The lease.
        generation: Its generation.
    """

    lease_id: Name
    generation: Generation


class Start(Fenced):
    """The turn is being prepared."""

    PLANE = "adm"
    VERB = "start"


class IntentIdentity(Closed):
    """The processes that will run the turn.

    Attributes:
        connector: The connector itself.
        child: The process that talks to the provider; absent for channel http.
    """

    connector: ProcessIdentity
    child: ProcessIdentity | None = None


class Intent(Fenced):
    """About to write to the provider; nothing is written before the result says ok.

    Attributes:
        identity: Whose end would prove that the turn is over.
        channel: How the provider is reached.
    """

    PLANE = "adm"
    VERB = "intent"

    identity: IntentIdentity
    channel: Literal["stdin", "pty", "http", "other"]


class Active(Fenced):
    """The provider has the turn; the payload is destroyed."""

    PLANE = "adm"
    VERB = "active"


class Ambiguous(Fenced):
    """It is not known whether the provider has the turn; the payload is destroyed."""

    PLANE = "adm"
    VERB = "ambiguous"


class Failure(Closed):
    """Why a turn failed.

    Attributes:
        category: Closed set; ``provider_capacity`` sets a cooldown.
        http_status: 100..599.
        code: The provider's own code.
        reason: For people.
    """

    category: Literal[
        "provider_capacity", "quota", "auth", "permission", "timeout", "transport", "unknown"
    ]
    http_status: Annotated[int, Field(ge=100, le=599)] | None = None
    code: Label | None = None
    reason: Label | None = None


class Complete(Fenced):
    """The turn is over.

    Attributes:
        outcome: How.
        failure: Only with ``failed``.
        retry_after_ms: The provider's wish; it may lengthen a cooldown.
    """

    PLANE = "adm"
    VERB = "complete"

    outcome: Literal["completed", "failed", "cancelled"]
    failure: Failure | None = None
    retry_after_ms: Duration | None = None

    @model_validator(mode="after")
    def _failure_goes_with_failed(self) -> "Complete":
        if self.failure is not None and self.outcome != "failed":
            raise PydanticCustomError("needs-failure", "failure goes with failed")
        return self


class Abandon(Fenced):
    """The owner's word that nothing was written.

    Attributes:
        outcome: ``failed`` or ``cancelled``.
    """

    PLANE = "adm"
    VERB = "abandon"

    outcome: Literal["failed", "cancelled"]


class Recover(Fenced):
    """The owner cannot say how the turn ended: it becomes a debt that keeps its seat."""

    PLANE = "adm"
    VERB = "recover"


class Resolve(Body):
    """An operator's decision about a debt.

    Attributes:
        resolution: ``confirmed_not_dispatched`` requeues, ``confirmed_completed`` completes,
            ``acknowledged_unknown`` frees the seat and leaves the turn as it is.
        evidence: Why, for the journal's reader.
    """

    PLANE = "adm"
    VERB = "resolve"

    resolution: Literal["confirmed_not_dispatched", "confirmed_completed", "acknowledged_unknown"]
    evidence: Label


class Cooldown(Body):
    """Let a provider's model rest; shortens only if it says so.

    Attributes:
        provider: Whose.
        model: Which.
        not_before_ms: Until when, a year from now at most.
        replace: Whether it holds even if the model would have rested longer; an instant that has
            passed ends the rest.
    """

    PLANE = "adm"
    VERB = "cooldown"
    SINCE = {"replace": MENDED}  # noqa: RUF012 - frozen with its class

    provider: Label
    model: Label
    not_before_ms: Instant
    replace: bool | None = None


class PolicyValues(Closed):
    """The numbers every rule reads; a claim that leaves one out takes its default.

    Attributes:
        max_active_turns: Seats.
        max_concurrent_starts: Leases between admission and active.
        min_start_interval_ms: Pacing between admissions.
        queue_timeout_ms: Longest wait in the queue.
        capacity_cooldown_ms: Cooldown after a capacity failure.
        start_timeout_ms: Longest time between admission and intent.
        adoption_timeout_ms: How long a dead owner's queued turn waits for a new life.
        silence_ms: Silence after which an owner is suspect.
        max_retry_after_ms: The longest rest that a connector's ``retry_after_ms`` can ask for.
        max_priority: Principal to the highest priority it may ask for; ``*`` for everyone else.
    """

    max_active_turns: Limit = 8
    max_concurrent_starts: Limit = 8
    min_start_interval_ms: Duration = 0
    queue_timeout_ms: QueueTimeout = MAX_QUEUE_TIMEOUT_MS
    capacity_cooldown_ms: Duration = 30_000
    start_timeout_ms: Timeout = 60_000
    adoption_timeout_ms: Timeout = 60_000
    silence_ms: Timeout = 4_000
    max_retry_after_ms: Duration = 86_400_000
    max_priority: Bounds = Field(default_factory=dict)


class PolicyAssertion(Closed):
    """What a caller believes to be in force; only what it names is compared.

    Attributes:
        epoch: The policy's epoch.
        max_active_turns: As in ``PolicyValues``.
        max_concurrent_starts: As in ``PolicyValues``.
        min_start_interval_ms: As in ``PolicyValues``.
        queue_timeout_ms: As in ``PolicyValues``.
        capacity_cooldown_ms: As in ``PolicyValues``.
        start_timeout_ms: As in ``PolicyValues``.
        adoption_timeout_ms: As in ``PolicyValues``.
        silence_ms: As in ``PolicyValues``.
        max_retry_after_ms: As in ``PolicyValues``.
        max_priority: As in ``PolicyValues``.
    """

    SINCE = {"max_retry_after_ms": MENDED, "max_priority": MENDED}  # noqa: RUF012 - frozen with its class

    epoch: Count | None = None
    max_active_turns: Limit | None = None
    max_concurrent_starts: Limit | None = None
    min_start_interval_ms: Duration | None = None
    queue_timeout_ms: QueueTimeout | None = None
    capacity_cooldown_ms: Duration | None = None
    start_timeout_ms: Timeout | None = None
    adoption_timeout_ms: Timeout | None = None
    silence_ms: Timeout | None = None
    max_retry_after_ms: Duration | None = None
    max_priority: Bounds | None = None


class Policy(Body):
    """Claim the durable policy (``epoch`` and its values), or assert it.

    Attributes:
        epoch: The epoch to claim: 1, or the one after that in force.
        max_active_turns: As in ``PolicyValues``, as are the other values.
        max_concurrent_starts: As in ``PolicyValues``.
        min_start_interval_ms: As in ``PolicyValues``.
        queue_timeout_ms: As in ``PolicyValues``.
        capacity_cooldown_ms: As in ``PolicyValues``.
        start_timeout_ms: As in ``PolicyValues``.
        adoption_timeout_ms: As in ``PolicyValues``.
        silence_ms: As in ``PolicyValues``.
        max_retry_after_ms: As in ``PolicyValues``.
        max_priority: As in ``PolicyValues``.
        resume: Whether a claim ends the drain that stands; else the drain's limit stays.
        assert_: What to compare with what is in force, instead of a claim; ``assert`` on the wire.
    """

    PLANE = "adm"
    VERB = "policy"
    SINCE = {  # noqa: RUF012 - frozen with its class
        "max_retry_after_ms": MENDED,
        "max_priority": MENDED,
        "resume": MENDED,
    }

    epoch: Generation | None = None
    max_active_turns: Limit | None = None
    max_concurrent_starts: Limit | None = None
    min_start_interval_ms: Duration | None = None
    queue_timeout_ms: QueueTimeout | None = None
    capacity_cooldown_ms: Duration | None = None
    start_timeout_ms: Timeout | None = None
    adoption_timeout_ms: Timeout | None = None
    silence_ms: Timeout | None = None
    max_retry_after_ms: Duration | None = None
    max_priority: Bounds | None = None
    resume: bool | None = None
    assert_: Annotated[PolicyAssertion | None, Field(alias="assert")] = None

    @property
    def values(self) -> PolicyValues:
        """The values claimed, with defaults for those left out."""
        given = self.model_dump(include=set(PolicyValues.model_fields), exclude_none=True)
        return PolicyValues(**given)

    def to_object(self) -> JsonObject:
        """As ``Closed.to_object``, with the name that ``assert_`` has on the wire."""
        return self.model_dump(exclude_none=True, by_alias=True)


class Drain(Body):
    """Bring the number of seats to a limit; 0 pauses all admission.

    Attributes:
        to: The limit to reach.
    """

    PLANE = "adm"
    VERB = "drain"

    to: Annotated[int, Field(ge=0, le=1_000_000)]


class RequestQuery(Query):
    """Body of the query ``adm.request``.

    Attributes:
        request_id: Which turn.
        after: Result id the answer must already include.
    """

    request_id: Name
    after: ResultId | None = None


class QueueQuery(Query):
    """Body of the query ``adm.queue``.

    Attributes:
        request_id: Only this turn's place; without it the head of the queue is listed.
        limit: How many turns to list.
        after: Result id the answer must already include.
    """

    request_id: Name | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after: ResultId | None = None


class LeasesQuery(Query):
    """Body of the query ``adm.leases``: every seat that is held, by request id.

    Attributes:
        limit: How many a page.
        after_request_id: Last request id of the page before.
        after: Result id the answer must already include.
    """

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after_request_id: Name | None = None
    after: ResultId | None = None


class RecoverableQuery(Query):
    """Body of the query ``adm.recoverable``: what evidence or an operator could settle.

    Attributes:
        host: Only what an observer of this host can see.
        limit: How many a page.
        after_request_id: Last request id of the page before.
        after: Result id the answer must already include.
    """

    host: Label | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000
    after_request_id: Name | None = None
    after: ResultId | None = None


class PolicyQuery(Query):
    """Body of the query ``adm.policy``.

    Attributes:
        after: Result id the answer must already include.
    """

    after: ResultId | None = None


class EventsQuery(Query):
    """Body of the query ``adm.events``: a page of the journal.

    Attributes:
        after: Sequence after which the page begins.
        limit: How many.
    """

    after: Count = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class PayloadQuery(Query):
    """Body of the query ``adm.payload``: for the lease's owner, before active.

    Attributes:
        request_id: Which turn.
        lease_id: Its lease.
        generation: The lease's generation.
        after: Result id the answer must already include.
    """

    request_id: Name
    lease_id: Name
    generation: Generation
    after: ResultId | None = None


class SealedQuery(Query):
    """Body of the query ``adm.sealed``: what lies in the asker's own place for a turn's prompt.

    For whoever lost the acknowledgement of its put, or the life that made it.

    Attributes:
        request_id: Which turn.
        generation: The generation it was sealed for.
    """

    request_id: Name
    generation: Generation = 1


BODIES: tuple[type[Body], ...] = (
    Enqueue,
    Cancel,
    Admit,
    Start,
    Intent,
    Active,
    Ambiguous,
    Complete,
    Abandon,
    Recover,
    Resolve,
    Cooldown,
    Policy,
    Drain,
)
