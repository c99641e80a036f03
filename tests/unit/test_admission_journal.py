"""The journal: append-only, identifier-free, only listed triples, and no tampering unseen."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.admission import EventsPage, JournalFact
from schemas.codes import BadInput, Code
from schemas.results import Refusal
from tests.support.adm import KEY, OPERATOR, T0, Admission, Json
from worker.admission.moves import SOURCES, TRIPLES
from worker.admission.queries import events
from worker.ledger import keyed
from worker.ledger.tx import Kind


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def test_pages_are_in_order_without_gaps_and_name_nobody(adm: Admission) -> None:
    for n in range(5):
        adm.bring_to("completed", f"r{n}")
    after, sequences = 0, []
    while True:
        page = adm.answer("events", after=after, limit=7)
        EventsPage.from_object(page)
        sequences += [event["sequence"] for event in page["events"]]
        assert not any(f"r{n}" in json.dumps(page["events"]).split('"') for n in range(5))
        if "next_after" not in page:
            break
        after = page["next_after"]
    assert sequences == list(range(1, 31))


def test_a_request_stands_as_its_hmac_under_the_spaces_key(adm: Admission) -> None:
    adm.enqueue("r1")
    (event, _) = adm.answer("events")["events"]
    expected = hmac.new(KEY, b"r1", hashlib.sha256).hexdigest()
    assert event == {
        "sequence": 1,
        "kind": "request_enqueued",
        "to": "queued",
        "at_ms": T0,
        "request": expected,
    }
    fact, _ = adm.said(Kind.KEYED, "fact.adm.journal.")
    assert fact.subject == "tidegate.test.fact.adm.journal.request_enqueued.1-1-1"
    left = json.loads(keyed.leave(KEY, fact.body))
    JournalFact.from_object(left)
    assert left == {"v": 1, **event}
    assert b"r1" not in keyed.leave(KEY, fact.body)


def test_the_policys_events_are_about_no_request(adm: Admission) -> None:
    adm.send("drain", by=OPERATOR, to=0)
    start, end = adm.answer("events")["events"]
    assert (start["kind"], end["kind"]) == ("policy_drain_started", "policy_drain_completed")
    assert set(start) == {"sequence", "kind", "at_ms"}
    fact, _ = adm.said(Kind.KEYED, "fact.adm.journal.")
    assert "request" not in json.loads(keyed.leave(KEY, fact.body))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE adm_journal SET kind = 'request_active' WHERE sequence = 3",
        "UPDATE adm_journal SET to_state = 'completed' WHERE sequence = 3",
        "UPDATE adm_journal SET from_state = NULL WHERE sequence = 3",
        "UPDATE adm_journal SET request_id = NULL WHERE sequence = 3",
        "UPDATE adm_journal SET kind = 'request_forged' WHERE sequence = 3",
        "DELETE FROM adm_journal WHERE sequence = 3",
    ],
)
def test_one_damaged_row_fails_its_page_and_no_other(adm: Admission, damage: str) -> None:
    adm.bring_to("completed", "r1")
    adm.driver.db.execute("PRAGMA ignore_check_constraints = ON")
    adm.driver.db.execute(damage)
    bodies: tuple[Json, ...] = ({}, {"after": 2, "limit": 1})
    for body in bodies:
        refused = adm.query("events", **body)
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.reason) == (Code.INTERNAL, "journal-damaged")
        assert refused.data == {}
    assert len(adm.answer("events", after=3)["events"]) == 3


def test_without_the_spaces_key_no_page_leaves(adm: Admission) -> None:
    adm.enqueue("r1")
    refused = events(replace(adm.view(), space_key=None), b'{"v":1}')
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.reason) == (Code.UNAVAILABLE, "no-space-key")


@pytest.mark.parametrize("body", [{"limit": 0}, {"limit": 1001}, {"after": -1}])
def test_pages_are_bounded(adm: Admission, body: Json) -> None:
    with pytest.raises(BadInput) as refused:
        adm.query("events", **body)
    assert refused.value.field == next(iter(body))


def test_every_listed_move_leaves_a_state_some_verb_or_time_may_leave() -> None:
    leavable = {source for sources in SOURCES.values() for source in sources}
    assert {source for _, source, _ in TRIPLES if source is not None} == leavable
    settled = {"completed", "failed", "cancelled", "queue_timeout"}
    assert not settled & leavable
