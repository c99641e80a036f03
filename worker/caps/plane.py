"""The cap plane, as the ledger folds it."""

from importlib import resources
from types import MappingProxyType
from typing import Final

from worker.caps import legacy, permits, queries, transitions, windows
from worker.ledger.plane import Plane
from worker.ledger.tx import Tx

TABLES: Final = (
    "revoke_generations",
    "reservations",
    "active_grants",
    "settings",
    "permits",
    "imports",
)


def prune(tx: Tx, before_ms: int) -> None:
    """Forget permits that ended before an instant.

    Reservations stay whatever their state: no state frees a key or a second.
    """
    permits.prune(tx.db, before_ms)


PLANE: Final = Plane(
    name="cap",
    schema=(resources.files("worker.caps") / "schema.sql").read_text(encoding="utf-8"),
    tables=TABLES,
    handlers=MappingProxyType(
        {
            "reserve": transitions.reserve,
            "confirm": transitions.confirm,
            "authorize": transitions.authorize,
            "revoke": transitions.revoke,
            "stop": transitions.stop,
            "bump": transitions.bump,
            "minting": transitions.minting,
            "import": legacy.take_in,
        }
    ),
    tick=windows.tick,
    due_at=windows.due_at,
    prune=prune,
    queries=MappingProxyType({"show": queries.show, "list": queries.listing}),
)
"""Reserve, confirm, authorize, revoke, stop, bump, minting, import; ``cap.show``, ``cap.list``."""
