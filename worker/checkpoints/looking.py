"""One look at a checkpoint: everything a verb judges, read side by side at the leader."""

import asyncio
from dataclasses import dataclass

from schemas.codes import Code
from schemas.records import SettleFact
from schemas.results import Refusal
from schemas.subjects import Checkpoint
from worker.checkpoints.records import Deleted, Garbled, Records, SpecAt, StatusAt
from worker.checkpoints.settle import Settler, view


@dataclass(frozen=True, slots=True)
class Seen:
    """Spec, status and settle fact as they were read."""

    spec: SpecAt | Deleted | None
    status: StatusAt | Deleted | None
    fact: SettleFact | None


@dataclass(frozen=True, slots=True)
class Whole:
    """A checkpoint with both its records, and whatever fact there is."""

    spec: SpecAt
    status: StatusAt
    fact: SettleFact | None


async def look(records: Records, target: Checkpoint) -> Seen:
    """Read what there is of a checkpoint."""
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
        data=view(target, status.record, it.spec.record.holder).to_object(),
    )
