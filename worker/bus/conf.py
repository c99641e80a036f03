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

WORKER_ACCOUNT: Final = "W"
CLIENT_ACCOUNT: Final = "C"
WORKER_USER: Final = "worker"
CLIENT_USER: Final = "client"


@dataclass(frozen=True, slots=True)
class User:
    """One login.

    Attributes:
        name: User name, or a public nkey if there is no password.
        password: Plain text or a bcrypt hash; ``None`` for an nkey.
        account: ``W`` or ``C``.
        publish: Subjects it may publish to; ``None`` is everything in its account.
        subscribe: Subjects it may subscribe to; ``None`` is everything in its account.
        allow_responses: Whether it may answer what it was asked, without a right of its own.
    """

    name: str
    password: str | None = field(repr=False)
    account: Literal["W", "C"]
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    allow_responses: bool = False


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
    def streams(self) -> tuple[str, ...]:
        """Subjects that clients may listen to."""
        prefix = f"{self.root}.{self.space}"
        return (f"{prefix}.res.>", f"{prefix}.grant.>", f"{prefix}.fact.>")

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
    store_dir: Path,
    listen: str = "127.0.0.1:4222",
    no_auth_user: str | None = None,
    tls: Tls | None = None,
    extra: str = "",
    sync_always: bool = True,
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
    """
    lines = [f"listen: {_quote(listen)}"]
    if no_auth_user is not None:
        lines.append(f"no_auth_user: {_quote(no_auth_user)}")
    if tls is not None:
        lines += _tls_lines(tls)
    if extra:
        lines.append(extra.strip())
    sync = ", sync_interval: always" if sync_always else ""
    lines += [
        "# Acknowledge only what is on the disk: without this line a power cut takes back",
        "# messages that were acknowledged before.",
        f"jetstream {{ store_dir: {_quote(str(store_dir))}{sync} }}",
        "accounts {",
        *_account(WORKER_ACCOUNT, spaces, users),
        *_account(CLIENT_ACCOUNT, spaces, users),
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


def _account(name: str, spaces: Sequence[Space], users: Sequence[User]) -> list[str]:
    worker = name == WORKER_ACCOUNT
    exports: list[str] = []
    imports: list[str] = []
    other = CLIENT_ACCOUNT if worker else WORKER_ACCOUNT
    for space in spaces:
        if worker:
            exports += [f"{{ service: {_quote(subject)} }}" for subject in space.services]
            exports += [f"{{ stream: {_quote(subject)} }}" for subject in space.streams]
            imports.append(_import("stream", other, space.beats))
        else:
            exports.append(f"{{ stream: {_quote(space.beats)} }}")
            imports += [_import("service", other, subject) for subject in space.services]
            imports += [_import("stream", other, subject) for subject in space.streams]
    lines = [f"  {name} {{"]
    if worker:
        lines.append("    jetstream: enabled")
    lines += _block("users", [_user(user) for user in users if user.account == name])
    lines += _block("exports", exports)
    lines += _block("imports", imports)
    return [*lines, "  }"]


def _block(name: str, items: list[str]) -> list[str]:
    return [f"    {name} = [", *(f"      {item}" for item in items), "    ]"]


def _import(kind: str, account: str, subject: str) -> str:
    return f"{{ {kind}: {{ account: {account}, subject: {_quote(subject)} }} }}"


def _user(user: User) -> str:
    parts = []
    if user.password is None and user.name.startswith("U") and len(user.name) == 56:
        parts.append(f"nkey: {_quote(user.name)}")
    else:
        parts.append(f"user: {_quote(user.name)}")
        if user.password is not None:
            parts.append(f"password: {_quote(user.password)}")
    permissions = []
    for verb, subjects in (("publish", user.publish), ("subscribe", user.subscribe)):
        if subjects:
            permissions.append(f"{verb}: {{ allow: [{', '.join(map(_quote, subjects))}] }}")
        elif subjects is not None:
            permissions.append(f'{verb}: {{ deny: [">"] }}')
    if user.allow_responses:
        permissions.append("allow_responses: true")
    if permissions:
        parts.append(f"permissions: {{ {', '.join(permissions)} }}")
    return f"{{ {', '.join(parts)} }}"


def _tls_lines(tls: Tls) -> list[str]:
    parts = [f"cert_file: {_quote(str(tls.cert_file))}", f"key_file: {_quote(str(tls.key_file))}"]
    if tls.ca_file is not None:
        parts.append(f"ca_file: {_quote(str(tls.ca_file))}")
    if tls.verify:
        parts.append("verify: true")
    return [f"tls {{ {', '.join(parts)} }}"]


def _quote(text: str) -> str:
    return json.dumps(text)
