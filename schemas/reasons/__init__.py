"""Every reason that a result, a refusal or an error can carry, declared once.

A reason is a stable kebab-case word beside a code. What is said in ``worker`` and ``schemas`` and
what is declared here are kept equal by ``tests/docs/test_reasons.py``; docs/reasons.md is written
from this table.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from schemas.reasons import asking, connecting, planes, running
from schemas.reasons.kinds import Group, Reason, Retry

__all__ = ["GROUPS", "REASONS", "Group", "Reason", "Retry"]

GROUPS: Final = (
    planes.CHECKPOINTS,
    planes.ADMISSION,
    planes.CAPS,
    asking.BODY,
    asking.SUBJECT,
    asking.ANSWERING,
    running.BROKER,
    running.STARTING,
    running.FOLD,
    running.OPERATING,
    connecting.CONNECTOR,
    connecting.ADAPTERS,
    connecting.SEALING,
    connecting.EVIDENCE,
)
"""Reasons by where they are met, in the order of the page."""

REASONS: Final[Mapping[str, Reason]] = MappingProxyType(
    {reason.word: reason for group in GROUPS for reason in group.reasons}
)
"""Every reason by its word."""

if len(REASONS) != sum(len(group.reasons) for group in GROUPS):
    raise RuntimeError("a reason is declared twice")  # pragma: no cover
