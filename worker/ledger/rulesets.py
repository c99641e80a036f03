"""The rulesets of the fold: what it does changes only when the log activates another one.

A log that was folded once is folded again the same way. So a transition that changes asks which
ruleset is in force, and the old branch stays for as long as a log or a snapshot may need it.
"""

from typing import Final

FIRST: Final = 2
"""In force where a log begins; the log itself activates any later one."""

MENDED: Final = 3
"""Licences to act are judged anew, ageing goes by priority, a drain stands, a Stop needs no row."""

NEWEST: Final = MENDED
"""What a new space activates as the first command of its log."""

KNOWN: Final = frozenset({FIRST, MENDED})
"""Rulesets this version can fold under."""
