"""The strict JSON edge: one way in, one clear refusal for everything else.

Refused, naming the field where there is one: a body that is empty, too large, not UTF-8, not JSON,
not an object or nested too deep; a duplicate key; NaN and the infinities (also written ``1e999``);
an integer outside ±(2^53-1); a lone surrogate.

The decoder's hooks do not know where in the body they are, so they only say what is wrong; a body
that was refused is then read a second time to find the field, and that costs nobody else anything.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from schemas.codes import BadInput
from schemas.limits import MAX_BODY_BYTES, MAX_DEPTH, MAX_SAFE_INTEGER

JsonObject = dict[str, Any]

_MAX_INTEGER_CHARS = 17
_MAX_PATH_CHARS = 128


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
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        raise BadInput("body", "too-deep", f"the body is nested deeper than {MAX_DEPTH} levels")
    try:
        value = _DECODER.decode(text)
    except _Wrong:
        raise _first_wrong(text) from None
    except json.JSONDecodeError:
        raise _not_json() from None
    if type(value) is not dict:
        raise BadInput("body", "not-an-object", "the body must be a JSON object")
    if b"\\u" in raw:
        _check_text(value, "")
    return value


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def _depth(raw: bytes) -> int:
    """How deep arrays and objects are nested; counted no further than what is too deep.

    Counted here and not left to the decoder's own limit, which depends on the interpreter and on
    who calls: two replicas must refuse the same body with the same word.
    """
    depth = deepest = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", raw)):
        if bracket[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        else:
            depth -= 1
    return deepest


class _Wrong(Exception):
    """Something in the body is wrong; ``_first_wrong`` finds out what and where."""


def _pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Wrong
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_INTEGER_CHARS or abs(number := int(text)) > MAX_SAFE_INTEGER:
        raise _Wrong
    return number


def _float(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise _Wrong
    return number


def _constant(_: str) -> NoReturn:
    raise _Wrong


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


class _Object(list[tuple[str, Any]]):
    """An object's pairs as they were written, repeated keys included."""


_Fault = tuple[str, str]
_TOO_LARGE: Final[_Fault] = ("number-too-large", "is an integer outside -(2^53-1)..2^53-1")
_NOT_FINITE: Final[_Fault] = ("not-finite", "is not a finite number")
_REPEATED: Final[_Fault] = ("duplicate-key", "is repeated")
_SURROGATE: Final[_Fault] = ("lone-surrogate", "holds a lone surrogate")


def _or_fault(parse: Any, fault: _Fault) -> Any:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except _Wrong:
            return fault

    return parsed


_LENIENT = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_or_fault(_integer, _TOO_LARGE),
    parse_float=_or_fault(_float, _NOT_FINITE),
    parse_constant=lambda _: _NOT_FINITE,
)


def _first_wrong(text: str) -> BadInput:
    """What the hooks objected to, by the order in which the body is written."""
    try:
        value = _LENIENT.decode(text)
    except json.JSONDecodeError:
        return _not_json()
    return _search(value, "") or _not_json()


def _search(value: Any, path: str) -> BadInput | None:
    if isinstance(value, tuple):
        return _at(path, *value)
    if isinstance(value, _Object):
        seen: set[str] = set()
        for key, item in value:
            inner = _join(path, key)
            wrong = _at(inner, *_REPEATED) if key in seen else _search(item, inner)
            if wrong is not None:
                return wrong
            seen.add(key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            wrong = _search(item, f"{path}[{index}]")
            if wrong is not None:
                return wrong
    return None


def _check_text(value: Any, path: str) -> None:
    match value:
        case str():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise _at(path, *_SURROGATE) from None
        case dict():
            for key, item in value.items():
                inner = _join(path, key)
                _check_text(key, inner)
                _check_text(item, inner)
        case list():
            for index, item in enumerate(value):
                _check_text(item, f"{path}[{index}]")


def _at(path: str, reason: str, words: str) -> BadInput:
    field = _shown(path)
    return BadInput(field, reason, f"{f'field {field}' if path else 'the body'} {words}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _not_json() -> BadInput:
    return BadInput("body", "not-json", "the body is not valid JSON")


def _shown(path: str) -> str:
    """A field's path fit for a message: short, and without anything a terminal would obey."""
    safe = "".join(c if c.isprintable() else "?" for c in path[:_MAX_PATH_CHARS])
    return safe.encode("utf-8", "replace").decode() or "body"


def dumps(value: Any) -> bytes:
    """Write compact JSON, keys in the order given, as UTF-8 without escapes."""
    return "".join(_encode(value, 0)).encode()


def _refuse_to_encode(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encoder() -> Callable[[Any, int], Iterable[str]]:
    """CPython's own encoder, made once: ``JSONEncoder.encode`` makes one anew for every call."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        plain = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return lambda value, _: plain.iterencode(value)
    text: Any = getattr(json.encoder, "encode_basestring")  # noqa: B009 - not in its stubs
    encode: Callable[[Any, int], Iterable[str]] = make(
        None, _refuse_to_encode, text, None, ":", ",", False, False, False
    )
    return encode


_encode = _encoder()
