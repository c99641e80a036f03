"""Text that others wrote, shown so that nothing in it is unseen.

What a person approves must be what they see. A character that leaves no ink, changes the order of
what stands around it, is obeyed by a terminal, or sits on a neighbour that is not its own is shown
as a mark; everything else stays as it is.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

MARK: Final = "\N{REPLACEMENT CHARACTER}"
"""What stands for a character that would not be seen."""

_BLANK: Final = frozenset(
    map(
        chr,
        (
            0x034F,  # combining grapheme joiner
            *range(0x115F, 0x1161),  # Hangul choseong and jungseong fillers
            *range(0x17B4, 0x17B6),  # Khmer inherent vowels
            *range(0x180B, 0x1810),  # Mongolian variation selectors and vowel separator
            0x2800,  # Braille with no dot
            0x3164,  # Hangul filler
            *range(0xFE00, 0xFE10),  # variation selectors
            0xFFA0,  # halfwidth Hangul filler
            0xFFFC,  # object replacement
            0x13441,  # Egyptian full blank
            0x13442,  # Egyptian half blank
            0x16FE4,  # Khitan small script filler
            0x1D159,  # musical null notehead
            *range(0xE0000, 0xE1000),  # tags and more variation selectors
        ),
    )
)
"""What leaves no ink although Unicode counts it among letters, marks and symbols."""

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
"""Controls, formats (direction, joiners, soft hyphens), surrogates, private and unassigned
characters, and every blank but the space."""


def visible(text: str) -> str:
    """Text on one line, character for character, with a mark for each that would not be seen.

    Letters of every script, their accents and emoji stay. Among the marked are controls, line
    ends, blanks other than the space, what steers direction or joins, fillers and selectors that
    leave no ink, and accents without a letter below them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(MARK if unseen else char for char, unseen in _judged(text))


def visible_lines(text: str) -> list[str]:
    """The lines of a text, each as ``visible``; only a line feed ends one."""
    return [visible(line.removesuffix("\r")) for line in text.split("\n")]


def escaped(document: str) -> str:
    """A JSON document that means the same, with escapes for what would not be seen.

    Args:
        document: JSON on one line; such characters stand only inside its strings.
    """
    if document.isascii() and document.isprintable():
        return document
    return "".join(_escape(char) if unseen else char for char, unseen in _judged(document))


def _judged(text: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each character, and whether it would not be seen where it stands."""
    on_a_base = False
    for char in text:
        category = unicodedata.category(char)
        if char == " ":
            unseen = on_a_base = False
        elif category in _UNSEEN or char in _BLANK:
            unseen, on_a_base = True, False
        elif category[0] == "M":
            unseen = not on_a_base
        else:
            # An accent does not belong on punctuation, nor on the quote before a string of JSON.
            unseen, on_a_base = False, category[0] in "LNS"
        yield char, unseen


def _escape(char: str) -> str:
    number = ord(char)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
