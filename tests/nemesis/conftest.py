"""Options of the fault runs."""

import pytest


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
