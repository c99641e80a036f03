"""What of a look a person should be told first."""

from collections.abc import Iterator
from typing import Final

from worker.showing.text import visible
from worker.top.look import Look
from worker.top.tables import short

LATE_MS: Final = 5_000
"""A deadline that has passed for so long without an expiry is not merely about to be settled."""

LAG_MS: Final = 5_000
DEEP_OUTBOX: Final = 1_000


def warnings(look: Look, now_ms: int) -> list[str]:
    """Sentences, the gravest first; empty if nothing calls for anybody.

    Args:
        look: What was seen.
        now_ms: The worker's clock now.
    """
    found = (_workers(look), _ledger(look), _checkpoints(look, now_ms), _seats(look, now_ms))
    return [visible(sentence) for sentences in found for sentence in sentences]


def _workers(look: Look) -> Iterator[str]:
    if look.status is None:
        yield look.unseen.get("status", "no worker answers")
        return
    yield from (f"not ready: {reason}" for reason in look.status.get("reasons") or ())


def _ledger(look: Look) -> Iterator[str]:
    ledger = look.ledger
    if int(ledger.get("lag_ms") or 0) > LAG_MS:
        behind = short(int(ledger["lag_ms"]))
        yield f"the fold is {ledger['lag']} commands and {behind} behind"
    if int(ledger.get("unpublished") or 0) > DEEP_OUTBOX:
        yield f"{ledger['unpublished']} results and facts are committed and not stored yet"
    if look.damaged_caps:
        yield f"{look.damaged_caps} caps are damaged and are not used: tidegate cap show"


def _checkpoints(look: Look, now_ms: int) -> Iterator[str]:
    late = [one for one in look.waiting if now_ms - one.view.deadline_at_ms > LATE_MS]
    if late:
        longest = short(now_ms - late[0].view.deadline_at_ms)
        more = f"{len(late)} deadlines have" if len(late) > 1 else "a deadline has"
        yield f"{more} passed without an expiry, for up to {longest}"


def _seats(look: Look, now_ms: int) -> Iterator[str]:
    debts = [seat.debt_since_ms for seat in look.seats if seat.debt_since_ms is not None]
    if debts:
        longest = short(max(0, now_ms - min(debts)))
        count = f"{len(debts)} seats are" if len(debts) > 1 else "a seat is"
        yield f"{count} held by debt, for up to {longest}: tidegate adm recoverable"
    suspects = sum(seat.suspect_since_ms is not None for seat in look.seats)
    if suspects:
        yield f"the owners of {suspects} seats are suspect"
    policy = look.policy
    if policy is not None and policy.draining:
        yield f"admission drains to {policy.seat_limit} seats"
    elif policy is not None and policy.seat_limit < policy.policy.max_active_turns:
        yield f"admission is drained: {policy.seat_limit} of {policy.policy.max_active_turns} seats"
    for cooldown in look.queue.cooldowns if look.queue is not None else ():
        left = short(max(0, cooldown.until_ms - now_ms))
        yield f"{cooldown.provider} {cooldown.model} rests for another {left}"
