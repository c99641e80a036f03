"""A predecessor's records: what the fold takes in, and what is read from a folder."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas import strict_json
from schemas.caps import LegacyRecord
from schemas.codes import BadInput
from schemas.commands.cap import Import
from tests.support.caps_steps import legacy
from worker.caps import leftovers
from worker.caps.plane import PLANE
from worker.ledger.testing import FoldDriver

T0 = 1_800_000_000_000
X = T0 + 3_600_000
K1, K2, K3 = "a" * 16, "b" * 16, "c" * 16
USER = "user-1"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FoldDriver]:
    one = FoldDriver(tmp_path / "ledger.db", [PLANE])
    one.send("_op-otto", "cap", "minting", body={"enabled": True}, at_ms=T0)
    yield one
    one.close()


def take_in(
    driver: FoldDriver, *records: Any, chunk: int = 1, of: int = 1, import_id: str = "one"
) -> dict[str, Any]:
    body = {"import_id": import_id, "chunk": chunk, "of": of, "records": list(records)}
    return driver.send("_op-otto", "cap", "import", body=body, at_ms=T0)


def reserve(driver: FoldDriver, key: str, latest: int = X) -> dict[str, Any]:
    body = {"latest_expires_at_ms": latest, "cap": 10}
    return driver.send("delia", "cap", "reserve", USER, key, body=body, at_ms=T0)


def counts(result: dict[str, Any]) -> dict[str, int]:
    names = ("imported", "malformed", "duplicates", "shared_seconds", "shared_keys")
    return {name: result["data"][name] for name in names if result["data"][name]}


def test_a_record_holds_its_key_and_second_and_authorises_nothing(driver: FoldDriver) -> None:
    result = take_in(driver, legacy(K1, X + 137, 10))
    assert (result["outcome"], counts(result)) == ("imported", {"imported": 1})
    refused = driver.send(
        "delia", "cap", "authorize", USER, body={"amount": 1, "grant_expires_at_ms": X}, at_ms=T0
    )
    assert refused["outcome"] == "none-active"
    assert reserve(driver, K1)["outcome"] == "different-reservation"
    assert reserve(driver, K2)["data"]["expires_at_ms"] == X - 1_000


def test_generations_are_not_carried_over(driver: FoldDriver) -> None:
    take_in(driver, legacy(K1, X, generation=7, requiredVersion=9))
    reserved = reserve(driver, K2)
    assert (reserved["data"]["generation"], reserved["data"]["required_version"]) == (0, 2)
    shown = driver.send(
        "delia", "cap", "confirm", USER, K1, body={"grant_expires_at_ms": X}, at_ms=T0
    )
    assert (shown["outcome"], shown["data"]["required_version"]) == ("legacy", 9)
    assert "generation" not in shown["data"]


@pytest.mark.parametrize("cap", [0, -5, 1_000_000_001, 2**53 - 1])
def test_a_cap_out_of_range_still_holds_its_second(driver: FoldDriver, cap: int) -> None:
    assert counts(take_in(driver, legacy(K1, X, cap))) == {"imported": 1}
    assert reserve(driver, K2)["data"]["expires_at_ms"] == X - 1_000


@pytest.mark.parametrize(
    "record",
    [
        {},
        legacy("k" * 15, X),
        legacy(K1, X, user="a_b"),
        legacy(K1, X, user=7),
        legacy(K1, None),
        legacy(K1, -1),
        legacy(K1, float(X)),
        legacy(K1, "tomorrow"),
        legacy(K1, "2027-02-30T00:00:00Z"),
        legacy(K1, "2027-01-01T00:00:00+24:00"),
        legacy(K1, 253_402_300_800_000),
        legacy(K1, X, True),
        legacy(K1, X, 10.5),
        legacy(K1, X, "10"),
        legacy(K1, X, reservedAt=None),
        legacy(K1, X, requiredVersion="2"),
        {name: value for name, value in legacy(K1, X).items() if name != "perSwapCapUsd"},
    ],
)
def test_a_malformed_record_is_counted_and_writes_nothing(driver: FoldDriver, record: Any) -> None:
    assert counts(take_in(driver, record, legacy(K2, X))) == {"imported": 1, "malformed": 1}
    assert reserve(driver, K1)["data"]["expires_at_ms"] == X - 1_000


@pytest.mark.parametrize(
    ("written", "millis"),
    [
        ("2027-01-15T08:00:00.137Z", 1_800_000_000_137),
        ("2027-01-15t08:00:00z", 1_800_000_000_000),
        ("2027-01-15T09:30:00.1379999+01:30", 1_800_000_000_137),
        ("2027-01-15 03:00:00.5-05:00", 1_800_000_000_500),
        (1_800_000_000_137, 1_800_000_000_137),
    ],
)
def test_an_instant_may_be_written_as_rfc_3339(written: Any, millis: int) -> None:
    assert LegacyRecord.from_object(legacy(K1, written)).expiresAt == millis


def test_several_on_one_second_are_counted_and_each_holds_its_key(driver: FoldDriver) -> None:
    result = take_in(driver, legacy(K1, X), legacy(K2, X + 999), legacy(K3, X - 1_000))
    assert counts(result) == {"imported": 3, "shared_seconds": 1}
    assert reserve(driver, K2)["outcome"] == "different-reservation"
    assert reserve(driver, K2)["data"]["expires_at_ms"] == X
    assert reserve(driver, "d" * 16)["data"]["expires_at_ms"] == X - 2_000


def test_a_key_on_several_seconds_holds_them_all(driver: FoldDriver) -> None:
    result = take_in(driver, legacy(K1, X), legacy(K1, X - 1_000), legacy(K1, X - 2_000))
    assert counts(result) == {"imported": 3, "shared_keys": 2}
    assert reserve(driver, K2)["data"]["expires_at_ms"] == X - 3_000


def test_the_same_record_again_is_a_duplicate(driver: FoldDriver) -> None:
    records = [legacy(K1, X), legacy(K1, X), legacy(K2, X), legacy(K2, X), legacy(K1, X + 500)]
    result = take_in(driver, *records)
    assert counts(result) == {"imported": 2, "duplicates": 3, "shared_seconds": 1}


def test_what_is_here_already_is_not_touched(driver: FoldDriver) -> None:
    reserve(driver, K1)
    body = {"grant_expires_at_ms": X}
    driver.send("delia", "cap", "confirm", USER, K1, body=body, at_ms=T0)
    result = take_in(driver, legacy(K1, X - 5_000), legacy(K2, X), legacy(K1, X))
    assert counts(result) == {
        "imported": 2,
        "duplicates": 1,
        "shared_seconds": 1,
        "shared_keys": 1,
    }
    body = {"amount": 10, "grant_expires_at_ms": X}
    allowed = driver.send("delia", "cap", "authorize", USER, body=body, at_ms=T0)
    assert allowed["outcome"] == "allowed"
    assert reserve(driver, K3, X - 5_000)["data"]["expires_at_ms"] == X - 6_000


def test_there_is_one_import(driver: FoldDriver) -> None:
    take_in(driver, legacy(K1, X))
    before = driver.digest().tables["reservations"]
    for name in ("one", "two"):
        again = take_in(driver, legacy(K2, X), import_id=name)
        assert (again["outcome"], again["error"]["code"]) == ("already-imported", "already-exists")
        assert again["data"]["import_id"] == "one"
    assert driver.digest().tables["reservations"] == before


def test_chunks_come_in_order_each_once_and_the_last_is_the_marker(driver: FoldDriver) -> None:
    early = take_in(driver, legacy(K2, X), chunk=2, of=3)
    assert (early["outcome"], early["error"]["code"]) == (
        "chunk-out-of-order",
        "failed-precondition",
    )
    first = take_in(driver, legacy(K1, X), chunk=1, of=3)
    assert (first["outcome"], first["data"]["chunks"]) == ("taken_in", 1)
    assert "done_at_ms" not in first["data"]
    assert take_in(driver, legacy(K1, X), chunk=1, of=3)["outcome"] == "already_taken_in"
    assert take_in(driver, legacy(K3, X), chunk=3, of=3)["outcome"] == "chunk-out-of-order"
    driver.reopen()
    assert take_in(driver, {}, chunk=2, of=3)["outcome"] == "taken_in"
    last = take_in(driver, legacy(K3, X), chunk=3, of=3)
    assert (last["outcome"], last["data"]["done_at_ms"]) == ("imported", T0)
    assert counts(last) == {"imported": 2, "malformed": 1, "shared_seconds": 1}


def test_an_import_that_was_broken_off_may_begin_again(driver: FoldDriver) -> None:
    take_in(driver, legacy(K1, X), chunk=1, of=2)
    again = take_in(driver, legacy(K1, X), legacy(K2, X - 1_000), import_id="two")
    assert (again["outcome"], counts(again)) == ("imported", {"imported": 1, "duplicates": 1})


def test_a_chunk_beyond_the_last_is_bad_input(driver: FoldDriver) -> None:
    refused = take_in(driver, chunk=2, of=1)
    assert (refused["error"]["code"], refused["error"]["field"]) == ("bad-request", "chunk")


def test_only_an_operator_imports(driver: FoldDriver) -> None:
    body = {"import_id": "one", "chunk": 1, "of": 1, "records": []}
    refused = driver.send("delia", "cap", "import", body=body, at_ms=T0)
    assert refused["error"]["code"] == "permission-denied"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What three predecessors left."""
    root = tmp_path / "old"
    lines = [
        json.dumps(legacy(K1, X, note="not ours")),
        "",
        json.dumps(legacy(K2, X + 137, 10**30)),
        json.dumps([1, 2]),
        json.dumps(legacy(K3, X))[:-9],
    ]
    (root / "2026").mkdir(parents=True)
    (root / "2026" / "caps.jsonl").write_text("\n".join(lines))
    (root / "u" / USER / "r").mkdir(parents=True)
    one = root / "u" / USER / "r" / "2027-01-15.json"
    one.write_text(json.dumps(legacy("d" * 16, "2027-01-15T08:00:00.137Z"), indent=2))
    (root / "u" / USER / "r" / "broken.json").write_text("{")
    (root / "u" / USER / "notes.json").write_text(json.dumps(legacy("e" * 16, X)))
    with sqlite3.connect(root / "caps.db") as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(
            "CREATE TABLE reservations (user_id TEXT, mint_key TEXT, expires_at INTEGER, "
            "per_swap_cap_usd INTEGER, reserved_at INTEGER, required_version INTEGER)"
        )
        db.execute("CREATE TABLE other (user_id TEXT)")
        rows = [
            (USER, "f" * 16, X, 5, 1, 1),
            (USER, "g" * 16, X, 5, 1, None),
            ("a b", K1, 1, 1, 1, 1),
        ]
        db.executemany("INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?)", rows)
    db.close()
    return root


