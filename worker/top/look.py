"""One look at a space: what was asked of it, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.admission import PolicyView, QueueView, SeatView
from schemas.caps import ListedCap
from schemas.strict_json import JsonObject
from schemas.views import CheckpointView


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting checkpoint.

    Attributes:
        view: As it is listed.
        title: The title of its prompt; empty if it has none or it is not for our eyes.
    """

    view: CheckpointView
    title: str


@dataclass(frozen=True, slots=True)
class Rates:
    """What was done per second since the look before; ``None`` where that is not known yet.

    Attributes:
        checkpoint_commands: Checkpoint commands served, by the workers that answered both times.
        folded: Ledger commands folded.
        published: Results, grants and facts of the ledger stored.
    """

    checkpoint_commands: float | None = None
    folded: float | None = None
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What could be seen of a space at one instant.

    Attributes:
        at_ms: The worker's clock, or this machine's if no worker answered.
        space: Which space.
        status: What a worker says of itself; ``None`` if none answered.
        waiting: Waiting checkpoints, the next to expire first.
        more_waiting: Whether there are more.
        policy: Admission's policy and counts.
        queue: The head of the queue.
        seats: Seats held.
        more_seats: Whether there are more.
        active_caps: Caps in force, by person.
        more_caps: Whether there are more.
        ended_caps: Caps that ended, the latest first.
        damaged_caps: Rows of these lists that could not be read.
        rates: Per second since the look before.
        unseen: What could not be asked, and why.
    """

    at_ms: int
    space: str
    status: JsonObject | None = None
    waiting: tuple[Waiting, ...] = ()
    more_waiting: bool = False
    policy: PolicyView | None = None
    queue: QueueView | None = None
    seats: tuple[SeatView, ...] = ()
    more_seats: bool = False
    active_caps: tuple[ListedCap, ...] | None = None
    more_caps: bool = False
    ended_caps: tuple[ListedCap, ...] = ()
    damaged_caps: int = 0
    rates: Rates = Rates()
    unseen: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> JsonObject:
        """What the worker says of its ledger; empty if nothing."""
        planes: JsonObject = (self.status or {}).get("planes") or {}
        found: JsonObject = planes.get("ledger") or {}
        return found

    def to_object(self) -> JsonObject:
        """It for machines."""
        return {
            "v": 1,
            "at_ms": self.at_ms,
            "space": self.space,
            "status": self.status,
            "waiting": [
                {**one.view.to_object(), "title": one.title or None} for one in self.waiting
            ],
            "more_waiting": self.more_waiting,
            "policy": None if self.policy is None else self.policy.to_object(),
            "queue": None if self.queue is None else self.queue.to_object(),
            "seats": [seat.to_object() for seat in self.seats],
            "more_seats": self.more_seats,
            "active_caps": None
            if self.active_caps is None
            else [one.to_object() for one in self.active_caps],
            "more_caps": self.more_caps,
            "ended_caps": [one.to_object() for one in self.ended_caps],
            "rates": {
                "checkpoint_commands_per_s": self.rates.checkpoint_commands,
                "folded_per_s": self.rates.folded,
                "published_per_s": self.rates.published,
            },
            "unseen": dict(self.unseen),
        }
