"""What a check may find."""

from dataclasses import dataclass
from enum import StrEnum

from schemas.strict_json import JsonObject


class Severity(StrEnum):
    """How bad a finding is."""

    DANGER = "danger"
    """Data or a promise is at risk: exit code 1."""

    WARNING = "warning"
    """It works, but not as well or as safely as it could."""

    FINE = "fine"
    """Looked at and in order."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: Stable kebab-case word of the check.
        severity: How bad it is.
        found: What is, in one sentence.
        endangers: What that puts at risk; empty if fine.
        fix: Exactly what to do; empty if fine.
    """

    check: str
    severity: Severity
    found: str
    endangers: str = ""
    fix: str = ""

    def to_object(self) -> JsonObject:
        """The finding for machines."""
        return {
            "check": self.check,
            "severity": self.severity.value,
            "found": self.found,
            "endangers": self.endangers,
            "fix": self.fix,
        }


def fine(check: str, found: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check, Severity.FINE, found)
