"""What observers are told: ``fact.cap.<kind>.<user>``; bodies are in ``schemas.caps``."""

from typing import Final

from schemas import tokens
from worker.caps.records import Record
from worker.ledger.tx import Tx

PLANE: Final = "cap"


def of_grant(tx: Tx, kind: str, user: str, record: Record) -> None:
    """A reservation came to be, or changed its state: a ``GrantFact``."""
    body = {
        "expires_at_ms": record.second_ms,
        "cap": record.cap,
        "generation": record.generation,
    }
    # Time alone brings rows here that nobody has proven: of them, the state is all that matters.
    trace = record.trace if record.trace and tokens.is_traceparent(record.trace) else None
    if tokens.is_user(user):
        tx.fact(PLANE, kind, (user,), body, (user, trace))


def of_stop(
    tx: Tx, user: str, generation: int, quiet_after_ms: int, expires_at_ms: int | None
) -> None:
    """Someone stopped: a ``StoppedFact``."""
    body = {"generation": generation, "quiet_after_ms": quiet_after_ms}
    if expires_at_ms is not None:
        body["expires_at_ms"] = expires_at_ms
    tx.fact(PLANE, "stopped", (user,), body)


def of_bump(tx: Tx, user: str, generation: int) -> None:
    """A generation was raised: a ``BumpedFact``."""
    tx.fact(PLANE, "bumped", (user,), {"generation": generation})


def of_refusal(tx: Tx, user: str, reason: str, amount: int, grant_expires_at_ms: int) -> None:
    """An authorization was refused: a ``RefusedFact``."""
    body = {"reason": reason, "amount": amount, "grant_expires_at_ms": grant_expires_at_ms}
    tx.fact(PLANE, "refused", (user,), body)
