"""The admission plane as the fold sees it."""

from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from schemas.results import Verdict
from worker.admission import (
    leases,
    owners,
    passing,
    policy,
    queries,
    recovery,
    requests,
    rewinding,
    selection,
)
from worker.ledger.plane import Handler, Plane
from worker.ledger.tx import Tx

TABLES: Final = (
    "adm_limits",
    "adm_requests",
    "adm_used",
    "adm_leases",
    "adm_agents",
    "adm_cooldowns",
    "adm_owners",
    "adm_heads",
    "adm_journal",
)


def _in_time(handler: Handler) -> Handler:
    """Let time pass before the verb; a connector's command also counts as a beat of its owner."""

    def handle(tx: Tx, key: tuple[str, ...], body: Any) -> Verdict:
        passing.tick(tx)
        speaker = tx.speaker
        if not speaker.principal.startswith("_"):
            owners.heard(tx, speaker.principal, speaker.uid, tx.now_ms)
        return handler(tx, key, body)

    return handle


_VERBS: Final[dict[str, Handler]] = {
    "enqueue": requests.enqueue,
    "cancel": requests.cancel,
    "admit": requests.admit,
    "start": leases.start,
    "intent": leases.intent,
    "active": leases.active,
    "ambiguous": leases.ambiguous,
    "complete": leases.complete,
    "abandon": leases.abandon,
    "recover": leases.recover,
    "resolve": recovery.resolve,
    "cooldown": policy.cooldown,
    "policy": policy.policy,
    "drain": policy.drain,
}

PLANE: Final = Plane(
    name="adm",
    schema=(resources.files("worker.admission") / "schema.sql").read_text(encoding="utf-8"),
    tables=TABLES,
    handlers=MappingProxyType({verb: _in_time(handler) for verb, handler in _VERBS.items()}),
    tick=passing.tick,
    due_at=passing.due_at,
    after=selection.admit_pushed,
    on_sys=MappingProxyType(
        {"liveness": _in_time(recovery.liveness), "evidence": _in_time(recovery.evidence)}
    ),
    prune=passing.prune,
    sweeps=passing.SWEEPS,
    rewind=rewinding.rewind,
    queries=MappingProxyType(
        {
            "request": queries.request,
            "queue": queries.queue,
            "leases": queries.leases,
            "recoverable": queries.recoverable,
            "policy": queries.policy,
            "events": queries.events,
        }
    ),
)
"""Admission: turns, seats, fairness, leases (spec/admission.md)."""
