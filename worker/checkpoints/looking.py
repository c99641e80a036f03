"""A look at a checkpoint: everything a verb judges, read side by side at the leader.

Reads side by side may straddle a write of several records. So what does not fit together is looked
at again, and believed only once it stands still.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from schemas.codes import Code
from schemas.records import SettleFact
from schemas.results import Refusal
from schemas.subjects import Checkpoint
from worker.bus.errors import Unavailable
from worker.checkpoints.records import Deleted, Garbled, Records, SpecAt, StatusAt
from worker.checkpoints.settle import Settler, view


@dataclass(frozen=True, slots=True)
class Seen:
    """Spec, status and settle fact as they were read."""

    spec: SpecAt | Deleted | None
    status: StatusAt | Deleted | None
    fact: SettleFact | None

    @property
    def fits(self) -> bool:
        """Whether this is a state that a checkpoint can be in."""
        match self:
            case Seen(spec=SpecAt(), status=StatusAt() as status):
                return self.fact is None or status.record.state != "waiting"
            case Seen(spec=Deleted()) | Seen(status=Deleted()):
                return True
        return self == Seen(None, None, None)


@dataclass(frozen=True, slots=True)
class Whole:
    """A checkpoint with both its records, and whatever fact there is."""

    spec: SpecAt
    status: StatusAt
    fact: SettleFact | None


AGAIN_S: Final = 0.05
LOOKS: Final = 5


async def look(records: Records, target: Checkpoint) -> Seen:
    """Read what there is of a checkpoint.

    Raises:
        Garbled: A record does not fit its schema, twice.
        Unavailable: What does not fit together changes with every look.
    """
    before: Seen | None = None
    for n in range(LOOKS):
        if n:
            await asyncio.sleep(AGAIN_S)
        try:
            seen = await _read(records, target)
        except Garbled:
            if n:
                raise
            continue
        if seen.fits or seen == before:
            return seen
        before = seen
    raise Unavailable("the records of this checkpoint change while they are read")


async def _read(records: Records, target: Checkpoint) -> Seen:
    spec, status, fact = await asyncio.gather(
        records.spec(target), records.status(target), records.fact(target)
    )
    return Seen(spec, status, fact)


def whole(target: Checkpoint, seen: Seen) -> Whole | Refusal:
    """The checkpoint, or why there is none to speak of.

    Raises:
        Garbled: If there is a status without a spec.
    """
    match seen:
        case Seen(spec=SpecAt() as spec, status=StatusAt() as status):
            return Whole(spec, status, seen.fact)
        case Seen(spec=Deleted()) | Seen(status=Deleted()):
            return closed()
        case Seen(spec=None, status=None):
            return Refusal(
                Code.NOT_FOUND, "unknown-checkpoint", "there is no checkpoint of this token"
            )
        case Seen(spec=SpecAt()):
            return Refusal(
                Code.FAILED_PRECONDITION,
                "incomplete",
                "the checkpoint has no status yet; repeat the mint",
            )
    raise Garbled(target, "spec")


def closed() -> Refusal:
    """The refusal of a token whose records were deleted."""
    return Refusal(
        Code.FAILED_PRECONDITION,
        "token-closed",
        "the records of this token were deleted; a token is never used again",
    )


async def regressed(settler: Settler, target: Checkpoint, it: Whole, cause: str) -> Refusal | None:
    """Repair a status that reads waiting although its fact exists, and refuse."""
    if it.fact is None or it.status.record.state != "waiting":
        return None
    status = await settler.restore_from_fact(target, it.status, it.fact, cause)
    return Refusal(
        Code.FAILED_PRECONDITION,
        "status-regressed",
        "the status had fallen behind its settle fact and was repaired from it; look again",
        data=view(target, status, it.spec.record.holder).to_object(),
    )
