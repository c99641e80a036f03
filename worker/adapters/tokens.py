"""Checkpoint tokens that a restarted process derives again."""

import base64
import hashlib

from schemas.records import canonical


def token_of(kind: str, *parts: str) -> str:
    """A token from what names a pause: always the same for the same parts.

    Args:
        kind: What it is for, a short word that the token begins with.
        parts: The ids that name it; any text.

    Returns:
        ``<kind>-`` and the unpadded base64url SHA-256 of the RFC 8785 form of kind and parts.
    """
    content = canonical(["tidegate/adapters/1", kind, *parts])
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{kind}-{digest}"
