"""The key ring: versions of the key, and what is derived from each (RFC 5869).

The key itself is used for nothing but HKDF-SHA256; each use has a subkey of its own, so that what
one use leaks says nothing about another.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from worker.sealing import keyfiles
from worker.sealing.errors import KeyRefused

ID_BYTES: Final = 8
_INFO: Final = b"tidegate/sealing/1/"


@dataclass(frozen=True, slots=True)
class Created:
    """A version and whether the call made it.

    Attributes:
        version: The version in force.
        created: Whether this call made it; ``False`` if it, or another process, had before.
        path: Its file.
    """

    version: int
    created: bool
    path: Path


class Key:
    """One version's subkeys; never shown, copied or pickled.

    Attributes:
        version: Its version.
        key_id: 8 public bytes derived from the key: equal on two machines if the keys are.
    """

    __slots__ = ("_master", "_subkeys", "key_id", "version")

    def __init__(self, version: int, master: bytes) -> None:
        self.version = version
        self._master = master
        self._subkeys: dict[str, bytes] = {}
        self.key_id = self._derive("id")[:ID_BYTES]

    def cipher(self, purpose: str) -> AESGCM:
        """The cipher that seals for a purpose."""
        return AESGCM(self._derive(f"seal/{purpose}"))

    def fingerprint_key(self, purpose: str) -> bytes:
        """The key of the HMAC that fingerprints content for a purpose."""
        return self._derive(f"fingerprint/{purpose}")

    def _derive(self, use: str) -> bytes:
        if (subkey := self._subkeys.get(use)) is None:
            hkdf = HKDF(SHA256(), keyfiles.KEY_BYTES, salt=None, info=_INFO + use.encode())
            subkey = self._subkeys[use] = hkdf.derive(self._master)
        return subkey

    def __repr__(self) -> str:
        return f"Key(version={self.version}, key_id={self.key_id.hex()})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key does not leave its process")


class KeyRing:
    """The keys in a folder.

    A version is read once, when first needed. ``current`` looks at the folder each time, so that a
    rotation by any process takes effect with the next prompt.

    Args:
        folder: The key folder.
    """

    __slots__ = ("_keys", "folder")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._keys: dict[int, Key] = {}

    def init(self, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> Created:
        """Make version 1, unless there is a key already.

        Raises:
            KeyRefused: If the folder, or the key that exists, cannot be trusted.
        """
        try:
            existing = keyfiles.versions(self.folder)
        except KeyRefused as refused:
            if refused.reason != "key-dir-missing":
                raise
            existing = ()
        if existing:
            created, version = False, existing[-1]
        else:
            created = keyfiles.create(self.folder, 1, random_bytes(keyfiles.KEY_BYTES))
            version = keyfiles.versions(self.folder)[-1]
        return self._settled(version, created)

    def rotate(
        self, from_version: int, random_bytes: Callable[[int], bytes] = secrets.token_bytes
    ) -> Created:
        """Make the version after ``from_version``; old ones stay, to open what they sealed.

        Of several processes that rotate from the same version at once, one makes the new key and
        all get it.

        Args:
            from_version: The version in force as the caller knows it.
            random_bytes: Where 32 random bytes come from.

        Raises:
            KeyRefused: If the folder, or the key then in force, cannot be trusted, or
                ``from_version`` is later than any version here.
        """
        latest = self.current_version()
        created = False
        if latest < from_version:
            raise KeyRefused(
                keyfiles.path_of(self.folder, from_version),
                f"the key in force in {self.folder} is version {latest}, not {from_version}; "
                "put the newer files back first, or rotate from the version in force",
                reason="key-missing",
            )
        if latest == from_version:
            latest += 1
            created = keyfiles.create(self.folder, latest, random_bytes(keyfiles.KEY_BYTES))
        return self._settled(latest, created)

    def versions(self) -> tuple[int, ...]:
        """Versions that have a file, lowest first.

        Raises:
            KeyRefused: If the folder is missing or cannot be trusted.
        """
        return keyfiles.versions(self.folder)

    def current_version(self) -> int:
        """The highest version, with which new prompts are sealed.

        Raises:
            KeyRefused: If there is none or the folder cannot be trusted.
        """
        if not (existing := self.versions()):
            raise KeyRefused(
                self.folder,
                f"there is no key in {self.folder}; run: tidegate keys init",
                reason="key-missing",
            )
        return existing[-1]

    def current(self) -> Key:
        """The key in force.

        Raises:
            KeyRefused: If there is none, or it cannot be trusted; an older one never steps in.
        """
        return self.key(self.current_version())

    def key(self, version: int) -> Key:
        """The key of a version.

        Raises:
            KeyRefused: If it is not here or cannot be trusted.
        """
        if (key := self._keys.get(version)) is None:
            key = self._keys[version] = Key(version, keyfiles.read(self.folder, version))
        return key

    def _settled(self, version: int, created: bool) -> Created:
        self.key(version)
        return Created(version, created, keyfiles.path_of(self.folder, version))

    def __repr__(self) -> str:
        return f"KeyRing({str(self.folder)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key ring does not leave its process")
