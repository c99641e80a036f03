"""Reading stat lines: any command name, nothing else."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.proctable import stat_line
from worker.evidence import procstat
from worker.evidence.procstat import BadStat, Stat

names = st.one_of(
    st.binary(max_size=64).map(lambda raw: raw.replace(b"\0", b"?")),
    st.text("() \n\t0RSZ", max_size=16).map(str.encode),
)
numbers = st.integers(min_value=0, max_value=2**31 - 1)


@given(
    comm=names,
    state=st.sampled_from("RSDZTtXxKWPI"),
    pid=st.integers(min_value=1, max_value=2**22),
    ppid=numbers,
    pgrp=numbers,
    session=numbers,
    threads=st.integers(min_value=0, max_value=100_000),
    start=st.integers(min_value=0, max_value=2**63),
)
def test_any_command_name_is_read_past(
    comm: bytes,
    state: str,
    pid: int,
    ppid: int,
    pgrp: int,
    session: int,
    threads: int,
    start: int,
) -> None:
    line = stat_line(
        pid,
        comm=comm,
        state=state,
        ppid=ppid,
        pgrp=pgrp,
        session=session,
        threads=threads,
        start=start,
    )
    assert procstat.parse(line) == Stat(pid, state, ppid, pgrp, session, threads, start)


@given(
    raw=st.one_of(
        st.binary(max_size=200), st.text("0123456789 ()SZ-", max_size=200).map(str.encode)
    )
)
def test_garbage_is_refused_and_never_raises_anything_else(raw: bytes) -> None:
    try:
        stat = procstat.parse(raw)
    except BadStat:
        return
    assert stat.pid >= 1
    assert stat.start_ticks >= 0
    assert min(stat.ppid, stat.pgrp, stat.session) >= 0


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 20, 40, 60])
def test_a_line_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BadStat):
        procstat.parse(stat_line(4_711, comm=b"a) S 1 2 3")[:cut])


def test_a_process_being_reaped_has_no_group() -> None:
    stat = procstat.parse(stat_line(7, pgrp=-1, session=-1, state="X", threads=0))
    assert (stat.pgrp, stat.session, stat.has_exited) == (0, 0, True)


@pytest.mark.parametrize(
    ("state", "threads", "exited"),
    [("Z", 1, True), ("Z", 0, True), ("Z", 2, False), ("X", 0, True), ("T", 1, False)],
)
def test_a_zombie_has_exited_unless_other_threads_go_on(
    state: str, threads: int, exited: bool
) -> None:
    assert procstat.parse(stat_line(7, state=state, threads=threads)).has_exited is exited


def test_our_own_line_says_who_we_are() -> None:
    stat = procstat.parse(Path("/proc/self/stat").read_bytes())
    assert (stat.pid, stat.ppid, stat.pgrp, stat.session) == (
        os.getpid(),
        os.getppid(),
        os.getpgrp(),
        os.getsid(0),
    )
    assert not stat.has_exited