def test_a_folder_is_read_whole_and_malformed_places_are_named(folder: Path) -> None:
    found = leftovers.read(folder)
    keys = [record["mintKey"] for record in found.records]
    assert keys == [K1, K2, "d" * 16, "f" * 16, "g" * 16]
    assert found.records[0] == legacy(K1, X)
    assert found.records[1]["perSwapCapUsd"] == 2**53 - 1
    assert found.records[2]["expiresAt"] == 1_800_000_000_137
    assert "requiredVersion" not in found.records[4]
    assert found.malformed == [
        "2026/caps.jsonl:4",
        "2026/caps.jsonl:5",
        f"u/{USER}/r/broken.json",
        "caps.db:reservations:1",
    ]
    assert found.files == 4
    assert list(leftovers.summary(found, 2)) == [*found.malformed[:2], "and 2 more"]


def test_nothing_is_left_unread_in_silence(folder: Path) -> None:
    found = leftovers.read(folder)
    notes = f"u/{USER}/notes.json"
    assert set(found.unread) == {notes}
    with pytest.raises(leftovers.BadLeftovers, match=r"notes\.json"):
        leftovers.refuse_unread(found, [])
    leftovers.refuse_unread(found, [notes])
    with pytest.raises(leftovers.BadLeftovers, match=r"other\.json is nothing"):
        leftovers.refuse_unread(found, [notes, "other.json"])


