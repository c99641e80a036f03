"""Sealing: what opens, what does not, and that nothing shows."""

import copy
import hashlib
import hmac
import io
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from worker import logs
from worker.errors import TidegateError
from worker.sealing import keyfiles, sealer
from worker.sealing.errors import KeyRefused, SealRefused
from worker.sealing.keyring import KeyRing
from worker.sealing.sealer import Sealer

MASTER = bytes(range(32))
NONCE = bytes(range(100, 112))
SENTINEL = b"SENTINEL-4f1c-prompt-do-not-leak"


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    ring = KeyRing(tmp_path / "keys")
    assert ring.init(lambda size: MASTER[:size]).created
    return ring


@pytest.fixture
def sealing(ring: KeyRing) -> Sealer:
    return Sealer(ring, "main")


def refusal(work: Callable[[], object]) -> SealRefused:
    with pytest.raises(SealRefused) as caught:
        work()
    return caught.value


def hkdf(info: bytes, master: bytes = MASTER) -> bytes:
    """RFC 5869 with SHA-256, one block, no salt; apart from the code under test."""
    prk = hmac.new(bytes(32), master, hashlib.sha256).digest()
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def test_the_format_is_what_the_module_says(ring: KeyRing) -> None:
    sealed = Sealer(ring, "main", lambda size: NONCE[:size]).seal("r1", b"hello")
    head, body = sealed.data[:28], sealed.data[28:]
    key_id = hkdf(b"tidegate/sealing/1/id")[:8]
    assert head == b"TGS\x01" + (1).to_bytes(4, "big") + key_id + NONCE
    bound = framed(b"TGS\x01", b"prompt", b"main", b"r1", (1).to_bytes(4, "big"))
    cipher = AESGCM(hkdf(b"tidegate/sealing/1/seal/prompt"))
    assert cipher.decrypt(NONCE, body, bound) == b"hello"
    key = hkdf(b"tidegate/sealing/1/fingerprint/prompt")
    expected = hmac.new(key, bound + b"hello", hashlib.sha256).hexdigest()
    assert sealed.fingerprint == expected
    assert sealed.key_version == 1
    assert len(sealed.data) == len(b"hello") + sealer.OVERHEAD_BYTES


