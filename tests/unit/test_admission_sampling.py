"""Admission in numbers: seats by phase, and turns by what keeps them waiting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.adm import OPERATOR, T0, Admission
from worker.admission import sampling


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    one = Admission(tmp_path, max_active_turns=2)
    yield one
    one.close()


def sample(adm: Admission, at: int = T0) -> sampling.Sample:
    return sampling.read(adm.driver.db, at)


def test_nothing_is_nothing(adm: Admission) -> None:
    found = sample(adm)
    assert set(found.seats.values()) == set(found.blocked.values()) == {0}
    assert (found.seat_limit, found.queued, found.oldest_debt_ms) == (2, 0, 0)


def test_every_block_is_counted_and_a_turn_may_count_for_several(adm: Admission) -> None:
    for number in range(5):
        adm.enqueue(f"r{number}", model="m1" if number % 2 else "m2")
    assert sample(adm).seats == {"starting": 2, "active": 0, "debt": 0}
    assert sample(adm).blocked["seats"] == 3
    adm.send("cooldown", by=OPERATOR, provider="acme", model="m1", not_before_ms=T0 + 1_000)
    found = sample(adm)
    assert (found.blocked["seats"], found.blocked["cooldown"]) == (3, 1)
    assert sample(adm, T0 + 1_000).blocked["cooldown"] == 0
    adm.send("drain", by=OPERATOR, to=0)
    assert (sample(adm).blocked["drain"], sample(adm).blocked["seats"]) == (3, 0)


def test_a_silent_owners_turns_are_counted(adm: Admission) -> None:
    for number in range(3):
        adm.enqueue(f"r{number}")
    adm.now_ms = T0 + 4_001
    assert adm.liveness("silent", T0)["outcome"] == "suspected"
    assert sample(adm).blocked["silence"] == 1


def test_no_question_reads_the_whole_queue(adm: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_COUNTED", 4)
    for number in range(12):
        adm.enqueue(f"r{number:02d}", model="m1")
    adm.send("cooldown", by=OPERATOR, provider="acme", model="m1", not_before_ms=T0 + 1_000)
    found = sample(adm)
    assert (found.queued, found.blocked["cooldown"]) == (10, 4)
    plan = adm.driver.db.execute(f"EXPLAIN QUERY PLAN {sampling._COOLING}", (4, T0)).fetchall()
    steps = [row[3] for row in plan]
    assert any("USING INDEX adm_requests_order" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
