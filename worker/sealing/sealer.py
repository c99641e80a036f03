"""Seals and opens prompts: AES-256-GCM, bound to purpose, space, request and key version.

A sealed prompt is ``"TGS" 1 | key version, 4 bytes | key id, 8 | nonce, 12 | ciphertext and tag``,
integers big-endian. The additional data is the first four bytes, purpose, space, request id and key
version, each preceded by its length in 4 bytes, so that no two of them read the same.

A random nonce of 12 bytes is safe for 2^32 prompts under one key; rotate long before.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag

from worker.sealing.errors import SealRefused
from worker.sealing.keyring import ID_BYTES, KeyRing

PROMPT: Final = "prompt"
"""The purpose of a turn's prompt."""

MAX_CONTENT_BYTES: Final = 512 * 1024
"""Longest content: sealed and in base64 it still fits into one answer of ``adm.payload``."""

NONCE_BYTES: Final = 12
_MAGIC: Final = b"TGS"
_FORMAT: Final = b"\x01"
_HEAD: Final = struct.Struct(f">3s1sI{ID_BYTES}s{NONCE_BYTES}s")
_TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = _HEAD.size + _TAG_BYTES


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed prompt and what an enqueue says about it.

    Attributes:
        data: What may be stored anywhere.
        key_version: The key that sealed it.
        fingerprint: 64 hexadecimal digits; equal for the same content of the same request under the
            same key version, and of no use to anyone without the key.
    """

    data: bytes = field(repr=False)
    key_version: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Header:
    """What a sealed prompt says of itself in the clear.

    Attributes:
        key_version: The key that sealed it.
        key_id: Public id of that key.
        nonce: Its nonce.
    """

    key_version: int
    key_id: bytes
    nonce: bytes


class Sealer:
    """Seals and opens in one space with the keys of one ring.

    Args:
        ring: The keys.
        space: The space; what is sealed for one does not open in another.
        random_bytes: Where nonces come from.
    """

    __slots__ = ("_random_bytes", "_ring", "space")

    def __init__(
        self,
        ring: KeyRing,
        space: str,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._ring = ring
        self.space = space
        self._random_bytes = random_bytes

    def seal(
        self,
        request_id: str,
        content: bytes,
        *,
        key_version: int | None = None,
        purpose: str = PROMPT,
    ) -> Sealed:
        """Seal the content of a request.

        Args:
            request_id: The turn it belongs to.
            content: At most 512 KiB.
            key_version: The version to seal with, for a turn that was first enqueued before a
                rotation and whose fingerprint must stay what it was; by default the one in force.
            purpose: What it is for.

        Raises:
            SealRefused: ``prompt-too-large``.
            KeyRefused: If that key is not here or cannot be trusted.
        """
        if len(content) > MAX_CONTENT_BYTES:
            raise SealRefused(
                request_id,
                f"a prompt has at most {MAX_CONTENT_BYTES} bytes, this one {len(content)}",
                reason="prompt-too-large",
            )
        key = self._ring.current() if key_version is None else self._ring.key(key_version)
        nonce = self._random_bytes(NONCE_BYTES)
        head = _HEAD.pack(_MAGIC, _FORMAT, key.version, key.key_id, nonce)
        bound = self._bound(purpose, request_id, key.version)
        return Sealed(
            data=head + key.cipher(purpose).encrypt(nonce, content, bound),
            key_version=key.version,
            fingerprint=self._fingerprint(key.fingerprint_key(purpose), bound, content),
        )

    def open(self, request_id: str, data: bytes, *, purpose: str = PROMPT) -> bytes:
        """Open what was sealed for a request.

        Raises:
            SealRefused: ``not-sealed``, ``unsupported-seal``, ``wrong-key`` or ``seal-broken``.
            KeyRefused: If the key that sealed it is not here or cannot be trusted.
        """
        header = read_header(request_id, data)
        key = self._ring.key(header.key_version)
        if not hmac.compare_digest(key.key_id, header.key_id):
            raise SealRefused(
                request_id,
                f"the prompt was sealed with another key of version {key.version} "
                f"(id {header.key_id.hex()}, ours is {key.key_id.hex()}); copy the key files from "
                "where it was sealed",
                reason="wrong-key",
            )
        bound = self._bound(purpose, request_id, key.version)
        try:
            return key.cipher(purpose).decrypt(header.nonce, data[_HEAD.size :], bound)
        except InvalidTag:
            raise SealRefused(
                request_id,
                "the sealed prompt was changed, or sealed for another space, request or purpose",
                reason="seal-broken",
            ) from None

    def fingerprint(
        self,
        request_id: str,
        content: bytes,
        *,
        key_version: int | None = None,
        purpose: str = PROMPT,
    ) -> str:
        """The content's fingerprint: HMAC-SHA256 with a subkey that seals nothing.

        It covers space and request id too, so that equal prompts of different turns do not show.

        Raises:
            KeyRefused: If that key is not here or cannot be trusted.
        """
        key = self._ring.current() if key_version is None else self._ring.key(key_version)
        bound = self._bound(purpose, request_id, key.version)
        return self._fingerprint(key.fingerprint_key(purpose), bound, content)

    def _bound(self, purpose: str, request_id: str, key_version: int) -> bytes:
        parts = (
            _MAGIC + _FORMAT,
            purpose.encode(),
            self.space.encode(),
            request_id.encode(),
            key_version.to_bytes(4, "big"),
        )
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    @staticmethod
    def _fingerprint(key: bytes, bound: bytes, content: bytes) -> str:
        return hmac.new(key, bound + content, hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return f"Sealer({self._ring!r}, space={self.space!r})"


def read_header(request_id: str, data: bytes) -> Header:
    """Read what a sealed prompt says in the clear; needs no key and proves nothing.

    Raises:
        SealRefused: ``not-sealed`` or ``unsupported-seal``.
    """
    if len(data) < OVERHEAD_BYTES or not data.startswith(_MAGIC):
        raise SealRefused(request_id, "these bytes are not a sealed prompt", reason="not-sealed")
    _, version, key_version, key_id, nonce = _HEAD.unpack_from(data)
    if version != _FORMAT:
        raise SealRefused(
            request_id,
            f"the prompt is sealed in format {version[0]}, this version reads {_FORMAT[0]}",
            reason="unsupported-seal",
        )
    return Header(key_version, key_id, nonce)
