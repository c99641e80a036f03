"""Who may send which verb: the one table behind ``nats.conf`` and the fold's own check.

A role is granted subjects, never bodies (DESIGN section 2). ``sys.*`` comes only from principals
``_worker…`` and, for evidence, ``_witness…``; an operator's verbs only from ``_op…``.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from schemas.commands import BODIES, KEYS, QUERIES, QUERY_KEYS


class Role(StrEnum):
    """What a credential is for."""

    MINTER = "minter"
    HOLDER = "holder"
    CONNECTOR = "connector"
    DELEGATE = "delegate"
    OPERATOR = "operator"
    WORKER = "worker"
    WITNESS = "witness"
    OBSERVER = "observer"


VERB_ROLES: Mapping[tuple[str, str], frozenset[Role]] = MappingProxyType(
    {
        ("cp", "mint"): frozenset({Role.MINTER}),
        ("cp", "heartbeat"): frozenset({Role.MINTER}),
        ("cp", "expire"): frozenset({Role.MINTER, Role.OPERATOR}),
        ("cp", "repair"): frozenset({Role.MINTER, Role.OPERATOR}),
        ("cp", "resume"): frozenset({Role.HOLDER}),
        ("adm", "enqueue"): frozenset({Role.CONNECTOR}),
        ("adm", "cancel"): frozenset({Role.CONNECTOR, Role.OPERATOR}),
        ("adm", "admit"): frozenset({Role.CONNECTOR}),
        ("adm", "start"): frozenset({Role.CONNECTOR}),
        ("adm", "intent"): frozenset({Role.CONNECTOR}),
        ("adm", "active"): frozenset({Role.CONNECTOR}),
        ("adm", "ambiguous"): frozenset({Role.CONNECTOR}),
        ("adm", "complete"): frozenset({Role.CONNECTOR}),
        ("adm", "abandon"): frozenset({Role.CONNECTOR}),
        ("adm", "recover"): frozenset({Role.CONNECTOR}),
        ("adm", "resolve"): frozenset({Role.OPERATOR}),
        ("adm", "cooldown"): frozenset({Role.OPERATOR}),
        ("adm", "policy"): frozenset({Role.OPERATOR}),
        ("adm", "drain"): frozenset({Role.OPERATOR}),
        ("cap", "reserve"): frozenset({Role.DELEGATE}),
        ("cap", "confirm"): frozenset({Role.DELEGATE}),
        ("cap", "authorize"): frozenset({Role.DELEGATE}),
        ("cap", "revoke"): frozenset({Role.DELEGATE, Role.OPERATOR}),
        ("cap", "stop"): frozenset({Role.DELEGATE, Role.OPERATOR}),
        ("cap", "bump"): frozenset({Role.DELEGATE, Role.OPERATOR}),
        ("cap", "minting"): frozenset({Role.OPERATOR}),
        ("cap", "import"): frozenset({Role.OPERATOR}),
        ("sys", "tick"): frozenset({Role.WORKER}),
        ("sys", "ruleset"): frozenset({Role.WORKER}),
        ("sys", "prune"): frozenset({Role.WORKER}),
        ("sys", "rebase"): frozenset({Role.WORKER}),
        ("sys", "clock"): frozenset({Role.WORKER}),
        ("sys", "liveness"): frozenset({Role.WORKER}),
        ("sys", "evidence"): frozenset({Role.WORKER, Role.WITNESS}),
    }
)
"""``(plane, verb)`` to the roles that may send it."""

_LOOKS_AT_RUNS = frozenset({Role.MINTER, Role.HOLDER, Role.OPERATOR, Role.OBSERVER})
_LOOKS_AT_TURNS = frozenset({Role.CONNECTOR, Role.OPERATOR, Role.OBSERVER})
_WATCHES = frozenset({Role.OPERATOR, Role.OBSERVER})
_OPERATES = frozenset({Role.OPERATOR})

QUERY_ROLES: Mapping[tuple[str, str], frozenset[Role]] = MappingProxyType(
    {
        ("cp", "show"): _LOOKS_AT_RUNS,
        ("cp", "list"): _LOOKS_AT_RUNS,
        ("cp", "wait"): _LOOKS_AT_RUNS,
        ("adm", "request"): _LOOKS_AT_TURNS,
        ("adm", "queue"): _LOOKS_AT_TURNS,
        ("adm", "leases"): _WATCHES,
        ("adm", "recoverable"): frozenset({Role.OPERATOR, Role.WITNESS}),
        ("adm", "policy"): _LOOKS_AT_TURNS,
        ("adm", "events"): _WATCHES,
        ("adm", "payload"): frozenset({Role.CONNECTOR}),
        ("adm", "sealed"): frozenset({Role.CONNECTOR}),
        ("cap", "show"): frozenset({Role.DELEGATE, Role.OPERATOR}),
        ("cap", "list"): _WATCHES,
        ("sys", "status"): frozenset(Role) - {Role.WORKER},
        ("sys", "digest"): _WATCHES,
        ("sys", "snapshots"): _WATCHES,
        ("sys", "snapshot"): _OPERATES,
        ("sys", "trim"): _OPERATES,
        ("sys", "prune"): _OPERATES,
        ("sys", "ruleset"): _OPERATES,
        ("sys", "rebase"): _OPERATES,
        ("sys", "clock"): _OPERATES,
    }
)
"""``(plane, name)`` of a query to the roles that may ask it."""


class About(StrEnum):
    """About whom whoever may ask a query may ask it."""

    SPACE = "everybody in the space"
    PARTIES = "everybody in the space; prompt and answer go to minter, holder and operators only"
    SUBJECT = "whom its subject names, and the broker lets it name"
    HOST = "a witness about its own host, an operator about every host"
    LEASE = "a lease that the speaker holds, under its fence"
    OWN = "what the speaker itself stored"


QUERY_ABOUT: Mapping[tuple[str, str], About] = MappingProxyType(
    {
        **dict.fromkeys(QUERY_ROLES, About.SPACE),
        ("cp", "show"): About.PARTIES,
        ("adm", "recoverable"): About.HOST,
        ("adm", "payload"): About.LEASE,
        ("adm", "sealed"): About.OWN,
        **dict.fromkeys(QUERY_KEYS, About.SUBJECT),
    }
)
"""``(plane, name)`` of a query to whom it may be about.

