"""What a verb knows of the command it serves, and the clock it judges by."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from schemas.codes import Code
from schemas.subjects import Checkpoint, Speaker
from worker.bus.errors import Unavailable
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
        late_at: When another replica may have the command, on the event loop's clock.
        answered: Looks whether the command has a result.
    """

    speaker: Speaker
    target: Checkpoint
    command_id: str
    seq: int
    at_ms: int
    trace: str | None = None
    telling: list[Telling] = field(default_factory=list)
    late_at: float = float("inf")
    answered: Callable[[], Awaitable[bool]] = _never

    @property
    def cause(self) -> str:
        """``<principal>/<command id>``: written on everything this command writes."""
        return f"{self.speaker.principal}/{self.command_id}"

    @property
    def is_late(self) -> bool:
        """Whether another replica may have taken the command over."""
        return asyncio.get_running_loop().time() >= self.late_at

    async def prove_open(self) -> None:
        """Carry out nothing that another replica has answered meanwhile.

        Raises:
            Unavailable: It took so long that the command was delivered again, and it was answered.
        """
        if self.is_late and await self.answered():
            raise Unavailable("another replica has answered this command")

    def now_ms(self, clock: Clock) -> int:
        """Upper bound of now, and never before the command itself."""
        return max(int(clock.upper_ms()) + 1, self.at_ms)
