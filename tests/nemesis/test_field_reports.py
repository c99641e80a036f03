"""What broke elsewhere and must not break here: a case for each public report, and who plays it.

A case links the tests that do what the report says. It holds only if each of them is collected by
the default or the nemesis run, is named after the thing, and runs it in the full amount.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUNS = "not soak and not bench"
ROWS = 18


@dataclass(frozen=True)
class Link:
    """A test that plays a report, or a part of it.

    Attributes:
        node: Module, and the test's name.
        words: Of which its name or docstring has each.
        params: Parameters that must be among those it is run with.
        amounts: What its body, or what it calls, says of how much is done.
    """

    node: str
    words: tuple[str, ...]
    params: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One report.

    Attributes:
        row: Its number in the table of reports.
        what: What a user does.
        links: Who plays it; together they do all of it.
    """

    row: int
    what: str
    links: tuple[Link, ...]


RACES = "integration/test_cp_races.py::"
OUTAGES = "integration/test_cp_outages.py::"
PROCESS = "integration/test_ledger_process.py::"
LIFE = "integration/test_lifecycle.py::"
INPUT = "integration/test_bad_input.py::"
HERE = "nemesis/test_field_scenarios.py::"

CASES = (
    Case(
        1,
        "a decision within 50 ms either side of the deadline",
        (
            Link(
                f"{RACES}test_a_decision_at_the_deadline_has_one_outcome",
                ("decision", "deadline", "one_outcome"),
                # A hundred each.
                ("wheel", "fires", "two replicas"),
                ("decide_at_the_deadline(desk, 100", "seen.total() == 100"),
            ),
        ),
    ),
    Case(
        2,
        "the broker is stopped while a command is being answered",
        (
            Link(
                f"{OUTAGES}test_a_command_that_is_being_answered_as_the_broker_goes_has_one_effect",
                ("being_answered", "broker", "one_effect"),
                ("stopped", "killed"),
            ),
            Link(
                f"{PROCESS}test_a_broker_away_for_a_while_loses_and_repeats_nothing",
                ("broker_away", "repeats_nothing"),
            ),
        ),
    ),
    Case(
        3,
        "the worker is killed between commit and ack, between claim and effect",
        (
            Link("integration/test_cp_crashes.py::test_killed_at_any_write", ("killed",)),
            Link("integration/test_ledger_kill.py::test_killed_at_each_point", ("killed",)),
            Link(
                "nemesis/test_recovery_kills.py::test_killed_at_random_nothing_is_dispatched_twice",
                ("killed", "nothing_is_dispatched_twice"),
            ),
        ),
    ),
    Case(
        4,
        "the broker ends the worker's authentication",
        (
            Link(
                f"{HERE}test_a_worker_whose_credentials_expire_is_not_ready_until_they_are_renewed",
                ("credentials_expire", "not_ready", "User Authentication Expired"),
                amounts=("wait_ready, 30", "worker.wait, 60) == 1"),
            ),
            Link(
                f"{LIFE}test_expired_authentication_is_survived",
                ("expired_authentication",),
                amounts=("wait_ready, 30",),
            ),
            Link(
                f"{LIFE}test_a_login_that_is_taken_away_ends_the_worker",
                ("login", "ends_the_worker", "non-zero"),
            ),
        ),
    ),
    Case(
        5,
        "clients are cancelled and disconnected at random",
        (
            Link(
                f"{HERE}test_requests_cancelled_and_cut_off_at_random_leave_whole_effects_only",
                ("cancelled", "cut_off", "at_random", "whole_effects_only"),
                ("400", "5000"),
            ),
            Link(
                f"{PROCESS}test_callers_that_go_away_leave_whole_effects_only",
                ("callers", "go_away"),
                amounts=("range(1_000)",),
            ),
        ),
    ),
    Case(
        6,
        "two approvals, or an approval and a denial, at once",
        (
            Link(
                f"{RACES}test_two_decisions_at_once_leave_one_and_both_are_told_it",
                ("two_decisions_at_once", "both_are_told"),
                amounts=("range(4)", "many(50, one)", 'won["data"] == lost["data"]'),
            ),
        ),
    ),
    Case(
        7,
        "an approval arrives and the deadline passes while the worker is down",
        (
            Link(
                f"{HERE}test_an_approval_and_a_deadline_that_both_fall_into_an_outage_always_expire",
                ("approval", "deadline", "outage", "always"),
                ("True", "False"),
                ("range(20)", '("expired", "refused")'),
            ),
        ),
    ),
    Case(
        8,
        "SIGTERM when idle, in mid-request, with the broker down",
        (
            Link(
                f"{LIFE}test_a_signal_ends_an_idle_worker_with_0",
                ("signal", "idle"),
                amounts=("worker.wait(10) == 0",),
            ),
            Link(
                f"{LIFE}test_sigterm_in_the_middle_of_requests_loses_none",
                ("sigterm", "middle_of_requests", "loses_none"),
                amounts=("terminate) == 0", "< 10"),
            ),
            Link(
                f"{LIFE}test_sigterm_with_the_broker_gone_or_frozen",
                ("sigterm", "broker_gone"),
                amounts=("worker.wait(10) == 0",),
            ),
            Link(
                f"{LIFE}test_a_broker_that_never_comes_does_not_hold_up_sigterm",
                ("never_comes", "sigterm"),
            ),
            Link(
                f"{OUTAGES}test_a_worker_told_to_end_in_mid_request_loses_nothing",
                ("mid_request", "loses_nothing"),
            ),
        ),
    ),
    Case(
        9,
        "the durable consumer is deleted, idle and in mid-fetch",
        (
            Link(
                f"{HERE}test_readers_that_are_deleted_come_back_and_cost_nothing",
                ("deleted", "come_back", "cost_nothing"),
                ("idle", "in mid-fetch"),
                ("cpu_share < 0.2", "took_s < 30", "lines < 10 * meter.took_s"),
            ),
            Link(
                f"{OUTAGES}test_a_lost_durable_comes_back_by_itself_and_costs_nothing",
                ("lost_durable", "comes_back"),
            ),
            Link(
                f"{OUTAGES}test_a_durable_lost_in_mid_fetch_loses_no_command",
                ("durable", "mid_fetch"),
            ),
            Link(
                "integration/test_ledger_fold.py::test_a_vanished_reader_is_made_anew",
                ("vanished_reader",),
            ),
        ),
    ),
    Case(
        10,
        "a stopped worker goes on after another has taken over",
        (
            Link(
                f"{OUTAGES}test_a_worker_that_stood_still_while_another_took_over_doubles_nothing",
                ("stood_still", "took_over", "doubles_nothing"),
                amounts=("ack_wait_ms=1_000", "SIGSTOP", "SIGCONT"),
            ),
            Link(
                f"{PROCESS}test_a_frozen_worker_is_replaced_and_does_no_harm_when_it_thaws",
                ("frozen_worker", "replaced", "no_harm"),
                amounts=("SIGSTOP", "SIGCONT"),
            ),
        ),
    ),
    Case(
        11,
        "bodies that are none",
        (
            Link(
                f"{INPUT}test_every_verb_refuses_every_bad_body_once_and_the_queue_flows",
                ("bad_body_once", "queue_flows"),
                amounts=(
                    *("a duplicate key", "NaN", "1e999", "2^63", "a lone surrogate"),
                    *("100,000 brackets", "invalid UTF-8", '"empty"', "1 MiB of spaces"),
                ),
            ),
        ),
    ),
    Case(
        12,
        "a cluster's leader is killed while timers are armed",
        (
            Link(
                f"{HERE}test_a_clusters_leader_that_dies_while_timers_are_armed_loses_and_doubles_none",
                ("cluster", "leader", "timers_are_armed"),
                amounts=(
                    "cluster_space(",
                    "TopologySettings(replicas=3)",
                    "leader.kill",
                    '{"expired": 300}',
                ),
            ),
        ),
    ),
    Case(
        13,
        "many timers are due in one second, with live traffic",
        (
            Link(
                f"{HERE}test_timers_due_in_one_second_all_fire_once_beside_live_traffic",
                ("one_second", "fire_once", "live_traffic"),
                ("500", "20000"),
                ("number * 1_000 // count", "memory_info().rss", "150 * MIB"),
            ),
        ),
    ),
    Case(
        14,
        "the broker is down at the start, and for long later",
        (
            Link(
                f"{HERE}test_ten_minutes_without_a_broker_are_said_in_few_lines_and_outlived",
                ("ten_minutes", "without_a_broker", "few_lines"),
                ("600",),
                ("< 100", "terminate, 10) == 0"),
            ),
            Link(
                f"{LIFE}test_a_broker_that_is_down_at_start_is_waited_for",
                ("down_at_start", "waited_for"),
            ),
            Link(
                f"{LIFE}test_a_broker_that_goes_for_a_while_is_outlived",
                ("goes_for_a_while", "outlived"),
            ),
            Link(
                f"{LIFE}test_a_broker_that_never_comes_does_not_hold_up_sigterm",
                ("never_comes", "sigterm"),
            ),
        ),
    ),
    Case(
        15,
        "a permission to publish is removed while running",
        (
            Link(
                f"{HERE}test_a_workers_right_that_is_taken_away_is_denied_and_not_a_timeout",
                ("right", "taken_away", "denied", "not_a_timeout"),
                (".armed", "$KV.tidegate_records_main"),
                ("cpu_share < 0.2", "permission_denied"),
            ),
            Link(
                "integration/test_client.py::test_a_permission_taken_away_is_said_at_once",
                ("permission_taken_away", "at_once"),
            ),
            Link(
                "integration/test_client.py::test_the_command_line_says_permission_denied",
                ("permission_denied",),
                amounts=('"permission-denied"',),
            ),
        ),
    ),
    Case(
        16,
        "interleaved requests and their log lines",
        (
            Link(
                f"{HERE}test_a_hundred_interleaved_requests_have_their_own_id_on_every_line",
                ("hundred_interleaved", "own_id", "every_line"),
                amounts=("range(25)", 'log_level="debug"'),
            ),
            Link(
                "unit/test_logs.py::test_a_hundred_interleaved_commands_keep_their_own_ids",
                ("hundred_interleaved",),
                amounts=("range(100)",),
            ),
        ),
    ),
    Case(
        17,
        "a start fails after the database is open",
        (
            Link(
                f"{HERE}test_a_start_that_cannot_be_ends_non_zero_within_five_seconds",
                ("start", "non_zero", "five_seconds"),
                ("a url without a host", "a newer ledger", "a ledger with a trigger"),
                ("+ 5",),
            ),
            Link(
                f"{LIFE}test_a_start_that_fails_late_leaves_within_five_seconds",
                ("start", "fails_late", "five_seconds"),
                amounts=("< 5",),
            ),
            Link(
                f"{LIFE}test_a_url_that_is_none_leaves_with_2",
                ("url",),
                amounts=("< 5",),
            ),
        ),
    ),
    Case(
        18,
        "ids that are none",
        (
            Link(
                f"{INPUT}test_an_id_in_a_subject_that_is_none_is_refused_once_and_writes_nothing",
                ("id_in_a_subject", "refused_once", "writes_nothing"),
                amounts=('b"a*"', '"é".encode()', 'b"x" * 300', 'b"a", b"b"'),
            ),
            Link(
                f"{INPUT}test_an_id_in_a_ledgers_key_that_is_none_is_refused_once",
                ("id_in_a_ledgers_key", "refused_once"),
            ),
            Link(
                f"{INPUT}test_a_query_that_is_none_is_refused_by_its_field",
                ("query", "refused"),
                amounts=("a blank", "a trailing line break"),
            ),
            Link(
                f"{HERE}test_ids_that_are_none_are_refused_whichever_way_they_come",
                ("ids", "refused"),
                amounts=('"a.b", "a*", "é", "a b", "x" * 300, "a\\n"',),
            ),
            Link(
                "unit/test_schemas_tokens.py::test_no_two_endpoints_share_a_token",
                ("no_two", "share_a_token"),
            ),
            Link(
                "unit/test_schemas_tokens.py::test_a_token_is_matched_as_a_whole",
                ("matched_as_a_whole",),
            ),
        ),
    ),
)


