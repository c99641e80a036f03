"""What is declared of a reason."""

from dataclasses import dataclass
from enum import StrEnum

from schemas.codes import Code


class Retry(StrEnum):
    """Whether asking again can help, and under which command id."""

    SAME = "same id"
    NEW = "new id"
    AGAIN = "again"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Attributes:
        word: The stable word.
        codes: Codes it comes with.
        cause: What happened, for whoever reads it in an error.
        remedy: What to do.
        retry: Whether asking again can help.
    """

    word: str
    codes: tuple[Code, ...]
    cause: str
    remedy: str
    retry: Retry


@dataclass(frozen=True, slots=True)
class Group:
    """Reasons that belong together.

    Attributes:
        title: Of their part of the page.
        about: Where they are met.
        reasons: In the order of the page.
    """

    title: str
    about: str
    reasons: tuple[Reason, ...]
