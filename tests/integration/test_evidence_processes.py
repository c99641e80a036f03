"""Evidence about real processes: killed, stopped, orphaned, zombies, in other namespaces."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from schemas.commands.sys import ProcessIdentity
from tests.support.processes import Family, eventually, family
from worker.evidence.identity import NoSuchProcess, identify
from worker.evidence.observe import observe
from worker.evidence.procfs import LinuxProc
from worker.evidence.verdicts import Observer, judge

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")

HOST = "this-host"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def proc() -> LinuxProc:
    return LinuxProc()


class Watched:
    """What a witness on this host says of a family whose identities were taken when it began."""

    def __init__(self, family: Family, proc: LinuxProc) -> None:
        self.proc = proc
        self.connector = identify(family.connector.pid, host=HOST, reader=proc)
        self.child = identify(family.child, host=HOST, reader=proc)

    def states(self, host: str = HOST) -> tuple[str, str, str] | None:
        turn = {
            "request_id": "r1",
            "state": "active",
            "identity": {
                "connector": self.connector.to_object(),
                "child": self.child.to_object(),
            },
        }
        found = observe([turn], Observer.at(host, self.proc), now_ms=0)
        assert not found.quarantined
        for seen in found.seen:
            evidence = seen.evidence
            return evidence.connector_state, evidence.child_state, evidence.group_state
        return None

    def become(self, *states: str) -> None:
        eventually(lambda: self.states() == states, f"{states}, but {self.states()}")


def test_a_connector_and_its_child_that_live_are_alive(proc: LinuxProc) -> None:
    with family() as them:
        assert Watched(them, proc).states() == ("alive", "alive", "alive")


def test_a_connector_killed_with_its_child_leaves_nothing(proc: LinuxProc) -> None:
    with family() as them:
        watched = Watched(them, proc)
        them.connector.kill()
        eventually(
            lambda: judge(watched.connector, Observer.at(HOST, proc)).reason == "exited",
            "a zombie nobody has reaped counts as exited",
        )
        them.connector.wait()
        assert judge(watched.connector, Observer.at(HOST, proc)).reason == "no-such-process"
        them.kill(them.child)
        watched.become("gone", "gone", "empty")


def test_a_stopped_connector_is_alive_and_so_it_is_when_it_continues(proc: LinuxProc) -> None:
    with family() as them:
        watched = Watched(them, proc)
        them.connector.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{them.connector.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "stopped")
        assert watched.states() == ("alive", "alive", "alive")
        them.connector.send_signal(signal.SIGCONT)
        assert watched.states() == ("alive", "alive", "alive")


def test_a_child_that_outlives_its_connector_keeps_the_seat_until_it_ends(proc: LinuxProc) -> None:
    with family() as them:
        watched = Watched(them, proc)
        assert watched.child.ppid == them.connector.pid
        them.kill_connector()
        assert watched.states() == ("gone", "alive", "alive")
        assert identify(them.child, host=HOST, reader=proc).ppid != them.connector.pid
        them.kill(them.child)
        watched.become("gone", "gone", "empty")


def test_what_a_child_started_keeps_the_seat_when_the_child_is_gone(proc: LinuxProc) -> None:
    with family("with-grandchild") as them:
        watched = Watched(them, proc)
        them.kill_connector()
        them.kill(them.child)
        watched.become("gone", "gone", "alive")
        them.kill(them.grandchild)
        watched.become("gone", "gone", "empty")


def test_a_child_that_nobody_reaps_counts_as_exited_and_so_does_its_group(
    proc: LinuxProc,
) -> None:
    with family() as them:
        watched = Watched(them, proc)
        them.kill(them.child)  # its connector waits for signals only and never reaps it
        watched.become("alive", "gone", "empty")
        assert judge(watched.child, Observer.at(HOST, proc)).reason == "exited"
        with pytest.raises(NoSuchProcess):
            identify(them.child, host=HOST, reader=proc)


def test_a_child_in_a_session_of_its_own_gives_group_evidence(proc: LinuxProc) -> None:
    with family("with-grandchild", group="own-session") as them:
        watched = Watched(them, proc)
        assert watched.child.session == watched.child.pgrp == them.child
        them.kill_connector()
        them.kill(them.child)
        watched.become("gone", "gone", "alive")
        them.kill(them.grandchild)
        watched.become("gone", "gone", "empty")


def test_a_child_in_its_connectors_group_gives_no_group_evidence(proc: LinuxProc) -> None:
    with family(group="shared") as them:
        watched = Watched(them, proc)
        assert watched.states() == ("alive", "alive", "none")
        them.kill_connector()
        assert watched.states() == ("gone", "alive", "none")
        them.kill(them.child)
        watched.become("gone", "gone", "none")


def test_a_child_that_starts_its_session_after_it_was_named_is_the_same_child(
    proc: LinuxProc,
) -> None:
    with family("escapes-later", group="shared") as them:
        watched = Watched(them, proc)
        os.kill(them.child, signal.SIGUSR1)
        assert them.said() == "escaped"
        assert identify(them.child, host=HOST, reader=proc).pgrp == them.child
        them.kill_connector()
        assert watched.states() == ("gone", "alive", "none")
        them.kill(them.child)
        watched.become("gone", "gone", "none")


def test_what_left_the_group_for_a_session_of_its_own_is_not_seen(proc: LinuxProc) -> None:
    with family("with-escaping-grandchild") as them:
        watched = Watched(them, proc)
        them.kill_connector()
        them.kill(them.child)
        watched.become("gone", "gone", "empty")
        assert them.grandchild is not None
        assert identify(them.grandchild, host=HOST, reader=proc).session == them.grandchild


def test_an_observer_of_another_host_says_nothing(proc: LinuxProc) -> None:
    with family() as them:
        watched = Watched(them, proc)
        them.kill_connector()
        assert watched.states(host="another-host") is None


LEADER_ENDS = """
import ctypes, os, threading, time
def go_on():
    stat = f"/proc/{os.getpid()}/stat"
    while open(stat).read().rpartition(")")[2].split()[0] != "Z": time.sleep(0.01)
    print(os.getpid(), flush=True)
    time.sleep(60)
