"""Checkpoints that can never settle: a status whose spec is missing says nobody who may resume."""

from typing import Final

from schemas.codes import BadInput
from schemas.names import Names, kv_stream
from schemas.records import StatusRecord
from worker.bus.jetstream import JetStream
from worker.doctor.findings import Check, Finding, danger, fine

MOST: Final = 200_000
"""Records that are compared; a worker looks at all of them, and says so in its readiness."""

SHOWN: Final = 3


async def examine(js: JetStream, names: Names) -> Finding:
    """Compare specs and statuses by their keys."""
    bucket = names.records_bucket
    statuses: set[str] = set()
    prefix = f"$KV.{bucket}."
    async for page in js.subject_pages(kv_stream(bucket), f"{prefix}cp.*.*.status"):
        statuses.update(subject.removesuffix(".status") for subject in page)
        if len(statuses) > MOST:
            return fine(
                Check.CHECKPOINTS,
                f"{names.space} has more than {MOST} checkpoints; its workers look at each of them",
            )
    async for page in js.subject_pages(kv_stream(bucket), f"{prefix}cp.*.*.spec"):
        statuses.difference_update(subject.removesuffix(".spec") for subject in page)
    waiting = [key for key in sorted(statuses) if await _waits(js, names, f"{key}.status")]
    if not waiting:
        return fine(Check.CHECKPOINTS, f"every waiting checkpoint of {names.space} has its spec")
    keys = [f"{subject.removeprefix(prefix)}.status" for subject in waiting]
    return danger(
        Check.CHECKPOINTS,
        f"{len(keys)} waiting checkpoints have no spec: {', '.join(keys[:SHOWN])}",
        "nobody knows their holder: they neither resume nor expire, and their runs wait for ever",
        "put the key that ends in .spec back from a backup of the broker's store; or give the "
        f"token up and tell its run: nats kv del -f {bucket} {keys[0]}",
    )


async def _waits(js: JetStream, names: Names, subject: str) -> bool:
    message = await js.last_message(kv_stream(names.records_bucket), subject)
    if message is None or not message.data:
        return False
    try:
        return StatusRecord.from_bytes(message.data).state == "waiting"
    except BadInput:
        return False
