"""Grammars of every token that stands in a subject, a key or a header.

All matches are full matches: a trailing newline is not part of any token. The tables are those of
``spec/checkpoints.md`` (Tokens) and ``spec/caps.md`` (constants).
"""

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from schemas.limits import MAX_SAFE_INTEGER

SPACE_PATTERN: Final = r"[A-Za-z0-9_-]{1,64}"
ROOT_PATTERN: Final = r"[A-Za-z0-9_-]{1,32}"
LABEL_PATTERN: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
ENDPOINT_PATTERN: Final = rf"{LABEL_PATTERN}(?:\.{LABEL_PATTERN})*"
UID_PATTERN: Final = r"[a-z0-9]{26,32}"
NAME_PATTERN: Final = r"[A-Za-z0-9_-]{1,64}"
COMMAND_ID_PATTERN: Final = r"[A-Za-z0-9_-]{16,64}"
USER_PATTERN: Final = r"[A-Za-z0-9-]{1,100}"
MINT_KEY_PATTERN: Final = r"[A-Za-z0-9_-]{16,100}"
VERB_PATTERN: Final = r"[a-z][a-z_]{0,23}"
EPOCH_PATTERN: Final = r"0|[1-9][0-9]{0,15}"
TRACEPARENT_PATTERN: Final = (
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)

MAX_ENDPOINT_CHARS: Final = 64

_SPACE: Final = re.compile(SPACE_PATTERN)
_ROOT: Final = re.compile(ROOT_PATTERN)
_ENDPOINT: Final = re.compile(ENDPOINT_PATTERN)
_UID: Final = re.compile(UID_PATTERN)
_NAME: Final = re.compile(NAME_PATTERN)
_COMMAND_ID: Final = re.compile(COMMAND_ID_PATTERN)
_USER: Final = re.compile(USER_PATTERN)
_MINT_KEY: Final = re.compile(MINT_KEY_PATTERN)
_VERB: Final = re.compile(VERB_PATTERN)
_EPOCH: Final = re.compile(EPOCH_PATTERN)
_TRACEPARENT: Final = re.compile(TRACEPARENT_PATTERN)

RESERVED_PREFIX: Final = "_"
"""Principals that begin with this are the platform's own: ``_worker…``, ``_witness…``, ``_op…``."""


def is_space(value: str) -> bool:
    """Whether ``value`` names a tenant: ``[A-Za-z0-9_-]{1,64}``."""
    return _SPACE.fullmatch(value) is not None


def is_root(value: str) -> bool:
    """Whether ``value`` may be the first token of every subject."""
    return _ROOT.fullmatch(value) is not None


def is_endpoint(value: str) -> bool:
    """Whether ``value`` is a dotted endpoint name of at most 64 characters."""
    return len(value) <= MAX_ENDPOINT_CHARS and _ENDPOINT.fullmatch(value) is not None


def is_uid(value: str) -> bool:
    """Whether ``value`` is the id of one life of a principal (also an instance)."""
    return _UID.fullmatch(value) is not None


def is_epoch(value: str) -> bool:
    """Whether ``value`` is a decimal without leading zero, at most 2^53-1."""
    return _EPOCH.fullmatch(value) is not None and int(value) <= MAX_SAFE_INTEGER


def is_name(value: str) -> bool:
    """Whether ``value`` is a checkpoint token, goal id, answer id or request id."""
    return _NAME.fullmatch(value) is not None


def is_principal(value: str) -> bool:
    """Whether ``value`` names a speaker; a leading ``_`` is reserved but well formed."""
    return _NAME.fullmatch(value) is not None


def is_command_id(value: str) -> bool:
    """Whether ``value`` may stand in the ``Tidegate-Command`` header."""
    return _COMMAND_ID.fullmatch(value) is not None


def is_user(value: str) -> bool:
    """Whether ``value`` is the id of a person who owns a cap."""
    return _USER.fullmatch(value) is not None


def is_mint_key(value: str) -> bool:
    """Whether ``value`` is a reservation's mint key."""
    return _MINT_KEY.fullmatch(value) is not None


def is_verb(value: str) -> bool:
    """Whether ``value`` looks like a verb (known or not), so that it may stand in a subject."""
    return _VERB.fullmatch(value) is not None


def is_traceparent(value: str) -> bool:
    """Whether ``value`` is a W3C trace context, which is carried on; anything else is dropped."""
    return _TRACEPARENT.fullmatch(value) is not None


def endpoint_to_wire(endpoint: str) -> str:
    """Write an endpoint as one subject token: ``.`` becomes ``_``, which no label can hold."""
    return endpoint.replace(".", "_")


def endpoint_from_wire(token: str) -> str:
    """Read an endpoint back from its subject token; check it with ``is_endpoint``."""
    return token.replace("_", ".")


def _exactly(pattern: str) -> str:
    return rf"^(?:{pattern})$"


Name = Annotated[str, StringConstraints(pattern=_exactly(NAME_PATTERN))]
"""A token, goal id, answer id or request id in a body."""

Principal = Annotated[str, StringConstraints(pattern=_exactly(NAME_PATTERN))]
Uid = Annotated[str, StringConstraints(pattern=_exactly(UID_PATTERN))]
UserId = Annotated[str, StringConstraints(pattern=_exactly(USER_PATTERN))]
MintKey = Annotated[str, StringConstraints(pattern=_exactly(MINT_KEY_PATTERN))]
Label = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=256,
        pattern=r"^[^\s\x00-\x1f\x7f-\x9f](?:[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$",
    ),
]
"""An identifier in a body: 1..256 characters, no control characters, no outer blanks."""

Instant = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
"""Milliseconds since the epoch of Unix."""

Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
"""A non-negative whole number."""

Generation = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
HexDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
