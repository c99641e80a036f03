"""Identities: kept privately, made once, never mixed up."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas import tokens
from worker import identity
from worker.identity import BadIdentity


def test_the_first_identity_is_the_default_and_survives(tmp_path: Path) -> None:
    made = identity.init(tmp_path, "alice", identity.new_uid())
    assert made.created
    again = identity.init(tmp_path, "alice", identity.new_uid())
    assert not again.created
    assert again.speaker == made.speaker
    assert identity.find(tmp_path, None) == again


def test_other_principals_keep_their_own(tmp_path: Path) -> None:
    alice = identity.init(tmp_path, "alice", identity.new_uid())
    bob = identity.init(tmp_path, "bob", identity.new_uid())
    assert bob.created
    found = {name: identity.find(tmp_path, name) for name in ("alice", "bob", "carol")}
    assert found["alice"] is not None
    assert found["alice"].speaker == alice.speaker
    assert found["bob"] is not None
    assert found["bob"].speaker == bob.speaker
    assert found["carol"] is None
    default = identity.find(tmp_path, None)
    assert default is not None
    assert default.speaker == alice.speaker


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    kept = identity.init(tmp_path / "new", "alice", identity.new_uid())
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700
    kept.path.chmod(0o644)
    with pytest.raises(BadIdentity, match="chmod 600"):
        identity.find(tmp_path / "new", None)


@pytest.mark.parametrize("name", ["a.b", "a*", "é", "a b", "", "../x", "a\n", "x" * 65])
def test_a_name_outside_the_grammar_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadIdentity, match="principal"):
        identity.init(tmp_path, name, identity.new_uid())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"v":1,"principal":"a.b"}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadIdentity, match="identity file"):
        identity.find(tmp_path, None)


@pytest.mark.parametrize("number", range(30))
def test_sixteen_at_once_end_with_one_identity(tmp_path: Path, number: int) -> None:
    def make(_: int) -> identity.Kept:
        return identity.init(tmp_path, "alice", identity.new_uid())

    with ThreadPoolExecutor(16) as pool:
        kept = list(pool.map(make, range(16)))
    assert len({one.speaker for one in kept}) == 1
    assert sum(one.created for one in kept) == 1
    assert os.listdir(tmp_path) == ["identity.json"]


def test_different_principals_at_once_all_get_theirs(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        kept = list(pool.map(lambda name: identity.init(tmp_path, name, identity.new_uid()), names))
    assert [one.speaker.principal for one in kept] == names
    found = {name: identity.find(tmp_path, name) for name in names}
    assert {name: one.speaker for name, one in found.items() if one} == {
        one.speaker.principal: one.speaker for one in kept
    }


def test_a_new_uid_matches_its_grammar_and_differs() -> None:
    uids = {identity.new_uid() for _ in range(100)}
    assert len(uids) == 100
    assert all(map(tokens.is_uid, uids))


def test_the_replica_id_is_kept(tmp_path: Path) -> None:
    first = identity.replica_id(tmp_path)
    assert identity.replica_id(tmp_path) == first


@pytest.mark.parametrize("damaged", [b"", b"not one", b"\xff\xfe\x00", b"a" * 100_000])
def test_a_damaged_replica_id_is_made_anew_and_kept(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "replica").write_bytes(damaged)
    made = identity.replica_id(tmp_path)
    assert tokens.is_uid(made)
    assert identity.replica_id(tmp_path) == made


def test_a_reserved_name_is_never_the_default(tmp_path: Path) -> None:
    kept = identity.init(tmp_path, "_op", identity.new_uid())
    assert identity.find(tmp_path, None) is None
    assert identity.find(tmp_path, "_op") == identity.Kept(kept.speaker, kept.path, created=False)
    identity.init(tmp_path, "alice", identity.new_uid())
    default = identity.find(tmp_path, None)
    assert default is not None
    assert default.speaker.principal == "alice"
