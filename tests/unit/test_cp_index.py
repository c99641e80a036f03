"""The index file: what waits, in the order of deadlines; disposable, and it never decides."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from schemas.records import Holder
from schemas.subjects import Checkpoint
from worker.checkpoints.index import (
    Change,
    FactSeen,
    Filter,
    Index,
    SettledSeen,
    SpecSeen,
    WaitingSeen,
    page,
)
from worker.errors import StartRefused

ALICE = Holder(id="alice", lifecycleUid="a" * 26)
BOB = Holder(id="bob", lifecycleUid="b" * 26)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "waiting.db"


@pytest.fixture
def index(path: Path) -> Iterator[Index]:
    one = Index(path)
    yield one
    one.close()


def target(token: str, endpoint: str = "ep") -> Checkpoint:
    return Checkpoint(endpoint, token)


def minted(token: str, deadline_ms: int, holder: Holder = ALICE) -> list[Change]:
    one = target(token)
    return [SpecSeen(one, holder), WaitingSeen(one, 1, deadline_ms, 2, 1)]


def tokens(index: Index, **wanted: object) -> list[str]:
    return [row.target.token for row in index.find(Filter(**wanted), 1_000)]  # type: ignore[arg-type]  # fields by name


def test_a_row_lives_from_the_spec_to_the_settlement(index: Index) -> None:
    one = target("a")
    index.apply([SpecSeen(one, ALICE)], {"s": 1}, 50)
    assert tokens(index) == [], "a spec alone waits for nothing"
    assert index.count() == 0
    index.apply([WaitingSeen(one, 1, 100, 2, 7)], {"s": 2}, 60)
    (row,) = index.find(Filter(), 10)
    assert (row.target, row.holder, row.generation, row.deadline_ms) == (one, ALICE, 1, 100)
    assert (row.revision, row.spec_revision, row.timer_known, row.seen_at_ms) == (2, 7, False, 60)
    index.apply([WaitingSeen(one, 2, 90, 3, 7)], {"s": 3}, 70)
    (row,) = index.find(Filter(), 10)
    assert (row.generation, row.deadline_ms, row.revision, row.holder) == (2, 90, 3, ALICE)
    index.apply([SettledSeen(one, proven=True)], {"s": 4}, 80)
    assert index.count() == 0
    assert index.unproven(1_000, 10) == []
    assert index.mark("s") == 4


def test_a_status_may_pass_by_before_its_spec(index: Index) -> None:
    one = target("a")
    index.apply([WaitingSeen(one, 1, 100, 2, 1), SpecSeen(one, BOB)], {}, 1)
    (row,) = index.find(Filter(), 10)
    assert (row.holder, row.deadline_ms) == (BOB, 100)


def test_rows_come_by_deadline_then_endpoint_then_token_a_page_at_a_time(index: Index) -> None:
    changes: list[Change] = []
    for endpoint, token, deadline in (
        ("b", "x", 10),
        ("a", "z", 10),
        ("a", "y", 10),
        ("a", "late", 30),
        ("z", "first", 5),
    ):
        changes.append(WaitingSeen(target(token, endpoint), 1, deadline, 1, 1))
    index.apply(changes, {}, 1)
    seen, after = [], None
    while rows := index.find(Filter(after=after), 2):
        seen += [(row.deadline_ms, row.target.endpoint, row.target.token) for row in rows]
        after = rows[-1].position
    assert seen == sorted(seen)
    assert [token for _, _, token in seen] == ["first", "y", "z", "x", "late"]


def test_filters_narrow_what_is_found(index: Index) -> None:
    index.apply([*minted("a", 10), *minted("b", 20, BOB), *minted("c", 30, BOB)], {}, 1)
    index.apply([WaitingSeen(target("d", "other"), 1, 5, 1, 1)], {}, 1)
    assert tokens(index) == ["d", "a", "b", "c"]
    assert tokens(index, holder="bob") == ["b", "c"]
    assert tokens(index, endpoint="other") == ["d"]
    assert tokens(index, before_ms=20) == ["d", "a"]
    assert tokens(index, holder="bob", before_ms=30, endpoint="ep") == ["b"]


FILTERS = [
    {"endpoint": endpoint, "holder": holder, "before_ms": before_ms}
    for endpoint in (None, "a", "m", "z")
    for holder in (None, "alice")
    for before_ms in (None, 15)
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_pages_of_any_filter_are_what_fits_in_order(index: Index, wanted: dict[str, Any]) -> None:
    of_each = ((10, ALICE), (10, BOB), (20, ALICE), (10, ALICE))
    kept = {
        (endpoint, f"t{number}"): (deadline, holder)
        for endpoint in ("a", "m", "z")
        for number, (deadline, holder) in enumerate(of_each)
    }
    for (endpoint, token), (deadline, holder) in kept.items():
        one = target(token, endpoint)
        index.apply([SpecSeen(one, holder), WaitingSeen(one, 1, deadline, 2, 1)], {}, 1)
    fits = sorted(
        (deadline, endpoint, token)
        for (endpoint, token), (deadline, holder) in kept.items()
        if wanted["endpoint"] in (None, endpoint)
        and wanted["holder"] in (None, holder.id)
        and (wanted["before_ms"] is None or deadline < wanted["before_ms"])
    )
    everywhere = sorted((deadline, *key) for key, (deadline, _) in kept.items())
    for after in (None, *everywhere):
        found = index.find(Filter(**wanted, after=after), 2)
        behind = [one for one in fits if after is None or one > after]
        assert [row.position for row in found] == behind[:2], after


@pytest.mark.parametrize("after", [None, (10, "a", "t"), (10, "m", "t"), (10, "z", "t")])
@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_a_page_is_read_from_an_index_without_sorting(
    wanted: dict[str, Any], after: tuple[int, str, str] | None
) -> None:
    schema = resources.files("worker.checkpoints").joinpath("index.sql").read_text()
    statement, arguments = page(Filter(**wanted, after=after), 100)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", arguments)]
    by = "holder" if wanted["holder"] else "endpoint" if wanted["endpoint"] else "deadline"
    (step,) = plan
    assert step.startswith(f"SEARCH pending USING INDEX pending_by_{by} (")


def test_an_unproven_settlement_is_kept_until_its_fact_is_seen(index: Index) -> None:
    index.apply([*minted("a", 1), *minted("b", 1)], {}, 1)
    settled: list[Change] = [SettledSeen(target(t), proven=False) for t in ("a", "b")]
    index.apply(settled, {}, 500)
    assert index.unproven(500, 10) == [], "too young"
    assert set(index.unproven(501, 10)) == {target("a"), target("b")}
    assert len(index.unproven(501, 1)) == 1
    index.apply([FactSeen(target("a"))], {}, 600)
    assert index.unproven(1_000, 10) == [target("b")]
    index.prove(target("b"))
    assert index.unproven(1_000, 10) == []


def test_a_noted_timer_counts_for_its_generation_only(index: Index) -> None:
    index.apply(minted("a", 10), {}, 1)
    (row,) = index.find(Filter(), 1)
    index.note_timers([row])
    assert index.find(Filter(), 1)[0].timer_known
    index.apply([WaitingSeen(target("a"), 2, 20, 3, 1)], {}, 2)
    assert not index.find(Filter(), 1)[0].timer_known
    index.note_timers([row])
    assert not index.find(Filter(), 1)[0].timer_known, "an old generation's timer says nothing"


def test_an_audit_names_missing_and_left_over_timers(index: Index) -> None:
    index.apply([*minted("armed", 10), *minted("missing", 10)], {}, 100)
    index.apply(minted("young", 10), {}, 900)
    for _ in range(2):
        index.audit_begin()
        index.audit_add([target("armed"), target("left")])
        index.audit_add([target("left"), target("left", "other")])
        missing, left = index.audit_end(500, 10)
        assert missing == [target("missing")]
        assert sorted(one.endpoint for one in left) == ["ep", "other"]
    index.audit_begin()
    assert len(index.audit_end(1_000, 2)[0]) == 2, "at most so many of each"


def test_what_was_applied_survives_a_restart_and_a_reset_forgets_it(path: Path) -> None:
    index = Index(path)
    index.apply(minted("a", 10), {"s": 5, "s.created": -3}, 1)
    index.close()
    index = Index(path)
    assert tokens(index) == ["a"]
    assert (index.mark("s"), index.mark("s.created"), index.mark("t")) == (5, -3, None)
    index.reset({"t": 1})
    assert tokens(index) == []
    assert (index.mark("s"), index.mark("t")) == (None, 1)
    index.close()


def test_a_batch_that_fails_leaves_nothing_behind(index: Index) -> None:
    index.apply(minted("a", 10), {"s": 1}, 1)
    with pytest.raises(OverflowError):
        index.apply([*minted("b", 10), *minted("c", 2**70)], {"s": 9}, 2)
    assert tokens(index) == ["a"]
    assert index.mark("s") == 1
    index.apply(minted("b", 10), {"s": 2}, 3)
    assert tokens(index) == ["a", "b"]


@pytest.mark.parametrize("damage", ["garbage", "empty", "newer", "foreign"])
def test_a_file_that_is_not_usable_is_replaced(path: Path, damage: str) -> None:
    if damage == "garbage":
        path.write_bytes(b"not a database at all " * 500)
    elif damage == "empty":
        path.touch()
    else:
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE other (x)")
        db.execute(f"PRAGMA user_version = {99 if damage == 'newer' else 0}")
        db.commit()
        db.close()
    index = Index(path)
    assert tokens(index) == []
    index.apply(minted("a", 10), {}, 1)
    assert tokens(index) == ["a"]
    index.close()


def test_a_file_that_another_worker_holds_is_refused_and_left_alone(path: Path) -> None:
    first = Index(path)
    first.apply(minted("a", 10), {}, 1)
    with pytest.raises(StartRefused, match="in use"):
        Index(path)
    assert tokens(first) == ["a"]
    first.close()
