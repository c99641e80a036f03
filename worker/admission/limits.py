"""The policy in force and what is counted against it: one row, read once per decision."""

import sqlite3
from typing import Final, NamedTuple

from schemas import strict_json
from schemas.admission import Block
from schemas.commands.adm import PolicyValues
from schemas.strict_json import JsonObject

POLICY_FIELDS: Final = tuple(PolicyValues.model_fields)

_READ: Final = (
    "SELECT epoch, max_active_turns, max_concurrent_starts, min_start_interval_ms, "
    "queue_timeout_ms, capacity_cooldown_ms, start_timeout_ms, adoption_timeout_ms, silence_ms, "
    "seat_limit, draining, next_policy, seats, starts, queued, admissions, by_age, paced_at_ms, "
    "kept_at_ms FROM adm_limits"
)


_QUEUE_TIMEOUT: Final = "SELECT queue_timeout_ms FROM adm_limits"


class Limits(NamedTuple):
    """The one row of ``adm_limits``.

    Attributes:
        epoch: Of the policy; 0 until it was claimed.
        max_active_turns: As ``PolicyValues``, as are the seven after it.
        seat_limit: Seats that may be held now: the policy's, or what was drained to.
        draining: Whether a drain has started and not ended.
        next_policy: JSON of a claim that comes into force when the drain ends.
        seats: Leases.
        starts: Leases in admitted, starting and dispatch_intent.
        queued: Turns in state queued.
        admissions: Seats ever given.
        by_age: Whether the last one went by age.
        paced_at_ms: Last admission that still counts for pacing.
        kept_at_ms: Last admission among leases that are gone and had been started.
    """

    epoch: int
    max_active_turns: int
    max_concurrent_starts: int
    min_start_interval_ms: int
    queue_timeout_ms: int
    capacity_cooldown_ms: int
    start_timeout_ms: int
    adoption_timeout_ms: int
    silence_ms: int
    seat_limit: int
    draining: int
    next_policy: str | None
    seats: int
    starts: int
    queued: int
    admissions: int
    by_age: int
    paced_at_ms: int | None
    kept_at_ms: int | None

    @property
    def opens_at_ms(self) -> int:
        """When pacing lets the next admission through."""
        return 0 if self.paced_at_ms is None else self.paced_at_ms + self.min_start_interval_ms

    def blocks(self, now_ms: int) -> list[Block]:
        """What keeps everyone from a seat now; empty if one may be given."""
        blocks: list[Block] = []
        if self.seats >= self.seat_limit:
            held_back = self.draining or self.seat_limit < self.max_active_turns
            blocks.append("drain" if held_back else "seats")
        if self.starts >= self.max_concurrent_starts:
            blocks.append("starts")
        if self.opens_at_ms > now_ms:
            blocks.append("pacing")
        return blocks

    def policy(self) -> JsonObject:
        """The values in force."""
        return dict(zip(POLICY_FIELDS, self[1 : 1 + len(POLICY_FIELDS)], strict=True))

    def view(self) -> JsonObject:
        """As ``schemas.admission.PolicyView``."""
        view: JsonObject = {
            "epoch": self.epoch,
            "policy": self.policy(),
            "seat_limit": self.seat_limit,
            "draining": bool(self.draining),
            "seats": self.seats,
            "starts": self.starts,
            "queued": self.queued,
        }
        if self.next_policy is not None:
            claimed = strict_json.loads(self.next_policy.encode())
            view["next_epoch"] = claimed.pop("epoch")
            view["next_policy"] = claimed
        return view


def queue_timeout_ms(db: sqlite3.Connection) -> int:
    """The policy's longest wait in the queue."""
    return int(db.execute(_QUEUE_TIMEOUT).fetchone()[0])


def read(db: sqlite3.Connection) -> Limits:
    """Read the row."""
    return Limits._make(db.execute(_READ).fetchone())
