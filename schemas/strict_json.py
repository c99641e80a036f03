"""The strict JSON edge: one way in, one clear refusal for everything else.

Refused, naming the field where there is one: a body that is empty, too large, not UTF-8, not JSON,
not an object or nested too deep; a duplicate key; NaN and the infinities (also written ``1e999``);
an integer outside ±(2^53-1); a lone surrogate.
"""

import json
from typing import Any, NoReturn

from schemas.codes import BadInput
from schemas.limits import MAX_BODY_BYTES, MAX_DEPTH, MAX_SAFE_INTEGER

JsonObject = dict[str, Any]

_MAX_INTEGER_CHARS = 17


def loads(raw: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> JsonObject:
    """Parse one JSON object strictly.

    Args:
        raw: The body as it came off the wire.
        max_bytes: Size above which it is refused unread.

    Returns:
        The object, with no duplicate keys, only finite numbers and only encodable text.

    Raises:
        BadInput: With the field and a stable reason; the value itself is never quoted.
    """
    if len(raw) > max_bytes:
        raise BadInput("body", "too-large", f"the body is larger than {max_bytes} bytes")
    if not raw or raw.isspace():
        raise BadInput("body", "empty", "the body is empty; send a JSON object")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("body", "not-utf8", "the body is not valid UTF-8") from None
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError:
        raise BadInput("body", "not-json", "the body is not valid JSON") from None
    if type(value) is not dict:
        raise BadInput("body", "not-an-object", "the body must be a JSON object")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH or b"\\u" in raw:
        _inspect(value, "body", 1)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadInput(
                    _printable(key), "duplicate-key", f"field {_printable(key)} is repeated"
                )
            seen.add(key)
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_INTEGER_CHARS or abs(number := int(text)) > MAX_SAFE_INTEGER:
        raise BadInput("body", "number-too-large", "an integer is outside -(2^53-1)..2^53-1")
    return number


def _float(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise BadInput("body", "not-finite", "a number is too large to be finite")
    return number


def _constant(_: str) -> NoReturn:
    raise BadInput("body", "not-finite", "NaN and infinities are not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


def _inspect(value: Any, path: str, depth: int) -> None:
    if depth > MAX_DEPTH and isinstance(value, dict | list):
        raise _too_deep()
    match value:
        case str():
            _check_text(value, path)
        case dict():
            for key, item in value.items():
                _check_text(key, path)
                _inspect(item, key if path == "body" else f"{path}.{key}", depth + 1)
        case list():
            for index, item in enumerate(value):
                _inspect(item, f"{path}[{index}]", depth + 1)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput(
            _printable(path), "lone-surrogate", f"{_printable(path)} holds a lone surrogate"
        ) from None


def _too_deep() -> BadInput:
    return BadInput("body", "too-deep", f"the body is nested deeper than {MAX_DEPTH} levels")


def _printable(name: str) -> str:
    """A field's name fit for a message: short, and without anything a terminal would obey."""
    safe = "".join(c if c.isprintable() else "?" for c in name[:64])
    return safe.encode("utf-8", "replace").decode()


def dumps(value: Any) -> bytes:
    """Write compact JSON, keys in the order given, as UTF-8 without escapes."""
    return _ENCODER.encode(value).encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