threading.Thread(target=go_on).start()
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
"""


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="system call number")
def test_a_process_whose_first_thread_has_ended_is_alive(proc: LinuxProc) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", LEADER_ENDS], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        stat = proc.stat(pid)
        assert b") Z " in stat
        named = identify(pid, host=HOST, reader=proc)
        assert judge(named, Observer.at(HOST, proc)).state == "alive"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_processes_that_come_and_go_do_not_disturb_a_scan(proc: LinuxProc) -> None:
    enough = threading.Event()

    def churn() -> None:
        while not enough.is_set():
            subprocess.run(["true"], check=True)

    with family("with-grandchild") as them:
        watched = Watched(them, proc)
        them.kill_connector()
        them.kill(them.child)
        thread = threading.Thread(target=churn)
        thread.start()
        try:
            watched.become("gone", "gone", "alive")
            assert [watched.states() for _ in range(50)] == [("gone", "gone", "alive")] * 50
            them.kill(them.grandchild)
            watched.become("gone", "gone", "empty")
        finally:
            enough.set()
            thread.join()


# Namespaces, where this machine permits them.

NEW_PID_NS = ("--pid", "--fork", "--kill-child", "--mount-proc")


@cache
def unshare(*flags: str) -> tuple[str, ...] | None:
    """How to enter new namespaces here: as root, in a user namespace, or not at all."""
    if shutil.which("unshare") is None:
        return None
    for way in (("unshare",), ("unshare", "--user", "--map-root-user")):
        tried = subprocess.run([*way, *flags, "true"], capture_output=True, check=False)
        if tried.returncode == 0:
            return (*way, *flags)
    return None


def entered(*flags: str) -> tuple[str, ...]:
    way = unshare(*flags)
    if way is None:
        pytest.skip("this machine does not permit unshare")
    return way


OBSERVES = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from schemas.commands.sys import ProcessIdentity
from worker.evidence.procfs import LinuxProc
from worker.evidence.verdicts import Observer, judge
observer = Observer.at("this-host", LinuxProc())
named = ProcessIdentity.from_object(json.loads(sys.argv[2]))
sight = judge(named, observer)
print(json.dumps([sight.state, sight.reason, observer.here.hides]))
"""


