"""Reading nkey seeds and credentials files, and answering the server's nonce (ADR-14).

A seed is base32 text: two bytes that say what it is for, 32 bytes of an Ed25519 seed, a checksum.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.errors import TidegateError

_PREFIX_SEED = 18 << 3
_SEED_BYTES = 32
_BLOCK = re.compile(r"-+BEGIN ([A-Z ]+)-+\s*([A-Za-z0-9_.=\-]+?)\s*-+END ", re.DOTALL)


class SeedError(TidegateError):
    """A seed or credentials file does not hold what it should."""

    reason = "bad-credentials-file"


@dataclass(frozen=True, slots=True)
class Seed:
    """The secret half of an nkey.

    Attributes:
        public_key: Its public half as text, which names the user.
    """

    public_key: str
    _key: Any = field(repr=False)

    def sign(self, nonce: str) -> bytes:
        """Base64 of the signature over the server's nonce."""
        return base64.b64encode(self._key.sign(nonce.encode()))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a credentials file holds: the user's JWT and the seed that proves it."""

    jwt: str = field(repr=False)
    seed: Seed

    def sign(self, nonce: str) -> bytes:
        """Base64 of the signature over the server's nonce."""
        return self.seed.sign(nonce)


def parse_seed(text: str) -> Seed:
    """Read a seed.

    Raises:
        SeedError: It is not one; the message never quotes it.
    """
    # Loaded where it is used: a worker with a password never needs it.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = text.strip()
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (ValueError, binascii.Error):
        raise SeedError("the seed is not base32") from None
    if len(raw) != 2 + _SEED_BYTES + 2 or raw[0] & 0xF8 != _PREFIX_SEED:
        raise SeedError("the seed is not an nkey seed")
    body, checksum = raw[:-2], raw[-2:]
    if checksum != _checksum(body):
        raise SeedError("the seed's checksum is wrong")
    key = Ed25519PrivateKey.from_private_bytes(body[2:])
    public = key.public_key().public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw
    )
    kind = ((raw[0] & 0x07) << 5) | ((raw[1] & 0xF8) >> 3)
    return Seed(encode(kind, public), key)


def encode(kind: int, raw: bytes) -> str:
    """A public key as text; ``kind`` is its first byte (160 for a user)."""
    body = bytes([kind]) + raw
    return base64.b32encode(body + _checksum(body)).decode().rstrip("=")


def encode_seed(kind: int, raw: bytes) -> str:
    """A seed as text; ``kind`` is the first byte of its public key."""
    body = bytes([_PREFIX_SEED | (kind >> 5), (kind & 0x1F) << 3]) + raw
    return base64.b32encode(body + _checksum(body)).decode().rstrip("=")


def read_seed(path: Path) -> Seed:
    """Read a file that holds a seed, alone or in a credentials block.

    Raises:
        SeedError: It cannot be read or holds none.
    """
    text = _read(path)
    blocks = dict(_BLOCK.findall(text))
    return parse_seed(blocks.get("USER NKEY SEED", text))


def read_credentials(path: Path) -> Credentials:
    """Read a credentials file.

    Raises:
        SeedError: It cannot be read or lacks the JWT or the seed.
    """
    blocks = dict(_BLOCK.findall(_read(path)))
    try:
        return Credentials(blocks["NATS USER JWT"].strip(), parse_seed(blocks["USER NKEY SEED"]))
    except KeyError:
        raise SeedError("the credentials file lacks a JWT or a seed") from None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SeedError(f"{path.name} cannot be read: {type(error).__name__}") from error


def _checksum(data: bytes) -> bytes:
    # CRC-16/XMODEM, little endian, as binascii offers it.
    return binascii.crc_hqx(data, 0).to_bytes(2, "little")
