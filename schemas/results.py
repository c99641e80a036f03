"""Results: what every stored command gets, exactly one per delivery sequence (DESIGN section 3)."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from schemas import strict_json
from schemas.codes import RETRYABLE, BadInput, Code
from schemas.model import Closed, Traced
from schemas.strict_json import JsonObject
from schemas.tokens import Instant

Status = Literal["ok", "refused", "failed"]


class Error(Closed):
    """Why a command was refused or failed.

    Attributes:
        code: Closed set, safe to branch on.
        reason: Stable kebab-case word.
        message: For people; it names the field where one is wrong.
        retryable: Whether the same command, with the same command id, may succeed later.
        field: Path of the offending field of bad input.
    """

    code: str
    reason: str
    message: str
    retryable: bool
    field: str | None = None


class Result(Traced):
    """One result.

    Attributes:
        command_id: The client's, or one derived from the sequence.
        id: ``<epoch>-<seq>``, never the same again. The epoch counts the ledger's logs; of a
            checkpoint command it is when its stream was made, ms.
        at_ms: The plane's clock when it was decided.
        status: ``ok``; ``refused``: the command may not have this now; ``failed``: we could not.
        outcome: A stable word of the verb; of a refusal, its reason.
        data: What there is to say.
        chain: Ledger only: hash of the previous chain value and this result.
        error: Present unless ok.
    """

    command_id: str
    id: str
    at_ms: Instant
    status: Status
    outcome: str
    data: dict[str, Any]
    chain: str | None = None
    error: Error | None = None

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read a result as a client: larger bodies than a command's are fine.

        Raises:
            BadInput: If it is not a result of this version.
        """
        return cls.from_object(strict_json.loads(raw, max_bytes=8 * 1024 * 1024))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal as a value: what travels inside the worker instead of an exception.

    Attributes:
        code: Closed set.
        reason: Stable kebab-case word.
        message: One sentence for a person.
        at_field: Offending field of bad input.
        data: What the refusal still shows, such as the record it conflicts with.
    """

    code: Code
    reason: str
    message: str
    at_field: str | None = None
    data: JsonObject = field(default_factory=dict)

    @classmethod
    def of(cls, bad: BadInput) -> "Refusal":
        """The refusal of bad input."""
        return cls(code=bad.code, reason=bad.reason, message=bad.message, at_field=bad.field)

    @property
    def status(self) -> Status:
        """``failed`` where the fault is ours, else ``refused``."""
        return "failed" if self.code in (Code.INTERNAL, Code.UNAVAILABLE) else "refused"

    def error(self) -> Error:
        """The error of a result."""
        return Error(
            code=self.code.value,
            reason=self.reason,
            message=self.message,
            retryable=self.code in RETRYABLE,
            field=self.at_field,
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """A success as a value.

    Attributes:
        outcome: Stable word of the verb.
        data: What there is to say.
    """

    outcome: str
    data: JsonObject = field(default_factory=dict)


Verdict = Accepted | Refusal


def build(verdict: Verdict, *, command_id: str, result_id: str, at_ms: int) -> JsonObject:
    """The JSON object of a result, without a chain.

    Args:
        verdict: What was decided.
        command_id: The command's id.
        result_id: ``<epoch>-<seq>``.
        at_ms: The plane's clock.
    """
    head = {"v": 1, "command_id": command_id, "id": result_id, "at_ms": at_ms}
    if isinstance(verdict, Accepted):
        return {**head, "status": "ok", "outcome": verdict.outcome, "data": verdict.data}
    return {
        **head,
        "status": verdict.status,
        "outcome": verdict.reason,
        "data": verdict.data,
        "error": verdict.error().to_object(),
    }
