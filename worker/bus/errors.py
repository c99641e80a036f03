"""What the broker may answer, as one family of errors told apart by number.

The broker's ``err_code`` decides, never its text. Three things must not be confused (DESIGN section
6): a compare-and-set that was lost, a message that is absent, and a stream that is missing. A
timeout, a cancellation and a connection lost in flight all mean that the outcome is unknown.
"""

from collections.abc import Mapping
from typing import Any, Final

from schemas.codes import Code
from worker.errors import ClientError

NO_MESSAGE: Final = 10037
"""Nothing is stored on the subject or at the sequence: the only proof of absence."""

STREAM_NOT_FOUND: Final = 10059
"""The stream is gone; whether the message existed is not known."""

CONSUMER_NOT_FOUND: Final = 10014
"""The durable or ephemeral consumer is gone."""

WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
"""The expected last sequence is not the actual one, with and without the number in the text."""

NAME_TAKEN: Final = frozenset({10058, 10148, 10013})
"""A stream or consumer of that name exists with another configuration."""

JETSTREAM_OFF: Final = frozenset({10035, 10039, 10076})
"""No JetStream in this server or for this account."""

SCHEDULE_ERRORS: Final = frozenset({*range(10186, 10193), 10203, 10212, 10223})
"""A message schedule was refused (ADR-51)."""

TOO_LARGE: Final = frozenset({10054, 10199})
"""A message over the stream's bound, or a batch over the server's."""

TEMPORARY: Final = frozenset({10002, 10004, 10005, 10008, 10009, 10023, 10028, 10047, 10077})
"""The broker could not do it now and stored nothing."""

SERVICE_UNAVAILABLE: Final = 503
"""The ``code`` of every API error that means "not now"."""


class BusError(ClientError):
    """The broker did not do what was asked.

    Attributes:
        subject: What was published to or asked, empty if it does not matter.
    """

    code = Code.UNAVAILABLE
    reason = "broker"

    def __init__(self, message: str = "", *, subject: str = "", reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.subject = subject


class Unavailable(BusError):
    """The broker cannot be reached or cannot serve this now; nothing was stored."""

    reason = "broker-unavailable"


class Unknown(Unavailable):
    """No answer came in time: what was sent may or may not have been stored."""

    reason = "outcome-unknown"


class JetStreamMissing(Unavailable):
    """The server has no JetStream, or not for this account."""

    reason = "jetstream-missing"


class StreamMissing(BusError):
    """The stream does not exist; this says nothing about its messages."""

    reason = "stream-missing"


class ConsumerMissing(BusError):
    """The consumer does not exist."""

    reason = "consumer-missing"


class GapError(BusError):
    """A log was not delivered in one unbroken order; what was read after it must be discarded.

    Attributes:
        expected: The sequence that had to come next.
        found: The one that came, 0 if the reader broke before one did.
    """

    reason = "log-gap"

    def __init__(self, message: str, *, expected: int, found: int = 0) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found


class CasLost(BusError):
    """The subject's last sequence is not the expected one; nothing was stored."""

    code = Code.CONFLICT
    reason = "cas-lost"


class MessageAbsent(BusError):
    """Nothing is stored on the subject, or the sequence holds nothing."""

    code = Code.NOT_FOUND
    reason = "message-absent"


class NameTaken(BusError):
    """A stream or consumer of that name exists with other settings."""

    code = Code.ALREADY_EXISTS
    reason = "name-taken"


class Denied(BusError):
    """The broker's permissions refuse the subject to this user."""

    code = Code.PERMISSION_DENIED
    reason = "permission-denied"


class Unauthenticated(BusError):
    """The broker refuses this user's credentials."""

    code = Code.UNAUTHENTICATED
    reason = "credentials-refused"


class TlsRefused(BusError):
    """TLS was asked for and the server does not offer it; no credentials were sent."""

    code = Code.FAILED_PRECONDITION
    reason = "tls-refused"


class ScheduleRefused(BusError):
    """The broker refused a message schedule."""

    code = Code.FAILED_PRECONDITION
    reason = "schedule-refused"


class TooLarge(BusError):
    """The message, its headers included, is larger than the broker takes; it was not sent."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "too-large"


class Rejected(BusError):
    """The broker refused for a reason that no caller handles by itself.

    Attributes:
        err_code: The broker's number, 0 if the answer was not understood.
    """

    code = Code.INTERNAL
    reason = "rejected"

    def __init__(self, message: str = "", *, subject: str = "", err_code: int = 0) -> None:
        super().__init__(message, subject=subject)
        self.err_code = err_code


_CLASSES: Final[tuple[tuple[frozenset[int], type[BusError]], ...]] = (
    (WRONG_LAST_SEQUENCE, CasLost),
    (frozenset({NO_MESSAGE}), MessageAbsent),
    (frozenset({STREAM_NOT_FOUND}), StreamMissing),
    (frozenset({CONSUMER_NOT_FOUND}), ConsumerMissing),
    (SCHEDULE_ERRORS, ScheduleRefused),
    (NAME_TAKEN, NameTaken),
    (JETSTREAM_OFF, JetStreamMissing),
    (TOO_LARGE, TooLarge),
    (TEMPORARY, Unavailable),
)

_BY_NUMBER: Final = {number: kind for numbers, kind in _CLASSES for number in numbers}


def from_api_error(error: Mapping[str, Any], *, subject: str = "") -> BusError:
    """Turn the ``error`` object of a JetStream answer into the error of its number.

    Args:
        error: ``{"code", "err_code", "description"}`` as the broker sent it.
        subject: What the answer was about.
    """
    number = int(error.get("err_code") or 0)
    text = f"the broker answered {number}: {error.get('description', '')}"
    kind = _BY_NUMBER.get(number)
    if kind is not None:
        return kind(text, subject=subject)
    if error.get("code") == SERVICE_UNAVAILABLE:
        return Unavailable(text, subject=subject)
    return Rejected(text, subject=subject, err_code=number)
