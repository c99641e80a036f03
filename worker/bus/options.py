"""How to reach a broker and who to be there."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How the server is recognised, and optionally how we are.

    Attributes:
        ca_file: Certificates to trust instead of the system's.
        cert_file: Our own certificate, with ``key_file``.
        key_file: Its private key.
        hostname: Name to expect in the server's certificate instead of the URL's.
        handshake_first: Begin with TLS instead of the server's INFO line.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    hostname: str | None = None
    handshake_first: bool = False

    def context(self) -> ssl.SSLContext:
        """The context for a client; reads the files.

        Raises:
            OSError: A file cannot be read or is not what it should be.
        """
        context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Everything a connection needs to know.

    Attributes:
        servers: URLs (``nats://``, ``tls://``), tried in order.
        user: User name, with ``password``.
        password: Its password; never logged.
        nkey_seed_file: File with a user's nkey seed.
        creds_file: File with a user's JWT and seed; read again at every connect, so that renewed
            credentials are picked up.
        tls: Settings for TLS; ``None`` uses the system's certificates where TLS is asked for.
        inbox_prefix: Where replies to us arrive; a user's permissions may name their own.
        ping_interval_s: How often the client pings, 10 at most.
        watchdog_interval_ms: How often a full round trip is proved.
        prove_interval_ms: How often every subscription is proven, and made anew if it was dropped.
        connect_timeout_ms: Longest wait for one server to accept us.
        refused_limit_ms: How long a reachable broker may refuse our credentials before the
            connection is closed for good.
    """

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    nkey_seed_file: Path | None = None
    creds_file: Path | None = None
    tls: TlsOptions | None = None
    inbox_prefix: str = "_INBOX"
    ping_interval_s: int = 10
    watchdog_interval_ms: int = 3_000
    prove_interval_ms: int = 10_000
    connect_timeout_ms: int = 5_000
    refused_limit_ms: int = 25_000

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("at least one server is needed")
        if not 1 <= self.ping_interval_s <= 10:
            raise ValueError("ping_interval_s must be 1 to 10")
