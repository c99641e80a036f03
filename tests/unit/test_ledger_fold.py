"""The fold, command by command, over a real file with given sequences and instants."""

import dataclasses
import gc
import hashlib
import json
import sqlite3
import weakref
from pathlib import Path

import pytest

from schemas import strict_json
from schemas.codes import Code
from schemas.results import Accepted, Refusal, Result, build
from tests.ledgers import HOLDS, WINDOW_MS
from tests.support.results import code_of
from worker.bus.headers import decode
from worker.ledger import memory
from worker.ledger.errors import FoldFailed, LogGap, StorageFull
from worker.ledger.rulesets import NEWEST
from worker.ledger.testing import NAMES, UID, FoldDriver, Logged
from worker.ledger.tx import Kind

T0 = 1_700_000_000_000
KEY = "mintkey-00000001"
RESERVE = {"latest_expires_at_ms": T0 + 3_600_000, "cap": 10}
CONFIRM = {"grant_expires_at_ms": T0 + 3_600_000}
AUTHORIZE = {"amount": 5, "grant_expires_at_ms": T0 + 3_600_000}
ID = "intent-0000000001"


@pytest.fixture
def driver(tmp_path: Path) -> FoldDriver:
    return FoldDriver(tmp_path / "ledger.db", [HOLDS])


def raw(driver: FoldDriver, subject: str, data: bytes = b'{"v":1}', **headers: str) -> Logged:
    seq = (driver.log[-1].seq if driver.log else 0) + 1
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Logged(subject, seq, T0, named, data)


def test_a_command_gets_one_result_with_id_time_and_chain(driver: FoldDriver) -> None:
    result = driver.send(
        "alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0, command_id=ID
    )
    chain = result.pop("chain")
    expected = build(
        Accepted("reserved", {"changes": 1, "cap": 10}), command_id=ID, result_id="1-1", at_ms=T0
    )
    assert result == expected
    plain = strict_json.dumps(expected)
    assert chain == hashlib.sha256(b"0" * 64 + plain).hexdigest()
    assert [row.subject for row in driver.said] == [f"{NAMES.prefix}.fact.cap.reserved.u1.1-1-1"]


def test_chain_covers_every_earlier_result(driver: FoldDriver, tmp_path: Path) -> None:
    other = FoldDriver(tmp_path / "other.db", [HOLDS])
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    other.send("alice", "cap", "reserve", "u2", KEY, body=RESERVE | {"cap": 11}, at_ms=T0)
    ends = [
        d.send("alice", "cap", "confirm", "u9", KEY, body=CONFIRM, at_ms=T0 + 1)
        for d in (driver, other)
    ]
    assert ends[0].pop("chain") != ends[1].pop("chain")
    assert ends[0] == ends[1]


def test_refusals_are_results_as_the_contract_builds_them(driver: FoldDriver) -> None:
    result = driver.send(
        "alice", "cap", "confirm", "u1", KEY, body=CONFIRM, at_ms=T0, command_id=ID
    )
    result.pop("chain")
    refusal = Refusal(Code.NOT_FOUND, "unreserved", "nothing is reserved under this key")
    assert result == build(refusal, command_id=ID, result_id="1-1", at_ms=T0)
    assert Result.from_object(result).status == "refused"


