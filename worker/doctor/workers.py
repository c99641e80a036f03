"""Who serves a space: the workers that answer, what they say of themselves, and whether they agree.

With a worker's credential the replicas are asked as they ask each other; with a client's, one of
them is asked for its status.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas import subjects
from schemas.names import Names
from schemas.subjects import Speaker
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.subscription import Msg
from worker.doctor.findings import Check, Finding, danger, fine, warning

GATHER_S: Final = 0.3
"""How long others are waited for once one has answered; where nobody listens the broker says so."""

_UID: Final = "d" * 26


@dataclass(frozen=True, slots=True)
class _Replica:
    name: str
    epoch: int
    watermark: int
    halted: str


async def examine(
    conn: Connection, names: Names, speaker: str | None, *, is_worker: bool
) -> Finding:
    """Look for the workers of a space.

    Args:
        conn: Any connection.
        names: The space.
        speaker: As whom the status may be asked for; ``None`` if it may not.
        is_worker: Whether the credential is a worker's.
    """
    replicas = await _replicas(conn, names) if is_worker else []
    status = None if speaker is None else await _status(conn, names, speaker)
    if not replicas and status is None:
        return danger(
            Check.WORKERS,
            f"no worker answers for {names.space}",
            "commands are stored and wait; nothing expires, nothing is granted",
            "start one: tidegate run",
        )
    newest = max((one.epoch for one in replicas), default=0)
    behind = {one.name for one in replicas if one.epoch < newest}
    halted = [
        f"{one.name[:6]} stopped folding: {one.halted}"
        for one in replicas
        if one.halted and one.name not in behind
    ]
    # Any of them may have answered; one that is behind says only why it does not serve.
    speaks_for_itself = status is not None and _worker_id(status) in behind
    reasons = [] if status is None or speaks_for_itself else _reasons(status)
    if halted or reasons:
        return danger(
            Check.WORKERS,
            "; ".join([*halted, *reasons]),
            "commands are stored and wait, or another replica serves alone",
            "do what the reason says (docs/runbook.md); /readyz tells when it is mended",
        )
    if behind:
        shown = ", ".join(
            f"{one.name[:6]} in epoch {one.epoch}" + (f" ({one.halted})" if one.halted else "")
            for one in replicas
        )
        return warning(
            Check.WORKERS,
            f"the workers of {names.space} are not in the same epoch of the log: {shown}",
            "those behind answer nothing until they have loaded the snapshot of the rebase",
            "wait a minute; if it stays so, see in the logs of those behind what keeps them from "
            "the snapshot (recovery_waits, snapshot_skipped), mend it and restart them",
        )
    older, newer = _rulesets(status or {})
    if older < newer:
        return warning(
            Check.WORKERS,
            f"{names.space} is folded under ruleset {older}, and these workers know {newer}",
            "faults that the newer one mends stay possible, such as an old ok taken for a licence",
            f"once every worker runs this version: tidegate ledger ruleset {newer}",
        )
    many = f"{len(replicas)} workers answer" if len(replicas) > 1 else "a worker answers"
    return fine(Check.WORKERS, f"{many} for {names.space}, and nothing keeps it from its work")


def _worker_id(status: Mapping[str, Any]) -> str:
    worker = status.get("worker")
    return str(worker.get("id", "")) if isinstance(worker, dict) else ""


def _rulesets(status: Mapping[str, Any]) -> tuple[int, int]:
    """The ruleset in force and the newest that whoever answered can fold under; 0 if not said."""
    try:
        ledger = status["planes"]["ledger"]
        return int(ledger["ruleset"]), max(map(int, ledger["rulesets"]))
    except (KeyError, TypeError, ValueError):
        return 0, 0


def _reasons(status: Mapping[str, Any]) -> list[str]:
    return [str(one) for one in status.get("reasons") or ()]


async def _replicas(conn: Connection, names: Names) -> list[_Replica]:
    found: dict[str, _Replica] = {}

    async def receive(msg: Msg) -> None:
        try:
            value = json.loads(msg.data)
            one = _Replica(
                str(value["replica"]),
                int(value["epoch"]),
                int(value["watermark"]),
                str(value["halted"]),
            )
        except (ValueError, KeyError, TypeError):
            return
        found[one.name] = one

    asked, inbox = f"{names.prefix}.ctl.ledger.standing", conn.new_inbox()
    try:
        await conn.request(asked, timeout_ms=2_000)
        subscription = await conn.subscribe(inbox, receive)
        await conn.publish(asked, reply=inbox)
        await asyncio.sleep(GATHER_S)
        await subscription.unsubscribe()
    except BusError:
        return []
    return list(found.values())


async def _status(conn: Connection, names: Names, speaker: str) -> dict[str, Any] | None:
    """What one worker says; ``None`` if none does, or this user may not ask."""
    subject = subjects.query(names, Speaker(speaker, _UID), "sys", "status")
    try:
        answer = json.loads((await conn.request(subject, b'{"v":1}', timeout_ms=2_000)).data)
        data: dict[str, Any] = answer["data"]
    except (BusError, ValueError, KeyError):
        return None
    return data
