"""The users of a production broker, derived from the table of roles (DESIGN section 2).

A role is granted subjects, and nothing that is not listed. Every user has an inbox prefix of its
own, so nobody can listen to what was answered to somebody else. The uid stands as ``*``: with users
in a file the principal is authenticated and its current life is not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.commands import KEYS, QUERY_KEYS
from schemas.commands.sys import witness_of
from schemas.names import Names, object_stream
from schemas.roles import (
    FACT_PLANES,
    OPERATOR_PREFIX,
    QUERY_ROLES,
    VERB_ROLES,
    Role,
)
from schemas.subjects import HEARD
from schemas.tokens import endpoint_to_wire
from worker.bus import conf

STORE_DIR: Final = conf.Variable("NATS_STORE_DIR")
ANY: Final = "*"

USER_INFO: Final = "$SYS.REQ.USER.INFO"
"""Where a user learns its own account and rights; everybody may, and learns nothing else."""

HOST: Final = "host-1"
"""The host whose witness ``nats.conf`` has a user for, where no other is named."""

PRINCIPALS: Final[dict[Role, str]] = {Role.OPERATOR: OPERATOR_PREFIX}
"""Principals that all users of a role share; a witness's is its host's, the others' their name."""

_SAYS: Final[dict[Role, str]] = {
    Role.WORKER: "Serves the space: the only user of account W, and the only one that arms.\n"
    "Nobody fires: only the broker's own scheduler writes there.",
    Role.MINTER: "Pauses runs on its endpoints.",
    Role.HOLDER: "Resumes what it holds; the worker compares holder and life.",
    Role.CONNECTOR: "Queues turns and runs them.",
    Role.DELEGATE: "Keeps and asks for the caps of its persons.",
    Role.OPERATOR: "Steps in: expires and repairs, resolves debts, sets policies, stops anybody.",
    Role.WITNESS: "Sees processes end on one host, and is believed about that host only.",
    Role.OBSERVER: "Looks on and changes nothing.",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """What one credential is for.

    Attributes:
        role: Its role.
        name: Its user name; also its principal, but for operators and witnesses.
        endpoints: Endpoints (dotted) it may mint on; a minter's only.
        persons: Persons whose caps it keeps; a delegate's only.
        host: The host that it sees; a witness's only.
    """

    role: Role
    name: str
    endpoints: tuple[str, ...] = ()
    persons: tuple[str, ...] = ()
    host: str = HOST

    @property
    def principal(self) -> str:
        """Who it speaks as."""
        if self.role is Role.WITNESS:
            return witness_of(self.host)
        return PRINCIPALS.get(self.role, self.name)

    @property
    def variable(self) -> str:
        """The environment variable that holds its password."""
        return f"NATS_{self.name.upper().replace('-', '_')}_PASSWORD"


def user(grant: Grant, spaces: Sequence[Names]) -> conf.User:
    """The login of one credential with exactly its rights in each space."""
    inbox = f"_INBOX_{grant.name}.>"
    publish: list[str] = [USER_INFO]
    subscribe = [inbox]
    for names in spaces:
        if grant.role is Role.WORKER:
            publish += _worker_publishes(names)
            subscribe += [f"{names.prefix}.{family}.>" for family in ("qry", "hb", "ctl")]
        else:
            publish += _client_publishes(grant, names)
            subscribe += _client_hears(grant, names)
    if grant.role is Role.WORKER:
        publish += (*_WORKER_ALWAYS, inbox)
        subscribe.append("$SRV.>")
    return conf.User(
        grant.name,
        conf.Variable(grant.variable),
        conf.WORKER_ACCOUNT if grant.role is Role.WORKER else conf.CLIENT_ACCOUNT,
        publish=tuple(dict.fromkeys(publish)),
        subscribe=tuple(dict.fromkeys(subscribe)),
        comment=_SAYS[grant.role],
    )


def witness(host: str) -> Grant:
    """The credential of a host's witness: its user is named after its principal."""
    return Grant(Role.WITNESS, witness_of(host).removeprefix("_"), host=host)


def one_of_each(
    endpoints: Sequence[str], persons: Sequence[str], hosts: Sequence[str] = (HOST,)
) -> tuple[Grant, ...]:
    """A credential for every role, named after it; a witness's for each host."""
    of: dict[Role, tuple[tuple[str, ...], tuple[str, ...]]] = {
        Role.MINTER: (tuple(endpoints), ()),
        Role.DELEGATE: ((), tuple(persons)),
    }
    grants: list[Grant] = [Grant(Role.WORKER, Role.WORKER.value)]
    for role in Role:
        if role is Role.WITNESS:
            grants += map(witness, hosts)
        elif role is not Role.WORKER:
            grants.append(Grant(role, role.value, *of.get(role, ((), ()))))
    return tuple(grants)


def production(
    spaces: Sequence[Names],
    endpoints: Sequence[str],
    persons: Sequence[str],
    hosts: Sequence[str] = (HOST,),
) -> str:
    """The text of ``nats.conf``: two accounts and one user of every role.

    Args:
        spaces: The spaces it is for.
        endpoints: Endpoints that its minter may mint on.
        persons: Persons whose caps its delegate keeps.
        hosts: Hosts that have a witness; each gets a user of its own.
    """
    grants = one_of_each(endpoints, persons, hosts)
    text = conf.render(
        [conf.Space(names.root, names.space) for names in spaces],
        [user(grant, spaces) for grant in grants],
        store_dir=STORE_DIR,
        listen="0.0.0.0:4222",
        extra=_EXTRA,
        jetstream_extra=_ENCRYPTION,
        deny_by_default=True,
    )
    variables = "\n".join(f"#   {grant.variable}" for grant in grants)
    return _HEAD.format(variables=variables) + text


def _client_publishes(grant: Grant, names: Names) -> Iterator[str]:
    role, principal, prefix = grant.role, grant.principal, names.prefix
    for (plane, verb), allowed in VERB_ROLES.items():
        if role in allowed:
            head = f"{prefix}.cmd.{principal}.*.{plane}.{verb}"
            for key in KEYS[plane, verb]:
                yield from (f"{head}{tail}" for tail in _tails(grant, key))
    for (plane, name), asks in QUERY_ROLES.items():
        if role in asks:
            key = ".".join(f"<{field}>" for field in QUERY_KEYS.get((plane, name), ()))
            head = f"{prefix}.qry.{principal}.*.{plane}.{name}"
            yield from (f"{head}{tail}" for tail in _tails(grant, key))
    if role is Role.CONNECTOR:
        yield f"{prefix}.hb.{principal}.*"
        yield f"$KV.{names.payloads_bucket}.{principal}.>"
    for subject in _readable(grant, names):
        yield f"$JS.API.DIRECT.GET.{names.res_stream}.{subject}"


def _client_hears(grant: Grant, names: Names) -> Iterator[str]:
    yield from _readable(grant, names)


def _readable(grant: Grant, names: Names) -> Iterator[str]:
    """Results, grants and facts that are meant for it, live and read back."""
    role, prefix = grant.role, names.prefix
    if any(role in allowed for allowed in VERB_ROLES.values()):
        yield f"{prefix}.res.{grant.principal}.>"
    if role is Role.CONNECTOR:
        yield f"{prefix}.grant.{grant.principal}.>"
    planes = FACT_PLANES[role]
    if planes == {"cp"} and grant.endpoints:
        yield from (f"{prefix}.fact.cp.*.{endpoint_to_wire(e)}.>" for e in grant.endpoints)
    else:
        yield from (f"{prefix}.fact.{plane}.>" for plane in sorted(planes))


def _tails(grant: Grant, key: str) -> Iterator[str]:
    """The tails of a subject whose key has this shape, one for each thing the grant is for."""
    if not key:
        yield ""
        return
    ours = {
        "<endpoint>": [endpoint_to_wire(endpoint) for endpoint in grant.endpoints],
        "<user>": list(grant.persons),
    }
    scoped = {Role.MINTER: "<endpoint>", Role.DELEGATE: "<user>"}.get(grant.role)
    first, *rest = key.split(".")
    for token in ours[first] if first == scoped else [ANY]:
        yield "".join(f".{part}" for part in (token, *(ANY for _ in rest)))


_WORKER_ALWAYS: Final = (
    "$JS.ACK.>",
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.INFO.>",
    "$JS.API.CONSUMER.DELETE.>",
    "$JS.API.CONSUMER.MSG.NEXT.>",
    "$JS.API.CONSUMER.LEADER.STEPDOWN.>",
    # For people who look with this login: nats stream ls, stream report, consumer report.
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.NAMES",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.NAMES.*",
    # Answers: to clients across the border, to people in account W, and to its like (its inbox).
    "_R_.>",
    "_INBOX.>",
)


def _worker_publishes(names: Names) -> Iterator[str]:
    prefix = names.prefix
    yield f"{prefix}.cmd.*.*.sys.>"
    yield from (f"{prefix}.{family}.>" for family in ("res", "grant", "fact"))
    # For callers whose command has to wait; whatever else is heard there the broker repeats.
    yield f"{prefix}.{HEARD}.res.>"
    yield from (f"{prefix}.ept.*.*.*.*.{kind}" for kind in ("armed", "cancel"))
    yield f"{prefix}.epf.*.cp.*"
    yield f"{prefix}.hb.*.*"
    yield f"{prefix}.ctl.>"
    # Backups and proofs of the ledger need streams and answers under one credential.
    yield f"{prefix}.qry.{OPERATOR_PREFIX}.*.sys.*"
    for bucket in (
        names.records_bucket,
        names.payloads_bucket,
        names.keys_bucket,
        names.leases_bucket,
    ):
        yield f"$KV.{bucket}.>"
    yield f"$O.{names.snapshots_bucket}.>"
    for stream in (names.log_stream, object_stream(names.snapshots_bucket)):
        yield f"$JS.API.STREAM.PURGE.{stream}"


_HEAD: Final = """\
# The broker of Tidegate, for nats-server 2.14.3 or newer.
#
# Made by `tidegate setup --print-conf` from the table of roles in schemas/roles.py: change spaces,
# endpoints, persons and hosts there, not here. Whatever is not listed is denied.
#
# The environment holds what differs from place to place, and the server does not start without it:
#   NATS_STORE_DIR: where JetStream keeps its files, on a disk that outlives the server
# and the passwords; begin each with a letter (a value that looks like a number is read as one), or
# give its bcrypt hash in double quotes:
{variables}
#
# A client logs in with its inbox prefix, `_INBOX_<user>`; Tidegate's own client does so by itself.
# More credentials of a role: copy its user, and put the new name in place of the old one.
#
# A witness is believed about one host, so each host that has one has a user of its own:
# `tidegate setup --print-conf --host ID --host ID`, where ID is that host's TIDEGATE_HOST (or its
# machine id, where that is not set).

"""

_EXTRA: Final = """\
server_name: tidegate
max_payload: 1MB

# Monitoring, on loopback only: it shows subjects and connections to whoever can reach it.
http: "127.0.0.1:8222"

# TLS: uncomment, and use tls:// URLs. Without it passwords and bodies travel in the clear.
# tls {
#   cert_file: "/etc/nats/tls/server.crt"
#   key_file:  "/etc/nats/tls/server.key"
#   ca_file:   "/etc/nats/tls/ca.crt"
#   verify:    true    # clients need a certificate of that CA, too
# }
"""

_ENCRYPTION: Final = """\
# Encryption of the store: uncomment before the first start; the key comes from the environment.
# cipher: chachapoly
# key: $NATS_STORE_KEY
"""
