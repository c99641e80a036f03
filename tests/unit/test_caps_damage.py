"""Damage done by hand: every authorising answer refuses, a Stop still stops, the fold goes on."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.results import Refusal
from schemas.subjects import Speaker
from worker.caps import records
from worker.caps.plane import PLANE
from worker.caps.queries import show
from worker.ledger.errors import FoldFailed
from worker.ledger.plane import View
from worker.ledger.testing import NAMES, UID, FoldDriver

T0 = 1_800_000_000_000
X = T0 + 3_600_000
K1, K2, K3 = "a" * 16, "b" * 16, "c" * 16

ROWS = {
    "state-unknown": "UPDATE reservations SET state = 'banana' WHERE mint_key = :active",
    "state-reserved": "UPDATE reservations SET state = 'reserved' WHERE mint_key = :active",
    "state-superseded": "UPDATE reservations SET state = 'superseded' WHERE mint_key = :active",
    "state-legacy": "UPDATE reservations SET state = 'legacy' WHERE mint_key = :active",
    "cap-zero": "UPDATE reservations SET cap = 0 WHERE mint_key = :active",
    "cap-too-large": "UPDATE reservations SET cap = 1000000001 WHERE mint_key = :active",
    "generation-gone": "UPDATE reservations SET generation = NULL WHERE mint_key = :active",
    "generation-negative": "UPDATE reservations SET generation = -1 WHERE mint_key = :active",
    "generation-ahead": "UPDATE reservations SET generation = 9 WHERE mint_key = :active",
    "expiry-gone": "UPDATE reservations SET expires_at_ms = NULL WHERE mint_key = :active",
    "expiry-odd": "UPDATE reservations SET expires_at_ms = expires_at_ms + 1 "
    "WHERE mint_key = :active",
    "confirmation-gone": "UPDATE reservations SET confirmed_at_ms = NULL WHERE mint_key = :active",
    "ended-and-active": "UPDATE reservations SET ended_at_ms = 1 WHERE mint_key = :active",
    "row-gone": "DELETE FROM reservations WHERE mint_key = :active",
    "pointer-gone": "DELETE FROM active_grants",
    "pointer-to-nothing": "UPDATE active_grants SET mint_key = 'nothing-like-it-0001'",
    "pointer-to-the-one-before": "UPDATE active_grants SET mint_key = :before",
    "pointer-to-a-reservation": "UPDATE active_grants SET mint_key = :reserved",
    "counter-gone": "DELETE FROM revoke_generations",
    "counter-fell": "UPDATE revoke_generations SET generation = 0",
    "counter-rose": "UPDATE revoke_generations SET generation = 2",
    "counter-negative": "UPDATE revoke_generations SET generation = -7",
    "settings-gone": "DELETE FROM settings",
    "permit-too-long": "UPDATE settings SET permit_ms = 60000",
}
"""What somebody does to the rows of a person with an active grant of generation 1."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FoldDriver]:
    one = prepared(FoldDriver(tmp_path / "ledger.db", [PLANE]))
    yield one
    one.close()


def prepared(one: FoldDriver) -> FoldDriver:
    """One with an active cap of generation 1, one superseded, and one reserved."""
    one.send("_op-otto", "cap", "minting", body={"enabled": True}, at_ms=T0)
    send(one, "bump")
    for key, second in ((K1, X), (K2, X - 1_000)):
        send(one, "reserve", key, latest_expires_at_ms=X, cap=10)
        send(one, "confirm", key, grant_expires_at_ms=second)
    send(one, "reserve", K3, latest_expires_at_ms=X, cap=10)
    assert authorize(one)["outcome"] == "allowed"
    return one


def send(driver: FoldDriver, verb: str, *key: str, at_ms: int = T0, **body: Any) -> dict[str, Any]:
    return driver.send("delia", "cap", verb, "ann", *key, body=body, at_ms=at_ms)


