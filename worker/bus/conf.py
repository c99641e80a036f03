"""Writing a server configuration with the two accounts of DESIGN section 2.

Account ``W`` holds JetStream and the workers. Account ``C`` holds everybody else, has no JetStream
and reaches the streams only through the imports below: the broker rewrites reply subjects at the
border, so no client can make an acknowledgement land on a subject of its choice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from schemas.subjects import HEARD

WORKER_ACCOUNT: Final = "W"
CLIENT_ACCOUNT: Final = "C"
WORKER_USER: Final = "worker"
CLIENT_USER: Final = "client"


LONGEST_LINE: Final = 120


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that the server takes from its environment when it starts, and refuses to miss."""

    name: str


@dataclass(frozen=True, slots=True)
class User:
    """One login.

    Attributes:
        name: User name, or a public nkey if there is no password.
        password: Plain text, a bcrypt hash or a variable; ``None`` for an nkey.
        account: ``W`` or ``C``.
        publish: Subjects it may publish to; ``None`` is everything in its account.
        subscribe: Subjects it may subscribe to; ``None`` is everything in its account.
        allow_responses: Whether it may answer what it was asked, without a right of its own.
        comment: What is said of it in the configuration.
    """

    name: str
    password: str | Variable | None = field(repr=False)
    account: Literal["W", "C"]
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    allow_responses: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """One root and space whose subjects cross the border."""

    root: str
    space: str

    @property
    def services(self) -> tuple[str, ...]:
        """Subjects that clients may ask on, answered or stored in ``W``."""
        prefix = f"{self.root}.{self.space}"
        return (
            f"{prefix}.cmd.>",
            f"{prefix}.qry.>",
            f"{prefix}.ept.*.*.*.*.schedule",
            f"$KV.{self.root}_payloads_{self.space}.>",
            f"$JS.API.DIRECT.GET.RES_{self.space}.>",
        )

    @property
    def streams(self) -> tuple[tuple[str, str], ...]:
        """What clients may listen to: its subject in ``W``, and the one it is heard on in ``C``.

        They are two, so that nobody hears a message before it is stored: ``W`` lets out only what
        the stream of results repeats.
        """
        prefix = f"{self.root}.{self.space}"
        families = ("res", "grant", "fact")
        return tuple((f"{prefix}.{HEARD}.{one}.>", f"{prefix}.{one}.>") for one in families)

    @property
    def beats(self) -> str:
        """Subjects of clients that workers listen to."""
        return f"{self.root}.{self.space}.hb.>"


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key of the server, and optionally the authority of its clients."""

    cert_file: Path
    key_file: Path
    ca_file: Path | None = None
    verify: bool = False


def render(
    spaces: Sequence[Space],
    users: Sequence[User],
    *,
    store_dir: Path | Variable,
    listen: str = "127.0.0.1:4222",
    no_auth_user: str | None = None,
    tls: Tls | None = None,
    extra: str = "",
    sync_always: bool = True,
    jetstream_extra: str = "",
    deny_by_default: bool = False,
) -> str:
    """The text of a server configuration.

    Args:
        spaces: Whose subjects cross between the accounts.
        users: Every login of both accounts.
        store_dir: Where JetStream keeps its files.
        listen: Address and port.
        no_auth_user: Who a client without credentials is.
        tls: Offer and require TLS.
        extra: Further top-level lines, such as a monitoring port or a cluster.
        sync_always: Acknowledge only what is on the disk; off only to measure what it costs.
        jetstream_extra: Further lines of the JetStream block, such as encryption.
        deny_by_default: A user that is added by hand without permissions may do nothing.
    """
    lines = [f"listen: {_quote(listen)}"]
    if no_auth_user is not None:
        lines.append(f"no_auth_user: {_quote(no_auth_user)}")
    if tls is not None:
        lines += _tls_lines(tls)
    if extra:
        lines.append(extra.strip())
    store = f"${store_dir.name}" if isinstance(store_dir, Variable) else _quote(str(store_dir))
    jetstream = [f"store_dir: {store}"]
    if sync_always:
        jetstream.append("sync_interval: always")
    lines += [
        "# Acknowledge only what is on the disk: without this line a power cut takes back",
        "# messages that were acknowledged before.",
        *_jetstream(jetstream, jetstream_extra),
        "accounts {",
        *_account(WORKER_ACCOUNT, spaces, users, deny_by_default),
        *_account(CLIENT_ACCOUNT, spaces, users, deny_by_default),
        "}",
    ]
    return "\n".join(lines) + "\n"


def embedded(
    spaces: Sequence[Space], *, store_dir: Path, worker_password: str, sync_always: bool = True
) -> str:
    """The configuration of a broker that a worker starts for itself on loopback.

    A client without credentials is in ``C``; the worker logs in with a generated password.
    """
    users = (
        User(WORKER_USER, worker_password, WORKER_ACCOUNT),
        User(CLIENT_USER, None, CLIENT_ACCOUNT),
    )
    return render(
        spaces,
        users,
        store_dir=store_dir,
        listen="127.0.0.1:-1",
        no_auth_user=CLIENT_USER,
        sync_always=sync_always,
    )


def _account(
    name: str, spaces: Sequence[Space], users: Sequence[User], deny_by_default: bool
) -> list[str]:
    worker = name == WORKER_ACCOUNT
    exports: list[str] = []
    imports: list[str] = []
    other = CLIENT_ACCOUNT if worker else WORKER_ACCOUNT
    for space in spaces:
        if worker:
            exports += [f"{{ service: {_quote(subject)} }}" for subject in space.services]
            exports += [f"{{ stream: {_quote(said)} }}" for said, _ in space.streams]
            imports.append(_import("stream", other, space.beats))
        else:
            exports.append(f"{{ stream: {_quote(space.beats)} }}")
            imports += [_import("service", other, subject) for subject in space.services]
            imports += [_import("stream", other, said, heard) for said, heard in space.streams]
    lines = [f"  {name} {{"]
    if worker:
        lines.append("    jetstream: enabled")
    if deny_by_default:
        lines.append(
            '    default_permissions: { publish: { deny: ">" }, subscribe: { deny: ">" } }'
        )
    lines += _block(
        "users", [line for user in users if user.account == name for line in _user(user)]
    )
    lines += _block("exports", exports)
    lines += _block("imports", imports)
    return [*lines, "  }"]


def _block(name: str, items: list[str]) -> list[str]:
    return [f"    {name} = [", *(f"      {item}" for item in items), "    ]"]


def _import(kind: str, account: str, subject: str, to: str | None = None) -> str:
    mapped = "" if to is None else f", to: {_quote(to)}"
    return f"{{ {kind}: {{ account: {account}, subject: {_quote(subject)} }}{mapped} }}"


def _jetstream(settings: list[str], extra: str) -> list[str]:
    if not extra:
        return [f"jetstream {{ {', '.join(settings)} }}"]
    lines = [*settings, *extra.strip().splitlines()]
    return ["jetstream {", *(f"  {line}" for line in lines), "}"]


def _user(user: User) -> list[str]:
    """A user on one line if it fits, else with one subject a line, for people to read."""
    if user.password is None and user.name.startswith("U") and len(user.name) == 56:
        login = [f"nkey: {_quote(user.name)}"]
    else:
        login = [f"user: {_quote(user.name)}"]
        match user.password:
            case Variable(name=name):
                login.append(f"password: ${name}")
            case str(password):
                login.append(f"password: {_quote(password)}")
    permissions: list[tuple[str, str, list[str]]] = []
    for verb, subjects in (("publish", user.publish), ("subscribe", user.subscribe)):
        if subjects is not None:
            rule = "allow" if subjects else "deny"
            permissions.append((verb, rule, [_quote(subject) for subject in subjects or (">",)]))
    parts = [f"{verb}: {{ {rule}: [{', '.join(what)}] }}" for verb, rule, what in permissions]
    answers = ["allow_responses: true"] if user.allow_responses else []
    rights = [*parts, *answers]
    short = [*login, *([f"permissions: {{ {', '.join(rights)} }}"] if rights else [])]
    line = f"{{ {', '.join(short)} }}"
    comment = [f"# {text}" for text in user.comment.splitlines()]
    if len(line) <= LONGEST_LINE:
        return [*comment, line]
    lines = ["{", f"  {', '.join(login)}", "  permissions: {"]
    for verb, rule, what in permissions:
        lines += [f"    {verb}: {{ {rule}: [", *(f"      {one}" for one in what), "    ] }"]
    return [*comment, *lines, *(f"    {answer}" for answer in answers), "  }", "}"]


def _tls_lines(tls: Tls) -> list[str]:
    parts = [f"cert_file: {_quote(str(tls.cert_file))}", f"key_file: {_quote(str(tls.key_file))}"]
    if tls.ca_file is not None:
        parts.append(f"ca_file: {_quote(str(tls.ca_file))}")
    if tls.verify:
        parts.append("verify: true")
    return [f"tls {{ {', '.join(parts)} }}"]


def _quote(text: str) -> str:
    return json.dumps(text)
