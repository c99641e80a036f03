"""The rights of the credential in use: whose role it has, what it lacks, what it has beyond.

The broker tells a user its own account and permissions; nothing is tried. What a role must have is
what ``nats.conf`` grants it (``worker.bus.users``), so both follow the one table in ``schemas``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas import tokens
from schemas.names import Names
from schemas.roles import OPERATOR_PREFIX, QUERY_ROLES, VERB_ROLES, WITNESS_PREFIX, Role
from worker.bus import conf, users
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.doctor.findings import Check, Finding, danger, fine, warning
from worker.doctor.patterns import covers, overlap

_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may publish to, or subscribe to.

    Attributes:
        allow: Patterns; ``None`` is everything.
        deny: Patterns that are taken away again.
    """

    allow: tuple[str, ...] | None
    deny: tuple[str, ...]

    def permits(self, pattern: str) -> bool:
        """Whether every subject of a pattern is permitted."""
        allowed = self.allow is None or any(covers(wide, pattern) for wide in self.allow)
        return allowed and not any(overlap(one, pattern) for one in self.deny)

    def granted(self) -> tuple[str, ...]:
        """The patterns that are permitted, at least in part."""
        given = (">",) if self.allow is None else self.allow
        return tuple(one for one in given if not any(covers(wide, one) for wide in self.deny))


@dataclass(frozen=True, slots=True)
class UserInfo:
    """What the broker says of the user we are.

    Attributes:
        user: Its name.
        account: Its account.
        publish: Its rights to publish.
        subscribe: Its rights to subscribe.
    """

    user: str
    account: str
    publish: Rights
    subscribe: Rights

    @property
    def unlimited(self) -> bool:
        """Whether nothing is denied in its account."""
        return self.publish.permits(">") and self.subscribe.permits(">")


async def user_info(conn: Connection) -> UserInfo | None:
    """Who we are; ``None`` if the broker does not tell."""
    try:
        answer = json.loads((await conn.request(users.USER_INFO, timeout_ms=2_000)).data)["data"]
    except (BusError, ValueError, KeyError):
        return None
    permissions: Mapping[str, Any] = answer.get("permissions") or {}
    return UserInfo(
        str(answer.get("user", "")),
        str(answer.get("account", "")),
        _rights(permissions.get("publish")),
        _rights(permissions.get("subscribe")),
    )


def examine(
    found: UserInfo | None, spaces: Sequence[Names], *, is_worker: bool, own_broker: bool
) -> list[Finding]:
    """Judge a credential.

    Args:
        found: What the broker said of it.
        spaces: The spaces it is for.
        is_worker: Whether it is in the workers' account, where the streams are.
        own_broker: Whether a worker of this machine started the broker itself.
    """
    if found is None:
        return [
            warning(
                Check.RIGHTS,
                "the broker does not tell this user its rights",
                "a right that is missing, or one too many, shows only when it is used",
                f"let the user publish to {users.USER_INFO}, as nats.conf does",
            )
        ]
    who = f"user {found.user!r} of account {found.account!r}"
    if is_worker:
        return _worker(found, who, spaces, own_broker=own_broker)
    return _client(found, who, spaces)


def speaker_of(found: UserInfo, names: Names) -> str | None:
    """As whom a user may ask for a space's status; ``None`` if as nobody."""
    if found.publish.permits(_asks_status(names, "*")):
        return OPERATOR_PREFIX
    return next(iter(principals_of(found, names)), None)


def principals_of(found: UserInfo, names: Names) -> tuple[str, ...]:
    """The principals that a user's rights name in a space, its own name first.

    Empty if they name nobody: a worker's, or a user's who may speak as anybody.
    """
    principals = {
        parts[3]
        for pattern in found.publish.granted()
        if len(parts := pattern.split(".")) > 3 and tokens.is_principal(parts[3])
    }
    ordered = sorted(principals, key=lambda one: (one != found.user, one))
    return tuple(one for one in ordered if found.publish.permits(_asks_status(names, one)))


def _asks_status(names: Names, principal: str) -> str:
    return f"{names.prefix}.qry.{principal}.*.sys.status"


