"""Seeds and credentials files."""

from pathlib import Path

import pytest

from worker.bus import nkey

USER = 20 << 3


def test_a_seed_gives_its_public_key_and_a_signature() -> None:
    text = nkey.encode_seed(USER, bytes(range(32)))
    assert text.startswith("SU")
    seed = nkey.parse_seed(text + "\n")
    assert seed.public_key.startswith("U")
    assert len(seed.public_key) == 56
    assert seed.sign("nonce") == seed.sign("nonce")
    assert seed.sign("nonce") != seed.sign("other")
    assert text not in repr(seed)


@pytest.mark.parametrize(
    "text",
    ["", "SU", "not base32 !", nkey.encode(USER, bytes(32)), nkey.encode_seed(USER, bytes(31))],
)
def test_what_is_no_seed_is_refused(text: str) -> None:
    with pytest.raises(nkey.SeedError):
        nkey.parse_seed(text)


def test_a_mistyped_seed_is_refused_and_not_quoted() -> None:
    text = nkey.encode_seed(USER, bytes(range(32)))
    typo = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
    with pytest.raises(nkey.SeedError, match="checksum") as caught:
        nkey.parse_seed(typo)
    assert typo not in str(caught.value)


def test_a_credentials_file_holds_both(tmp_path: Path) -> None:
    text = nkey.encode_seed(USER, bytes(range(32)))
    file = tmp_path / "user.creds"
    file.write_text(
        "-----BEGIN NATS USER JWT-----\nhead.body.sig\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{text}\n------END USER NKEY SEED------\n"
    )
    found = nkey.read_credentials(file)
    assert found.jwt == "head.body.sig"
    assert found.seed.public_key == nkey.parse_seed(text).public_key
    assert "head.body" not in repr(found)
    assert nkey.read_seed(file).public_key == found.seed.public_key


def test_a_file_without_a_jwt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    file.write_text(nkey.encode_seed(USER, bytes(32)))
    with pytest.raises(nkey.SeedError, match="lacks"):
        nkey.read_credentials(file)
    with pytest.raises(nkey.SeedError, match="cannot be read"):
        nkey.read_seed(tmp_path / "absent")
