"""What an adapter can refuse; each says what stands and what to do."""

from schemas.codes import Code
from worker.errors import TidegateError


class AdapterError(TidegateError):
    """An adapter cannot go on."""


class MissingExtra(AdapterError, ImportError):
    """The framework an adapter is for is not installed.

    Attributes:
        extra: What to install: ``tidegate[<extra>]``.
    """

    code = Code.FAILED_PRECONDITION
    reason = "missing-extra"

    def __init__(self, adapter: str, extra: str) -> None:
        super().__init__(
            f"{adapter} needs the extra {extra}; install it: pip install 'tidegate[{extra}]'"
        )
        self.extra = extra


class BadQuestion(AdapterError):
    """What a run asks cannot be put into a checkpoint; nothing was minted for it.

    Attributes:
        asked_by: The interrupt's id or the tool call's id.
        field: The offending field of the question.
        why: What is wrong with it.
    """

    code = Code.BAD_REQUEST
    reason = "bad-question"

    def __init__(self, asked_by: str, field: str, message: str) -> None:
        super().__init__(f"the question of {asked_by} cannot be asked: {message}")
        self.asked_by = asked_by
        self.field = field
        self.why = message


class QuestionChanged(AdapterError):
    """The checkpoint was minted for another question; its answer is not taken for this one.

    Attributes:
        endpoint: The checkpoint's endpoint.
        token: Its token.
        what: What differs: ``holder`` or ``prompt``.
    """

    code = Code.CONFLICT
    reason = "question-changed"

    def __init__(self, endpoint: str, token: str, what: str) -> None:
        super().__init__(
            f"checkpoint {endpoint}/{token} was minted with another {what}: a run must ask the "
            "same thing of the same holder when it is repeated"
        )
        self.endpoint = endpoint
        self.token = token
        self.what = what


class AnswerHidden(AdapterError):
    """The answer exists and is not shown to this principal.

    Attributes:
        endpoint: The checkpoint's endpoint.
        token: Its token.
    """

    code = Code.PERMISSION_DENIED
    reason = "answer-hidden"

    def __init__(self, endpoint: str, token: str) -> None:
        super().__init__(
            f"the prompt or answer of {endpoint}/{token} is not shown to this principal: speak as "
            "the principal that minted it"
        )
        self.endpoint = endpoint
        self.token = token


class NothingToRun(AdapterError):
    """Nothing of this run is stored and no input was given.

    Attributes:
        run: The thread or run id.
    """

    code = Code.NOT_FOUND
    reason = "nothing-to-run"

    def __init__(self, run: str) -> None:
        super().__init__(f"nothing of {run} is stored yet; give it an input")
        self.run = run


class Busy(AdapterError):
    """Another process runs this; nothing was done.

    Attributes:
        run: The thread or run id.
    """

    code = Code.UNAVAILABLE
    reason = "busy"

    def __init__(self, run: str) -> None:
        super().__init__(f"{run} is being run by another process, or by one that just died")
        self.run = run


class LeaseLost(AdapterError):
    """The right to run this was not renewed in time; the run was cancelled.

    Attributes:
        run: The thread or run id.
    """

    code = Code.FENCED
    reason = "lease-lost"

    def __init__(self, run: str) -> None:
        super().__init__(f"the lease of {run} ended before its run did; the run was cancelled")
        self.run = run


class RunInDoubt(AdapterError):
    """A run was cut off, and nobody knows which of its tools were called.

    Attributes:
        run: The run id.
    """

    code = Code.FAILED_PRECONDITION
    reason = "run-in-doubt"

    def __init__(self, run: str) -> None:
        super().__init__(
            f"{run} was cut off while it ran: approved tools may have been called or not; look, "
            "and run it again from its last pause with on_doubt='rerun' if that does no harm"
        )
        self.run = run
