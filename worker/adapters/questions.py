"""From what a framework asks to a checkpoint's prompt, within the bounds of the wire contract."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas import strict_json
from schemas.codes import BadInput
from schemas.limits import MAX_BODY_BYTES, MAX_SAFE_INTEGER
from schemas.records import PromptRecord
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.adapters.errors import BadQuestion

MINT_ENVELOPE_BYTES: Final = 1_024
"""What a mint's body holds beside its prompt, at most: deadline and holder."""

_BACKTICKS: Final = re.compile("`+")


@dataclass(frozen=True, slots=True)
class Question:
    """What a checkpoint asks, and of whom.

    Attributes:
        prompt: What its holder is shown.
        deadline_ms: How long it may wait, in ms; the adapter's own deadline if absent.
        holder: Who may answer; the adapter's own holder if absent.
    """

    prompt: PromptRecord
    deadline_ms: int | None = None
    holder: Speaker | None = None


def prompt_of(asked_by: str, fields: Mapping[str, Any]) -> PromptRecord:
    """Build a prompt that a mint will take.

    Args:
        asked_by: The interrupt's id or the tool call's id, for the refusal.
        fields: ``title`` and, optionally, ``body``, ``choices``, ``answer_schema`` and
            ``requested_by``; ``None`` counts as absent.

    Raises:
        BadQuestion: Naming the field that is missing, of a wrong type or too large. The value
            itself is never quoted.
    """
    given: JsonObject = {"v": 1, **{k: v for k, v in fields.items() if v is not None}}
    try:
        raw = {name: strict_json.dumps(value) for name, value in given.items()}
    except (TypeError, ValueError, RecursionError):
        raise BadQuestion(asked_by, _not_json(given), "it holds a value that is not JSON") from None
    size = sum(len(part) for part in raw.values())
    if size > MAX_BODY_BYTES - MINT_ENVELOPE_BYTES:
        largest = max(raw, key=lambda name: len(raw[name]))
        raise BadQuestion(
            asked_by,
            largest,
            f"field {largest} is too large: a prompt holds at most "
            f"{MAX_BODY_BYTES - MINT_ENVELOPE_BYTES} bytes",
        )
    try:
        # Read as it will stand in the mint's body, one level down.
        body = strict_json.loads(strict_json.dumps({"prompt": given}))
        return PromptRecord.from_object(body["prompt"])
    except BadInput as bad:
        field = bad.field.removeprefix("prompt.")
        raise BadQuestion(asked_by, field, bad.message.replace("prompt.", "")) from None


def duration_of(asked_by: str, value: Any) -> int | None:
    """A question's own ``deadline_ms``.

    Raises:
        BadQuestion: If it is not a whole number of milliseconds above zero.
    """
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= MAX_SAFE_INTEGER:
        raise BadQuestion(asked_by, "deadline_ms", "field deadline_ms must be whole ms above zero")
    return value


def with_json(asked_by: str, prompt: PromptRecord, field: str, value: Any) -> PromptRecord:
    """A prompt with a value under its body, as a block that no text inside the value can end.

    The keys of objects are put in order, so the same value is the same prompt.

    Args:
        asked_by: The interrupt's id or the tool call's id, for the refusal.
        prompt: The prompt without it.
        field: What the value is called, for the refusal.
        value: Any JSON.

    Raises:
        BadQuestion: Naming ``field``, if the value is not JSON or makes the prompt too large.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise BadQuestion(asked_by, field, f"field {field} is not JSON") from None
    return with_block(asked_by, prompt, field, text, "json")


def with_block(
    asked_by: str, prompt: PromptRecord, field: str, text: str, language: str = ""
) -> PromptRecord:
    """As ``with_json``, for text."""
    block = fenced(text, language)
    body = block if prompt.body is None else f"{prompt.body}\n\n{block}"
    try:
        return prompt_of(asked_by, {**prompt.to_object(), "body": body})
    except BadQuestion as bad:
        raise BadQuestion(
            asked_by, field, f"field {field} does not fit into the prompt: {bad.why}"
        ) from None


def fenced(text: str, language: str = "") -> str:
    """Text as a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _not_json(fields: Mapping[str, Any]) -> str:
    """The first field that cannot be written as JSON."""
    for name, value in fields.items():
        try:
            strict_json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            return name
    return "value"
