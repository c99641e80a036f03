"""The rights of the credential in use: each that a worker needs, and that it is a worker's at all.

The broker tells a user its own account and permissions on ``$SYS.REQ.USER.INFO``; nothing is tried.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.names import Names, kv_stream
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.doctor.findings import Finding, Severity, fine

USER_INFO = "$SYS.REQ.USER.INFO"


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may publish or subscribe to; an empty ``allow`` is everything."""

    allow: tuple[str, ...]
    deny: tuple[str, ...]

    def permits(self, subject: str) -> bool:
        """Whether a subject without wildcards is permitted."""
        allowed = not self.allow or any(matches(pattern, subject) for pattern in self.allow)
        return allowed and not any(matches(pattern, subject) for pattern in self.deny)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject falls under a pattern with ``*`` and ``>``."""
    wanted, given = pattern.split(" ")[0].split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(given) > index
        if index >= len(given) or part not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


async def examine(conn: Connection, spaces: Sequence[Names]) -> list[Finding]:
    """Look at the credential's rights."""
    try:
        answer = json.loads((await conn.request(USER_INFO, timeout_ms=2_000)).data)["data"]
    except (BusError, ValueError, KeyError):
        return [
            Finding(
                "rights",
                Severity.WARNING,
                "the broker does not tell this user its rights",
                "a missing right shows only when it is needed",
                f"let the worker's user publish to {USER_INFO}",
            )
        ]
    permissions = answer.get("permissions") or {}
    publish, subscribe = (_rights(permissions.get(kind)) for kind in ("publish", "subscribe"))
    lacking = [
        f"publish {subject}"
        for names in spaces
        for subject in _needed(names)
        if not publish.permits(subject)
    ]
    lacking += [
        f"subscribe {subject}"
        for names in spaces
        for subject in _heard(names)
        if not subscribe.permits(subject)
    ]
    who = f"user {answer.get('user')!r} of account {answer.get('account')!r}"
    if lacking:
        return [
            Finding(
                "rights",
                Severity.DANGER,
                f"{who} lacks: {', '.join(lacking[:6])}",
                "the worker cannot do its part; commands would wait for ever",
                "use the worker's user of nats.conf: tidegate setup --print-conf",
            )
        ]
    return [fine("rights", f"{who} has every right a worker needs")]


def _needed(names: Names) -> list[str]:
    key = f"$KV.{names.records_bucket}.cp.e.t.status"
    return [
        key,
        f"$JS.API.STREAM.INFO.{names.cmd_stream}",
        f"$JS.API.STREAM.MSG.GET.{kv_stream(names.records_bucket)}",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.cmd_stream}.{names.cp_durable}",
        f"$JS.ACK.{names.cmd_stream}.{names.cp_durable}.1.1.1.1.0",
        f"{names.prefix}.res.p.u.cp.mint.1",
        f"{names.prefix}.fact.cp.waiting.e.t.1",
        f"{names.prefix}.epf.e.cp.t",
        f"{names.prefix}.ept.e.i.0.t.armed",
        f"{names.prefix}.ept.e.i.0.t.cancel",
        f"{names.prefix}.cmd._worker.u.sys.tick",
    ]


def _heard(names: Names) -> list[str]:
    return [f"{names.prefix}.qry.p.u.cp.show", f"{names.prefix}.hb.p.u"]


def _rights(raw: object) -> Rights:
    if not isinstance(raw, dict):
        return Rights((), ())
    return Rights(tuple(raw.get("allow") or ()), tuple(raw.get("deny") or ()))