@pytest.mark.parametrize(
    ("subject", "target"),
    [
        ("tidegate.test.cmd.al!ce.{uid}.cap.stop.u1", "tidegate.test.res._.invalid.1-1"),
        ("tidegate.test.cmd.alice.short.cap.stop.u1", "tidegate.test.res._.invalid.1-1"),
        ("tidegate.test.cmd.alice.{uid}.cap", "tidegate.test.res._.invalid.1-1"),
        ("tidegate.test.cmd.alice.{uid}.xyz.stop.u1", "tidegate.test.res._.invalid.1-1"),
        ("tidegate.test.cmd.alice.{uid}.cp.stop.u1", "tidegate.test.res._.invalid.1-1"),
        (
            "tidegate.test.cmd.alice.{uid}.cap.frobnicate.u1",
            "tidegate.test.res.alice.{uid}.cap.frobnicate.1-1",
        ),
        (
            "tidegate.test.cmd.alice.{uid}.cap.NOT-A-VERB.u1",
            "tidegate.test.res.alice.{uid}.cap.invalid.1-1",
        ),
        (
            "tidegate.test.cmd.alice.{uid}.sys.tick",
            "tidegate.test.res.alice.{uid}.sys.tick.1-1",
        ),
        (
            "tidegate.test.cmd._op1.{uid}.cap.reserve.u1." + KEY,
            "tidegate.test.res._op1.{uid}.cap.reserve.1-1",
        ),
    ],
)
def test_every_stored_command_gets_a_result_even_a_malformed_one(
    driver: FoldDriver, subject: str, target: str
) -> None:
    batch = driver.fold.apply_batch([raw(driver, subject.format(uid=UID))])
    (row,) = batch.rows
    assert row.subject == target.format(uid=UID)
    assert json.loads(row.body)["status"] == "refused"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"v":1,"v":1}',
        b'{"v":2}',
        b'{"v":1,"cap":NaN,"latest_expires_at_ms":1}',
        b'{"v":1,"cap":1e999,"latest_expires_at_ms":1}',
        b'{"v":1,"cap":9223372036854775808,"latest_expires_at_ms":1}',
        b'{"v":1,"cap":true,"latest_expires_at_ms":1}',
        b'{"v":1,"cap":1,"latest_expires_at_ms":1,"x":1}',
        b'{"v":1,"cap":"\\ud800","latest_expires_at_ms":1}',
        b"[" * 100_000,
        b" " * (1 << 20),
    ],
)
def test_malformed_bodies_get_one_refused_result_and_write_nothing(
    driver: FoldDriver, body: bytes
) -> None:
    before = driver.digest().tables
    result = driver.send("alice", "cap", "reserve", "u1", KEY, body=body, at_ms=T0, command_id=ID)
    assert result["status"] == "refused"
    assert result["command_id"] == ID
    after = driver.digest().tables
    assert {name for name in after if after[name] != before[name]} == {"fold"}


def test_roles_are_checked_before_the_transition(driver: FoldDriver) -> None:
    result = driver.send("alice", "sys", "ruleset", body={"version": 2}, at_ms=T0)
    assert (code_of(result), result["outcome"]) == ("permission-denied", "wrong-role")


@pytest.mark.parametrize("bad", ["short", "has space in it!!", "x" * 65, "", "tab\tseparated-id-x"])
def test_a_command_id_outside_its_grammar_is_refused_by_name(driver: FoldDriver, bad: str) -> None:
    message = driver.message("alice", "cap", "stop", "u1", at_ms=T0)
    (result,) = driver.feed([dataclasses.replace(message, headers={"Tidegate-Command": bad})])
    assert result["outcome"] == "bad-command-id"
    assert result["error"]["field"] == "Tidegate-Command"
    assert result["command_id"] == "derived-1-0000000000000001"


def test_a_repeated_command_id_header_is_refused_by_name(driver: FoldDriver) -> None:
    message = driver.message("alice", "cap", "stop", "u1", at_ms=T0)
    twice = decode(f"NATS/1.0\r\nTidegate-Command: {ID}\r\nTidegate-Command: {ID}\r\n\r\n".encode())
    (result,) = driver.feed([dataclasses.replace(message, headers=twice)])
    assert result["outcome"] == "repeated-header"


def test_a_missing_command_id_derives_from_epoch_and_sequence(driver: FoldDriver) -> None:
    result = driver.send("alice", "cap", "stop", "u1", at_ms=T0)
    derived = result["command_id"]
    assert derived == "derived-1-0000000000000001"
    again = driver.send("alice", "cap", "stop", "u1", at_ms=T0 + 5, command_id=derived)
    assert (again["id"], again["outcome"]) == ("1-2", "stopped")
    assert len(driver.said) == 1, "answered from memory"
    made_up = driver.send(
        "alice", "cap", "stop", "u1", at_ms=T0, command_id="derived-1-0000000000000009"
    )
    assert made_up["outcome"] == "reserved-command-id"