def seen_from(way: tuple[str, ...], named: ProcessIdentity) -> list[Any]:
    done = subprocess.run(
        [*way, sys.executable, "-c", OBSERVES, str(ROOT), json.dumps(named.to_object())],
        capture_output=True,
        text=True,
        check=True,
    )
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_a_process_in_another_pid_namespace_is_beyond_proof_alive_or_not(proc: LinuxProc) -> None:
    way = entered("--pid", "--fork", "--kill-child")
    says_when_up = [sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"]
    process = subprocess.Popen(
        [*way, *says_when_up], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        (inside,) = psutil.Process(process.pid).children()
        named = identify(inside.pid, host=HOST, reader=proc)
        observer = Observer.at(HOST, proc)
        assert named.pid == 1
        assert named.pid_ns != observer.here.pid_ns
        assert judge(named, observer).reason == "other-namespace"
    finally:
        process.kill()
        process.communicate()
    eventually(lambda: not psutil.pid_exists(inside.pid), "the process is gone")
    sight = judge(named, observer)
    assert (sight.state, sight.reason) == ("unverifiable", "other-namespace")


def test_an_observer_in_another_pid_namespace_proves_nothing(proc: LinuxProc) -> None:
    named = identify(os.getpid(), host=HOST, reader=proc)
    assert seen_from((), named) == ["alive", "same-process", False]
    inside = seen_from(entered(*NEW_PID_NS), named)
    assert inside == ["unverifiable", "other-namespace", False]


def test_an_observer_with_the_proc_of_another_namespace_is_blind(proc: LinuxProc) -> None:
    way = entered("--pid", "--fork", "--kill-child")
    script = OBSERVES.replace(
        "named = ", 'pid_ns = os.stat("/proc/self/ns/pid").st_ino\nnamed = ', 1
    ).replace("sight =", 'named = named.model_copy(update={"pid_ns": pid_ns})\nsight =', 1)
    named = identify(os.getpid(), host=HOST, reader=proc)
    done = subprocess.run(
        [*way, sys.executable, "-c", script, str(ROOT), json.dumps(named.to_object())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)[:2] == ["unverifiable", "proc-of-another-namespace"]


def test_a_process_hidden_by_hidepid_is_not_taken_for_gone(proc: LinuxProc) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can hide processes from somebody else")
    way = entered("--mount")
    nobody = (
        "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all"
    )
    as_nobody = (*way, "sh", "-c", f'mount -t proc -o hidepid=2 proc /proc && exec {nobody} "$@"')
    probe = subprocess.run(
        [*as_nobody, "sh", sys.executable, "-c", "import pydantic"],
        capture_output=True,
        check=False,
    )
    if probe.returncode != 0:
        pytest.skip("another user cannot run this Python here")
    with family() as them:
        watched = Watched(them, proc)
        state, reason, hides = seen_from((*as_nobody, "sh"), watched.connector)
        assert (state, reason, hides) == ("unverifiable", "hidden", True)
        them.kill_connector()
        assert seen_from((*as_nobody, "sh"), watched.connector)[:2] == ["gone", "no-such-process"]


REUSES = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from worker.evidence.identity import identify
from worker.evidence.procfs import LinuxProc
from worker.evidence.verdicts import Observer, judge
proc = LinuxProc()
def start():
    pid = os.fork()
    if pid == 0:
        while True: signal.pause()
    return pid
first = start()
named = identify(first, host="this-host", reader=proc)
os.kill(first, signal.SIGKILL)
os.waitpid(first, 0)
ticks = os.sysconf("SC_CLK_TCK")
born = time.monotonic()
while time.monotonic() - born < 3 / ticks: time.sleep(1 / ticks)
try:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last: last.write(str(first - 1))
except OSError:
    print(json.dumps(None)); raise SystemExit
second = start()
sight = judge(named, Observer.at("this-host", proc))
print(json.dumps([first == second, sight.state, sight.reason]))
"""


def test_a_process_id_given_to_another_process_is_not_taken_for_the_first() -> None:
    done = subprocess.run(
        [*entered(*NEW_PID_NS), sys.executable, "-c", REUSES, str(ROOT)],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    if answer is None:
        pytest.skip("this machine does not permit choosing process ids")
    assert answer == [True, "gone", "pid-reused"]


def test_an_observer_in_a_shifted_time_namespace_recognises_processes(proc: LinuxProc) -> None:
    way = entered("--time", "--boottime", "86400", "--fork")
    named = identify(os.getpid(), host=HOST, reader=proc)
    assert seen_from(way, named)[:2] == ["alive", "same-process"]
