"""Where the broker is and who to be there: from the settings, or from a worker's own broker.

A worker that started its own broker leaves ``broker.json`` in the data directory, readable by its
owner only, so that the commands on the same machine find the URL and the worker's credentials.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from schemas.codes import Code
from worker import files
from worker.bus.options import ConnectOptions, TlsOptions
from worker.bus.urls import ServerUrl
from worker.errors import ClientError
from worker.settings import Settings

FILE_NAME = "broker.json"
_ONE_TOKEN = re.compile(r"[^\s.*>\x00-\x1f\x7f]+")


class NoBroker(ClientError):
    """No broker is configured: set TIDEGATE_NATS_URL (or --nats), or start one: tidegate run."""

    code = Code.FAILED_PRECONDITION
    reason = "no-broker"


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """A broker that a worker started.

    Attributes:
        url: Where clients connect.
        user: The worker's user.
        password: Its password, generated.
        pid: The worker's process.
    """

    url: str
    user: str
    password: str = field(repr=False)
    pid: int


def write(data_dir: Path, broker: OwnBroker) -> None:
    """Leave word of a broker that was just started."""
    content = {
        "v": 1,
        "url": broker.url,
        "user": broker.user,
        "password": broker.password,
        "pid": broker.pid,
    }
    files.replace_private(data_dir / FILE_NAME, (json.dumps(content) + "\n").encode())


def remove(data_dir: Path) -> None:
    """Take the word back; nothing happens if there is none."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)


def read(data_dir: Path) -> OwnBroker | None:
    """The broker a worker of this data directory started; it may have gone meanwhile."""
    try:
        value = json.loads((data_dir / FILE_NAME).read_bytes())
        return OwnBroker(
            str(value["url"]), str(value["user"]), str(value["password"]), int(value["pid"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise NoBroker(f"{data_dir / FILE_NAME} cannot be read; is it yours?") from None


def options(settings: Settings) -> ConnectOptions:
    """How to reach the configured broker, with the configured credentials.

    Raises:
        NoBroker: If none is configured.
    """
    if not settings.servers:
        raise NoBroker
    password = settings.nats_password
    uses_tls = settings.tls_ca or settings.tls_cert
    return ConnectOptions(
        servers=settings.servers,
        user=settings.nats_user,
        password=password.get_secret_value() if password else None,
        nkey_seed_file=settings.nats_nkey_seed_file,
        creds_file=settings.nats_creds_file,
        tls=TlsOptions(settings.tls_ca, settings.tls_cert, settings.tls_key) if uses_tls else None,
        inbox_prefix=_inbox_prefix(settings),
        connect_timeout_ms=settings.connect_timeout_ms,
    )


def client_options(settings: Settings) -> ConnectOptions:
    """How a client reaches the configured broker, or the one a worker here started.

    Raises:
        NoBroker: If there is neither.
    """
    if settings.servers:
        return options(settings)
    return ConnectOptions(
        servers=(_own(settings).url,), connect_timeout_ms=settings.connect_timeout_ms
    )


def worker_options(settings: Settings) -> ConnectOptions:
    """As ``client_options``, with the worker's rights at a broker that a worker here started."""
    if settings.servers:
        return options(settings)
    return own_options(_own(settings), settings)


def own_options(broker: OwnBroker, settings: Settings) -> ConnectOptions:
    """How a worker reaches a broker of its own."""
    return ConnectOptions(
        servers=(broker.url,),
        user=broker.user,
        password=broker.password,
        connect_timeout_ms=settings.connect_timeout_ms,
    )


def _own(settings: Settings) -> OwnBroker:
    broker = read(settings.data_dir)
    if broker is None:
        raise NoBroker
    return broker


def _inbox_prefix(settings: Settings) -> str:
    if settings.nats_inbox_prefix is not None:
        return settings.nats_inbox_prefix
    # Of a URL only a user's name: what stands alone before @ is a secret.
    user = settings.nats_user or ServerUrl.parse(settings.servers[0]).user
    return f"_INBOX_{user}" if user and _ONE_TOKEN.fullmatch(user) else "_INBOX"
