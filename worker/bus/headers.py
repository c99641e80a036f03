"""Message headers between bytes and names, with nothing hidden (ADR-4).

A stored message may carry any bytes as headers. Two things matter to whoever decides by one: that a
name occurred *twice* is visible, and that a stored header called ``Status`` is not mistaken for the
status line that the broker itself sends.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from worker.bus.octets import to_bytes, to_text

VERSION_LINE: Final = b"NATS/1.0"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NONE: Final[frozenset[str]] = frozenset()


class Headers(dict[str, str]):
    """Header names and values; of a name that occurs more than once, the last value.

    Attributes:
        repeated: Names that occurred more than once. A header that decides something must not be
            among them.
        status: Number of the broker's inline status line (404, 503, …), 0 on every stored message.
        description: Text behind the status number, for people only.
    """

    __slots__ = ("description", "repeated", "status")

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        super().__init__(values or ())
        self.repeated: frozenset[str] = _NONE
        self.status = 0
        self.description = ""

    def single(self, name: str) -> str | None:
        """The value of a header that occurred exactly once, else ``None``."""
        return None if name in self.repeated else self.get(name)


@lru_cache(maxsize=1024)
def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a header name holds a character that headers cannot carry")
    return name


def encode_lines(headers: Mapping[str, str]) -> bytes:
    """The header lines alone, without version line and closing empty line.

    Raises:
        ValueError: A name is not a header name, or a value holds a line break.
    """
    text = "".join([f"{_checked_name(name)}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise ValueError("a header value holds a line break")
    return to_bytes(text)


def encode(headers: Mapping[str, str] | None) -> bytes:
    """The whole header block; nothing at all for no headers.

    Raises:
        ValueError: A name is not a header name, or a value holds a line break.
    """
    return b"NATS/1.0\r\n" + encode_lines(headers) + b"\r\n" if headers else b""


def decode(raw: bytes) -> Headers:
    """Read a header block as it came from the wire or out of a stream; never raises.

    Bytes that are not UTF-8 become lone surrogates, a line without a colon is skipped.
    """
    found = Headers()
    if not raw:
        return found
    lines = to_text(raw).split("\r\n")
    first = lines[0]
    if len(first) > len(VERSION_LINE):
        number, _, text = first[len(VERSION_LINE) :].strip().partition(" ")
        if number.isascii() and number.isdigit() and len(number) == 3:
            found.status = int(number)
            found.description = text
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        if not colon:
            continue
        name = name.strip()
        if name in found:
            found.repeated |= {name}
        found[name] = value.strip()
    return found
