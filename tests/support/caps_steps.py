"""Steps of a story about caps, as data; ``caps_vectors`` and ``caps_rows`` tell the stories.

One driver plays them against the fold with given timestamps, another one through a real broker.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.caps import (
    BumpView,
    CapDetail,
    CapSettings,
    CapView,
    ImportView,
    Permit,
    StopView,
)
from schemas.model import Closed

HOUR_MS = 3_600_000
SECOND_MS = 1_000
DELEGATE = "delia"
OPERATOR = "_op-otto"
USER = "user-1"


def key(name: str) -> str:
    """A mint key that a person can read."""
    return f"mint-key-of-{name}-0001"


K1 = key("one")
A = key("alpha")
B = key("beta")


@dataclass(frozen=True)
class Call:
    """One command and what must come of it.

    Attributes:
        verb: Of the plane ``cap``.
        key: Tokens behind the verb.
        body: Its body, less ``v``.
        wants: The outcome.
        code: Code of the error; ``None`` if it must be ok.
        data: What the data must hold; a value ``ABSENT`` must not be there.
        at: Milliseconds after T0.
        by: Who speaks.
        command_id: Given, or a new one.
        writes_nothing: Whether the plane's tables must stay as they are.
    """

    verb: str
    key: tuple[str, ...]
    body: Mapping[str, Any]
    wants: str
    code: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    at: int = 0
    by: str = DELEGATE
    command_id: str | None = None
    writes_nothing: bool = False


@dataclass(frozen=True)
class Together:
    """Commands that are all in the log before any of them is folded."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Show:
    """The query ``cap.show`` and what its data must hold, by dotted path."""

    data: Mapping[str, Any]
    mint_key: str | None = None
    user: str = USER
    at: int = 0
    wants: str = "shown"


@dataclass(frozen=True)
class Damage:
    """SQL that somebody runs on the file behind the worker's back."""

    sql: str


Step = Call | Together | Show | Damage
Steps = Callable[[int], Iterator[Step]]

ABSENT = object()


@dataclass(frozen=True)
class Story:
    """One story.

    Attributes:
        name: The behaviour.
        steps: T0 to its steps.
        number: Of the vector in the rules; 0 for a row of a table.
        brokered: Whether it is also played through a broker; not where a millisecond decides.
    """

    name: str
    steps: Steps
    number: int = 0
    brokered: bool = True


VIEWS: Mapping[str, type[Closed]] = {
    "reserve": CapView,
    "confirm": CapView,
    "authorize": Permit,
    "revoke": CapView,
    "stop": StopView,
    "bump": BumpView,
    "minting": CapSettings,
    "import": ImportView,
    "show": CapDetail,
}
"""What the data of each verb's results is, where there is any."""


def dig(value: Mapping[str, Any], path: str) -> Any:
    """What lies at a dotted path; ``ABSENT`` if nothing does."""
    found: Any = value
    for part in path.split("."):
        if not isinstance(found, dict) or part not in found:
            return ABSENT
        found = found[part]
    return found


def check(verb: str, data: dict[str, Any], wanted: Mapping[str, Any]) -> None:
    """Assert that data is what the contract says, and holds what is wanted."""
    if data:
        assert VIEWS[verb].from_object(data).to_object() == data
    found = {path: dig(data, path) for path in wanted}
    assert found == dict(wanted), data


def reserve(
    name: str, latest: int, cap: int, wants: str = "reserved", *, user: str = USER, **more: Any
) -> Call:
    body = {"latest_expires_at_ms": latest, "cap": cap}
    return Call("reserve", (user, name), body, wants, **more)


def confirm(
    name: str, expiry: int, wants: str = "confirmed", *, user: str = USER, **more: Any
) -> Call:
    return Call("confirm", (user, name), {"grant_expires_at_ms": expiry}, wants, **more)


def authorize(
    amount: int, expiry: int, wants: str = "allowed", *, user: str = USER, **more: Any
) -> Call:
    body = {"amount": amount, "grant_expires_at_ms": expiry}
    return Call("authorize", (user,), body, wants, **more)


def revoke(expiry: int, wants: str = "revoked", *, user: str = USER, **more: Any) -> Call:
    return Call("revoke", (user,), {"expires_at_ms": expiry}, wants, **more)


def stop(wants: str = "stopped", *, user: str = USER, **more: Any) -> Call:
    return Call("stop", (user,), {}, wants, **more)


def bump(wants: str = "bumped", *, user: str = USER, **more: Any) -> Call:
    return Call("bump", (user,), {}, wants, **more)


def minting(enabled: bool, **more: Any) -> Call:
    wants = "minting_enabled" if enabled else "minting_paused"
    return Call("minting", (), {"enabled": enabled}, wants, by=OPERATOR, **more)


def take_in(
    *records: Mapping[str, Any],
    wants: str = "imported",
    chunk: int = 1,
    of: int = 1,
    import_id: str = "import-1",
    **more: Any,
) -> Call:
    body = {"import_id": import_id, "chunk": chunk, "of": of, "records": list(records)}
    return Call("import", (), body, wants, by=OPERATOR, **more)


def legacy(name: str, expiry: Any, cap: Any = 10, *, user: Any = USER, **more: Any) -> Any:
    """One record of a predecessor."""
    return {
        "userId": user,
        "mintKey": name,
        "expiresAt": expiry,
        "perSwapCapUsd": cap,
        "reservedAt": 1_000,
        **more,
    }


def active(name: str, expiry: int, cap: int = 10, at: int = 0) -> Iterator[Step]:
    """Reserve and confirm."""
    yield reserve(name, expiry, cap, at=at)
    yield confirm(name, expiry, at=at)
