"""A look as plain text, for a pipe or a person without a screen."""

from worker.showing.columns import columns
from worker.top import judging, tables
from worker.top.look import Look
from worker.top.tables import Section


def lines(look: Look, now_ms: int) -> list[str]:
    """Everything the look holds, a line each.

    Args:
        look: What was seen.
        now_ms: The worker's clock now.
    """
    word, _, rest = tables.headline(look)
    shown = [f"{look.space}: {word}" + (f" ({rest})" if rest else "")]
    if pulse := tables.pulse(look):
        shown.append(pulse)
    shown += [f"warning: {sentence}" for sentence in judging.warnings(look, now_ms)]
    found = tables.sections(look, now_ms)
    found.insert(2, tables.turns(look, now_ms))
    for section in found:
        shown += ["", *_section(section)]
    return shown


def _section(section: Section) -> list[str]:
    title = f"{section.name}  {section.summary}".rstrip()
    if not section.rows:
        return [title, f"  {section.empty}"] if section.empty else [title]
    head = tuple(name.rstrip(">*") for name in section.columns)
    # Set in before it is wrapped, or a full line would be longer than the terminal.
    rows = columns(
        [(f"  {cells[0]}", *cells[1:]) for cells in (head, *(row.cells for row in section.rows))]
    )
    more = ["  (there are more)"] if section.more else []
    return [title, *rows, *more]
