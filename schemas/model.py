"""The base of every message: closed, frozen, strict, with refusals in our own words.

Validation errors of the library are translated by their stable type, never by their text, so that
a refusal reads the same (and hashes the same in the ledger's chain) under every version of it.
"""

import functools
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, create_model
from pydantic_core import ErrorDetails

from schemas import envelope, strict_json
from schemas.codes import BadInput, Code
from schemas.limits import MAX_BODY_BYTES
from schemas.strict_json import JsonObject

VERSION = 1
Version = Annotated[int, Field(ge=VERSION, le=VERSION)]
"""The version of a message; a strict integer, since a literal would let ``true`` and ``1.0`` in."""


class Closed(BaseModel):
    """A closed, frozen JSON object; unknown fields are refused and nothing is coerced.

    Attributes:
        SINCE: Fields that came with a later ruleset than the first, and which.
    """

    SINCE: ClassVar[Mapping[str, int]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        """Check an already parsed object.

        Raises:
            BadInput: Naming the first offending field, in the order of the contract.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise _refusal(cls, error.errors(include_url=False, include_input=False)[0]) from None

    @classmethod
    def from_bytes(cls, raw: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> Self:
        """Parse strictly, then check.

        Raises:
            BadInput: As ``strict_json.loads`` and ``from_object``.
        """
        return cls.from_object(strict_json.loads(raw, max_bytes=max_bytes))

    def to_object(self) -> JsonObject:
        """The JSON object with absent optional fields left out, in the order of the contract."""
        return self.model_dump(exclude_none=True)

    def to_bytes(self) -> bytes:
        """Compact UTF-8 JSON of ``to_object``."""
        return strict_json.dumps(self.to_object())


class Message(Closed):
    """A closed object that carries its version as ``v: 1``."""

    v: Version

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        """Check an already parsed object, its version first.

        Raises:
            BadInput: ``unsupported-version`` if ``v`` is a whole number other than 1, else as
                ``Closed.from_object``.
        """
        version = value.get("v")
        if type(version) is int and version != VERSION:
            raise BadInput(
                "v",
                "unsupported-version",
                f"this worker speaks version {VERSION}",
                code=Code.UNSUPPORTED_VERSION,
            )
        return super().from_object(value)


class Traced(Message):
    """A message that may carry a trace context beside its body."""

    _traceparent: str | None = PrivateAttr(default=None)

    @property
    def traceparent(self) -> str | None:
        """W3C trace context that it was heard with, to be continued; ``None`` if it had none."""
        return self._traceparent

    def heard_with(self, given: Mapping[str, str]) -> Self:
        """Take over the trace context from the headers that it was heard with."""
        self._traceparent = envelope.traceparent_of(given)
        return self


class Query(Closed):
    """The body of a query; its version may be left out."""

    v: Version = VERSION


class Body(Message):
    """The body of a command.

    Attributes:
        PLANE: Plane whose verb this is the body of.
        VERB: The verb.
    """

    PLANE: ClassVar[str]
    VERB: ClassVar[str]

    @classmethod
    def under(cls, ruleset: int, raw: bytes) -> Self:
        """As ``from_bytes``, with the fields that a ruleset knows: a later one is unknown to it.

        Raises:
            BadInput: As ``from_bytes``.
        """
        value = strict_json.loads(raw, max_bytes=MAX_BODY_BYTES)
        if any(since > ruleset for since in cls.SINCE.values()):
            # Whoever folded it before the fields existed refused it in these words, in this order.
            _as_of(cls, ruleset).from_object(value)
        return cls.from_object(value)


@functools.cache
def _as_of(model: type[Closed], ruleset: int) -> type[Closed]:
    """A message as it was under an earlier ruleset, without the fields that came later."""
    fields: dict[str, Any] = {
        name: (_types_as_of(field.annotation, ruleset), field)
        for name, field in model.model_fields.items()
        if model.SINCE.get(name, 0) <= ruleset
    }
    base = Message if issubclass(model, Message) else Closed
    return create_model(model.__name__, __base__=base, **fields)


def _types_as_of(annotation: Any, ruleset: int) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_types_as_of(part, ruleset) for part in get_args(annotation))]  # noqa: UP007 - made of parts
    if isinstance(annotation, type) and issubclass(annotation, Closed) and annotation.SINCE:
        return _as_of(annotation, ruleset)
    return annotation


_WRONG_TYPE = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "must be null",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "less_than_equal": ("le", "must be at most"),
    "greater_than": ("gt", "must be greater than"),
    "less_than": ("lt", "must be less than"),
    "too_short": ("min_length", "must have at least this many entries:"),
    "too_long": ("max_length", "must have at most this many entries:"),
    "string_too_short": ("min_length", "must have at least this many characters:"),
    "string_too_long": ("max_length", "must have at most this many characters:"),
}


def _refusal(model: type[Closed], error: ErrorDetails) -> BadInput:
    field = _path(error["loc"])
    kind = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "missing":
        return BadInput(field, "missing-field", f"field {field} is required")
    if kind == "extra_forbidden":
        return BadInput(field, "unknown-field", f"field {field} is not known here")
    if kind in _WRONG_TYPE:
        return BadInput(field, "wrong-type", f"field {field} {_WRONG_TYPE[kind]}")
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return BadInput(field, "out-of-range", f"field {field} {words} {context[name]}")
    if kind == "string_pattern_mismatch":
        return BadInput(field, "bad-token", f"field {field} does not match its grammar")
    if kind == "literal_error":
        words = _words_of(model, error["loc"])
        return BadInput(field, "not-one-of", f"field {field} must be one of {words}")
    if kind in OUR_ERRORS:
        return BadInput(field, kind, OUR_ERRORS[kind].format(field=field, **context))
    return BadInput(field, "invalid", f"field {field} is not valid")


def _words_of(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The words that a field may have, as we list them: ``'a', 'b' or 'c'``."""
    found: Any = model
    for part in loc:
        found = _bare(found)
        if isinstance(part, int):
            (found,) = get_args(found)
        elif isinstance(found, type) and issubclass(found, BaseModel):
            found = found.model_fields[part].annotation
        else:
            break
    *first, last = (f"{word!r}" for word in get_args(_bare(found)))
    return f"{', '.join(first)} or {last}" if first else last


def _bare(annotation: Any) -> Any:
    """What is annotated, of what may be absent."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


OUR_ERRORS: dict[str, str] = {
    "needs-goal": "obligations are only allowed together with a goal",
    "needs-failure": "field failure goes with outcome failed, and only with it",
    "duplicate-entry": "field {field} holds an entry twice",
    "garbled": "the record's fields do not fit its state",
}
"""Types of errors raised by our own validators (``PydanticCustomError``), and their sentences."""


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            shown = "".join(c if c.isprintable() else "?" for c in part[:64])
            path += f".{shown}" if path else shown
    return path or "body"
