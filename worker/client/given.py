"""What programs may give a call, read into what the contract has; the rest is one sentence.

An instant is milliseconds since 1970 or a ``datetime`` with a zone; a holder is a ``Speaker`` or
``principal.uid``; a prompt is a ``PromptRecord`` or a mapping of its fields.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from schemas.codes import BadInput
from schemas.records import PromptRecord
from schemas.subjects import Speaker

When = int | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_ms(field: str, value: When) -> int:
    """Milliseconds since 1970; a ``datetime`` is cut to a whole one.

    Raises:
        BadInput: It has no zone, or is neither.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            message = f"field {field} is a datetime without a zone; give it one: tzinfo=UTC"
            raise BadInput(field, "wrong-type", message)
        since = value - _EPOCH
        return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
    if type(value) is not int:
        message = f"field {field} must be whole milliseconds since 1970, or a datetime with a zone"
        raise BadInput(field, "wrong-type", message)
    return value


def holder(value: Speaker | str | None) -> dict[str, str] | None:
    """A holder as the contract has it.

    Raises:
        BadInput: It is a name without its life.
    """
    if value is None:
        return None
    if isinstance(value, str):
        principal, dot, uid = value.partition(".")
        if not dot:
            message = (
                "field holder must be principal.uid, for a name alone says nothing of its life: "
                "tidegate identity show NAME prints it"
            )
            raise BadInput("holder", "wrong-type", message)
        value = Speaker(principal, uid)
    return {"id": value.principal, "lifecycleUid": value.uid}


def prompt(value: PromptRecord | Mapping[str, Any] | object) -> dict[str, Any] | None:
    """A prompt as the contract has it; it is judged with the whole body.

    Raises:
        BadInput: It is none.
    """
    if value is None:
        return None
    if isinstance(value, PromptRecord):
        return value.to_object()
    if isinstance(value, Mapping):
        return {"v": 1, **value}
    message = 'field prompt must be a PromptRecord or its fields, such as {"title": "Ship?"}'
    raise BadInput("prompt", "wrong-type", message)
