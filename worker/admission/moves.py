"""The state machine as data: what may move a turn from where to where, and how it is journalled.

Every change of a turn's state goes through ``journal.move``, which looks here; a move that is not
in the table is a defect and stops the fold (spec/admission.md, States and Journal).
"""

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import Final

from schemas.admission import (
    ACTIVE,
    ADMITTED,
    BEFORE_INTENT,
    CANCELLED,
    COMPLETED,
    DEBT,
    DISPATCH_AMBIGUOUS,
    DISPATCH_INTENT,
    FAILED,
    QUEUE_TIMEOUT,
    QUEUED,
    RECOVERY_REQUIRED,
    STARTING,
)

Triple = tuple[str, str | None, str | None]
"""Kind of a journal row, state before, state after."""


def _all(sources: frozenset[str], targets: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return tuple(product(sorted(sources), sorted(targets)))


_STATES: Final[Mapping[str, tuple[tuple[str | None, str], ...]]] = {
    "request_enqueued": ((None, QUEUED),),
    "request_adopted": ((QUEUED, QUEUED),),
    "request_cancelled": ((QUEUED, CANCELLED),),
    "request_queue_timed_out": ((QUEUED, QUEUE_TIMEOUT),),
    "queued_owner_dead": ((QUEUED, CANCELLED),),
    "request_admitted": ((QUEUED, ADMITTED),),
    "request_starting": ((ADMITTED, STARTING),),
    "request_dispatch_intent": ((STARTING, DISPATCH_INTENT),),
    "request_active": ((DISPATCH_INTENT, ACTIVE),),
    "request_dispatch_ambiguous": ((DISPATCH_INTENT, DISPATCH_AMBIGUOUS),),
    "request_provider_terminal": _all(
        frozenset({ACTIVE}), frozenset({COMPLETED, FAILED, CANCELLED})
    ),
    "request_abandoned": _all(
        frozenset({ADMITTED, STARTING, DISPATCH_INTENT}), frozenset({FAILED, CANCELLED})
    ),
    "request_requeued": ((ADMITTED, QUEUED), (STARTING, QUEUED), (RECOVERY_REQUIRED, QUEUED)),
    "request_released": _all(BEFORE_INTENT, frozenset({FAILED})),
    "request_recovery_required": _all(
        frozenset({STARTING, DISPATCH_INTENT, DISPATCH_AMBIGUOUS, ACTIVE}),
        frozenset({RECOVERY_REQUIRED}),
    ),
    "request_recovery_seat_released": ((RECOVERY_REQUIRED, RECOVERY_REQUIRED),),
    "request_resolved": _all(DEBT, frozenset({COMPLETED, RECOVERY_REQUIRED})),
}
"""Kind of journal row to the moves it stands for."""

POLICY_KINDS: Final = frozenset(
    {"policy_claimed", "policy_drain_started", "policy_drain_completed"}
)

TRIPLES: Final[frozenset[Triple]] = frozenset(
    {(kind, source, target) for kind, moves in _STATES.items() for source, target in moves}
    | {(kind, None, None) for kind in POLICY_KINDS}
)
"""Everything a journal may hold."""

SOURCES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "cancel": frozenset({QUEUED}),
        "admit": frozenset({QUEUED}),
        "start": frozenset({ADMITTED}),
        "intent": frozenset({STARTING}),
        "active": frozenset({DISPATCH_INTENT}),
        "ambiguous": frozenset({DISPATCH_INTENT}),
        "complete": frozenset({ACTIVE}),
        "abandon": frozenset({ADMITTED, STARTING, DISPATCH_INTENT}),
        "recover": frozenset({STARTING, DISPATCH_INTENT, DISPATCH_AMBIGUOUS, ACTIVE}),
        "resolve": DEBT,
    }
)
"""Verb to the states it moves a turn out of; in any other it is refused with the state."""