REAL_COLUMNS = (
    "user_id TEXT NOT NULL, mint_key TEXT NOT NULL, expires_at_ms INTEGER NOT NULL, "
    "requested_expires_at TEXT NOT NULL, cap_usd INTEGER NOT NULL, required_version INTEGER, "
    "revoke_generation INTEGER, state TEXT NOT NULL, reserved_at_ms INTEGER NOT NULL, "
    "confirmed_at_ms INTEGER, ended_at_ms INTEGER"
)


def database(root: Path, table: str, columns: str, *rows: tuple[Any, ...]) -> None:
    with sqlite3.connect(root / "caps.db") as db:
        db.execute(f"CREATE TABLE {table} ({columns})")
        for row in rows:
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT INTO {table} VALUES ({marks})", row)
    db.close()


def test_a_predecessors_own_database_is_read_beside_its_older_files(
    tmp_path: Path, driver: FoldDriver
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "old.jsonl").write_text(json.dumps(legacy(K1, X)))
    asked = "2027-01-15T09:00:00.137Z"
    database(
        old,
        "reservations",
        REAL_COLUMNS,
        (USER, K2, X - 1_000, asked, 7, 2, 3, "confirmed_active", T0, T0 + 5, None),
        (USER, K3, X - 2_000, asked, 8, None, 3, "reserved", T0 + 1, None, None),
    )
    database(old, "active_grants", "user_id TEXT, mint_key TEXT", (USER, K2))
    database(old, "revoke_generations", "user_id TEXT, generation INTEGER", (USER, 3))
    found = leftovers.read(old)
    leftovers.refuse_unread(found, [])
    assert found.records == [
        legacy(K1, X),
        legacy(K2, X - 1_000, 7, reservedAt=T0, requiredVersion=2),
        legacy(K3, X - 2_000, 8, reservedAt=T0 + 1),
    ]
    assert counts(take_in(driver, *found.records)) == {"imported": 3}
    assert reserve(driver, "d" * 16)["data"]["expires_at_ms"] == X - 3_000
    for key in (K1, K2, K3):
        shown = driver.send(
            "delia", "cap", "confirm", USER, key, body={"grant_expires_at_ms": X}, at_ms=T0
        )
        assert shown["data"]["required_version"] == 2