def test_the_same_command_again_gets_its_outcome_under_its_own_sequence(
    driver: FoldDriver,
) -> None:
    send = driver.send
    first = send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0, command_id=ID)
    send("alice", "cap", "stop", "u1", at_ms=T0 + 1)
    again = send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0 + 2, command_id=ID)
    assert (again["id"], again["at_ms"]) == ("1-3", T0 + 2)
    for part in ("status", "outcome", "data", "command_id"):
        assert again[part] == first[part]
    assert driver.db.execute("SELECT count(*) FROM holds").fetchone() == (0,)


@pytest.mark.parametrize("change", ["body", "verb", "uid"])
def test_another_command_under_the_same_id_is_a_conflict(driver: FoldDriver, change: str) -> None:
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0, command_id=ID)
    verb = "confirm" if change == "verb" else "reserve"
    body = CONFIRM if change == "verb" else RESERVE | {"cap": 11 if change == "body" else 10}
    result = driver.send(
        "alice",
        "cap",
        verb,
        "u1",
        KEY,
        body=body,
        at_ms=T0,
        command_id=ID,
        uid="b" * 26 if change == "uid" else UID,
    )
    assert (code_of(result), result["outcome"]) == ("conflict", "command-id-reused")


def test_another_principal_may_use_the_same_id(driver: FoldDriver) -> None:
    for who in ("alice", "bob"):
        result = driver.send(
            who, "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0, command_id=ID
        )
        assert result["outcome"] == "reserved"
    assert result["data"]["changes"] == 2


def test_a_repeat_within_one_batch_is_answered_from_memory(driver: FoldDriver) -> None:
    one = driver.message(
        "alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0, command_id=ID
    )
    results = driver.feed([one, dataclasses.replace(one, seq=2)])
    assert [result["data"]["changes"] for result in results] == [1, 1]


def test_authorize_is_never_answered_from_memory(driver: FoldDriver) -> None:
    def authorize(amount: int) -> str:
        body = AUTHORIZE | {"amount": amount}
        result = driver.send("alice", "cap", "authorize", "u1", body=body, at_ms=T0, command_id=ID)
        return str(result["outcome"])

    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    driver.send("alice", "cap", "confirm", "u1", KEY, body=CONFIRM, at_ms=T0)
    assert authorize(5) == "allowed"
    driver.send("alice", "cap", "stop", "u1", at_ms=T0)
    assert authorize(5) == "none-active"
    assert authorize(6) == "command-id-reused"


def test_command_ids_are_forgotten_after_thirty_days_of_log_time(driver: FoldDriver) -> None:
    send = driver.send
    for number in range(5):
        send("alice", "cap", "stop", "u1", at_ms=T0 + number, command_id=f"intent-{number:010d}")
    count = "SELECT count(*) FROM commands"
    last = T0 + memory.REMEMBERED_MS
    send("alice", "cap", "stop", "u1", at_ms=last - 1, command_id="intent-later-00001")
    assert driver.db.execute(count).fetchone() == (6,)
    for number, left in ((1, 4), (2, 3), (3, 2)):
        driver.tick(at_ms=last + number)
        assert driver.db.execute(count).fetchone() == (left,)
    reserve = send(
        "alice",
        "cap",
        "reserve",
        "u1",
        KEY,
        body=RESERVE,
        at_ms=last + 4,
        command_id="intent-0000000004",
    )
    assert reserve["outcome"] == "reserved", "a forgotten id is a new one"


