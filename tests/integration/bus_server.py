"""What the bus tests share: connections, streams of a test's own, and users signed by hand."""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.bus import nkey
from worker.bus.connection import Connection
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions

_numbers = itertools.count()
OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


@contextlib.asynccontextmanager
async def connected(options: ConnectOptions, **changes: Any) -> AsyncIterator[Connection]:
    """A connection that is closed at the end."""
    connection = await Connection.open(replace(options, **changes), name="bus-test")
    try:
        yield connection
    finally:
        await connection.close()


@dataclass(frozen=True)
class Place:
    """A stream of a test's own."""

    js: JetStream
    stream: str
    prefix: str

    def subject(self, tail: object = "x") -> str:
        return f"{self.prefix}.{tail}"


async def new_place(js: JetStream, **config: Any) -> Place:
    """A stream that nobody else uses, listening to ``<prefix>.>``."""
    name = f"BT{next(_numbers)}_{secrets.token_hex(4)}"
    prefix = name.lower()
    wanted = {"name": name, "subjects": [f"{prefix}.>"], "storage": "file", "allow_direct": True}
    await js.stream_create(wanted | config)
    return Place(js, name, prefix)


async def eventually(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], timeout_s: float = 10.0
) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + timeout_s
    while True:
        held = condition()
        if not isinstance(held, bool):
            held = await held
        if held:
            return
        assert time.monotonic() < until, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def freeze(pid: int) -> None:
    """Stop a process and wait until each of its threads stands still."""
    os.kill(pid, signal.SIGSTOP)

    def still() -> bool:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    await eventually(still)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Signer:
    """Operator, account and users of a server in operator mode, signed here."""

    def __init__(self) -> None:
        self._operator = _new_seed(OPERATOR)
        self._account = _new_seed(ACCOUNT)
        self.system = _new_seed(ACCOUNT)
        self.operator_jwt = _jwt(
            self._operator,
            self._operator.public_key,
            {"type": "operator", "version": 2, "system_account": self.system.public_key},
        )

    def conf(self, store_dir: Path) -> str:
        """A server configuration that trusts this operator."""
        limits = {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
            "wildcards": True, "conn": -1, "leaf": -1, "disk_storage": -1, "mem_storage": -1,
            "streams": -1, "consumer": -1,
        }  # fmt: skip
        accounts = {
            seed.public_key: _jwt(
                self._operator,
                seed.public_key,
                {"type": "account", "version": 2, "limits": limits if seed is self._account else {
                    key: value for key, value in limits.items()
                    if key not in ("disk_storage", "mem_storage", "streams", "consumer")
                }},
            )
            for seed in (self._account, self.system)
        }  # fmt: skip
        preload = "\n".join(f"  {key}: {jwt}" for key, jwt in accounts.items())
        return (
            'listen: "127.0.0.1:-1"\n'
            f"operator: {self.operator_jwt}\n"
            f"system_account: {self.system.public_key}\n"
            f"resolver: MEMORY\nresolver_preload {{\n{preload}\n}}\n"
            f"jetstream {{ store_dir: {json.dumps(str(store_dir))} }}\n"
        )

    def write_creds(self, path: Path, *, valid_s: float | None = None) -> None:
        """A fresh user, valid for so long."""
        raw = secrets.token_bytes(32)
        seed = nkey.parse_seed(nkey.encode_seed(USER, raw))
        claims: dict[str, Any] = {"type": "user", "version": 2, "subs": -1, "data": -1}
        claims["payload"] = -1
        expires = None if valid_s is None else int(time.time() + valid_s)
        jwt = _jwt(self._account, seed.public_key, claims, expires)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
            f"-----BEGIN USER NKEY SEED-----\n{nkey.encode_seed(USER, raw)}\n"
            "------END USER NKEY SEED------\n"
        )


def _new_seed(kind: int) -> nkey.Seed:
    return nkey.parse_seed(nkey.encode_seed(kind, secrets.token_bytes(32)))


def _jwt(
    issuer: nkey.Seed, subject: str, claims: dict[str, Any], expires: int | None = None
) -> str:
    body: dict[str, Any] = {
        "iat": int(time.time()) - 10,
        "iss": issuer.public_key,
        "sub": subject,
        "name": claims["type"],
        "nats": claims,
    }
    if expires is not None:
        body["exp"] = expires
    digest = hashlib.new("sha512_256", json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    head = _url64(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    signed = f"{head}.{_url64(json.dumps(body).encode())}"
    signature = base64.b64decode(issuer.sign(signed))
    return f"{signed}.{_url64(signature)}"


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
