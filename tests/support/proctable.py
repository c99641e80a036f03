"""A kernel made of a table, for cases that no real machine can be brought into."""

import errno
import os
from dataclasses import dataclass, field

from schemas.commands.sys import ProcessIdentity
from worker.evidence.procfs import Standpoint

HOST = "3d1219c7c4c5404aaa1f6d2a48adfda4"
BOOT = "3f083892-e187-47fc-ad62-9533e4e660f0"
NS = 4_026_531_836
OTHER_NS = 4_026_532_201


def stat_line(
    pid: int,
    *,
    comm: bytes = b"provider",
    state: str = "S",
    ppid: int = 1,
    pgrp: int | None = None,
    session: int | None = None,
    threads: int = 1,
    start: int = 1_000,
) -> bytes:
    """A stat line as Linux writes it."""
    group = pid if pgrp is None else pgrp
    head = b"%d (%b) %b" % (pid, comm, state.encode())
    fields = [ppid, group, group if session is None else session, 0, -1, 4_194_560]
    fields += [91, 0, 0, 0, 0, 0, 0, 0, 20, 0, threads, 0, start, 3_133_440, 380, 2**64 - 1]
    fields += [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    return head + b"".join(b" %d" % value for value in fields) + b"\n"


def error(number: int) -> OSError:
    """What the kernel answers."""
    return OSError(number, os.strerror(number))


@dataclass
class ProcTable:
    """Processes by id: a stat line, or the error that reading it gives.

    Attributes:
        stats: What reading a stat gives.
        namespaces: Pid namespaces that are not the observer's, or the error reading gives.
        own_pids: Ids in their own namespace where they differ.
        hidden: Processes that the kernel knows but does not list, with their group.
        listings: Listings given out one after the other; the last one stays.
        here: Where the observer stands.
        listed: Listings given out so far.
        looked_at: Stats read so far.
    """

    stats: dict[int, bytes | OSError] = field(default_factory=dict)
    namespaces: dict[int, int | OSError] = field(default_factory=dict)
    own_pids: dict[int, int] = field(default_factory=dict)
    hidden: dict[int, int] = field(default_factory=dict)
    listings: list[list[int] | OSError] = field(default_factory=list)
    here: Standpoint = field(default_factory=lambda: Standpoint(BOOT, NS))
    groups: dict[int, bool] = field(default_factory=dict)
    listed: int = 0
    looked_at: int = 0

    def standpoint(self) -> Standpoint:
        return self.here

    def pids(self) -> list[int]:
        self.listed += 1
        if not self.listings:
            return sorted(self.stats)
        listing = self.listings[min(self.listed, len(self.listings)) - 1]
        if isinstance(listing, OSError):
            raise listing
        return listing

    def stat(self, pid: int) -> bytes:
        self.looked_at += 1
        found = self.stats.get(pid, error(errno.ENOENT))
        if isinstance(found, OSError):
            raise found
        return found

    def pid_ns(self, pid: int) -> int:
        found = self.namespaces.get(pid, NS if pid in self.stats else error(errno.ENOENT))
        if isinstance(found, OSError):
            raise found
        return found

    def own_pid(self, pid: int) -> int:
        return self.own_pids.get(pid, pid)

    def process_exists(self, pid: int) -> bool:
        return pid in self.hidden or pid in self.stats

    def group_exists(self, pgrp: int) -> bool:
        if pgrp in self.groups:
            return self.groups[pgrp]
        lines = [line for line in self.stats.values() if isinstance(line, bytes)]
        groups = {int(line.rpartition(b")")[2].split()[2]) for line in lines}
        return pgrp in groups or pgrp in self.hidden.values()


def process(
    pid: int,
    *,
    host: str = HOST,
    boot: str = BOOT,
    ns: int = NS,
    start: int = 1_000,
    pgrp: int | None = None,
    session: int | None = None,
    ppid: int = 1,
) -> ProcessIdentity:
    """An identity that fits ``stat_line`` with the same arguments."""
    group = pid if pgrp is None else pgrp
    return ProcessIdentity(
        host=host,
        boot_id=boot,
        pid=pid,
        start_ticks=start,
        pid_ns=ns,
        ppid=ppid,
        pgrp=group,
        session=group if session is None else session,
    )