def _worker(
    found: UserInfo, who: str, spaces: Sequence[Names], *, own_broker: bool
) -> list[Finding]:
    needed = users.user(users.Grant(Role.WORKER, found.user), spaces)
    lacking = _lacking(found, needed)
    if lacking:
        return [
            danger(
                Check.RIGHTS,
                f"{who} lacks: {_some(lacking)}",
                "the worker cannot do its part, and commands that need it wait for ever",
                "give it the rights of the worker in nats.conf: tidegate setup --print-conf",
            )
        ]
    if found.unlimited:
        if own_broker:
            return [fine(Check.RIGHTS, f"{who} has every right, at a broker of the worker's own")]
        beyond = ["everything in its account, such as firing timers and deleting streams"]
    else:
        beyond = _beyond(found, needed, spaces)
    if beyond:
        return [
            warning(
                Check.RIGHTS,
                f"{who} has every right a worker needs, and may also: {_some(beyond)}",
                "whoever gets hold of its password can do that, too",
                "take what is too much away: tidegate setup --print-conf shows what is needed",
            )
        ]
    return [fine(Check.RIGHTS, f"{who} has every right a worker needs, and no other")]


def _client(found: UserInfo, who: str, spaces: Sequence[Names]) -> list[Finding]:
    if found.unlimited:
        return [
            danger(
                Check.RIGHTS,
                f"{who} may speak as anyone",
                "it may approve, spend and stop in every name",
                "give it the rights of its role only: tidegate setup --print-conf",
            )
        ]
    principals = _principals(found, spaces)
    roles = _roles(found, spaces)
    if not roles:
        return [
            danger(
                Check.RIGHTS,
                f"{who} has no role of Tidegate in {', '.join(names.space for names in spaces)}",
                "with it nothing can be asked or told there, and no worker can run",
                "use a user of tidegate setup --print-conf, or name the right spaces: --space",
            )
        ]
    shown = f"{who} has the rights of {' and '.join(sorted(roles))}"
    findings = []
    if len(principals) > 1 or "*" in principals:
        everyone = "anyone" if "*" in principals else ", ".join(sorted(principals))
        findings.append(
            danger(
                Check.RIGHTS,
                f"{who} may speak as {everyone}",
                "it may approve, spend and stop in another's name",
                "grant each user one principal only: its own name in the place after cmd and qry",
            )
        )
    needed = _needed(found, roles, principals, spaces)
    lacking, beyond = _lacking(found, needed), _beyond(found, needed, spaces)
    if lacking:
        findings.append(
            warning(
                Check.RIGHTS,
                f"{shown}, but lacks: {_some(lacking)}",
                "what it cannot do or hear there times out or is refused",
                "compare it with the user of that role: tidegate setup --print-conf",
            )
        )
    if beyond:
        findings.append(
            danger(
                Check.RIGHTS,
                f"{shown}, and may also: {_some(beyond)}",
                "it reaches what its role must not",
                "take that away: tidegate setup --print-conf shows what the role needs",
            )
        )
    return findings or [fine(Check.RIGHTS, f"{shown}, and no other")]


def _lacking(found: UserInfo, needed: conf.User) -> list[str]:
    """Rights of the role that the user has not; where its answers arrive is its own affair."""
    asks = [
        ("publish", found.publish, needed.publish),
        ("subscribe", found.subscribe, needed.subscribe),
    ]
    return [
        f"{verb} {pattern}"
        for verb, rights, patterns in asks
        for pattern in patterns or ()
        if not pattern.startswith("_INBOX") and not rights.permits(pattern)
    ]


def _beyond(found: UserInfo, needed: conf.User, spaces: Sequence[Names]) -> list[str]:
    """Rights that reach into Tidegate's part of the broker and that the role has not."""
    asks = [
        ("publish", found.publish, needed.publish),
        ("subscribe", found.subscribe, needed.subscribe),
    ]
    ours = [*_INTERNAL, *(pattern for names in spaces for pattern in _territory(names))]
    return [
        f"{verb} {pattern}"
        for verb, rights, patterns in asks
        for pattern in rights.granted()
        if not any(covers(wide, pattern) for wide in patterns or ())
        and any(overlap(pattern, own) for own in ours)
        and not _is_own_inbox(pattern, found.user)
    ]


_INTERNAL: Final = ("$JS.>", "$SYS.>", "_INBOX.>", "_R_.>")
"""What belongs to nobody's application: the streams' API, the system, others' answers."""


