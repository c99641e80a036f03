"""Judges whether a child's process group still holds a process that runs.

A child's own children outlive it in its group, and may go on talking to the provider. All groups
are judged from one scan of ``/proc`` per pass.
"""

import errno
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.commands.sys import ProcessIdentity
from worker.evidence import procstat
from worker.evidence.procfs import ProcReader
from worker.evidence.procstat import Stat
from worker.evidence.verdicts import Observer, Sight

GroupState = Literal["empty", "alive", "unverifiable", "none"]


@dataclass(frozen=True, slots=True)
class GroupSight:
    """What was seen of a group.

    Attributes:
        state: The verdict; ``none`` means that this group can prove nothing about the child.
        reason: Stable kebab-case word that says which rule decided.
    """

    state: GroupState
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """All processes by group, as one listing showed them.

    Attributes:
        members: Group to its processes, exited ones included.
        unreadable: Listed processes whose stat could not be read although they exist.
    """

    members: Mapping[int, list[Stat]]
    unreadable: int


@dataclass(slots=True)
class Scans:
    """The scans of one pass: one, made when first needed, and a second only in doubt.

    Attributes:
        reader: The kernel.
        made: Scans made so far.
    """

    reader: ProcReader
    made: list[Scan] = field(default_factory=list)

    def first(self) -> Scan:
        """The pass's scan.

        Raises:
            OSError: If processes cannot be listed.
        """
        return self._nth(0)

    def second(self) -> Scan:
        """Another one, begun after the first had ended.

        Raises:
            OSError: If processes cannot be listed.
        """
        return self._nth(1)

    def _nth(self, index: int) -> Scan:
        while len(self.made) <= index:
            self.made.append(scan(self.reader))
        return self.made[index]


def scan(reader: ProcReader) -> Scan:
    """Look at every listed process once; those that end meanwhile are left out.

    Raises:
        OSError: If processes cannot be listed.
    """
    members: defaultdict[int, list[Stat]] = defaultdict(list)
    unreadable = 0
    for pid in reader.pids():
        try:
            stat = procstat.parse(reader.stat(pid))
        except OSError as error:
            unreadable += error.errno not in (errno.ENOENT, errno.ESRCH)
        except procstat.BadStat:
            unreadable += 1
        else:
            members[stat.pgrp].append(stat)
    return Scan(members, unreadable)


def judge(
    child: ProcessIdentity,
    connector: ProcessIdentity,
    sight: Sight,
    observer: Observer,
    scans: Scans,
) -> GroupSight:
    """Judge a child's group.

    Args:
        child: The child; its group is the one it was in when it was named.
        connector: The connector that started it.
        sight: What was seen of the child itself.
        observer: Who looks.
        scans: This pass's scans; used only once the child is gone, since a child that lives, or may
            live, holds the seat whatever its group does.
    """
    if not _is_evidence(child, connector):
        return GroupSight("none", "no-group")
    if (known := observer.cannot_judge(child)) is not None:
        state: GroupState = "empty" if known.state == "gone" else "unverifiable"
        return GroupSight(state, known.reason)
    match sight.state:
        case "alive":
            return GroupSight("alive", "child-alive")
        case "unverifiable":
            return GroupSight("unverifiable", "child-unverifiable")
    try:
        return _judge_members(child, observer, scans)
    except OSError:
        return GroupSight("unverifiable", "unlistable")


def _is_evidence(child: ProcessIdentity, connector: ProcessIdentity) -> bool:
    if child.pgrp == 0 or child.pgrp in (connector.pgrp, connector.pid):
        return False
    # The connector's group is not known: only a group that the child leads is surely another.
    return connector.pgrp != 0 or child.pgrp == child.pid


def _judge_members(child: ProcessIdentity, observer: Observer, scans: Scans) -> GroupSight:
    scan = scans.first()
    live = _live(scan, child, observer)
    if live:
        return GroupSight("alive", "members")
    # A scan can miss a process that starts another and ends while the listing goes on. The kernel
    # looks at the whole group at one instant, and a group without members stays without.
    if not observer.reader.group_exists(child.pgrp):
        return GroupSight("empty", "no-such-group")
    if _was_given_to_others(scan, child, observer):
        return GroupSight("empty", "group-reused")
    if scan.unreadable or observer.here.hides:
        return GroupSight("unverifiable", "members-unreadable")
    if not scan.members.get(child.pgrp):
        return GroupSight("unverifiable", "members-unseen")
    # Only zombies, which the kernel still counts. What they may have started while the first scan
    # went on shows in a second one: they cannot start anything any more.
    if _live(scans.second(), child, observer):
        return GroupSight("alive", "members")
    return GroupSight("empty", "exited")


def _live(scan: Scan, child: ProcessIdentity, observer: Observer) -> list[Stat]:
    """Members that run, of this group and not of a later one with the same number."""
    if _was_given_to_others(scan, child, observer):
        return []
    return [stat for stat in scan.members.get(child.pgrp, ()) if not stat.has_exited]


def _was_given_to_others(scan: Scan, child: ProcessIdentity, observer: Observer) -> bool:
    """Whether the group's number belongs to another group by now, so that the child's is empty.

    The kernel gives a number to a new process only when no process, group or session has it. And a
    group lies in one session for as long as it exists.
    """
    members = scan.members.get(child.pgrp, ())
    if child.pgrp == child.pid:
        for stat in members:
            if stat.pid == child.pid and not observer.is_same(stat, child):
                return True
    sessions = {stat.session for stat in members if stat.session}
    return bool(sessions) and child.session != 0 and child.session not in sessions
