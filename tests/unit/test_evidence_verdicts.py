"""Verdicts from tables: namespaces, hosts, boots, reused ids, unreadable entries, groups."""

import errno
from typing import Any

import pytest

from tests.support.proctable import (
    BOOT,
    HOST,
    NS,
    OTHER_NS,
    ProcTable,
    error,
    process,
    stat_line,
)
from worker.evidence import groups, verdicts
from worker.evidence.groups import GroupSight, Scans
from worker.evidence.identity import NoSuchProcess, identify
from worker.evidence.procfs import NoEvidence, Standpoint
from worker.evidence.verdicts import Observer, Sight

CONNECTOR = process(100)
CHILD = process(200, ppid=100)


def judge(identity: Any, table: ProcTable) -> Sight:
    return verdicts.judge(identity, Observer.at(HOST, table))


def look(table: ProcTable, child: Any = CHILD, connector: Any = CONNECTOR) -> GroupSight:
    observer = Observer.at(HOST, table)
    sight = verdicts.judge(child, observer)
    return groups.judge(child, connector, sight, observer, Scans(table))


@pytest.mark.parametrize(
    ("case", "identity", "table", "expected"),
    [
        ("alive", process(100), ProcTable({100: stat_line(100)}), Sight("alive", "same-process")),
        (
            "stopped is alive",
            process(100),
            ProcTable({100: stat_line(100, state="T")}),
            Sight("alive", "same-process"),
        ),
        (
            "reparented, regrouped and in another session is the same process",
            process(100, ppid=50, pgrp=50, session=50),
            ProcTable({100: stat_line(100, ppid=1)}),
            Sight("alive", "same-process"),
        ),
        (
            "renamed by exec is the same process",
            process(100),
            ProcTable({100: stat_line(100, comm=b"x) Z 1 (")}),
            Sight("alive", "same-process"),
        ),
        ("gone", process(100), ProcTable(), Sight("gone", "no-such-process")),
        (
            "gone between open and read",
            process(100),
            ProcTable({100: error(errno.ESRCH)}),
            Sight("gone", "no-such-process"),
        ),
        (
            "zombie",
            process(100),
            ProcTable({100: stat_line(100, state="Z")}),
            Sight("gone", "exited"),
        ),
        (
            "first thread gone, others run",
            process(100),
            ProcTable({100: stat_line(100, state="Z", threads=2)}),
            Sight("alive", "same-process"),
        ),
        (
            "reused id",
            process(100),
            ProcTable({100: stat_line(100, start=1_001)}),
            Sight("gone", "pid-reused"),
        ),
        (
            "reused id that we may not look into",
            process(100),
            ProcTable({100: stat_line(100, start=999)}, {100: error(errno.EACCES)}),
            Sight("gone", "pid-reused"),
        ),
        (
            "id reused by a process of another namespace",
            process(100),
            ProcTable({100: stat_line(100)}, {100: OTHER_NS}),
            Sight("gone", "pid-reused"),
        ),
        (
            "namespace not readable",
            process(100),
            ProcTable({100: stat_line(100)}, {100: error(errno.EACCES)}),
            Sight("unverifiable", "namespace-unreadable"),
        ),
        (
            "ended before its namespace was read",
            process(100),
            ProcTable({100: stat_line(100)}, {100: error(errno.ESRCH)}),
            Sight("gone", "no-such-process"),
        ),
        (
            "not readable",
            process(100),
            ProcTable({100: error(errno.EACCES)}),
            Sight("unverifiable", "unreadable"),
        ),
        (
            "too many open files",
            process(100),
            ProcTable({100: error(errno.EMFILE)}),
            Sight("unverifiable", "unreadable"),
        ),
        (
            "garbled",
            process(100),
            ProcTable({100: b"100 (x"}),
            Sight("unverifiable", "garbled"),
        ),
        (
            "hidden by hidepid",
            process(100),
            ProcTable(hidden={100: 100}),
            Sight("unverifiable", "hidden"),
        ),
        (
            "other namespace, although such an id is here",
            process(100, ns=OTHER_NS),
            ProcTable({100: stat_line(100)}),
            Sight("unverifiable", "other-namespace"),
        ),
        (
            "other namespace, and no such id is here",
            process(100, ns=OTHER_NS),
            ProcTable(),
            Sight("unverifiable", "other-namespace"),
        ),
        (
            "unknown namespace",
            process(1, ns=0),
            ProcTable(),
            Sight("unverifiable", "other-namespace"),
        ),
        (
            "other boot of this host",
            process(100, boot="another"),
            ProcTable({100: stat_line(100)}),
            Sight("gone", "other-boot"),
        ),
        (
            "other boot and other namespace",
            process(100, boot="another", ns=OTHER_NS),
            ProcTable(),
            Sight("gone", "other-boot"),
        ),
        (
            "other host",
            process(100, host="other"),
            ProcTable(),
            Sight("unverifiable", "other-host"),
        ),
        (
            "other boot of another host proves nothing",
            process(100, host="other", boot="another"),
            ProcTable(),
            Sight("unverifiable", "other-host"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_process(case: str, identity: Any, table: ProcTable, expected: Sight) -> None:
    assert judge(identity, table) == expected


def test_a_proc_of_another_namespace_proves_nothing_but_another_boot() -> None:
    table = ProcTable(here=Standpoint(BOOT, NS, blind="proc-of-another-namespace"))
    assert judge(process(100), table) == Sight("unverifiable", "proc-of-another-namespace")
    assert judge(process(100, boot="another"), table).state == "gone"
    with pytest.raises(NoEvidence):
        identify(100, host=HOST, reader=table)


def test_start_times_count_from_the_kernels_boot_in_a_time_namespace() -> None:
    inside = ProcTable(
        {100: stat_line(100, start=8_640_500)}, here=Standpoint(BOOT, NS, "", False, 8_640_000)
    )
    outside = ProcTable({100: stat_line(100, start=500)})
    named = identify(100, host=HOST, reader=inside)
    assert named.start_ticks == 500
    assert judge(named, inside).state == "alive"
    assert judge(named, outside).state == "alive"
    assert judge(process(100, start=8_640_500), inside).state == "gone"


MEMBER = stat_line(201, pgrp=200, session=200, start=1_500)


@pytest.mark.parametrize(
    ("case", "child", "connector", "table", "expected"),
    [
        (
            "nobody left",
            CHILD,
            CONNECTOR,
            ProcTable({7: stat_line(7)}),
            GroupSight("empty", "no-such-group"),
        ),
        (
            "a member outlives the child",
            CHILD,
            CONNECTOR,
            ProcTable({201: MEMBER}),
            GroupSight("alive", "members"),
        ),
        (
            "a member outlives the child that is still a zombie",
            CHILD,
            CONNECTOR,
            ProcTable({200: stat_line(200, state="Z"), 201: MEMBER}),
            GroupSight("alive", "members"),
        ),
        (
            "only zombies",
            CHILD,
            CONNECTOR,
            ProcTable({200: stat_line(200, state="Z")}),
            GroupSight("empty", "exited"),
        ),
        (
            "the child lives",
            CHILD,
            CONNECTOR,
            ProcTable({200: stat_line(200)}),
            GroupSight("alive", "child-alive"),
        ),
        (
            "the child lives and has left its group",
            CHILD,
            CONNECTOR,
            ProcTable({200: stat_line(200, pgrp=250)}),
            GroupSight("alive", "child-alive"),
        ),
        (
            "the child cannot be read",
            CHILD,
            CONNECTOR,
            ProcTable({200: error(errno.EACCES)}),
            GroupSight("unverifiable", "child-unverifiable"),
        ),
        (
            "members that cannot be read",
            CHILD,
            CONNECTOR,
            ProcTable({201: error(errno.EACCES)}, groups={200: True}),
            GroupSight("unverifiable", "members-unreadable"),
        ),
        (
            "a process elsewhere that cannot be read, but the kernel knows no such group",
            CHILD,
            CONNECTOR,
            ProcTable({300: error(errno.EACCES)}),
            GroupSight("empty", "no-such-group"),
        ),
        (
            "a garbled entry may be a member",
            CHILD,
            CONNECTOR,
            ProcTable({201: b"201 (x"}, groups={200: True}),
            GroupSight("unverifiable", "members-unreadable"),
        ),
        (
            "hidden members",
            CHILD,
            CONNECTOR,
            ProcTable(hidden={201: 200}),
            GroupSight("unverifiable", "members-unseen"),
        ),
        (
            "a zombie, and others may be hidden",
            CHILD,
            CONNECTOR,
            ProcTable({200: stat_line(200, state="Z")}, here=Standpoint(BOOT, NS, hides=True)),
            GroupSight("unverifiable", "members-unreadable"),
        ),
        (
            "nothing can be listed",
            CHILD,
            CONNECTOR,
            ProcTable(listings=[error(errno.EMFILE)], groups={200: True}),
            GroupSight("unverifiable", "unlistable"),
        ),
        (
            "listed processes that vanish in mid-scan",
            CHILD,
            CONNECTOR,
            ProcTable({202: error(errno.ESRCH)}, listings=[[201, 202, 203]]),
            GroupSight("empty", "no-such-group"),
        ),
        (
            "a member ended in mid-scan and left one that the listing missed",
            CHILD,
            CONNECTOR,
            ProcTable({150: stat_line(150, pgrp=200)}, listings=[[201]]),
            GroupSight("unverifiable", "members-unseen"),
        ),
        (
            "a zombie had started one that the first listing missed",
            CHILD,
            CONNECTOR,
            ProcTable(
                {200: stat_line(200, state="Z"), 150: stat_line(150, pgrp=200, session=200)},
                listings=[[200], [150, 200]],
            ),
            GroupSight("alive", "members"),
        ),
        (
            "the number was given to a new process and its group",
            CHILD,
            CONNECTOR,
            ProcTable({200: stat_line(200, start=9_000), 201: MEMBER}),
            GroupSight("empty", "group-reused"),
        ),
        (
            "the number was given to a group in another session",
            process(205, pgrp=200, session=180),
            CONNECTOR,
            ProcTable({201: stat_line(201, pgrp=200, session=201)}),
            GroupSight("empty", "group-reused"),
        ),
        (
            "no session was recorded",
            process(205, pgrp=200, session=0),
            CONNECTOR,
            ProcTable({201: stat_line(201, pgrp=200, session=201)}),
            GroupSight("alive", "members"),
        ),
        (
            "the connector's group",
            process(200, pgrp=100),
            CONNECTOR,
            ProcTable(),
            GroupSight("none", "no-group"),
        ),
        (
            "the group of the connector's id, before the connector was given it",
            process(200, pgrp=100),
            process(100, pgrp=90),
            ProcTable(),
            GroupSight("none", "no-group"),
        ),
        (
            "no group",
            process(200, pgrp=0),
            CONNECTOR,
            ProcTable(),
            GroupSight("none", "no-group"),
        ),
        (
            "the connector's group is not known, the child leads its own",
            CHILD,
            process(100, pgrp=0),
            ProcTable(),
            GroupSight("empty", "no-such-group"),
        ),
        (
            "the connector's group is not known, the child leads none",
            process(200, pgrp=150),
            process(100, pgrp=0),
            ProcTable(),
            GroupSight("none", "no-group"),
        ),
        (
            "other boot",
            process(200, boot="another"),
            process(100, boot="another"),
            ProcTable({201: MEMBER}),
            GroupSight("empty", "other-boot"),
        ),
        (
            "other namespace",
            process(200, ns=OTHER_NS),
            CONNECTOR,
            ProcTable(),
            GroupSight("unverifiable", "other-namespace"),
        ),
        (
            "other host",
            process(200, host="other"),
            CONNECTOR,
            ProcTable(),
            GroupSight("unverifiable", "other-host"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_group(
    case: str, child: Any, connector: Any, table: ProcTable, expected: GroupSight
) -> None:
    assert look(table, child, connector) == expected


def test_identify_names_what_judge_recognises() -> None:
    table = ProcTable({100: stat_line(100, ppid=3, pgrp=90, session=80, start=77)})
    named = identify(100, host=HOST, reader=table)
    assert named == process(100, ppid=3, pgrp=90, session=80, start=77)
    assert judge(named, table).state == "alive"


def test_identify_gives_the_id_that_a_process_has_in_its_own_namespace() -> None:
    table = ProcTable({500: stat_line(500)}, {500: OTHER_NS}, own_pids={500: 1})
    named = identify(500, host=HOST, reader=table)
    assert (named.pid, named.pid_ns) == (1, OTHER_NS)
    assert judge(named, table) == Sight("unverifiable", "other-namespace")


@pytest.mark.parametrize(
    ("table", "raised"),
    [
        (ProcTable(), NoSuchProcess),
        (ProcTable({100: error(errno.ESRCH)}), NoSuchProcess),
        (ProcTable({100: stat_line(100, state="Z")}), NoSuchProcess),
        (ProcTable({100: error(errno.EACCES)}), NoEvidence),
        (ProcTable({100: stat_line(100)}, {100: error(errno.EACCES)}), NoEvidence),
        (ProcTable({100: b"garbled"}), NoEvidence),
    ],
)
def test_identify_refuses_what_it_cannot_name(table: ProcTable, raised: type[NoEvidence]) -> None:
    with pytest.raises(raised):
        identify(100, host=HOST, reader=table)


def test_identify_refuses_an_id_that_is_reused_while_it_looks() -> None:
    class Reused(ProcTable):
        def stat(self, pid: int) -> bytes:
            self.looked_at += 1
            return stat_line(pid, start=self.looked_at)

    with pytest.raises(NoEvidence, match="keeps changing"):
        identify(100, host=HOST, reader=Reused({100: b""}))


def test_hints_are_no_part_of_being_the_same() -> None:
    table = ProcTable({100: stat_line(100)})
    bare = process(100).model_copy(update={"ppid": 0, "pgrp": 0, "session": 0})
    assert judge(bare, table) == Sight("alive", "same-process")
