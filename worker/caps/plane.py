"""The cap plane, as the ledger folds it."""

from importlib import resources
from types import MappingProxyType
from typing import Final

from schemas.commands.cap import MAX_PERMIT_MS
from worker.caps import legacy, permits, queries, transitions, windows
from worker.ledger.plane import Plane, Swept
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


def _sweep_permits(tx: Tx, before_ms: int, after: str, room: int) -> Swept:
    return permits.sweep_some(tx.db, before_ms, after, room)


def rewind(tx: Tx) -> None:
    """Let nothing have happened later than now.

    A reservation waits its window from now on, and no permit outlasts its longest time from now on.
    Expiry seconds, keys and generations stay as they are: the provider knows them.
    """
    tx.db.execute(
        "UPDATE reservations SET reserved_at_ms = ?1 WHERE state = 'reserved' AND "
        "reserved_at_ms > ?1",
        (tx.now_ms,),
    )
    tx.db.execute(
        "UPDATE permits SET ends_at_ms = ?1 WHERE ends_at_ms > ?1", (tx.now_ms + MAX_PERMIT_MS,)
    )


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
    sweeps=MappingProxyType({"permits": _sweep_permits}),
    rewind=rewind,
    queries=MappingProxyType({"show": queries.show, "list": queries.listing}),
)
"""Reserve, confirm, authorize, revoke, stop, bump, minting, import; ``cap.show``, ``cap.list``."""