def _territory(names: Names) -> Iterator[str]:
    yield f"{names.prefix}.>"
    for bucket in (
        names.records_bucket,
        names.payloads_bucket,
        names.keys_bucket,
        names.leases_bucket,
    ):
        yield f"$KV.{bucket}.>"
    yield f"$O.{names.snapshots_bucket}.>"


def _is_own_inbox(pattern: str, user: str) -> bool:
    return pattern.startswith((f"_INBOX_{user}.", f"_INBOX.{user}."))


def _roles(found: UserInfo, spaces: Sequence[Names]) -> set[Role]:
    """The roles whose every verb and query is permitted, less those that others include."""
    may = set(_spoken(found, spaces))
    sets = {role: _said_by(role) for role in Role if role is not Role.WORKER}
    matched = {role: said for role, said in sets.items() if said and said <= may}
    return {
        role
        for role, said in matched.items()
        if not any(said < other for other in matched.values())
    }


def _said_by(role: Role) -> frozenset[tuple[str, str, str]]:
    verbs = {("cmd", *pair) for pair, roles in VERB_ROLES.items() if role in roles}
    return frozenset(
        verbs | {("qry", *pair) for pair, roles in QUERY_ROLES.items() if role in roles}
    )


def _spoken(found: UserInfo, spaces: Sequence[Names]) -> Iterator[tuple[str, str, str]]:
    """Every verb and query of which some subject is permitted in each space."""
    families = (("cmd", VERB_ROLES), ("qry", QUERY_ROLES))
    for family, table in families:
        for plane, verb in table:
            heads = [f"{names.prefix}.{family}.*.*.{plane}.{verb}" for names in spaces]
            if all(
                any(
                    overlap(pattern, head) or overlap(pattern, f"{head}.>")
                    for pattern in found.publish.granted()
                )
                for head in heads
            ):
                yield family, plane, verb


def _principals(found: UserInfo, spaces: Sequence[Names]) -> set[str]:
    heads = [[names.root, names.space] for names in spaces]
    return {
        parts[3] if len(parts) > 3 and parts[3] != ">" else "*"
        for pattern in found.publish.granted()
        if (parts := pattern.split("."))[:2] in heads and parts[2] in ("cmd", "qry")
    }


def _needed(
    found: UserInfo, roles: Iterable[Role], principals: set[str], spaces: Sequence[Names]
) -> conf.User:
    """What users of these roles are granted for what this one is for."""
    names = sorted(principals - {"*"})
    publish: list[str] = []
    subscribe: list[str] = []
    for role in roles:
        reserved = users.PRINCIPALS.get(role)
        own = [name for name in names if name != reserved] or [found.user]
        grant = users.Grant(
            role,
            own[0],
            tuple(_keys_of(found, spaces, "cp", "mint")) if role is Role.MINTER else (),
            tuple(_keys_of(found, spaces, "cap", "authorize")) if role is Role.DELEGATE else (),
            # A principal made from a host stands for itself.
            own[0].removeprefix(f"{WITNESS_PREFIX}-"),
        )
        one = users.user(grant, spaces)
        publish += one.publish or ()
        subscribe += one.subscribe or ()
    return conf.User(
        found.user, None, conf.CLIENT_ACCOUNT, publish=tuple(publish), subscribe=tuple(subscribe)
    )


def _keys_of(found: UserInfo, spaces: Sequence[Names], plane: str, verb: str) -> Iterator[str]:
    """The endpoints a minter, or the persons a delegate is for: what its first verb is keyed by."""
    for names in spaces:
        for pattern in found.publish.granted():
            parts = pattern.split(".")
            spoken = parts[:3] == [names.root, names.space, "cmd"] and parts[5:7] == [plane, verb]
            if spoken and len(parts) > 7:
                token = parts[7]
                yield tokens.endpoint_from_wire(token) if plane == "cp" else token


def _some(rights: Sequence[str]) -> str:
    shown = ", ".join(rights[:_SHOWN])
    more = len(rights) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _rights(raw: object) -> Rights:
    if not isinstance(raw, dict):
        return Rights(None, ())
    allow, deny = raw.get("allow"), raw.get("deny") or ()
    return Rights(
        None if allow is None else tuple(map(_subject, allow)), tuple(map(_subject, deny))
    )


def _subject(pattern: str) -> str:
    """A pattern of a permission without the queue that may follow it."""
    return pattern.split(" ")[0]