@pytest.mark.parametrize("columns", ["who TEXT, until INTEGER", "user_id TEXT, mint_key TEXT"])
def test_a_database_of_an_unknown_shape_is_refused_by_its_columns(
    tmp_path: Path, columns: str
) -> None:
    (tmp_path / "old.jsonl").write_text(json.dumps(legacy(K1, X)))
    database(tmp_path, "grants", columns, ("a", "b"))
    with pytest.raises(leftovers.BadLeftovers) as refused:
        leftovers.refuse_unread(leftovers.read(tmp_path), [])
    assert "caps.db" in str(refused.value)
    assert "grants" in str(refused.value)
    if "mint_key" in columns:
        assert "user_id, mint_key" in str(refused.value)


def test_under_the_first_ruleset_a_version_that_is_not_said_is_one(tmp_path: Path) -> None:
    one = FoldDriver(tmp_path / "before.db", [PLANE], ruleset=2)
    take_in(one, legacy(K1, X))
    body = {"grant_expires_at_ms": X}
    shown = one.send("delia", "cap", "confirm", USER, K1, body=body, at_ms=T0)
    assert shown["data"]["required_version"] == 1
    one.close()


def test_reading_changes_nothing_and_sees_what_only_the_journal_holds(folder: Path) -> None:
    path = folder / "caps.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("INSERT INTO reservations VALUES (?, ?, ?, 5, 1, 1)", (USER, "h" * 16, X))
    db.commit()
    before = {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    assert leftovers.read(folder).records[-1]["mintKey"] == "h" * 16
    assert {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()} == before
    db.close()


def test_the_import_is_named_after_its_content(folder: Path) -> None:
    first = leftovers.read(folder).import_id
    assert leftovers.read(folder).import_id == first
    (folder / "more.jsonl").write_text(json.dumps(legacy("i" * 16, X)))
    assert leftovers.read(folder).import_id != first


def test_chunks_fit_into_commands(tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text(
        "\n".join(json.dumps(legacy(f"{n:0100d}", X + n, user="u" * 100)) for n in range(1_201))
    )
    found = leftovers.read(tmp_path)
    chunks = found.chunks()
    assert [record for chunk in chunks for record in chunk] == found.records
    assert len(chunks) > 3
    for number, chunk in enumerate(chunks, start=1):
        body = {
            "v": 1,
            "import_id": found.import_id,
            "chunk": number,
            "of": len(chunks),
            "records": chunk,
        }
        assert Import.from_bytes(strict_json.dumps(body)).records == chunk


def test_small_records_fill_a_chunk_by_count(tmp_path: Path) -> None:
    records = [legacy(f"{n:016d}", 0, 1, user="u", reservedAt=0) for n in range(501)]
    chunks = leftovers.Leftovers(records).chunks()
    assert sum(map(len, chunks)) == 501
    assert max(map(len, chunks)) <= 500


@pytest.mark.parametrize("what", ["missing", "empty", "file", "not-sqlite"])
def test_a_folder_with_nothing_to_import_is_refused_by_name(tmp_path: Path, what: str) -> None:
    root = tmp_path / "old"
    if what != "missing":
        root.mkdir()
    if what == "file":
        (root / "lines.jsonl").write_text("{}\n")
    if what == "not-sqlite":
        (root / "caps.db").write_text("hello, this is not a database" * 50)
    with pytest.raises(leftovers.BadLeftovers, match="old"):
        leftovers.read(root)


def test_the_body_refuses_more_records_than_a_command_may_hold() -> None:
    body = {"v": 1, "import_id": "one", "chunk": 1, "of": 1, "records": [{}] * 501}
    with pytest.raises(BadInput, match="records"):
        Import.from_object(body)
