"""Where a server is and who to be there, as one URL says it (RFC 3986)."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

SCHEMES = ("nats", "tls")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A server's URL, taken apart; what was percent-encoded is decoded.

    Attributes:
        scheme: ``nats`` or ``tls``.
        address: ``host:port`` without who.
        host: The host alone.
        login: What stands before ``@``, as it was written; empty for nothing.
        user: User name, if there is a password with it.
        password: Its password.
        token: What stands alone before ``@``: a secret of the whole server.
    """

    scheme: str
    address: str
    host: str
    login: str = field(default="", repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def bare(self) -> str:
        """The URL without who."""
        return f"{self.scheme}://{self.address}"

    @classmethod
    def parse(cls, url: str) -> "ServerUrl":
        """Take a URL apart; without a scheme it is ``nats``.

        Raises:
            ValueError: It is no server's URL; the message does not repeat it.
        """
        try:
            parts = urlsplit(url if "//" in url else f"nats://{url}")
            port = parts.port or 4222
        except ValueError:
            raise ValueError("a server is nats://host:port or tls://host:port") from None
        rest = parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in SCHEMES or not parts.hostname or rest:
            raise ValueError(
                "a server is nats://host:port or tls://host:port; "
                "special characters of a user or password are percent-encoded (/ is %2F)"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        secret = None if parts.password is None else unquote(parts.password)
        name = None if parts.username is None else unquote(parts.username)
        return cls(
            parts.scheme,
            f"{host}:{port}",
            parts.hostname,
            parts.netloc.rpartition("@")[0],
            user=name if secret is not None else None,
            password=secret,
            token=name or None if secret is None else None,
        )