def test_every_report_has_its_case() -> None:
    assert [case.row for case in CASES] == list(range(1, ROWS + 1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row} {case.what}")
def test_a_report_is_played_in_full(case: Case) -> None:
    for link in case.links:
        test = _find(link.node)
        left_out = {mark.name for mark in _marks(test)} & NEVER_RUN
        assert not left_out, f"{link.node} is not run: {left_out}"
        params = _params(test)
        missing = [one for one in link.params if one not in params]
        assert not missing, f"{link.node} is not run with {missing}"
        name, docstring, source = test.__name__, inspect.getdoc(test) or "", _source(test)
        strange = [word for word in link.words if word not in f"{name} {docstring}"]
        assert not strange, f"{link.node} does not say {strange}"
        less = [amount for amount in link.amounts if amount not in source]
        assert not less, f"{link.node} does not do {less}"


NEVER_RUN = {"soak", "bench", "skip", "xfail"}


@pytest.mark.long
def test_every_linked_test_is_collected() -> None:
    """What the cases are held to without it, asked of the test runner itself."""
    links = [link for case in CASES for link in case.links]
    files = sorted({f"tests/{link.node.partition('::')[0]}" for link in links})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", RUNS, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    nodes = [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]
    for link in links:
        params = {
            params.removesuffix("]")
            for name, _, params in (node.partition("[") for node in nodes)
            if name == link.node
        }
        assert params, f"{link.node} is not collected"
        assert params >= set(link.params), f"{link.node} is not collected with {link.params}"


Test = Callable[..., Any]


def _find(node: str) -> Test:
    path, _, name = node.partition("::")
    assert path.rpartition("/")[2].startswith("test_")
    assert name.startswith("test_")
    module = importlib.import_module("tests." + path.removesuffix(".py").replace("/", "."))
    test: Test | None = getattr(module, name, None)
    assert test is not None, f"there is no {node}"
    return test


def _marks(test: Test) -> list[pytest.Mark]:
    return list(getattr(test, "pytestmark", ()))


def _params(test: Test) -> set[str]:
    """Ids of the cases that a test is run with, of each of its parametrizations."""
    found = set()
    for mark in _marks(test):
        if mark.name == "parametrize":
            for case in mark.args[1]:
                if {one.name for one in getattr(case, "marks", ())} & NEVER_RUN:
                    continue
                values = getattr(case, "values", case if isinstance(case, tuple) else (case,))
                found.add("-".join(map(str, values)))
    return found


def _source(test: Test) -> str:
    """The source of a test, with what it names of its module."""
    text = Path(inspect.getfile(test)).read_text()
    parts = {
        part: ast.get_source_segment(text, statement) or ""
        for statement in ast.parse(text).body
        for part in _named_by(statement)
    }
    source = inspect.getsource(test)
    named = set(re.findall(r"\w+", source)) & parts.keys() - {test.__name__}
    return "\n".join([source, *(parts[name] for name in named)])


def _named_by(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    """The check itself: a test that is gone, renamed, shortened or of another topic fails it."""
    good = CASES[0].links[0]
    bad: Sequence[Link] = (
        Link(f"{good.node}_at_all", good.words),
        Link(good.node, ("approval",)),
        Link(good.node, good.words, ("four replicas",)),
        Link(good.node, good.words, amounts=("decide_at_the_deadline(desk, 7",)),
    )
    for link in bad:
        with pytest.raises(AssertionError):
            test_a_report_is_played_in_full(Case(1, "", (link,)))
