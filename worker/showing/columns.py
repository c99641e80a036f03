"""Text in columns, wrapped where a terminal ends and whole in a pipe."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from worker.showing.text import visible

NARROWEST: Final = 24
"""Columns of a terminal below which text is not wrapped: a word a line reads worse."""

BELOW: Final = "    "
"""Before text that stands below its first column, for want of room beside it."""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns; the last one is wrapped where a terminal ends.

    Whatever a cell holds that would not be seen is shown as a mark.
    """
    if not rows:
        return []
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = _widths(rows)
    lines: list[str] = []
    for row in rows:
        before = "".join(f"{cell:<{w}}  " for cell, w in zip(row[:-1], widths, strict=True))
        lines += wrapped(before, row[-1])
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows below a head; where a terminal has no room for them side by side, one below the other.

    Args:
        head: The columns' names, in capitals.
        rows: The cells, as many in each row as in the head.
    """
    beside = [head, *rows]
    # The last column may be wrapped, but not within a word.
    last = [row[-1] for row in beside]
    narrowest = max(len(word) for cell in last for word in (cell.split() or [""]))
    needed = sum(width + 2 for width in _widths(beside)) + max(
        narrowest, min(NARROWEST, max(map(len, last)))
    )
    if not _on_a_terminal() or needed <= shutil.get_terminal_size().columns:
        return columns(beside)
    lines: list[str] = []
    for row in rows:
        pairs = [(name.lower(), cell) for name, cell in zip(head, row, strict=True) if cell]
        lines += [*([""] if lines else []), *columns(pairs)]
    return lines


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """How wide each column is, but the last."""
    return [max(len(row[n]) for row in rows) for n in range(len(rows[0]) - 1)]


def _on_a_terminal() -> bool:
    """Whether standard output is one; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def wrapped(before: str, text: str) -> list[str]:
    """Text behind a first column, wrapped beside it where a terminal ends; whole in a pipe."""
    room = shutil.get_terminal_size().columns - len(before) if _on_a_terminal() else 0
    if room < NARROWEST or len(text.rstrip()) <= room:
        return [before + text]
    longest, below = max(map(len, text.split())), room + len(before) - len(BELOW)
    if before.strip() and room < longest <= below:
        # Beside the column it would be broken by the terminal, below it it stays whole.
        lines = textwrap.wrap(text, below, break_long_words=False, break_on_hyphens=False)
        return [before.rstrip(), *(BELOW + line for line in lines)]
    first, *others = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [before + first, *(" " * len(before) + line for line in others)]


def fitted(lines: Iterable[str]) -> list[str]:
    """Lines that were made for people, wrapped where a terminal ends."""
    fit: list[str] = []
    for line in lines:
        label = re.match(r" *(?:\S+ {2,})?", line)
        cut = label.end() if label else 0
        fit += wrapped(line[:cut], line[cut:])
    return fit