def test_an_id_past_its_days_is_new_even_before_its_row_is_gone(driver: FoldDriver) -> None:
    for number in range(9):
        driver.send("alice", "cap", "stop", "u1", at_ms=T0, command_id=f"intent-{number:010d}")
    result = driver.send(
        "alice",
        "cap",
        "reserve",
        "u1",
        KEY,
        body=RESERVE,
        at_ms=T0 + memory.REMEMBERED_MS,
        command_id="intent-0000000008",
    )
    assert result["outcome"] == "reserved"


def test_time_never_goes_back(driver: FoldDriver) -> None:
    first = driver.send("alice", "cap", "stop", "u1", at_ms=T0)
    second = driver.send("alice", "cap", "stop", "u1", at_ms=T0 - 5_000)
    assert [first["at_ms"], second["at_ms"]] == [T0, T0]


def test_a_tick_passes_time_and_gets_no_result(driver: FoldDriver) -> None:
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    assert driver.fold.due_at() == T0 + WINDOW_MS
    batch = driver.fold.apply_batch(
        [driver.message("_worker", "sys", "tick", at_ms=T0 + WINDOW_MS)]
    )
    assert [row.kind for row in batch.rows] == [Kind.FACT]
    assert batch.rows[0].subject == f"{NAMES.prefix}.fact.cap.lapsed.u1.1-2-1"
    assert batch.ticked
    assert driver.fold.due_at() is None
    assert driver.db.execute("SELECT count(*) FROM commands").fetchone() == (1,)


def test_a_malformed_tick_is_refused_like_any_command(driver: FoldDriver) -> None:
    result = driver.send("_worker", "sys", "tick", body={"x": 1}, at_ms=T0)
    assert result["outcome"] == "unknown-field"


def test_a_bad_key_found_late_leaves_nothing_behind(driver: FoldDriver) -> None:
    result = driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE | {"cap": 14}, at_ms=T0)
    assert result["outcome"] == "bad-key"
    assert driver.db.execute("SELECT count(*) FROM holds").fetchone() == (0,)
    assert driver.said == []


def test_a_defect_rolls_the_whole_batch_back(driver: FoldDriver) -> None:
    driver.send("alice", "cap", "reserve", "u0", KEY, body=RESERVE, at_ms=T0)
    before, state = driver.digest(), dataclasses.replace(driver.fold.state)
    first = driver.message("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    broken = dataclasses.replace(
        driver.message("alice", "cap", "reserve", "u2", KEY, body=RESERVE | {"cap": 13}, at_ms=T0),
        seq=first.seq + 1,
    )
    with pytest.raises(FoldFailed) as failed:
        driver.fold.apply_batch([first, broken])
    assert failed.value.seq == broken.seq
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert driver.digest() == before
    assert driver.fold.state == state
    assert len(driver.fold.apply_batch([first]).rows) == 2


def test_a_gap_is_not_folded(driver: FoldDriver) -> None:
    message = driver.message("alice", "cap", "stop", "u1", at_ms=T0)
    with pytest.raises(LogGap) as gap:
        driver.fold.apply_batch([dataclasses.replace(message, seq=3)])
    assert (gap.value.expected, gap.value.found) == (1, 3)
    assert driver.fold.state.watermark == 0


def test_batch_borders_change_nothing(tmp_path: Path) -> None:
    one = FoldDriver(tmp_path / "one.db", [HOLDS])
    log = []
    for number in range(60):
        verb = ("reserve", "confirm", "authorize", "stop")[number % 4]
        body = {"reserve": RESERVE, "confirm": CONFIRM, "authorize": AUTHORIZE}.get(verb)
        key = (f"u{number % 7}", KEY) if verb in ("reserve", "confirm") else (f"u{number % 7}",)
        at_ms = T0 + number * 700
        name = f"intent-{number % 25:010d}"
        log.append(
            dataclasses.replace(
                one.message("alice", "cap", verb, *key, body=body, at_ms=at_ms, command_id=name),
                seq=number + 1,
            )
        )
    digests = set()
    for size in (1, 7, 60):
        driver = FoldDriver(tmp_path / f"by-{size}.db", [HOLDS])
        for start in range(0, 60, size):
            driver.feed(log[start : start + size])
        digests.add(driver.digest().whole)
        driver.close()
    assert len(digests) == 1


