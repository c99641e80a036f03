"""What a verb knows of the command it serves, and the clock it judges by."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from schemas.codes import Code
from schemas.subjects import Checkpoint, Speaker
from worker.bus.delivery import Lapses
from worker.bus.errors import Unavailable
from worker.bus.window import Still
from worker.errors import TidegateError


class Clock(Protocol):
    """The broker's now, with its bounds (spec/checkpoints.md, Time)."""

    def lower_ms(self) -> float:
        """The earliest instant that now can be; expiry is judged by it."""
        ...

    def upper_ms(self) -> float:
        """The latest instant that now can be; resume and heartbeat are judged by it."""
        ...

    def believable_ms(self, stamp_ms: int) -> int:
        """When a message was stored by its stamp, or now if the stamp lies in the future."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing may be decided by it now; empty while it may."""
        ...


class ClockUnsure(TidegateError):
    """The broker's time came into doubt while a command was judged; it is judged again later."""

    code = Code.UNAVAILABLE
    reason = "clock-unsure"


Telling = Callable[[], Awaitable[None]]
"""Publishes one fact for observers."""


async def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Context:
    """One command on one checkpoint.

    Attributes:
        speaker: Who speaks, from the subject.
        target: About which checkpoint.
        command_id: The client's id, or one derived from the sequence.
        seq: Sequence of the command.
        at_ms: The broker's timestamp of the command, unless that lies in the future beyond doubt.
        trace: W3C trace context, if the client sent one.
        telling: Facts to be published together with the result.
        lapses: How often another replica may have been given the command since it came.
        answered: Looks whether the command has a result.
    """

    speaker: Speaker
    target: Checkpoint
    command_id: str
    seq: int
    at_ms: int
    trace: str | None = None
    telling: list[Telling] = field(default_factory=list)
    lapses: Lapses = lambda: 0
    answered: Callable[[], Awaitable[bool]] = _never

    @property
    def cause(self) -> str:
        """``<principal>/<command id>``: written on everything this command writes."""
        return f"{self.speaker.principal}/{self.command_id}"

    @property
    def is_late(self) -> bool:
        """Whether another replica may have taken the command over."""
        return self.lapses() > 0

    async def prove_open(self) -> Still:
        """Carry out nothing that another replica has answered meanwhile.

        What is judged by the time is judged after this: another replica may do so just now.

        Returns:
            Whether that still stands; to be asked when a write leaves.

        Raises:
            Unavailable: The command may have been delivered again, and it was answered.
        """
        lapses = self.lapses()
        if lapses and await self.answered():
            raise Unavailable("another replica has answered this command")
        return lambda: self.lapses() == lapses

    def now_ms(self, clock: Clock) -> int:
        """Upper bound of now, and never before the command itself."""
        return max(int(clock.upper_ms()) + 1, self.at_ms)
