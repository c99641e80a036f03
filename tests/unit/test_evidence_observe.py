"""One pass over many turns: everyone is judged, whatever a single row looks like."""

import errno
from typing import Any

import pytest

from schemas.commands.sys import Evidence, ProcessIdentity
from tests.support.proctable import HOST, ProcTable, error, process, stat_line
from worker.evidence.observe import Observation, observe
from worker.evidence.verdicts import Observer

UID = "a" * 26
NOW = 1_700_000_000_000


def row(
    request_id: str,
    connector: ProcessIdentity | None,
    child: ProcessIdentity | None = None,
    *,
    state: str = "active",
    **more: Any,
) -> dict[str, Any]:
    value: dict[str, Any] = {"request_id": request_id, "state": state}
    if state != "queued":
        value["fence"] = {
            "lease_id": f"l-{request_id}",
            "request_id": request_id,
            "generation": 2,
            "owner": {"principal": "alice", "uid": UID},
        }
    if connector is not None:
        identity = {"connector": connector.to_object()}
        if child is not None:
            identity["child"] = child.to_object()
        value["identity"] = identity
    return {**value, **more}


def look(table: ProcTable, *rows: Any) -> Observation:
    return observe(rows, Observer.at(HOST, table), now_ms=NOW)


def states(evidence: Evidence) -> tuple[str, str, str]:
    return evidence.connector_state, evidence.child_state, evidence.group_state


def test_evidence_carries_the_whole_fence_and_the_identities_that_were_looked_at() -> None:
    connector, child = process(100), process(200)
    found = look(ProcTable({100: stat_line(100)}), row("r1", connector, child))
    (seen,) = found.seen
    assert seen.evidence.to_object() == {
        "v": 1,
        "request_id": "r1",
        "fence": {
            "lease_id": "l-r1",
            "request_id": "r1",
            "generation": 2,
            "owner": {"principal": "alice", "uid": UID},
        },
        "host": HOST,
        "connector": connector.to_object(),
        "child": child.to_object(),
        "connector_state": "alive",
        "child_state": "gone",
        "group_state": "empty",
        "observed_at_ms": NOW,
    }
    assert Evidence.from_bytes(seen.evidence.to_bytes()) == seen.evidence
    assert seen.reasons == ("same-process", "no-such-process", "no-such-group")


@pytest.mark.parametrize(
    ("child", "table", "expected"),
    [
        (None, ProcTable(), ("gone", "none", "none")),
        (None, ProcTable({100: stat_line(100)}), ("alive", "none", "none")),
        (process(200), ProcTable(), ("gone", "gone", "empty")),
        (process(200), ProcTable({200: stat_line(200)}), ("gone", "alive", "alive")),
        (process(200), ProcTable({201: stat_line(201, pgrp=200)}), ("gone", "gone", "alive")),
        (process(200, pgrp=100), ProcTable(), ("gone", "gone", "none")),
        (process(200, pgrp=0), ProcTable(), ("gone", "gone", "none")),
        (process(200, ns=9), ProcTable(), ("gone", "unverifiable", "unverifiable")),
        (process(200, host="other"), ProcTable(), ("gone", "none", "none")),
        (
            process(200),
            ProcTable({100: error(errno.EACCES)}),
            ("unverifiable", "gone", "empty"),
        ),
    ],
)
def test_connector_child_and_group_are_told_apart(
    child: ProcessIdentity | None, table: ProcTable, expected: tuple[str, str, str]
) -> None:
    (seen,) = look(table, row("r1", process(100), child)).seen
    assert states(seen.evidence) == expected


def test_a_queued_turn_has_no_fence_and_only_a_connector() -> None:
    (seen,) = look(ProcTable(), row("r1", process(100), state="queued")).seen
    assert seen.evidence.fence is None
    assert states(seen.evidence) == ("gone", "none", "none")


def test_who_lives_elsewhere_is_left_to_others() -> None:
    found = look(
        ProcTable(),
        row("r1", process(100, host="other")),
        row("r2", None),
        row("r3", process(100)),
    )
    assert [seen.evidence.request_id for seen in found.seen] == ["r3"]
    assert found.skipped == {"other-host": 1, "no-identity": 1}


BROKEN = {**process(100).to_object(), "pid": -1}


@pytest.mark.parametrize(
    ("damaged", "request_id", "reason", "at_field"),
    [
        ({"request_id": "bad", "state": "nowhere"}, "bad", "not-one-of", "state"),
        ({"state": "active"}, None, "missing-field", "request_id"),
        (
            {"request_id": "bad", "state": "active", "identity": {"connector": BROKEN}},
            "bad",
            "out-of-range",
            "identity.connector.pid",
        ),
        ({**row("bad", process(1)), "fence": {}}, "bad", "missing-field", "fence.lease_id"),
        ({"request_id": "a.b*", "state": "active"}, None, "bad-token", "request_id"),
        (None, None, "not-an-object", "body"),
        ("text", None, "not-an-object", "body"),
        ([], None, "not-an-object", "body"),
    ],
)
def test_a_damaged_row_is_quarantined_and_the_others_are_judged(
    damaged: Any, request_id: str | None, reason: str, at_field: str
) -> None:
    found = look(ProcTable(), row("r1", process(100)), damaged, row("r2", process(101)))
    assert [seen.evidence.request_id for seen in found.seen] == ["r1", "r2"]
    assert all(seen.evidence.connector_state == "gone" for seen in found.seen)
    (quarantined,) = found.quarantined
    assert (quarantined.request_id, quarantined.reason, quarantined.at_field) == (
        request_id,
        reason,
        at_field,
    )


def test_a_row_that_breaks_the_observer_holds_up_no_other() -> None:
    class Breaks(ProcTable):
        def stat(self, pid: int) -> bytes:
            if pid == 100:
                raise RuntimeError("unforeseen")
            return super().stat(pid)

    found = look(Breaks(), row("r1", process(100)), row("r2", process(101)))
    assert [seen.evidence.request_id for seen in found.seen] == ["r2"]
    assert [(q.request_id, q.reason) for q in found.quarantined] == [("r1", "internal")]


def test_what_a_row_shows_to_people_may_change() -> None:
    found = look(ProcTable(), row("r1", process(100), seat={"new": 1}, later="field"))
    assert found.inspected == 1
    assert not found.quarantined


def test_one_scan_serves_all_turns_of_a_pass() -> None:
    table = ProcTable({pid: stat_line(pid, pgrp=pid - 1) for pid in range(1_001, 1_401, 2)})
    turns = [row(f"r{pid}", process(100), process(pid)) for pid in range(1_000, 1_400, 2)]
    found = look(table, *turns)
    assert {states(seen.evidence) for seen in found.seen} == {("gone", "gone", "alive")}
    assert (found.scans, table.listed) == (1, 1)
    assert table.looked_at == 1 + 200 + 200  # the connector, each child, each process of the scan


def test_without_a_child_that_is_gone_no_scan_is_made() -> None:
    table = ProcTable({100: stat_line(100), 200: stat_line(200)})
    found = look(table, row("r1", process(100), process(200)), row("r2", process(300)))
    assert (found.scans, table.listed) == (0, 0)


def test_all_turns_of_one_connector_are_told_the_same() -> None:
    class Dies(ProcTable):
        def pid_ns(self, pid: int) -> int:
            inode = super().pid_ns(pid)
            del self.stats[pid]
            return inode

    found = look(Dies({100: stat_line(100)}), *(row(f"r{n}", process(100)) for n in range(3)))
    assert {seen.evidence.connector_state for seen in found.seen} == {"alive"}
