"""Bodies of the checkpoint verbs (spec/checkpoints.md, Verbs).

The checkpoint itself is named by the subject: ``….cp.<verb>.<endpoint>.<token>``.
"""

from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from schemas.model import Body, Closed, Query
from schemas.records import Goal, Obligation, PromptRecord
from schemas.tokens import Generation, HexDigest, Instant, Name, Principal, Uid

Artifact = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""Digest (or other short name) of what the answering person was shown."""


class MintHolder(Closed):
    """The one life of one principal that may resume.

    Attributes:
        id: Its principal.
        lifecycleUid: Its uid.
    """

    id: Principal
    lifecycleUid: Uid


class MintGoal(Goal):
    """A goal as a mint may name it: its id is a token.

    Attributes:
        goalId: ``[A-Za-z0-9_-]{1,64}``.
    """

    goalId: Name


class Mint(Body):
    """Pause a run: create a checkpoint and arm its deadline.

    Attributes:
        deadline_at_ms: Absolute, in the future, at most ten years away.
        holder: Who may resume; the speaker if absent.
        goal: What the run works towards, kept verbatim.
        obligations: Signed obligations, kept verbatim; only with a goal. Empty counts as absent.
        prompt: What a person is asked, stored as its own record.
    """

    PLANE = "cp"
    VERB = "mint"

    deadline_at_ms: Instant
    holder: MintHolder | None = None
    goal: MintGoal | None = None
    obligations: list[Obligation] | None = None
    prompt: PromptRecord | None = None

    @model_validator(mode="after")
    def _obligations_need_a_goal(self) -> "Mint":
        if self.obligations and self.goal is None:
            raise PydanticCustomError("needs-goal", "obligations need a goal")
        return self


class Heartbeat(Body):
    """Move a waiting checkpoint's deadline, earlier or later.

    Attributes:
        generation: The generation being extended.
        deadline_at_ms: The new deadline, in the future.
    """

    PLANE = "cp"
    VERB = "heartbeat"

    generation: Generation
    deadline_at_ms: Instant


class Resume(Body):
    """Let a run go on; only its holder may.

    Attributes:
        answer: Any JSON value, filed as a record before the token is presented.
        artifact: Digest of what the holder was shown.
        prompt_digest: Refuses unless the stored prompt digests to it (approve what you saw).
    """

    PLANE = "cp"
    VERB = "resume"

    answer: Any = None
    artifact: Artifact | None = None
    prompt_digest: HexDigest | None = None

    @property
    def has_answer(self) -> bool:
        """Whether anything is to be filed."""
        return "answer" in self.model_fields_set or self.artifact is not None


class Expire(Body):
    """Settle a checkpoint whose deadline has passed."""

    PLANE = "cp"
    VERB = "expire"


class Repair(Body):
    """Run the sweep for one checkpoint and say what it did."""

    PLANE = "cp"
    VERB = "repair"


class ListQuery(Query):
    """Body of the query ``cp.list``.

    Attributes:
        endpoint: Only checkpoints of this endpoint.
        holder: Only checkpoints of this principal.
        due_before_ms: Only deadlines before this instant.
        limit: Items a page.
        cursor: ``next_cursor`` of the page before.
    """

    endpoint: str | None = None
    holder: str | None = None
    due_before_ms: Instant | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, StringConstraints(max_length=512)] | None = None


class ShowQuery(Query):
    """Body of the query ``cp.show``.

    Attributes:
        endpoint: The checkpoint's endpoint, dotted.
        token: Its token.
    """

    endpoint: str
    token: str


class WaitQuery(ShowQuery):
    """Body of the query ``cp.wait``: answers when the checkpoint has settled.

    Attributes:
        timeout_ms: How long to wait, 30,000 at most.
    """

    timeout_ms: Annotated[int, Field(ge=0, le=30_000)] = 30_000


BODIES: tuple[type[Body], ...] = (Mint, Heartbeat, Resume, Expire, Repair)
