"""Durable records of the checkpoint plane (spec/checkpoints.md, Records).

Field names and their order are those of Cotal's wire, hence their case; a status carries no version
there, so it carries none here. Records are parsed strictly: one that does
not fit its schema is garbled, and nobody acts on it or repairs it.
"""

import base64
import hashlib
from typing import Annotated, Any, ClassVar, Literal, Self

import rfc8785
from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from schemas.codes import BadInput
from schemas.limits import MAX_SAFE_INTEGER
from schemas.model import Closed, Message
from schemas.strict_json import JsonObject
from schemas.tokens import Generation, Instant, Name

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
"""What a foreign record may name something with; only the record's own size bounds it."""

Short = Annotated[str, StringConstraints(min_length=1, max_length=256)]
SafeInteger = Annotated[int, Field(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
State = Literal["waiting", "resumed", "expired"]
Settled = Literal["resumed", "expired"]


class Record(Closed):
    """What is stored under a key or as a fact: an optional field is left out, never null.

    Attributes:
        NULLABLE: Fields whose value may be null all the same.
    """

    NULLABLE: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        """Check an already parsed object.

        Raises:
            BadInput: As ``Closed.from_object``, and for a null where a field should be absent: to
                take it for absence would be to repair a garbled record.
        """
        for name, item in value.items():
            if item is None and name in cls.model_fields and name not in cls.NULLABLE:
                raise BadInput(name, "null-field", f"field {name} is left out, never null")
        return super().from_object(value)


class Holder(Closed):
    """Who may resume, as recorded; foreign records may name it with any non-empty strings."""

    id: NonEmpty
    lifecycleUid: NonEmpty


class GoalCaller(Closed):
    """On whose behalf a goal is pursued."""

    owner: NonEmpty
    actor: NonEmpty
    uid: NonEmpty


class Goal(Closed):
    """What the paused run works towards; foreign records may name it with any non-empty string."""

    caller: GoalCaller
    goalId: NonEmpty


class Signer(Closed):
    """Whose key signed an obligation."""

    keyId: NonEmpty


class Obligation(Message):
    """A signed obligation, kept verbatim."""

    space: NonEmpty
    requestId: NonEmpty
    signer: Signer
    attenuations: Annotated[list[Any], Field(min_length=1)]
    iat: SafeInteger
    exp: SafeInteger
    sig: NonEmpty


class SpecRecord(Record, Message):
    """``cp.<endpoint>.<token>.spec``: written once, at the mint."""

    token: Name
    goal: Goal | None = None
    obligations: list[Obligation] | None = None
    holder: Holder
    mintedAt: Instant
    initialDeadline: Instant

    @model_validator(mode="after")
    def _obligations_need_a_goal(self) -> "SpecRecord":
        if self.obligations and self.goal is None:
            raise PydanticCustomError("needs-goal", "obligations need a goal")
        return self


class StatusRecord(Record):
    """``cp.<endpoint>.<token>.status``: changed by compare-and-set only.

    Attributes:
        state: Waiting, resumed or expired.
        deadlineGeneration: Counts deadlines, from 1.
        deadline: The deadline in force.
        observedSpecRevision: Revision of the spec this status was made for.
        settledGeneration: Equal to ``deadlineGeneration``; settled only.
        settledTs: When it settled; settled only.
        settledHolder: Who resumed; resumed only.
        settledAnswerId: The answer's id; resumed only, if one was filed.
    """

    state: State
    deadlineGeneration: Generation
    deadline: Instant
    observedSpecRevision: Generation
    settledGeneration: Generation | None = None
    settledHolder: Holder | None = None
    settledAnswerId: Name | None = None
    settledTs: Instant | None = None

    @model_validator(mode="after")
    def _fields_fit_the_state(self) -> "StatusRecord":
        present = (
            self.settledGeneration is not None,
            self.settledTs is not None,
            self.settledHolder is not None,
            self.settledAnswerId is not None,
        )
        fits = {
            "waiting": present == (False, False, False, False),
            "expired": present == (True, True, False, False),
            "resumed": present[:3] == (True, True, True),
        }[self.state]
        if not fits or (
            self.settledGeneration is not None and self.settledGeneration != self.deadlineGeneration
        ):
            raise PydanticCustomError("garbled", "the fields do not fit the state")
        return self


class SettleFact(Record, Message):
    """The one message ever on ``epf.<endpoint>.cp.<token>``."""

    token: Name
    settle: Settled
    generation: Generation
    holder: Holder | None = None
    answerId: Name | None = None
    ts: Instant

    @model_validator(mode="after")
    def _fields_fit_the_settlement(self) -> "SettleFact":
        resumed = self.settle == "resumed"
        if (self.holder is not None) != resumed or (self.answerId is not None and not resumed):
            raise PydanticCustomError("garbled", "the fields do not fit the settlement")
        return self


class TimerBody(Record, Message):
    """Body of a timer request and of ``.armed``."""

    timerId: Name
    generation: Generation
    deadline: Instant


class PromptRecord(Record, Message):
    """``prompt.<endpoint>.<token>``: what a person is asked.

    Attributes:
        title: One line.
        body: Markdown.
        choices: If given, an answer's value must be one of them.
        answer_schema: JSON Schema shown to whoever answers; not enforced.
        requested_by: Who asks, for people.
    """

    title: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    body: Annotated[str, StringConstraints(max_length=32_768)] | None = None
    choices: Annotated[list[Short], Field(min_length=1, max_length=64)] | None = None
    answer_schema: dict[str, Any] | None = None
    requested_by: Short | None = None

    @model_validator(mode="after")
    def _choices_differ(self) -> "PromptRecord":
        if self.choices is not None and len(set(self.choices)) != len(self.choices):
            raise PydanticCustomError("duplicate-entry", "a choice stands twice")
        return self


class AnswerRecord(Record, Message):
    """``answer.<endpoint>.<token>.<answer id>``: create-only.

    Attributes:
        token: The checkpoint's token.
        answerId: Digest of token, by, value and artifact; see ``answer_id``.
        by: The principal who answered.
        at: When.
        value: Any JSON value; absent is the same as null.
        artifact: Digest of what was shown.
        supersedes: On a foreign amendment, the answer it amends; we write none.
    """

    NULLABLE = frozenset({"value"})

    token: Name
    answerId: Name
    value: Any = None
    artifact: str | None = None
    by: NonEmpty
    at: Instant
    supersedes: NonEmpty | None = None


def canonical(value: Any) -> bytes:
    """RFC 8785 canonical JSON."""
    return bytes(rfc8785.dumps(value))


def answer_id(token: str, by: str, value: Any, artifact: str | None) -> str:
    """Id of an answer: the same answer is the same record.

    Unpadded base64url of SHA-256 over the RFC 8785 form of ``{token, by, value, artifact}``,
    absent parts as null: 43 characters.
    """
    content = canonical({"token": token, "by": by, "value": value, "artifact": artifact})
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def prompt_digest(prompt: PromptRecord) -> str:
    """Hex SHA-256 of the RFC 8785 form of the whole prompt record."""
    return hashlib.sha256(canonical(prompt.to_object())).hexdigest()