def authorize(driver: FoldDriver) -> dict[str, Any]:
    return send(driver, "authorize", amount=1, grant_expires_at_ms=X - 1_000)


def damage(driver: FoldDriver, sql: str) -> None:
    db = driver.db
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.execute("PRAGMA foreign_keys = OFF")
    changed = db.execute(sql, {"active": K2, "before": K1, "reserved": K3}).rowcount
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA ignore_check_constraints = OFF")
    assert changed == 1


def shown(driver: FoldDriver) -> Refusal | dict[str, Any]:
    view = View(driver.db, NAMES, T0, 1, 1, 2, Speaker("delia", UID))
    answer = show(view, b'{"user":"ann"}')
    return answer if isinstance(answer, Refusal) else answer.data


@pytest.mark.parametrize("what", ROWS)
def test_damage_is_refused_as_internal_and_never_taken_for_nothing(
    driver: FoldDriver, what: str
) -> None:
    damage(driver, ROWS[what])
    refused = authorize(driver)
    assert (refused["status"], refused["outcome"]) == ("failed", "internal")
    assert refused["error"]["code"] == "internal"
    assert "permits" not in refused["error"]["message"]
    answer = shown(driver)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.reason) == ("internal", "internal")


@pytest.mark.parametrize("what", ROWS)
def test_over_damage_a_stop_leaves_nothing_authorised(driver: FoldDriver, what: str) -> None:
    damage(driver, ROWS[what])
    stopped = send(driver, "stop")
    assert stopped["outcome"] == "stopped"
    refused = authorize(driver)
    assert refused["status"] != "ok"
    confirmed = send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000)
    assert confirmed["outcome"] in ("stopped", "internal")


@pytest.mark.parametrize("verb", ["stop", "bump"])
@pytest.mark.parametrize("generation", [2, 3, 2**52 - 1, 2**52, 2**53 - 2, 2**63 - 1])
def test_a_generation_that_a_damaged_row_is_ahead_by_is_never_reached(
    driver: FoldDriver, verb: str, generation: int
) -> None:
    for key in (":active", ":reserved"):
        damage(driver, f"UPDATE reservations SET generation = {generation} WHERE mint_key = {key}")
    last = 1
    for _ in range(3):
        assert authorize(driver)["status"] != "ok"
        confirmed = send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000)
        assert confirmed["outcome"] in ("stopped", "internal")
        result = send(driver, verb)
        assert result["data"]["generation"] > last or generation > 2**51
        last = result["data"]["generation"]
    fresh = "d" * 16
    second = send(driver, "reserve", fresh, latest_expires_at_ms=X - 5_000, cap=10)["data"]
    send(driver, verb)
    again = send(driver, "confirm", fresh, grant_expires_at_ms=second["expires_at_ms"])
    assert again["outcome"] == "stopped"


@pytest.mark.parametrize("what", ["pointer-gone", "counter-fell", "cap-too-large"])
def test_over_damage_a_confirmed_cap_is_not_confirmed_again(driver: FoldDriver, what: str) -> None:
    damage(driver, ROWS[what])
    again = send(driver, "confirm", K2, grant_expires_at_ms=X - 1_000)
    assert (again["status"], again["outcome"]) == ("failed", "internal")


@pytest.mark.parametrize("what", ROWS)
def test_over_damage_the_fold_goes_on(driver: FoldDriver, what: str) -> None:
    damage(driver, ROWS[what])
    for verb, key, body in (
        ("reserve", (K2,), {"latest_expires_at_ms": X, "cap": 10}),
        ("confirm", (K2,), {"grant_expires_at_ms": X - 1_000}),
        ("confirm", (K3,), {"grant_expires_at_ms": X - 2_000}),
        ("revoke", (), {"expires_at_ms": X - 1_000}),
        ("bump", (), {}),
    ):
        assert send(driver, verb, *key, **body)["outcome"]
    driver.tick(at_ms=X)
    assert driver.fold.due_at() is None


