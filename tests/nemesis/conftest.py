"""Options of the fault runs, and which of them are short."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nemesis")
    group.addoption(
        "--seed", type=int, default=None, help="Run this seed of the histories, and no other."
    )
    group.addoption(
        "--nemesis-minutes",
        type=float,
        default=None,
        help="Draw seeds for so long (also TIDEGATE_NEMESIS_MINUTES).",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is not long is what ``pytest -m nemesis`` runs."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("long") is None:
            item.add_marker("nemesis")
