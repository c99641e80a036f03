"""What of a look is on the screen, and which keys change that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from worker.top import tables
from worker.top.look import Look
from worker.top.tables import Section

HINT: Final = "q quit   tab next list   ↑ ↓ scroll   t turns by name or by agent"
PAGE: Final = 10

_KEYS: Final = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"j": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "top",
    b"\x1b[1~": "top", b"g": "top", b"\t": "next", b"t": "turns", b"q": "quit", b"Q": "quit",
}  # fmt: skip
_STEPS: Final = {"up": -1, "down": 1, "page up": -PAGE, "page down": PAGE}


@dataclass(frozen=True, slots=True)
class View:
    """Which list has the keys, how far each is scrolled, and whether turns are shown by name.

    Attributes:
        focus: Number of the list that scrolls.
        offsets: By a list's name, how many of its rows are above the first one shown.
        by_name: Whether turns are shown one by one instead of by agent.
    """

    focus: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    by_name: bool = False

    def sections(self, look: Look, now_ms: int) -> list[Section]:
        """The lists on the screen, in reading order."""
        found = tables.sections(look, now_ms)
        if self.by_name:
            found[1] = tables.turns(look, now_ms)
        return found

    def pressed(self, key: str, found: Sequence[Section]) -> "View":
        """How it is after a key.

        Args:
            key: As ``keys`` names it.
            found: The lists that are on the screen.
        """
        if key == "next":
            return replace(self, focus=(self.focus + 1) % len(found))
        if key == "turns":
            return replace(self, by_name=not self.by_name)
        section = found[self.focus % len(found)]
        at = self.offsets.get(section.name, 0) + _STEPS.get(key, 0)
        at = 0 if key == "top" else max(0, min(at, len(section.rows) - 1))
        return replace(self, offsets={**self.offsets, section.name: at})


def keys(typed: bytes) -> Iterator[str]:
    """The keys in what a terminal sent; what is not ours is passed over."""
    while typed:
        known = next((key for key in _KEYS if typed.startswith(key)), None)
        if known is not None:
            yield _KEYS[known]
        typed = typed[len(known) if known else 1 :]
