"""The policy in force and what is counted against it: one row, read once per decision."""

import json
import sqlite3
from typing import Final, NamedTuple

from schemas.admission import Block
from schemas.commands.adm import EVERYONE_ELSE, HIGHEST_PRIORITY, PolicyValues
from schemas.strict_json import JsonObject
from worker.ledger import rulesets

POLICY_FIELDS: Final = tuple(PolicyValues.model_fields)
LATER_FIELDS: Final = ("max_retry_after_ms", "max_priority")
"""Values that a policy has since ruleset ``MENDED``."""

FIRST_FIELDS: Final = tuple(name for name in POLICY_FIELDS if name not in LATER_FIELDS)

_READ: Final = (
    "SELECT epoch, max_active_turns, max_concurrent_starts, min_start_interval_ms, "
    "queue_timeout_ms, capacity_cooldown_ms, start_timeout_ms, adoption_timeout_ms, silence_ms, "
    "seat_limit, draining, next_policy, seats, starts, queued, admissions, by_age, paced_at_ms, "
    "kept_at_ms, drained_to, max_retry_after_ms, max_priority FROM adm_limits"
)


_QUEUE_TIMEOUT: Final = "SELECT queue_timeout_ms FROM adm_limits"
_MAX_PRIORITY: Final = "SELECT max_priority FROM adm_limits WHERE max_priority IS NOT NULL"


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
        drained_to: The limit of the drain that stands; ``None`` if none does.
        max_retry_after_ms: As ``PolicyValues``.
        max_priority: As ``PolicyValues``, in JSON; ``None`` if nobody is bound.
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
    drained_to: int | None
    max_retry_after_ms: int
    max_priority: str | None

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

    def policy(self, ruleset: int) -> JsonObject:
        """The values in force, as far as a ruleset knows them."""
        values = dict(zip(FIRST_FIELDS, self[1 : 1 + len(FIRST_FIELDS)], strict=True))
        if ruleset < rulesets.MENDED:
            return values
        bounds = {} if self.max_priority is None else json.loads(self.max_priority)
        return {**values, "max_retry_after_ms": self.max_retry_after_ms, "max_priority": bounds}

    def view(self, ruleset: int) -> JsonObject:
        """As ``schemas.admission.PolicyView``."""
        view: JsonObject = {
            "epoch": self.epoch,
            "policy": self.policy(ruleset),
            "seat_limit": self.seat_limit,
            "draining": bool(self.draining),
            "seats": self.seats,
            "starts": self.starts,
            "queued": self.queued,
        }
        if self.drained_to is not None and ruleset >= rulesets.MENDED:
            view["drained_to"] = self.drained_to
        if self.next_policy is not None:
            claimed = json.loads(self.next_policy)
            view["next_epoch"] = claimed.pop("epoch")
            view["next_policy"] = claimed
        return view


def queue_timeout_ms(db: sqlite3.Connection) -> int:
    """The policy's longest wait in the queue."""
    return int(db.execute(_QUEUE_TIMEOUT).fetchone()[0])


def max_priority(db: sqlite3.Connection, principal: str) -> int:
    """The highest priority that the policy lets a principal ask for."""
    row = db.execute(_MAX_PRIORITY).fetchone()
    bounds = {} if row is None else json.loads(row[0])
    return int(bounds.get(principal, bounds.get(EVERYONE_ELSE, HIGHEST_PRIORITY)))


def read(db: sqlite3.Connection) -> Limits:
    """Read the row."""
    return Limits._make(db.execute(_READ).fetchone())
