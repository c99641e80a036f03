"""Pages of the documentation that are written from the contract: the reference and the reasons."""

from collections.abc import Mapping

from worker.pages import reasons, reference

GENERATED = "<!-- Written by `tidegate schema --write docs`; do not edit. -->\n\n"
"""Stands at the top of each page."""


def render() -> Mapping[str, str]:
    """Every generated page by its path below ``docs/``."""
    pages = {"reasons.md": reasons.page(), **reference.pages()}
    return {path: GENERATED + text for path, text in pages.items()}