def test_an_unknown_ruleset_stops_the_fold_before_its_command(driver: FoldDriver) -> None:
    messages = [
        driver.message("_worker", "sys", "ruleset", body={"version": NEWEST + 1}, at_ms=T0),
        driver.message("alice", "cap", "stop", "u1", at_ms=T0),
    ]
    messages[1] = dataclasses.replace(messages[1], seq=2)
    batch = driver.fold.apply_batch(messages)
    assert (batch.applied, batch.watermark, batch.rows) == (0, 0, ())
    assert batch.stop is not None
    assert (batch.stop.reason, batch.stop.seq) == ("unknown-ruleset", 1)


def test_a_known_ruleset_is_activated_once_and_never_taken_back(tmp_path: Path) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [HOLDS], ruleset=2)
    outcomes = [
        driver.send("_worker", "sys", "ruleset", body={"version": version}, at_ms=T0)["outcome"]
        for version in (3, 3, 2)
    ]
    assert outcomes == ["activated", "already_active", "ruleset-in-force-is-newer"]
    assert driver.digest().ruleset == 3
    assert driver.said[0].subject == f"{NAMES.prefix}.fact.sys.ruleset.1-1-1"


def test_a_file_under_a_ruleset_this_version_does_not_know_folds_nothing(tmp_path: Path) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [HOLDS], rulesets=frozenset({2, 3}))
    driver.send("_worker", "sys", "ruleset", body={"version": 3}, at_ms=T0)
    driver.rulesets = frozenset({2})
    driver.reopen()
    batch = driver.fold.apply_batch([driver.message("alice", "cap", "stop", "u1", at_ms=T0)])
    assert batch.applied == 0
    assert batch.stop is not None
    assert batch.stop.reason == "unknown-ruleset"


@pytest.mark.parametrize("between_ms", [memory.REMEMBERED_MS - 1, memory.REMEMBERED_MS])
def test_where_a_batch_ends_decides_nothing_about_an_old_id(
    tmp_path: Path, between_ms: int
) -> None:
    at_once = FoldDriver(tmp_path / "at-once.db", [HOLDS])
    apart = FoldDriver(tmp_path / "apart.db", [HOLDS])
    told = []
    for driver in (at_once, apart):
        first, second = (
            driver.message(
                "alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=at_ms, command_id=ID
            )
            for at_ms in (T0, T0 + between_ms)
        )
        second = dataclasses.replace(second, seq=2)
        batches = [[first, second]] if driver is at_once else [[first], [second]]
        told.append([one for batch in batches for one in driver.feed(batch)])
    assert told[0] == told[1]
    assert at_once.digest() == apart.digest()
    again = between_ms < memory.REMEMBERED_MS
    assert [one["data"].get("changes") for one in told[0]] == [1, 1 if again else 2]


def test_prune_removes_remembered_ids_by_command(driver: FoldDriver) -> None:
    for number in range(4):
        driver.send(
            "alice", "cap", "stop", "u1", at_ms=T0 + number, command_id=f"intent-{number:010d}"
        )
    result = driver.send("_worker", "sys", "prune", body={"before_at_ms": T0 + 2}, at_ms=T0 + 9)
    assert (result["outcome"], result["data"]["command_ids"]) == ("pruned", 2)
    late = driver.send("_worker", "sys", "prune", body={"before_at_ms": T0 + 99}, at_ms=T0 + 9)
    assert late["outcome"] == "in-the-future"


