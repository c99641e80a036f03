"""What an observer can see of processes, and where it stands while looking."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from schemas.codes import Code
from worker.errors import TidegateError

MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

_STAT_BYTES: Final = 4096


class NoEvidence(TidegateError):
    """This machine or process cannot tell who is alive; the message says what to do."""

    code = Code.FAILED_PRECONDITION
    reason = "no-evidence"


@dataclass(frozen=True, slots=True)
class Standpoint:
    """Where an observer stands; it limits what its looking proves.

    Attributes:
        boot_id: The running kernel's boot id.
        pid_ns: Inode of the observer's own pid namespace.
        blind: Why this ``/proc`` shows nothing that could be judged; empty if it does.
        hides: Whether this ``/proc`` may hide processes of other users (``hidepid``).
        shift_ticks: Clock ticks by which start times shown here are ahead of the kernel's own, in a
            time namespace (time_namespaces(7)).
    """

    boot_id: str
    pid_ns: int
    blind: str = ""
    hides: bool = False
    shift_ticks: int = 0


class ProcReader(Protocol):
    """The few questions evidence asks of a kernel; tests answer them from tables."""

    def standpoint(self) -> Standpoint:
        """Where the observer stands."""
        ...

    def pids(self) -> list[int]:
        """Every process that is listed now.

        Raises:
            OSError: If nothing can be listed.
        """
        ...

    def stat(self, pid: int) -> bytes:
        """The stat line of a process.

        Raises:
            OSError: ENOENT or ESRCH if there is no such process, else it cannot be read.
        """
        ...

    def pid_ns(self, pid: int) -> int:
        """Inode of a process's pid namespace.

        Raises:
            OSError: As ``stat``.
        """
        ...

    def own_pid(self, pid: int) -> int:
        """The id a process has in its own pid namespace.

        Raises:
            OSError: As ``stat``.
        """
        ...

    def process_exists(self, pid: int) -> bool:
        """Whether the kernel knows a process of this id, listed or not."""
        ...

    def group_exists(self, pgrp: int) -> bool:
        """Whether the kernel knows a process of this group, exited but not yet reaped included."""
        ...


class LinuxProc:
    """The ``/proc`` of this machine.

    Raises:
        NoEvidence: If this is not Linux or ``/proc`` is not there.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise NoEvidence("process evidence needs Linux", reason="not-linux")
        try:
            self._standpoint = _standpoint()
        except (OSError, ValueError) as error:
            raise NoEvidence("/proc cannot be read; mount it", reason="proc-unreadable") from error

    def standpoint(self) -> Standpoint:
        """Where this process stands; it never changes while it lives."""
        return self._standpoint

    def pids(self) -> list[int]:
        """Every listed process."""
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

    def stat(self, pid: int) -> bytes:
        """The stat line; one read takes it whole."""
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _STAT_BYTES)
        finally:
            os.close(descriptor)

    def pid_ns(self, pid: int) -> int:
        """The namespace's inode."""
        return os.stat(f"/proc/{pid}/ns/pid").st_ino

    def own_pid(self, pid: int) -> int:
        """The last of the ids in ``NSpid``."""
        ids = _ns_pids(_read(f"/proc/{pid}/status"))
        return ids[-1] if ids else pid

    def process_exists(self, pid: int) -> bool:
        """Ask with signal 0, which hidepid does not hide from."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def group_exists(self, pgrp: int) -> bool:
        """Ask with signal 0: the kernel looks at the whole group at one instant."""
        if pgrp <= 1:
            return True  # kill(-1) would mean everybody
        try:
            os.killpg(pgrp, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def machine_id(files: tuple[Path, ...] = MACHINE_ID_FILES) -> str:
    """The host id to use where no setting gives one: the machine id (machine-id(5)).

    Raises:
        NoEvidence: If there is none, as in most containers; then the host needs a setting.
    """
    for file in files:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = file.read_text("ascii").strip()
            if len(text) == 32 and set(text) <= set("0123456789abcdef") and set(text) != {"0"}:
                return text
    raise NoEvidence(
        "this machine has no machine id, so its processes cannot be told from another host's; "
        "give every process on it the same host id in the settings",
        reason="no-host-id",
    )


def _standpoint() -> Standpoint:
    boot_id = _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    shift_ns = _boottime_shift_ns()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    blind = ""
    ids = _ns_pids(_read("/proc/self/status")) or [int(os.readlink("/proc/self"))]
    if ids != [os.getpid()]:
        blind = "proc-of-another-namespace"
    elif shift_ns * ticks_per_s % 1_000_000_000:
        blind = "time-namespace"  # start times would be off by one tick now and then
    return Standpoint(
        boot_id=boot_id,
        pid_ns=os.stat("/proc/self/ns/pid").st_ino,
        blind=blind,
        hides=_hides(_read("/proc/self/mountinfo")),
        shift_ticks=shift_ns * ticks_per_s // 1_000_000_000,
    )


def _boottime_shift_ns() -> int:
    try:
        raw = _read("/proc/self/timens_offsets")
    except FileNotFoundError:
        return 0  # a kernel without time namespaces
    for line in raw.splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock in (b"boottime", b"7"):
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


def _hides(mountinfo: bytes) -> bool:
    """Whether the topmost mount on ``/proc`` has a ``hidepid`` other than off."""
    hides = False
    for line in mountinfo.splitlines():
        left, _, right = line.partition(b" - ")
        where = left.split()
        what = right.split()
        if len(where) > 4 and where[4] == b"/proc" and len(what) > 2:
            options = what[2].split(b",")
            hides = any(
                option.startswith(b"hidepid=") and option[8:] not in (b"0", b"off")
                for option in options
            )
    return hides


def _ns_pids(status: bytes) -> list[int]:
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            return [int(part) for part in line.split()[1:]]
    return []


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()
