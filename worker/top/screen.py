"""A look drawn for a terminal of any size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from worker.showing.instants import show_instant
from worker.top import judging, tables
from worker.top.look import Look
from worker.top.tables import Row, Section, Tone
from worker.top.view import HINT, View

WIDE: Final = 130
"""Columns from which on two sections stand side by side."""

TALL: Final = 30
"""Lines from which on a blank one stands after each section."""

HINTED: Final = 20
"""Lines from which on the last one says which keys there are."""

MOST_WARNINGS: Final = 4
LEAST_ROWS: Final = 2

LEAST_WORDS: Final = 16
"""Cells that the column cut first keeps until every other is as narrow as its head."""

_TURNS: Final = (2, 2, 1, 1)
"""Rows that each section is given in turn while there is room: more for what changes most."""

_STYLES: Final[dict[Tone, str]] = {
    "": "",
    "dim": "dim",
    "good": "bold green",
    "warn": "yellow",
    "bad": "bold red",
}


def draw(
    look: Look, now_ms: int, width: int, height: int, view: View | None = None
) -> RenderableType:
    """The whole screen.

    Args:
        look: What was seen.
        now_ms: The worker's clock now; countdowns count to it.
        width: Columns of the terminal.
        height: Lines of the terminal.
        view: What of it is looked at; without one no keys are told.
    """
    shows = view or View()
    warnings = judging.warnings(look, now_ms)
    shown = warnings[:MOST_WARNINGS]
    top: list[RenderableType] = [_head(look, now_ms, width)]
    if pulse := tables.pulse(look):
        top.append(Text(pulse, style="dim", no_wrap=True, overflow="ellipsis"))
    top += [Text(f"! {one}", style="bold red", no_wrap=True, overflow="ellipsis") for one in shown]
    if len(warnings) > len(shown):
        top.append(Text(f"! and {len(warnings) - len(shown)} more", style="bold red"))
    top.append(Text(""))
    found = shows.sections(look, now_ms)
    hints: list[RenderableType] = []
    if view is not None and height >= HINTED:
        hints = [Text(HINT, style="dim", no_wrap=True, overflow="ellipsis")]
    has_keys = found[view.focus % len(found)].name if view is not None else ""
    room = height - len(top) - len(hints)
    if width >= WIDE:
        body = _side_by_side(found, room, width, _Keys(has_keys, shows.offsets))
    else:
        body = _stacked(found, room, width, _TURNS, _Keys(has_keys, shows.offsets))
    return Group(*top, *body, *hints)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Which list has the keys, by its name, and how far each is scrolled."""

    name: str
    offsets: Mapping[str, int]


def _head(look: Look, now_ms: int, width: int) -> Text:
    word, tone, rest = tables.headline(look)
    line = Text.assemble(
        ("tidegate ", "bold"),
        (look.space, "bold cyan"),
        "  ",
        (word, _STYLES[tone]),
        "  ",
        (rest, "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )
    clock = show_instant(now_ms)[11:19]
    gap = width - line.cell_len - len(clock)
    if gap > 1:
        line.append(" " * gap + clock, style="dim")
    return line


def _stacked(
    found: Sequence[Section], room: int, width: int, turns: Sequence[int], keys: _Keys
) -> list[RenderableType]:
    blank = 1 if room >= TALL else 0
    wanted = [max(1, len(section.rows)) for section in found]
    given = _share_out(wanted, room - (2 + blank) * len(found), turns)
    parts: list[RenderableType] = []
    for section, rows in zip(found, given, strict=True):
        parts += _part(section, rows, width, keys)
        parts += [Text("")] * blank
    return parts


def _side_by_side(
    found: Sequence[Section], room: int, width: int, keys: _Keys
) -> list[RenderableType]:
    """Checkpoints on the left, everything else on the right."""
    left, right = found[:1], found[1:]
    half = (width - 1) // 2
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=half)
    grid.add_column(width=half)
    grid.add_row(
        Group(*_stacked(left, room, half, _TURNS[:1], keys)),
        Group(*_stacked(right, room, half, _TURNS[1:], keys)),
    )
    return [grid]


def _share_out(wanted: Sequence[int], rows: int, turns: Sequence[int]) -> list[int]:
    """Give rows in turn to who wants more, so that no section starves another."""
    given = [min(want, LEAST_ROWS) for want in wanted]
    left = rows - sum(given)
    while left > 0 and any(have < want for have, want in zip(given, wanted, strict=True)):
        for number, turn in enumerate(turns):
            more = min(turn, wanted[number] - given[number], left)
            given[number] += more
            left -= more
    return given


def _widths(columns: Sequence[str], shown: Sequence[Row], room: int) -> list[int]:
    """How wide each column is drawn: numbers whole, words cut where there is no room."""
    heads = [cell_len(name.rstrip(">*")) for name in columns]
    widths = [max(head, *(cell_len(row.cells[n]) for row in shown)) for n, head in enumerate(heads)]
    over = sum(widths) - room

    def cut(n: int, least: int) -> None:
        nonlocal over
        less = min(over, widths[n] - least)
        if less > 0:
            widths[n] -= less
            over -= less

    words = [n for n, name in enumerate(columns) if name[-1] not in ">*"]
    first = [n for n, name in enumerate(columns) if name.endswith("*")]
    for n in first:
        cut(n, LEAST_WORDS)
    while over > 0 and words:
        wide = max(words, key=lambda n: (widths[n] > heads[n], widths[n]))
        if widths[wide] <= heads[wide]:
            break
        widths[wide] -= 1
        over -= 1
    for n in first:
        cut(n, heads[n])
    for n in first[:1]:
        widths[n] += max(0, -over)
    return widths


def _part(section: Section, rows: int, width: int, keys: _Keys) -> list[RenderableType]:
    style = "bold reverse" if section.name == keys.name else "bold"
    title = Text.assemble(
        (section.name, style), "  ", section.summary, no_wrap=True, overflow="ellipsis"
    )
    if not section.rows:
        return [title, Text(f"  {section.empty}", style="dim")] if section.empty else [title]
    total = len(section.rows)
    hidden = total > rows
    room_for = rows - 1 if hidden else rows
    above = max(0, min(keys.offsets.get(section.name, 0), total - room_for))
    shown = section.rows[above : above + room_for]
    table = Table(box=None, padding=(0, 1), header_style="dim", show_edge=False)
    room = width - 2 * len(section.columns)
    for name, wide in zip(section.columns, _widths(section.columns, shown, room), strict=True):
        table.add_column(
            name.rstrip(">*"),
            justify="right" if name.endswith(">") else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=wide,
        )
    for row in shown:
        first, *others = row.cells
        table.add_row(Text(first, style=_STYLES[row.tone]), *map(Text, others))
    if hidden:
        more = f"… {total - above - room_for}{'+' if section.more else ''} more"
        more += f", {above} above" if above else ""
        table.add_row(*([Text("")] * (len(section.columns) - 1)), Text(more, style="dim"))
    return [title, table]