@pytest.mark.parametrize(
    "change",
    ["cap = 0", "confirmed_at_ms = 1", "ended_at_ms = 1", "generation = NULL", "expires_at_ms = 7"],
)
def test_a_damaged_reservation_does_not_stop_the_clock(driver: FoldDriver, change: str) -> None:
    damage(driver, f"UPDATE reservations SET {change} WHERE mint_key = :reserved")
    driver.tick(at_ms=X)
    assert driver.fold.due_at() is None
    assert send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000, at_ms=X)["status"] != "ok"


def test_a_reservation_in_no_known_state_is_not_confirmed(driver: FoldDriver) -> None:
    damage(driver, "UPDATE reservations SET state = 'banana' WHERE mint_key = :reserved")
    assert send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000)["outcome"] == "internal"


@pytest.mark.parametrize("target", [":reserved", ":before"])
def test_a_pointer_to_what_never_was_the_last_grant_is_damage(
    driver: FoldDriver, target: str
) -> None:
    send(driver, "revoke", expires_at_ms=X - 1_000)
    assert authorize(driver)["outcome"] == "none-active"
    damage(driver, f"UPDATE active_grants SET mint_key = {target}")
    assert authorize(driver)["outcome"] == "internal"


def test_a_pointer_left_at_a_revoked_grant_is_damage(driver: FoldDriver) -> None:
    send(driver, "revoke", expires_at_ms=X - 1_000)
    send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000)
    damage(driver, "UPDATE active_grants SET mint_key = :active")
    for second in (X - 1_000, X - 2_000):
        refused = send(driver, "authorize", amount=1, grant_expires_at_ms=second)
        assert refused["outcome"] == "internal"


@pytest.mark.parametrize("ends_at_ms", [-1, T0 + 10**15])
def test_a_damaged_permit_is_never_taken_for_quiet_and_keeps_no_stop_from_standing(
    driver: FoldDriver, ends_at_ms: int
) -> None:
    damage(driver, f"UPDATE permits SET ends_at_ms = {ends_at_ms}")
    stopped = send(driver, "stop")
    assert stopped["outcome"] == "stopped"
    # No permit lasts longer than two seconds, so none that was given outlasts that.
    assert stopped["data"]["quiet_after_ms"] == T0 + 2_000
    assert authorize(driver)["outcome"] == "stopped"


def test_under_the_ruleset_before_a_damaged_permit_keeps_a_stop_from_standing(
    tmp_path: Path,
) -> None:
    driver = prepared(FoldDriver(tmp_path / "older.db", [PLANE], ruleset=2))
    damage(driver, "UPDATE permits SET ends_at_ms = -1")
    assert send(driver, "stop")["outcome"] == "internal"
    assert send(driver, "bump")["data"] == {"generation": 2}


COLUMNS = {
    "revoke_generations": ("user", "generation", "complement"),
    "reservations": (
        "user",
        "mint_key",
        "expires_at_ms",
        "latest_expires_at_ms",
        "cap",
        "required_version",
        "generation",
        "reserved_at_ms",
        "state",
        "confirmed_at_ms",
        "ended_at_ms",
        "trace",
    ),
    "active_grants": ("user", "mint_key"),
    "settings": ("minting", "permit_ms"),
    "permits": ("user", "ends_at_ms"),
    "imports": (
        "import_id",
        "chunks",
        "of",
        "imported",
        "malformed",
        "duplicates",
        "shared_seconds",
        "shared_keys",
        "done_at_ms",
    ),
}
NUMBERS = ("-1", "0", "7", "1000", f"{2**62}", f"{-(2**62)}", f"{T0 + 1}", "NULL")
TEXTS = ("''", "'b a d'", "'>'", "'a.b'", "'reserved'", "hex(zeroblob(150))", "char(10)", "NULL")
LEGACY = {
    "userId": "ann",
    "mintKey": "legacy-key-00001",
    "expiresAt": X - 7_000,
    "perSwapCapUsd": 3,
    "reservedAt": T0,
}


