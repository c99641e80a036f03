"""The root of every error the worker raises."""

from schemas.codes import Code


class TidegateError(Exception):
    """Something went wrong that a caller may act on.

    Attributes:
        code: Closed set of the wire contract.
        reason: Stable kebab-case word.
    """

    code: Code = Code.INTERNAL
    reason: str = "internal"

    def __init__(self, message: str = "", *, reason: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip().splitlines()[0])
        if reason is not None:
            self.reason = reason

    @property
    def message(self) -> str:
        """One sentence for a person."""
        return str(self)


class ClientError(TidegateError):
    """A call did not end as asked: whatever a client program may meet while it runs.

    Refusals, timeouts, a broker that is away or refuses us, no broker at all: who catches this has
    caught them all. Only an argument that cannot be (``BadInput``) is another kind.
    """


class StartRefused(TidegateError):
    """The worker will not start like this; the message says what to do."""

    code = Code.FAILED_PRECONDITION
    reason = "start-refused"