Turns and checkpoints of a space are known to all that work in it, without what was said in them; a
person's cap is known to its delegates and to those that look after the space.
"""

FACT_PLANES: Mapping[Role, frozenset[str]] = MappingProxyType(
    {
        Role.MINTER: frozenset({"cp"}),
        Role.HOLDER: frozenset({"cp"}),
        Role.CONNECTOR: frozenset({"adm"}),
        Role.DELEGATE: frozenset(),
        Role.OPERATOR: frozenset({"cp", "adm", "cap", "sys"}),
        Role.WITNESS: frozenset(),
        Role.OBSERVER: frozenset({"cp", "adm", "cap", "sys"}),
    }
)
"""Whose public facts a role may listen to and read back."""

WORKER_PREFIX = "_worker"
WITNESS_PREFIX = "_witness"
OPERATOR_PREFIX = "_op"

_PREFIXES = {
    Role.WORKER: WORKER_PREFIX,
    Role.WITNESS: WITNESS_PREFIX,
    Role.OPERATOR: OPERATOR_PREFIX,
}

if (
    not VERB_ROLES.keys() == BODIES.keys() == KEYS.keys()
    or not QUERIES.keys() <= QUERY_ROLES.keys()
):
    raise RuntimeError("every verb and query has a body and a role")  # pragma: no cover


def may_speak(principal: str, plane: str, verb: str) -> bool:
    """Whether a principal's name alone allows it the verb; the broker's permissions come first.

    A reserved name speaks only in its own role; a plain name speaks in every role that needs no
    reserved name.
    """
    roles = VERB_ROLES[plane, verb]
    for role, prefix in _PREFIXES.items():
        if principal.startswith(prefix):
            return role in roles
    if principal.startswith("_"):
        return False
    return bool(roles - _PREFIXES.keys())
