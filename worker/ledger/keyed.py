"""Names that do not leave in the clear: what stands in their place, under the space's key.

The key is made at set-up and kept in a bucket that only workers read. The fold never sees it, so
its state stays a function of the log alone; the publisher and the queries apply it.
"""

import hashlib
import hmac
import json
from typing import Final

from schemas import strict_json

NAME: Final = "name"
"""Field of a keyed fact's body that must not leave."""

SHOWN_AS: Final = "request"
"""Field that leaves in its place: the HMAC, absent if the fact is about nothing in particular."""

KEY_BYTES: Final = 32


def hmac_of(key: bytes, name: str) -> str:
    """What stands for a name outside: 64 hexadecimal digits of HMAC-SHA256.

    Raises:
        ValueError: If the key is not 32 bytes.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"the space's key has {KEY_BYTES} bytes")
    return hmac.new(key, name.encode(), hashlib.sha256).hexdigest()


def leave(key: bytes, body: bytes) -> bytes:
    """The body of a keyed fact as it is published."""
    value = json.loads(body)
    name = value.pop(NAME)
    if name:
        value[SHOWN_AS] = hmac_of(key, name)
    return strict_json.dumps(value)