def test_rebase_stops_the_fold_for_the_next_epoch_only(driver: FoldDriver) -> None:
    def body(epoch: int) -> dict[str, object]:
        return {"epoch": epoch, "digest": "0" * 64, "base": 9, "common": 0, "snapshot": "s"}

    same = driver.send("_worker", "sys", "rebase", body=body(1), at_ms=T0)
    far = driver.send("_worker", "sys", "rebase", body=body(3), at_ms=T0)
    assert (same["outcome"], far["outcome"]) == ("rebased", "other-epoch")
    batch = driver.fold.apply_batch(
        [driver.message("_worker", "sys", "rebase", body=body(2), at_ms=T0)]
    )
    assert batch.stop is not None
    assert (batch.stop.reason, batch.watermark) == ("rebase", 2)


def test_commands_nobody_can_hear_any_more_say_nothing(driver: FoldDriver) -> None:
    old = driver.message("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    new = dataclasses.replace(
        driver.message("alice", "cap", "stop", "u1", at_ms=T0 + 10), seq=old.seq + 1
    )
    batch = driver.fold.apply_batch([old, new], say_from_ms=T0 + 10)
    assert {row.seq for row in batch.rows} == {2}
    assert driver.fold.unsaid() == list(batch.rows)


def test_outbox_rows_are_committed_with_their_command_and_dropped_when_said(
    driver: FoldDriver,
) -> None:
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    digest = driver.digest()
    driver.reopen()
    rows = driver.fold.unsaid()
    assert [row.kind for row in rows] == [Kind.FACT, Kind.RESULT]
    driver.fold.drop([rows[0].id])
    assert driver.fold.unsaid() == rows[1:]
    assert driver.digest() == digest, "the outbox is not logical state"


def test_replay_into_an_empty_file_gives_the_same_state_and_the_same_words(
    driver: FoldDriver, tmp_path: Path
) -> None:
    for number in range(30):
        user = f"u{number % 4}"
        driver.send("alice", "cap", "reserve", user, KEY, body=RESERVE, at_ms=T0 + number)
        if number % 3 == 0:
            driver.send("bob", "cap", "stop", user, body=b"not json", at_ms=T0 + number)
        driver.tick(at_ms=T0 + number * 1_000)
    again = FoldDriver(tmp_path / "again.db", [HOLDS])
    again.feed(driver.log)
    assert again.digest() == driver.digest()
    assert [row[1:] for row in again.fold.unsaid()] == [row[1:] for row in driver.fold.unsaid()]


def test_digest_notices_one_changed_value(driver: FoldDriver) -> None:
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    before = driver.digest()
    driver.db.execute("UPDATE holds SET cap = 11")
    after = driver.digest()
    assert before.tables["holds"] != after.tables["holds"]
    assert before.tables["commands"] == after.tables["commands"]
    assert before.whole != after.whole


def test_a_command_costs_no_more_when_many_are_remembered(driver: FoldDriver) -> None:
    """No statement of the memory reads more than a few rows, whatever its size."""
    for sql in (memory._FIND, memory._OLDEST):
        plan = driver.db.execute(f"EXPLAIN QUERY PLAN {sql}", (b"",) * sql.count("?")).fetchall()
        text = " ".join(row[3] for row in plan)
        assert "USE TEMP B-TREE" not in text
        assert "SEARCH commands USING" in text or "LIMIT 1" in sql


def test_a_full_disk_is_told_apart_from_a_defect(driver: FoldDriver) -> None:
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    before = driver.digest()
    pages = driver.db.execute("PRAGMA page_count").fetchone()[0]
    driver.db.execute(f"PRAGMA max_page_count = {pages}")
    many = [
        dataclasses.replace(
            driver.message("alice", "cap", "reserve", f"u{n}", KEY, body=RESERVE, at_ms=T0),
            seq=2 + n,
        )
        for n in range(200)
    ]
    with pytest.raises(StorageFull):
        driver.fold.apply_batch(many)
    assert driver.digest() == before
    driver.db.execute("PRAGMA max_page_count = 1000000")
    assert driver.fold.apply_batch(many).applied == 200


