"""Names a Linux process so that it can be recognised, or its end proven, later and by others."""

from typing import Final

from schemas.commands.sys import ProcessIdentity
from worker.evidence import procstat
from worker.evidence.procfs import NoEvidence, ProcReader

_ATTEMPTS: Final = 3


class NoSuchProcess(NoEvidence):
    """The process ended before it could be named.

    Attributes:
        pid: Its id.
    """

    reason = "process-gone"

    def __init__(self, pid: int) -> None:
        self.pid = pid
        super().__init__(f"process {pid} has ended")


def identify(pid: int, *, host: str, reader: ProcReader) -> ProcessIdentity:
    """Name a process that is alive now.

    Args:
        pid: Its id as this process sees it.
        host: The host's id: the setting, or ``procfs.machine_id()``.
        reader: The kernel.

    Returns:
        What makes the process the same, with parent, group and session as hints.

    Raises:
        NoSuchProcess: If it has ended, also as a zombie.
        NoEvidence: If this process cannot see what must be known.
    """
    here = reader.standpoint()
    if here.blind:
        raise NoEvidence(
            f"processes cannot be identified from here ({here.blind}); "
            "mount a /proc of this process's own namespaces",
            reason=here.blind,
        )
    for _ in range(_ATTEMPTS):
        try:
            stat = procstat.parse(reader.stat(pid))
            pid_ns = reader.pid_ns(pid)
            own_pid = reader.own_pid(pid)
            again = procstat.parse(reader.stat(pid))
        except (FileNotFoundError, ProcessLookupError):
            raise NoSuchProcess(pid) from None
        except (OSError, procstat.BadStat) as error:
            raise NoEvidence(
                f"process {pid} cannot be identified by this user", reason="process-unreadable"
            ) from error
        if again.has_exited:
            raise NoSuchProcess(pid)
        if (stat.start_ticks, stat.pgrp, stat.session) == (
            again.start_ticks,
            again.pgrp,
            again.session,
        ):
            return ProcessIdentity(
                host=host,
                boot_id=here.boot_id,
                pid=own_pid,
                start_ticks=stat.start_ticks - here.shift_ticks,
                pid_ns=pid_ns,
                ppid=stat.ppid,
                pgrp=stat.pgrp,
                session=stat.session,
            )
    raise NoEvidence(f"process {pid} keeps changing", reason="process-unstable")
