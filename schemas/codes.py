"""The codes of a result's error, and the one exception that bad input raises."""

from enum import StrEnum


class Code(StrEnum):
    """What kind of trouble a refusal is; a closed set, safe to branch on."""

    BAD_REQUEST = "bad-request"
    UNSUPPORTED_VERSION = "unsupported-version"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission-denied"
    NOT_FOUND = "not-found"
    ALREADY_EXISTS = "already-exists"
    CONFLICT = "conflict"
    FAILED_PRECONDITION = "failed-precondition"
    DEADLINE_EXCEEDED = "deadline-exceeded"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FENCED = "fenced"
    UNAVAILABLE = "unavailable"
    RESOURCE_EXHAUSTED = "resource-exhausted"
    INTERNAL = "internal"


RETRYABLE = frozenset({Code.UNAVAILABLE})
"""Codes after which the same command, with the same command id, may succeed later."""


class BadInput(ValueError):
    """A body, subject or header that is not what the contract says.

    Attributes:
        field: Path of the offending field (``holder.id``, ``records[3].cap``); ``body`` for the
            body as a whole, ``subject`` or a header's name where it lies there.
        reason: Stable kebab-case word.
        message: One sentence for a person; never quotes the value.
        code: ``bad-request``, or ``unsupported-version`` for another ``v``.
    """

    def __init__(
        self, field: str, reason: str, message: str, *, code: Code = Code.BAD_REQUEST
    ) -> None:
        super().__init__(message)
        self.field = field
        self.reason = reason
        self.message = message
        self.code = code