@given(content=st.binary(max_size=2_000))
def test_what_is_sealed_opens_and_does_not_show(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    ring = KeyRing(tmp_path_factory.getbasetemp() / "roundtrip-keys")
    ring.init()
    sealing = Sealer(ring, "main")
    sealed = sealing.seal("r1", content)
    assert sealing.open("r1", sealed.data) == content
    assert len(content) < 8 or content not in sealed.data


def test_equal_content_never_seals_to_equal_bytes(sealing: Sealer) -> None:
    first, second = sealing.seal("r1", b"same"), sealing.seal("r1", b"same")
    assert first.data != second.data
    assert first.fingerprint == second.fingerprint


def test_fingerprints_differ_by_content_request_and_space(ring: KeyRing) -> None:
    prints = {
        Sealer(ring, space).fingerprint(request, content)
        for space in ("main", "other")
        for request in ("r1", "r2")
        for content in (b"a", b"b", b"")
    }
    assert len(prints) == 12


@pytest.mark.parametrize(
    ("space", "request_id", "purpose"),
    [("other", "r1", "prompt"), ("main", "r2", "prompt"), ("main", "r1", "answer")],
)
def test_it_opens_only_for_what_it_was_sealed_for(
    ring: KeyRing, sealing: Sealer, space: str, request_id: str, purpose: str
) -> None:
    data = sealing.seal("r1", b"hello").data
    refused = refusal(lambda: Sealer(ring, space).open(request_id, data, purpose=purpose))
    assert refused.reason == "seal-broken"


def test_every_changed_bit_is_noticed(sealing: Sealer) -> None:
    data = sealing.seal("r1", b"hello").data
    for position in range(len(data) * 8):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises((SealRefused, KeyRefused)):
            sealing.open("r1", bytes(changed))


@pytest.mark.parametrize("length", [0, 3, 27, 28, 43])
def test_cut_bytes_are_no_sealed_prompt(sealing: Sealer, length: int) -> None:
    data = sealing.seal("r1", b"").data[:length]
    assert refusal(lambda: sealing.open("r1", data)).reason == "not-sealed"


def test_a_later_format_is_named(sealing: Sealer) -> None:
    data = bytearray(sealing.seal("r1", b"hello").data)
    data[3] = 2
    assert refusal(lambda: sealing.open("r1", bytes(data))).reason == "unsupported-seal"


def test_another_key_of_the_same_version_is_told_apart_from_damage(
    sealing: Sealer, tmp_path: Path
) -> None:
    elsewhere = KeyRing(tmp_path / "elsewhere")
    elsewhere.init()
    data = Sealer(elsewhere, "main").seal("r1", b"hello").data
    refused = refusal(lambda: sealing.open("r1", data))
    assert refused.reason == "wrong-key"
    assert elsewhere.current().key_id.hex() in refused.message


def test_a_prompt_has_a_largest_size(sealing: Sealer) -> None:
    largest = bytes(sealer.MAX_CONTENT_BYTES)
    assert sealing.open("r1", sealing.seal("r1", largest).data) == largest
    refused = refusal(lambda: sealing.seal("r1", largest + b"x"))
    assert refused.reason == "prompt-too-large"


def test_after_a_rotation_old_prompts_open_and_new_ones_use_the_new_key(
    ring: KeyRing, sealing: Sealer
) -> None:
    old = sealing.seal("r1", b"hello")
    made = KeyRing(ring.folder).rotate(1)  # by another process, as far as this ring can tell
    assert (made.version, made.created) == (2, True)
    new = sealing.seal("r1", b"hello")
    assert (old.key_version, new.key_version) == (1, 2)
    assert sealing.open("r1", old.data) == sealing.open("r1", new.data) == b"hello"
    assert old.fingerprint != new.fingerprint
    again = sealing.seal("r1", b"hello", key_version=1)
    assert again.fingerprint == old.fingerprint
    assert sealing.fingerprint("r1", b"hello", key_version=1) == old.fingerprint
    assert sealing.open("r1", again.data) == b"hello"


def test_a_rotation_that_somebody_else_made_is_not_made_twice(ring: KeyRing) -> None:
    assert ring.rotate(1).created
    made = ring.rotate(1)
    assert (made.version, made.created) == (2, False)


def test_a_rotation_from_a_version_that_is_not_here_is_refused(ring: KeyRing) -> None:
    with pytest.raises(KeyRefused, match="is version 1, not 3"):
        ring.rotate(3)
    assert ring.versions() == (1,)


def test_a_prompt_of_a_version_that_is_not_here_names_it(ring: KeyRing, sealing: Sealer) -> None:
    ring.rotate(1)
    data = sealing.seal("r1", b"hello").data
    path = keyfiles.path_of(ring.folder, 2)
    path.unlink()
    with pytest.raises(KeyRefused) as caught:
        Sealer(KeyRing(ring.folder), "main").open("r1", data)
    assert caught.value.reason == "key-missing"
    assert str(path) in caught.value.message


def test_a_damaged_key_in_force_is_refused_although_an_older_one_is_sound(ring: KeyRing) -> None:
    ring.rotate(1)
    keyfiles.path_of(ring.folder, 2).write_bytes(b"short")
    with pytest.raises(KeyRefused) as caught:
        Sealer(KeyRing(ring.folder), "main").seal("r1", b"hello")
    assert caught.value.reason == "key-wrong-size"
    assert KeyRing(ring.folder).rotate(2).version == 3


def test_init_on_an_existing_ring_changes_nothing(ring: KeyRing) -> None:
    made = KeyRing(ring.folder).init()
    assert (made.version, made.created) == (1, False)
    assert keyfiles.read(ring.folder, 1) == MASTER


def test_an_empty_folder_has_no_key_in_force(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(0o700)
    with pytest.raises(KeyRefused) as caught:
        KeyRing(folder).current()
    assert caught.value.reason == "key-missing"


def test_a_key_neither_copies_nor_pickles(ring: KeyRing) -> None:
    for secret in (ring, ring.current()):
        for leave in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="does not leave its process"):
                leave(secret)


def test_keys_and_prompts_show_nowhere(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    master = os.urandom(32)
    ring.init(lambda _: master)
    sealing = Sealer(ring, "main")
    sealed = sealing.seal("r1", SENTINEL)
    key = ring.current()
    secrets = [SENTINEL, master]
    secrets += [key.fingerprint_key("prompt"), hkdf(b"tidegate/sealing/1/seal/prompt", master)]
    broken = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
    other = KeyRing(tmp_path / "other")
    other.init()
    failures: list[Callable[[], object]] = [
        lambda: sealing.open("r1", broken),
        lambda: sealing.open("r1", SENTINEL),
        lambda: sealing.open("r1", b"TGS\x02" + SENTINEL + bytes(44)),
        lambda: Sealer(other, "main").open("r1", sealed.data),
        lambda: sealing.seal("r1", SENTINEL * 20_000),
        lambda: sealing.seal("r1", SENTINEL, key_version=9),
        lambda: sealing.seal("r1", SENTINEL.decode()),  # type: ignore[arg-type]  # a mistake that must not show either
    ]
    said = [repr(thing) for thing in (ring, key, sealing, sealed, sealer.read_header("r1", broken))]
    said += [str(ring), str(key), f"{sealed!s}"]
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    log = logs.get(component="test")
    for fail in failures:
        with pytest.raises((TidegateError, TypeError)) as caught:
            fail()
        error: BaseException | None = caught.value
        said.append("".join(traceback.format_exception(caught.value)))
        while error is not None:
            said += [repr(error), str(error), repr(error.args), repr(vars(error))]
            error = error.__cause__ or error.__context__
        try:
            raise caught.value
        except (TidegateError, TypeError) as again:
            log.exception("failed", error=again, ring=ring, sealed=sealed, key=key)
    said.append(stream.getvalue())
    assert stream.getvalue().count('"event":"failed"') + stream.getvalue().count(
        '"event": "failed"'
    ) == len(failures)
    for secret in secrets:
        shapes = [secret.hex(), repr(secret)[2:-1], secret.decode("latin-1")]
        for text in said:
            assert not any(shape in text for shape in shapes)
