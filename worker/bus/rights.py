"""What the broker's permissions refuse to one connection, and for how long that is believed.

A right may be taken away at any moment, by a reload of the broker's configuration, and be given
back by another one. Nothing tells of either but what is refused and what works.
"""

from collections.abc import Callable, Sequence
from typing import Final

from worker import logs
from worker.bus.errors import Denied
from worker.bus.wire import Violation

REMEMBERED_S: Final = 60.0
"""A refused publish counts for so long: twice the longest pause after which work is tried again."""

MAX_REMEMBERED: Final = 16
"""Subjects of refused publishes that are remembered, the latest ones."""

MAX_NAMED: Final = 4
"""Subjects that one sentence names."""

_INBOX: Final = "_"
"""How a reply subject begins. Others choose it, so a refusal says nothing about our rights."""

_log = logs.get("tidegate.bus")


class Rights:
    """Remembers refusals and tells who listens.

    Args:
        clock: Seconds that never go back.

    Attributes:
        denials: Refusals seen.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listeners: dict[str, list[Callable[[Denied], None]]] = {}
        self._refused: dict[str, float] = {}
        self._last_log = float("-inf")
        self.denials = 0

    def listen(self, subject: str, listener: Callable[[Denied], None]) -> None:
        """Tell ``listener`` of each refusal on ``subject``."""
        self._listeners.setdefault(subject, []).append(listener)

    def unlisten(self, subject: str, listener: Callable[[Denied], None]) -> None:
        """Undo ``listen``."""
        listeners = self._listeners.get(subject, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._listeners.pop(subject, None)

    def refuse(self, violation: Violation, *, known: bool = False) -> Denied:
        """Take note of a refusal; ``known`` is one that is asked for again and again."""
        self.denials += 1
        subject = violation.subject
        error = Denied(f"{violation.kind} is refused on {subject}", subject=subject)
        if violation.kind == "publish" and not subject.startswith(_INBOX):
            self._refused.pop(subject, None)
            self._refused[subject] = self._clock()
            while len(self._refused) > MAX_REMEMBERED:
                del self._refused[next(iter(self._refused))]
        for listener in list(self._listeners.get(subject, ())):
            listener(error)
        now = self._clock()
        if not known and now - self._last_log >= 1.0:
            self._last_log = now
            _log.warning("permission_denied", kind=violation.kind, subject=subject)
        return error

    def allow(self, subject: str) -> None:
        """Something published on ``subject`` was answered."""
        if self._refused:
            self._refused.pop(subject, None)

    def refused(self) -> list[str]:
        """Subjects on which publishing was refused lately."""
        since = self._clock() - REMEMBERED_S
        self._refused = {subject: at for subject, at in self._refused.items() if at > since}
        return list(self._refused)


def named(subjects: Sequence[str]) -> str:
    """A few subjects by name, for a sentence."""
    more = len(subjects) - MAX_NAMED
    shown = ", ".join(subjects[:MAX_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
