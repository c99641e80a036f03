"""The fields of a message as rows of a table, nested ones by their path as errors name it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas.catalog import Entry, documented
from schemas.commands.adm import PolicyValues
from schemas.limits import MAX_SAFE_INTEGER
from worker.pages.markdown import code

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        path: ``holder.id``, ``obligations[].signer.keyId``.
        kind: Type and bounds.
        default: Its default; ``required``, or empty where it is simply left out.
        meaning: What its model says of it.
    """

    path: str
    kind: str
    default: str
    meaning: str


def of(entry: Entry) -> list[Field]:
    """The fields of a message, in the order of the contract, without ``v``."""
    schema = entry.schema()
    return list(_walk("", schema, schema.get("$defs", {})))


def _walk(prefix: str, schema: Schema, definitions: Schema) -> Iterator[Field]:
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        if name == "v":
            continue
        path = f"{prefix}{name}"
        inner = _plain(part, definitions)
        default = "required" if name in required else _default(part)
        meaning = part.get("description", "")
        if same := _AS_IN.match(meaning):
            known = _VALUES[same[1]]["properties"][name]
            meaning = known["description"]
            default = default or (_default(known) if not prefix else "")
        yield Field(path, _kind(inner, definitions), default, _said(meaning))
        if inner.get("type") == "array":
            path, inner = f"{path}[]", _plain(inner.get("items", {}), definitions)
        if "properties" in inner:
            yield from _walk(f"{path}.", inner, definitions)


_AS_IN = re.compile(r"As in ``(\w+)``")
_VALUES = {"PolicyValues": documented(PolicyValues.model_json_schema())}
"""Where a message says *as in* another one, what that one says stands in the table."""


def _plain(part: Schema, definitions: Schema) -> Schema:
    """The schema of a value that is there: without null, references followed."""
    for either in part.get("anyOf", ()):
        if either.get("type") != "null":
            return _plain({**_rest(part), **either}, definitions)
    if "$ref" in part:
        return {**definitions[part["$ref"].rpartition("/")[2]], **_rest(part)}
    return part


def _rest(part: Schema) -> Schema:
    return {key: part[key] for key in ("description",) if key in part}


def _default(part: Schema) -> str:
    value = part.get("default")
    return "" if value is None else code(_literal(value))


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _grouped(value) if isinstance(value, int) else str(value)


def _kind(part: Schema, definitions: Schema) -> str:
    if "anyOf" in part:
        kinds = (_kind(_plain(either, definitions), definitions) for either in part["anyOf"])
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in part:
        return " \\| ".join(code(word) for word in part["enum"]).replace("\\|", "|")
    if "const" in part:
        return code(_literal(part["const"]))
    match part.get("type"):
        case "integer":
            return f"integer{_range(part.get('minimum'), part.get('maximum'))}"
        case "string":
            return f"string{_text(part)}"
        case "array":
            bounds = _range(part.get("minItems"), part.get("maxItems"), " entries")
            inner = _plain(part.get("items", {}), definitions)
            what = "object" if "properties" in inner else _kind(inner, definitions)
            return f"array of {what}{bounds}"
        case "boolean":
            return "boolean"
        case "object":
            return "object" if "properties" in part else "any object"
    return "any JSON value"


def _text(part: Schema) -> str:
    pattern = part.get("pattern", "")
    if pattern.startswith(_LABEL):
        return ", 1..256 characters, none of control, no outer blanks"
    if pattern:
        inner = pattern.removeprefix("^").removesuffix("$")
        return f" {code(inner.removeprefix('(?:').removesuffix(')'))}"
    return _range(part.get("minLength"), part.get("maxLength"), " characters")


_LABEL = r"^[^\s"


def _range(low: int | None, high: int | None, unit: str = "") -> str:
    if high is not None and high >= MAX_SAFE_INTEGER:
        high = None
    if low is not None and low <= -MAX_SAFE_INTEGER:
        low = None
    if low is None and high is None:
        return ""
    if unit and low == 1 and high is None:
        return ", not empty"
    if high is None:
        return f", at least {_grouped(low)}{unit}"
    if low is None:
        return f", at most {_grouped(high)}{unit}"
    return f", {_grouped(low)}..{_grouped(high)}{unit}"


def _grouped(number: object) -> str:
    return f"{number:,}"


def _said(text: str) -> str:
    return text.replace("``", "`")
