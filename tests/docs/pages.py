"""Reading pages: their fenced blocks, what each is for, and whether an output is what they show."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).parents[2]
RUN: Final = frozenset({"bash", "sh", "console", "python"})

Use = Literal["run", "show", "output", "file", "skip"]


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        line: Line of its opening fence, from 1.
        language: First word of the info string.
        text: What it holds, with a newline at its end.
        use: What the runner does with it.
        detail: Reason of a skip, name of a file.
        exit_code: How it ends, if it is run.
    """

    line: int
    language: str
    text: str
    use: Use
    detail: str = ""
    exit_code: int = 0


class BadPage(Exception):
    """A page that does not keep to the convention."""


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page in order.

    Raises:
        BadPage: For an unknown word in a ``docs:`` comment, one without a block, an open fence.
    """
    lines = text.splitlines()
    said: str | None = None
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if comment := _COMMENT.fullmatch(line.strip()):
            if said is not None:
                raise BadPage(f"line {at}: a second docs comment for one block")
            said = comment["said"]
        elif fence := _FENCE.match(line):
            indent, mark, language = fence.groups()
            end = next((n for n in range(at, len(lines)) if lines[n].strip() == mark), None)
            if end is None:
                raise BadPage(f"line {at}: the fence is never closed")
            body = "".join(f"{part.removeprefix(indent)}\n" for part in lines[at:end])
            yield _block(at, language, body, said)
            said, at = None, end + 1
        elif line.strip() and said is not None:
            raise BadPage(f"line {at}: the docs comment above is not followed by a block")
    if said is not None:
        raise BadPage("the last docs comment is not followed by a block")


def _block(line: int, language: str, text: str, said: str | None) -> Block:
    if said is None:
        return Block(line, language, text, "run" if language in RUN else "show")
    word, _, detail = said.partition(" ")
    match word:
        case "exit" if detail.isdecimal() and language in RUN:
            return Block(line, language, text, "run", exit_code=int(detail))
        case "output" if not detail:
            return Block(line, language, text, "output")
        case "file" if re.fullmatch(r"[\w-][\w.-]*", detail):
            return Block(line, language, text, "file", detail)
        case "skip" if len(detail) > 10:
            return Block(line, language, text, "skip", detail)
    raise BadPage(f"line {line}: the docs comment says {said!r}; see tests/docs/__init__.py")


def commands(console: str) -> list[tuple[str, str]]:
    """The commands of a ``console`` block, each with the output shown below it."""
    found: list[tuple[str, str]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif not found:
            raise BadPage("a console block begins with a command: $ …")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def agrees(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what the page shows, but for what differs from run to run."""
    pattern = "".join("(?:.*\n)*?" if line == ANY else _line(line) + "\n" for line in _plain(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _plain(printed))) is not None


def _plain(text: str) -> list[str]:
    for name, varying in _VARYING:
        text = varying.sub(name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def _line(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.split(ANY))


ANY: Final = "…"
_COMMENT = re.compile(r"<!-- docs: (?P<said>.+?) -->")
_FENCE = re.compile(r"^( *)(```+|~~~+)\s*([\w-]*)")
_NUMBER = r"\d+(?:[.,]\d+)?"
_VARYING: Final = (
    ("<instant>", re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")),
    ("<ms>", re.compile(r"\b1\d{12}\b")),
    ("<hex>", re.compile(r"\b[0-9a-f]{8,}\b")),
    ("<uid>", re.compile(r"\b[a-z0-9]{26,32}\b")),
    (
        "<duration>",
        re.compile(rf"(?<![\w+.-])(?:{_NUMBER} ?[dhm] ?)*{_NUMBER} ?(?:ms|s)(?!\w)"),
    ),
)
