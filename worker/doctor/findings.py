"""What is looked at, and what may be found."""

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


class Check(StrEnum):
    """Everything that is looked at; ``docs/runbook.md`` has a section for each."""

    SETTINGS = "settings"
    DATA_DIRECTORY = "data-directory"
    DISK_SPACE = "disk-space"
    SQLITE = "sqlite-version"
    LEDGER_FILE = "ledger-file"
    JOURNAL_FILE = "journal-file"
    KEY_FILES = "key-files"
    PRIVATE_FILES = "private-files"
    IDENTITIES = "identities"
    BROKER = "broker"
    SERVER = "server"
    MAX_PAYLOAD = "max-payload"
    SYNC = "sync"
    BROKER_SPACE = "broker-space"
    ENCRYPTION = "encryption"
    ANONYMOUS = "anonymous"
    CLOCK = "clock"
    SPACE = "space"
    STREAM_MISSING = "stream-missing"
    STREAM_ANEW = "stream-made-anew"
    STREAM_SETTINGS = "stream-settings"
    DURABLES = "durables"
    REPLICAS = "replicas"
    CLUSTER = "cluster"
    RESULTS = "results"
    BACKLOG = "backlog"
    CHECKPOINTS = "checkpoints"
    SNAPSHOTS = "snapshots"
    RIGHTS = "rights"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What was looked at.
        severity: How bad it is.
        found: What is, in one sentence.
        endangers: What that puts at risk; empty if fine.
        fix: Exactly what to do; empty if fine.
    """

    check: Check
    severity: Severity
    found: str
    endangers: str = ""
    fix: str = ""

    def to_object(self) -> JsonObject:
        """The finding for machines."""
        return {
            "check": self.check.value,
            "severity": self.severity.value,
            "found": self.found,
            "endangers": self.endangers,
            "fix": self.fix,
        }


def fine(check: Check, found: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check, Severity.FINE, found)


def warning(check: Check, found: str, endangers: str, fix: str) -> Finding:
    """It works, but not as well or as safely as it could."""
    return Finding(check, Severity.WARNING, found, endangers, fix)


def danger(check: Check, found: str, endangers: str, fix: str) -> Finding:
    """Data or a promise is at risk."""
    return Finding(check, Severity.DANGER, found, endangers, fix)
