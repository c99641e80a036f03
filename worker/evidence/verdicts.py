"""Judges whether the process an identity names is alive, gone, or beyond proof from here.

The rules are those of spec/admission.md (Recovery), as a ladder: the first that applies decides.
Whatever is not proven is ``unverifiable``; only ``gone`` ever frees anything.
"""

import errno
from dataclasses import dataclass
from typing import Literal

from schemas.commands.sys import ProcessIdentity
from worker.evidence import procstat
from worker.evidence.procfs import LinuxProc, ProcReader, Standpoint, machine_id
from worker.evidence.procstat import Stat

State = Literal["alive", "gone", "unverifiable"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of one process.

    Attributes:
        state: The verdict.
        reason: Stable kebab-case word that says which rule decided.
    """

    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Observer:
    """Someone who looks: a host id, and eyes on that host.

    Attributes:
        host: The host it vouches for.
        reader: Its kernel.
        here: Where it stands.
    """

    host: str
    reader: ProcReader
    here: Standpoint

    @classmethod
    def at(cls, host: str, reader: ProcReader) -> "Observer":
        """An observer where the reader stands."""
        return cls(host, reader, reader.standpoint())

    def cannot_judge(self, identity: ProcessIdentity) -> Sight | None:
        """The verdict that needs no look at the process, or ``None`` if one must be taken."""
        if identity.host != self.host:
            return Sight("unverifiable", "other-host")
        if identity.boot_id != self.here.boot_id:
            return Sight("gone", "other-boot")
        if identity.pid_ns != self.here.pid_ns:
            return Sight("unverifiable", "other-namespace")
        if self.here.blind:
            return Sight("unverifiable", self.here.blind)
        return None

    def is_same(self, stat: Stat, identity: ProcessIdentity) -> bool:
        """Whether a process seen here may be the one that was named, by id and start."""
        return (
            stat.pid == identity.pid
            and stat.start_ticks - self.here.shift_ticks == identity.start_ticks
        )


def observer_of(host: str | None, reader: ProcReader | None = None) -> Observer:
    """The observer of this machine.

    Args:
        host: The setting; the machine id if absent.
        reader: The kernel; this machine's by default.

    Raises:
        NoEvidence: This machine has no id, or cannot be looked at.
    """
    return Observer.at(host or machine_id(), reader or LinuxProc())


def judge(identity: ProcessIdentity, observer: Observer) -> Sight:
    """Judge one process.

    Never raises for anything the kernel answers: what cannot be read is ``unverifiable``.
    """
    if (known := observer.cannot_judge(identity)) is not None:
        return known
    reader, pid = observer.reader, identity.pid
    try:
        stat = procstat.parse(reader.stat(pid))
    except OSError as error:
        return _unread(error, pid, reader, "unreadable")
    except procstat.BadStat:
        return Sight("unverifiable", "garbled")
    if not observer.is_same(stat, identity):
        return Sight("gone", "pid-reused")
    if stat.has_exited:
        return Sight("gone", "exited")
    try:
        pid_ns = reader.pid_ns(pid)
    except OSError as error:
        return _unread(error, pid, reader, "namespace-unreadable")
    if pid_ns != identity.pid_ns:
        return Sight("gone", "pid-reused")
    return Sight("alive", "same-process")


def _unread(error: OSError, pid: int, reader: ProcReader, otherwise: str) -> Sight:
    match error.errno:
        case errno.ESRCH:  # it was there when the file was opened and had ended when it was read
            return Sight("gone", "no-such-process")
        case errno.ENOENT if not reader.process_exists(pid):
            return Sight("gone", "no-such-process")
        case errno.ENOENT:
            # The kernel knows it although it is not listed: hidden from us, or just started.
            return Sight("unverifiable", "hidden")
    return Sight("unverifiable", otherwise)
