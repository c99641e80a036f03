"""What can go wrong around the fold; a refused command is a result and never one of these."""

from pathlib import Path

from schemas.codes import Code
from worker.errors import StartRefused, TidegateError


class LedgerError(TidegateError):
    """The ledger cannot go on like this."""

    code = Code.UNAVAILABLE
    reason = "ledger-unavailable"


class FileRefused(StartRefused):
    """The file is not a ledger that this version may write to.

    Attributes:
        path: The file.
        differences: What differs, one sentence each.
    """

    reason = "ledger-file-refused"

    def __init__(self, path: Path | str, differences: tuple[str, ...], *, reason: str) -> None:
        self.path = str(path)
        self.differences = differences
        super().__init__(f"{path}: {'; '.join(differences)}", reason=reason)


class FileLocked(StartRefused):
    """Another process holds the file.

    Attributes:
        path: The file.
    """

    reason = "ledger-locked"

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        super().__init__(
            f"{path} is held by another process; one process per ledger, "
            "and every other worker needs a data directory of its own"
        )


class LogGap(LedgerError):
    """The next message is not the one after the watermark.

    Attributes:
        expected: Sequence that should have come.
        found: Sequence that came.
    """

    reason = "log-gap"

    def __init__(self, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"the log continues at {found}, but {expected} is next")


class StorageFull(LedgerError):
    """The disk is full; the batch was rolled back and nothing of it happened."""

    reason = "storage-full"


class FoldFailed(LedgerError):
    """A command could not be folded; the batch was rolled back and nothing of it happened.

    Attributes:
        seq: The command's sequence; 0 if the failure lies outside one.
    """

    code = Code.INTERNAL
    reason = "fold-failed"

    def __init__(self, seq: int) -> None:
        self.seq = seq
        super().__init__(f"folding stopped at sequence {seq}")


class Diverged(LedgerError):
    """Two replicas derived different things from the same log; one of them is wrong.

    Nobody knows which, so every replica stops until an operator has said whose file is right.

    Attributes:
        epoch: Of the log.
        seq: The command at which they differ.
    """

    code = Code.INTERNAL
    reason = "diverged"

    def __init__(self, epoch: int, seq: int) -> None:
        self.epoch = epoch
        self.seq = seq
        super().__init__(
            f"two replicas answered the command at {seq} of epoch {epoch} differently, and every "
            "replica stops. Compare each with a replay, tidegate ledger verify --replica ID, then "
            "say whose file is right: tidegate ledger rebase --replica ID"
        )


class StampAhead(LedgerError):
    """The next command is stamped with an instant that the broker's own clock contradicts.

    Attributes:
        seq: Its sequence.
        time_ms: Its stamp.
    """

    reason = "stamp-ahead"

    def __init__(self, seq: int, time_ms: int, ahead_ms: int) -> None:
        self.seq = seq
        self.time_ms = time_ms
        super().__init__(
            f"the command at {seq} is stamped {ahead_ms // 1000} s ahead of the broker's own clock "
            "and of this machine's: the broker's clock had jumped. "
            "tidegate ledger rebase goes on without believing that stamp"
        )


class Regressed(LedgerError):
    """The log is not the one that was folded: it was replaced by an older copy of itself.

    Attributes:
        watermark: Sequence that was folded.
        why: What does not fit.
        heard: Whether another replica found it; this one's own file fits the log.
    """

    reason = "log-regressed"

    def __init__(self, watermark: int, why: str, *, heard: bool = False) -> None:
        self.watermark = watermark
        self.why = why
        self.heard = heard
        super().__init__(
            f"the log is not the one that was folded up to {watermark}: {why}. "
            "Nothing is folded and nothing is authorised until the ledger is rebased"
        )


class BehindLog(LedgerError):
    """The log was trimmed beyond the watermark, and no snapshot reaches into it.

    Attributes:
        watermark: Sequence that was folded.
        first_seq: First sequence that the log still has.
    """

    reason = "behind-the-log"

    def __init__(self, watermark: int, first_seq: int) -> None:
        self.watermark = watermark
        self.first_seq = first_seq
        super().__init__(
            f"the log begins at {first_seq}, this ledger ends at {watermark}, "
            "and there is no snapshot between them that verifies"
        )
