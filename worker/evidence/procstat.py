"""Reads ``/proc/<pid>/stat`` (proc_pid_stat(5))."""

from dataclasses import dataclass
from typing import Final

_STATE: Final = 0
_PPID: Final = 1
_PGRP: Final = 2
_SESSION: Final = 3
_THREADS: Final = 17
_START: Final = 19


class BadStat(ValueError):
    """These bytes are not a process's stat."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields that say which process this is, and whether it still runs.

    Attributes:
        pid: As seen in the namespace of this ``/proc``.
        state: One letter; ``Z`` and ``X`` have exited.
        ppid: Parent; 0 if it lies outside the namespace.
        pgrp: Process group; 0 if it lies outside the namespace.
        session: Session; 0 if it lies outside the namespace.
        threads: Threads that have not been reaped.
        start_ticks: When it started, in clock ticks since boot.
    """

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    threads: int
    start_ticks: int

    @property
    def has_exited(self) -> bool:
        """Whether nothing of it runs any more.

        The first thread of a process that goes on in others is shown as a zombie too; the number of
        threads tells the two apart.
        """
        return self.state in "ZXx" and self.threads <= 1


def parse(raw: bytes) -> Stat:
    """Parse a stat line.

    The command name may hold anything, blanks, newlines and parentheses too: it ends at the *last*
    closing one.

    Raises:
        BadStat: If it is cut short or garbled.
    """
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    try:
        pid = int(head[: head.index(b" (")])
        state = fields[_STATE].decode("ascii")
        stat = Stat(
            pid=pid,
            state=state,
            # A process that is being reaped shows -1 for its group and session.
            ppid=max(0, int(fields[_PPID])),
            pgrp=max(0, int(fields[_PGRP])),
            session=max(0, int(fields[_SESSION])),
            threads=int(fields[_THREADS]),
            start_ticks=int(fields[_START]),
        )
    except (ValueError, IndexError):
        raise BadStat("not a process's stat") from None
    if pid < 1 or len(state) != 1 or not state.isalpha() or stat.start_ticks < 0:
        raise BadStat("not a process's stat")
    return stat
