"""Subjects and headers as text that loses none of their bytes.

The broker stores whatever bytes a publisher chose, and nothing says that they are UTF-8. A byte
that is not becomes a lone surrogate (PEP 383): no grammar of ours accepts one, two different
subjects never become the same text, and the way back gives the very bytes.
"""


def to_text(raw: bytes) -> str:
    """Bytes from the wire as text; never raises."""
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The bytes that ``to_text`` was given."""
    return text.encode("utf-8", "surrogateescape")
