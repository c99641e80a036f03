"""The space's own key, in a bucket that only workers read."""

import secrets
from collections.abc import Callable
from typing import Final

from schemas.names import Names
from worker.bus.errors import CasLost
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket
from worker.bus.window import GroupPublisher
from worker.ledger.errors import LedgerError
from worker.ledger.keyed import KEY_BYTES

KEY: Final = "space"
"""Its name in the bucket; the value is 32 random bytes."""


class KeyDamaged(LedgerError):
    """What is kept as the space's key is not 32 bytes."""

    reason = "space-key-damaged"


class SpaceKey:
    """Reads the key once, and makes it if there never was one.

    Several that make it at once end with one key: it is created, never overwritten.

    Args:
        js: The workers' account.
        names: The space.
        random_bytes: Source of a new key.
    """

    def __init__(
        self,
        js: JetStream,
        names: Names,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        group = GroupPublisher(js, names.keys_bucket, atomic=False)
        self._bucket = Bucket(js, names.keys_bucket, group)
        self._random_bytes = random_bytes
        self.known: bytes | None = None

    async def get(self) -> bytes:
        """The key.

        Raises:
            KeyDamaged: What is kept there is no key; it is never repaired in silence.
            BusError: The bucket cannot be read now.
        """
        if self.known is not None:
            return self.known
        entry = await self._bucket.read(KEY)
        if entry is None:
            try:
                await self._bucket.put_if(KEY, self._random_bytes(KEY_BYTES), 0)
            except CasLost:
                # Another worker made it a moment ago; theirs is read below.
                entry = None
            entry = await self._bucket.read(KEY)
        if entry is None or entry.deleted or len(entry.value) != KEY_BYTES:
            raise KeyDamaged
        self.known = entry.value
        return self.known
