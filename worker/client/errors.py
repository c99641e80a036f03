"""What a call can end in, besides a result."""

from dataclasses import dataclass

from schemas.codes import Code
from schemas.results import Result
from schemas.strict_json import JsonObject
from worker.errors import ClientError


@dataclass(frozen=True, slots=True)
class Answer:
    """A query's answer.

    Attributes:
        outcome: Stable word.
        data: What was asked for.
    """

    outcome: str
    data: JsonObject


class Refused(ClientError):
    """The command was refused: it may not have this, now or ever.

    Attributes:
        result: The whole result; ``result.data`` shows what it conflicts with.
        field: Path of the offending field of bad input.
        retryable: Whether the same command, with the same id, may succeed later.
    """

    def __init__(self, result: Result) -> None:
        error = result.error
        super().__init__(error.message if error else result.outcome)
        self.result = result
        self.code = code_of(error.code if error else "")
        self.reason = error.reason if error else result.outcome
        self.field = error.field if error else None
        self.retryable = bool(error and error.retryable)


class Failed(Refused):
    """The platform could not do it, through no fault of the command."""


def refusal(result: Result) -> Refused:
    """The error that a result which is not ok amounts to."""
    return Refused(result) if result.status == "refused" else Failed(result)


class CallTimeout(ClientError):
    """No result came in time: the command may or may not have been carried out.

    Ask again with the same command id to learn the outcome; it is never carried out twice.

    Attributes:
        command_id: The command's id.
        stored: Whether the broker is known to have stored the command.
    """

    code = Code.DEADLINE_EXCEEDED
    reason = "outcome-unknown"

    def __init__(self, command_id: str, *, stored: bool) -> None:
        what = "was stored but no result came" if stored else "may or may not have been stored"
        super().__init__(
            f"the command {what} in time; its outcome is unknown: "
            f"ask again with command id {command_id}"
        )
        self.command_id = command_id
        self.stored = stored


class QueryTimeout(ClientError):
    """No worker answered the query in time."""

    code = Code.DEADLINE_EXCEEDED
    reason = "query-timeout"


class NobodyThere(ClientError):
    """Nobody takes this: the space is not set up there, or no worker is running."""

    code = Code.UNAVAILABLE
    reason = "nobody-there"


def code_of(value: str) -> Code:
    """A result's code; a code this version does not know reads as ``internal``."""
    try:
        return Code(value)
    except ValueError:
        return Code.INTERNAL
