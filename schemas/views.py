"""What results, facts and queries of the checkpoint plane show."""

from typing import Any

from schemas.model import Closed, Message
from schemas.records import Holder, Settled, State
from schemas.tokens import Count, Generation, Instant, Name


class CheckpointView(Closed):
    """A checkpoint as results and queries show it.

    Attributes:
        endpoint: Dotted form.
        token: Its token.
        state: Waiting, resumed or expired.
        generation: Of the deadline in force.
        deadline_at_ms: The deadline in force.
        holder: Who may resume.
        settled_at_ms: When it settled.
        settled_holder: Who resumed.
        answer_id: The answer that was filed with the resume.
        traceparent: W3C trace context that its settlement carries on; ``cp.wait`` only.
    """

    endpoint: str
    token: Name
    state: State
    generation: Generation
    deadline_at_ms: Instant
    holder: Holder | None = None
    settled_at_ms: Instant | None = None
    settled_holder: Holder | None = None
    answer_id: Name | None = None
    traceparent: str | None = None


class CheckpointFact(Message):
    """Body of ``fact.cp.<kind>``: waiting, extended, resumed, expired.

    Attributes:
        generation: Of the deadline the fact is about.
        deadline_at_ms: That deadline.
        holder: Who may resume, or who did.
        at_ms: When, by the plane's clock.
        lateness_ms: Expired only: how long after the deadline it settled.
    """

    generation: Generation
    deadline_at_ms: Instant
    holder: Holder
    at_ms: Instant
    lateness_ms: Count | None = None


class RepairedFact(Message):
    """Body of ``fact.cp.repaired``.

    Attributes:
        generation: Of the deadline in force.
        repairs: What was done: ``expired``, ``rearmed``, ``fact-published``, ``timer-cancelled``,
            ``status-restored``.
        at_ms: When.
    """

    generation: Generation
    repairs: list[str]
    at_ms: Instant


class SettlementView(Closed):
    """A settlement as ``cp.wait`` answers it."""

    settle: Settled
    generation: Generation
    at_ms: Instant
    holder: Holder | None = None
    answer_id: Name | None = None


class CheckpointDetail(Closed):
    """Answer of the query ``cp.show``; records are shown as stored."""

    checkpoint: CheckpointView
    spec: dict[str, Any]
    status: dict[str, Any]
    fact: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    prompt_digest: str | None = None
    answer: dict[str, Any] | None = None
