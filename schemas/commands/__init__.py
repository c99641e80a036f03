"""The bodies of every command and query, one module per plane, and the tables that find them."""

from collections.abc import Mapping
from types import MappingProxyType

from schemas.commands import adm, cap, cp, sys
from schemas.model import Body, Query

BODIES: dict[tuple[str, str], type[Body]] = {
    (body.PLANE, body.VERB): body for module in (cp, adm, cap, sys) for body in module.BODIES
}
"""``(plane, verb)`` to the model of its body."""

LEDGER_PLANES = frozenset({"adm", "cap", "sys"})
"""Planes whose commands are folded; ``cp`` is served by compare-and-set."""

_REQUEST = ("<request id>",)
_USER = ("<user>",)
_MINT = ("<user>.<mint key>",)
_NO_KEY = ("",)

KEYS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {
        **{("cp", body.VERB): ("<endpoint>.<token>",) for body in cp.BODIES},
        **{("adm", body.VERB): _REQUEST for body in adm.BODIES},
        ("adm", "admit"): _NO_KEY + _REQUEST,
        **dict.fromkeys((("adm", "cooldown"), ("adm", "policy"), ("adm", "drain")), _NO_KEY),
        **{("cap", body.VERB): _USER for body in cap.BODIES},
        **dict.fromkeys((("cap", "reserve"), ("cap", "confirm")), _MINT),
        **dict.fromkeys((("cap", "minting"), ("cap", "import")), _NO_KEY),
        **{("sys", body.VERB): _NO_KEY for body in sys.BODIES},
    }
)
"""``(plane, verb)`` to the keys its subject may end in, ``<…>`` for one token that varies."""

QUERIES: Mapping[tuple[str, str], type[Query]] = MappingProxyType(
    {
        ("cp", "show"): cp.ShowQuery,
        ("cp", "list"): cp.ListQuery,
        ("cp", "wait"): cp.WaitQuery,
        ("adm", "request"): adm.RequestQuery,
        ("adm", "queue"): adm.QueueQuery,
        ("adm", "leases"): adm.LeasesQuery,
        ("adm", "recoverable"): adm.RecoverableQuery,
        ("adm", "policy"): adm.PolicyQuery,
        ("adm", "events"): adm.EventsQuery,
        ("adm", "payload"): adm.PayloadQuery,
        ("adm", "sealed"): adm.SealedQuery,
        ("cap", "show"): cap.ShowQuery,
        ("cap", "list"): cap.ListQuery,
        ("sys", "status"): sys.StatusQuery,
        ("sys", "digest"): sys.DigestQuery,
        ("sys", "snapshots"): sys.SnapshotsQuery,
        ("sys", "snapshot"): sys.SnapshotQuery,
        ("sys", "trim"): sys.TrimQuery,
        ("sys", "prune"): sys.PruneQuery,
        ("sys", "ruleset"): sys.RulesetQuery,
        ("sys", "rebase"): sys.RebaseQuery,
        ("sys", "clock"): sys.ClockQuery,
    }
)
"""``(plane, name)`` to the model of a query's body."""

QUERY_KEYS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {("cap", "show"): ("user",)}
)
"""``(plane, name)`` to the fields of the body that its subject ends in, so that a right to ask is a
right to ask about these; nothing follows the name of a query that is not here."""