def test_every_column_of_every_table_is_damaged_here(driver: FoldDriver) -> None:
    for table in PLANE.tables:
        found = driver.db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
        assert {name for (name,) in found} - {"one"} == set(COLUMNS[table])


def strike(driver: FoldDriver, table: str, column: str, value: str) -> int:
    """Write a value into a column of each row, wherever the file can hold it at all."""
    db = driver.db
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.execute("PRAGMA foreign_keys = OFF")
    struck = 0
    keys = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    for number in range(keys):
        try:
            struck += db.execute(
                f"UPDATE {table} SET {column} = {value} WHERE {column} IS "
                f"(SELECT {column} FROM {table} LIMIT 1 OFFSET {number})"
            ).rowcount
        except sqlite3.IntegrityError:
            continue
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA ignore_check_constraints = OFF")
    return struck


VERBS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "authorize": (("ann",), {"amount": 1, "grant_expires_at_ms": X - 1_000}),
    "reserve": (("ann", K3), {"latest_expires_at_ms": X, "cap": 10}),
    "confirm": (("ann", K3), {"grant_expires_at_ms": X - 2_000}),
    "revoke": (("ann",), {"expires_at_ms": X - 1_000}),
    "import": ((), {"import_id": "again", "chunk": 2, "of": 2, "records": [LEGACY]}),
    "minting": ((), {"enabled": True, "permit_ms": 1_500}),
    "bump": (("ann",), {}),
}


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table, columns in COLUMNS.items() for column in columns],
)
def test_no_damaged_column_stops_the_fold_or_a_stop(
    tmp_path: Path, table: str, column: str
) -> None:
    made = prepared(FoldDriver(tmp_path / "made.db", [PLANE]))
    chunk = {"import_id": "again", "chunk": 1, "of": 2, "records": []}
    made.send("_op-otto", "cap", "import", body=chunk, at_ms=T0)
    made.close()
    struck = 0
    for number, value in enumerate((*NUMBERS, *TEXTS)):
        path = tmp_path / f"{number}.db"
        shutil.copyfile(made.path, path)
        driver = FoldDriver(path, [PLANE])
        struck += strike(driver, table, column, value)
        stopped = send(driver, "stop")
        assert stopped["outcome"] == "stopped", value
        refused = authorize(driver)
        assert refused["status"] != "ok", value
        driver.close()

        shutil.copyfile(made.path, path)
        driver = FoldDriver(path, [PLANE])
        strike(driver, table, column, value)
        for verb, (key, body) in VERBS.items():
            sender = "_op-otto" if verb in ("import", "minting") else "delia"
            result = driver.send(sender, "cap", verb, *key, body=body, at_ms=T0 + 1)
            assert result["outcome"], (verb, value)
        driver.tick(at_ms=X)
        assert send(driver, "stop", at_ms=X)["outcome"] == "stopped", value
        driver.close()
    assert struck, "nothing was damaged"


def test_another_persons_damage_is_not_ours(driver: FoldDriver) -> None:
    driver.send(
        "delia", "cap", "reserve", "bob", K1, body={"latest_expires_at_ms": X, "cap": 5}, at_ms=T0
    )
    driver.send("delia", "cap", "confirm", "bob", K1, body={"grant_expires_at_ms": X}, at_ms=T0)
    damage(driver, ROWS["cap-zero"])
    body = {"amount": 5, "grant_expires_at_ms": X}
    allowed = driver.send("delia", "cap", "authorize", "bob", body=body, at_ms=T0)
    assert allowed["outcome"] == "allowed"


def test_a_transition_that_does_not_exist_stops_the_fold(
    driver: FoldDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOVES", frozenset[tuple[str, str]]())
    with pytest.raises(FoldFailed):
        send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000)
    monkeypatch.undo()
    assert send(driver, "confirm", K3, grant_expires_at_ms=X - 2_000)["outcome"] == "confirmed"