@pytest.mark.parametrize("happened", [False, True])
def test_a_commit_that_fails_leaves_the_fold_where_the_file_is(
    driver: FoldDriver, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """An error of COMMIT does not say whether the transaction is open, gone or done."""
    driver.send("alice", "cap", "reserve", "u1", KEY, body=RESERVE, at_ms=T0)
    commit = driver.fold._commit

    def fails() -> None:
        if happened:
            commit()
        else:
            driver.db.rollback()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(driver.fold, "_commit", fails)
    message = driver.message("alice", "cap", "stop", "u1", at_ms=T0)
    with pytest.raises(FoldFailed):
        driver.fold.apply_batch([message])
    monkeypatch.undo()
    (in_file,) = driver.db.execute("SELECT watermark FROM fold").fetchone()
    assert driver.fold.state.watermark == in_file == (2 if happened else 1)
    assert {row.seq for row in driver.fold.unsaid()} == ({1, 2} if happened else {1})
    assert driver.fold.apply_batch([dataclasses.replace(message, seq=in_file + 1)]).applied == 1


class Watched(Logged):
    """A message that a weak reference can watch."""


@pytest.mark.parametrize(
    ("principal", "plane", "verb"),
    [("alice", "sys", "tick"), ("alice", "cap", "banana"), ("alice", "banana", "stop")],
)
def test_what_was_refused_is_not_kept_alive(
    driver: FoldDriver, principal: str, plane: str, verb: str
) -> None:
    watched: list[weakref.ref[Logged]] = []
    for seq in range(1, 6):
        subject = f"{NAMES.prefix}.cmd.{principal}.{UID}.{plane}.{verb}"
        message = Watched(subject, seq, T0, {}, b"x" * 60_000)
        watched.append(weakref.ref(message))
        driver.fold.apply_batch([message])
    del message
    gc.collect()
    assert [one() for one in watched] == [None] * 5


SAME = b'{ "cap":10,\n"latest_expires_at_ms" : %d, "v":1}' % RESERVE["latest_expires_at_ms"]
OTHER = b'{"cap":11,"latest_expires_at_ms":%d,"v":1}' % RESERVE["latest_expires_at_ms"]


@pytest.mark.parametrize("ruleset", [2, 3])
def test_the_same_command_written_otherwise_is_the_same(tmp_path: Path, ruleset: int) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [HOLDS], ruleset=ruleset)

    def reserve(body: dict[str, int] | bytes) -> tuple[str, int]:
        result = driver.send(
            "alice", "cap", "reserve", "u1", KEY, body=body, at_ms=T0, command_id=ID
        )
        return result["outcome"], result["data"].get("changes", 0)

    assert reserve(RESERVE) == ("reserved", 1)
    assert reserve(RESERVE) == ("reserved", 1)
    otherwise = ("reserved", 1) if ruleset == 3 else ("command-id-reused", 0)
    assert reserve(SAME) == otherwise
    assert reserve(OTHER) == ("command-id-reused", 0)


def test_what_was_remembered_before_the_ruleset_is_known_after_it(tmp_path: Path) -> None:
    driver = FoldDriver(tmp_path / "ledger.db", [HOLDS], ruleset=2)
    driver.send("alice", "cap", "reserve", "u1", KEY, body=SAME, at_ms=T0, command_id=ID)
    driver.send("_worker", "sys", "ruleset", body={"version": 3}, at_ms=T0)
    for body, outcome in ((SAME, "reserved"), (OTHER, "command-id-reused")):
        again = driver.send(
            "alice", "cap", "reserve", "u1", KEY, body=body, at_ms=T0, command_id=ID
        )
        assert again["outcome"] == outcome


@pytest.mark.parametrize("raw_body", [b"not json", b"\xff", b"", b'{"v":1,"cap":1.5}', b"[]"])
def test_what_has_no_canonical_form_stands_for_its_bytes(raw_body: bytes) -> None:
    assert memory.meaning_of(b'{"b":1,"a":2}') == memory.meaning_of(b' {"a":2, "b":1}')
    assert memory.meaning_of(raw_body) != memory.meaning_of(raw_body + b"x")
