"""An answer counts for the question that a node asks, at the moment at which it asks.

LangGraph runs a node from its start when it is resumed, and gives ``interrupt()`` the answer by its
place in the node, whatever is asked there now. So an answer is stored with a digest of what was
asked, and ``interrupt()`` compares before it returns. A process that does not compare hands out the
whole envelope, which is no answer to anything.
"""

import hashlib
import json
from collections.abc import Mapping
from types import FunctionType
from typing import Annotated, Any, Final, TypedDict, TypeGuard

from langgraph.types import interrupt
from pydantic import BeforeValidator
from pydantic_core import to_jsonable_python

from schemas.records import canonical
from worker.adapters.asking import Settlement
from worker.adapters.errors import QuestionChanged

ANSWERED: Final = "answered"
NOT_ASKED: Final = "deadline_ms"
"""Says how long to wait, not what is asked; a node may count it down."""


class Answered(TypedDict):
    """What a graph is resumed with: an answer, and what it is the answer to.

    A plain object, so that every checkpointer can store it.

    Attributes:
        tidegate: Always ``answered``.
        asked: Digest of the interrupt's value, see ``asked_digest``.
        endpoint: The checkpoint's endpoint.
        token: Its token.
        answer: What ``interrupt()`` returns.
    """

    tidegate: str
    asked: str
    endpoint: str
    token: str
    answer: Any


def answered(value: Any, settlement: Settlement, answer: Any) -> Answered:
    """Put an answer beside the value of the interrupt that it settles."""
    return Answered(
        tidegate=ANSWERED,
        asked=asked_digest(value),
        endpoint=settlement.endpoint,
        token=settlement.token,
        answer=answer,
    )


def asked_digest(value: Any) -> str:
    """Hex SHA-256 of an interrupt's value as canonical JSON, less its ``deadline_ms``.

    Order of keys and form of numbers do not count. A value beyond the numbers of RFC 8785 is
    written with sorted keys; what is not JSON at all is written as pydantic, or else ``str``, does.
    """
    if isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if name != NOT_ASKED}
    plain = to_jsonable_python(value, bytes_mode="base64", fallback=str)
    try:
        content = canonical(plain)
    except ValueError:
        content = json.dumps(plain, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def compare_at_interrupts() -> None:
    """Make ``langgraph.types.interrupt`` compare, under whatever name a node has imported it.

    The function keeps its identity and gets another body; calling this again changes nothing.
    Answers that no checkpoint gave, and graphs that no gate runs, go on as before.
    """
    if interrupt.__code__ is not _INSTEAD.__code__:
        interrupt.__code__ = _INSTEAD.__code__


def _instead(value: Any, *, response_schema: Any = None) -> Any:
    # Runs with the globals of langgraph.types, so it finds nothing of this module by name.
    from worker.adapters.interrupts import ask_again

    return ask_again(value, response_schema)


def ask_again(value: Any, response_schema: Any) -> Any:
    """Ask as LangGraph does; an answer is returned only if it was given to this value.

    Raises:
        QuestionChanged: It was given to another; the node does not get it.
    """
    if response_schema is None or isinstance(response_schema, dict):
        return _unwrapped(_ASK(value, response_schema=response_schema), value)
    compared = BeforeValidator(lambda answer: _unwrapped(answer, value))
    return _ASK(value, response_schema=Annotated[response_schema, compared])


def _unwrapped(given: Any, value: Any) -> Any:
    if not _is_answered(given):
        return given
    if given["asked"] != asked_digest(value):
        raise QuestionChanged(given["endpoint"], given["token"], "prompt")
    return given["answer"]


def _is_answered(given: Any) -> TypeGuard[Answered]:
    return isinstance(given, dict) and given.get("tidegate") == ANSWERED


def _copy_of(function: Any) -> FunctionType:
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_INSTEAD: Final = _instead
_ASK: Final = _copy_of(interrupt)
