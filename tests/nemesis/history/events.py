"""The events of a history: immutable, typed, one JSON object a line.

Instants ``at_ns`` are this machine's monotonic clock. What the broker stored carries the broker's
own sequence and time. Bodies are JSON as it was said, so that a history can be judged again by a
checker that did not exist when it was recorded.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Json = dict[str, Any]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Began(_Event):
    """The run begins.

    Attributes:
        wall_ns: The wall clock at ``at_ns``, to place permits on the broker's time.
        seats: Seats of the policy that is claimed first.
    """

    event: Literal["began"] = "began"
    at_ns: int
    wall_ns: int
    seed: int
    space: str
    seats: int


class Called(_Event):
    """A client is about to send a command.

    Attributes:
        call: Number of the call, unique in the history.
        who: ``<principal>.<uid>``.
    """

    event: Literal["called"] = "called"
    at_ns: int
    call: int
    who: str
    plane: str
    verb: str
    key: tuple[str, ...]
    body: Json
    command_id: str


class Answered(_Event):
    """A call has ended.

    Attributes:
        result: The result; ``None`` if none came: then it may have happened, or not.
        stored: Whether the broker is known to have stored it.
        why: Class of the error that ended it without a result.
    """

    event: Literal["answered"] = "answered"
    at_ns: int
    call: int
    result: Json | None = None
    stored: bool = False
    why: str = ""


class Asked(_Event):
    """A query was asked and answered.

    Attributes:
        at_ns: When it was asked.
        plane: Of the query.
        name: Of the query.
        body: What was asked.
        data: What was answered; ``None`` if it was refused.
        code: Why it was refused.
    """

    event: Literal["asked"] = "asked"
    at_ns: int
    plane: str
    name: str
    body: Json
    data: Json | None = None
    code: str = ""


class Permitted(_Event):
    """What a client concluded from an authorization.

    Attributes:
        call: The call of its command.
        ends_at_ns: When its permit ends, monotonic; 0 if it may not act.
    """

    event: Literal["permitted"] = "permitted"
    at_ns: int
    call: int
    user: str
    allowed: bool
    ends_at_ns: int


class Written(_Event):
    """A connector has written a turn to its provider."""

    event: Literal["written"] = "written"
    at_ns: int
    who: str
    request_id: str
    generation: int


class Heard(_Event):
    """An observer heard a public fact as it was said."""

    event: Literal["heard"] = "heard"
    at_ns: int
    subject: str
    body: Json


class Injected(_Event):
    """The nemesis did something, or undid it, or had to leave it out."""

    event: Literal["injected"] = "injected"
    at_ns: int
    fault: str
    target: str
    phase: Literal["begin", "end", "skipped", "note"]
    note: str = ""


class Stored(_Event):
    """A message as it lies in a stream at the end.

    Attributes:
        kind: Which stream: ``log``, ``cmd``, ``res``, ``epf``, ``records``, ``timers``.
        time_ns: The broker's timestamp.
        command_id: Its command id header, if it is a command.
        body: Its JSON; ``None`` if it is none.
    """

    event: Literal["stored"] = "stored"
    kind: Literal["log", "cmd", "res", "epf", "records", "timers"]
    seq: int
    time_ns: int
    subject: str
    command_id: str = ""
    body: Json | None = None


class Replica(_Event):
    """A ledger at the end: a worker's, or the log folded anew."""

    event: Literal["replica"] = "replica"
    name: str
    watermark: int
    digest: str


class Ended(_Event):
    """Everything is healed and quiet, and has been read back.

    Attributes:
        now_ms: The broker's time when the streams were read.
    """

    event: Literal["ended"] = "ended"
    at_ns: int
    now_ms: int


Event = Annotated[
    Began
    | Called
    | Answered
    | Asked
    | Permitted
    | Written
    | Heard
    | Injected
    | Stored
    | Replica
    | Ended,
    Field(discriminator="event"),
]

_EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


def line(event: Event) -> str:
    """An event as one line of a history's file."""
    return event.model_dump_json(exclude_defaults=False) + "\n"


def read(path: Path) -> Iterator[Event]:
    """The events of a file; a last line that was cut off is left out."""
    with path.open() as file:
        for text in file:
            if text.endswith("\n"):
                yield _EVENTS.validate_json(text)


def write(path: Path, events: Iterable[Event]) -> None:
    """Write a history's file."""
    with path.open("w") as file:
        file.writelines(map(line, events))
