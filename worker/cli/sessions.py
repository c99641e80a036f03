"""Who speaks, in which space, and the way to a client or to the workers' account."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from schemas.codes import BadInput
from schemas.roles import OPERATOR_PREFIX
from schemas.subjects import Speaker
from worker.cli import common, ending, repeating

if TYPE_CHECKING:
    from worker.bus.connection import Connection
    from worker.client import Client
    from worker.settings import Loaded, Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """What a command knows of where and who it is.

    Attributes:
        loaded: The settings.
        space: The space it speaks in.
        speaker: Who speaks; ``None`` leaves it to the broker, which knows its user's rights.
        as_json: Whether ``--json`` was given.
        timeout_ms: How long to wait for a result.
        operates: Whether only an operator may use the command.
        looks: Whether it only looks, so that no life of its speaker needs to be kept.
    """

    loaded: "Loaded"
    space: str
    speaker: Speaker | None
    as_json: bool
    timeout_ms: int
    operates: bool = False
    looks: bool = False

    @asynccontextmanager
    async def client(self) -> "AsyncIterator[Client]":
        """An open client of this session."""
        from worker import broker
        from worker.client import Client

        settings = self.loaded.settings
        client = Client(
            broker.client_options(settings),
            self.speaker or _one_life(OPERATOR_PREFIX),
            self.space,
            root=settings.root,
            timeout_ms=self.timeout_ms,
            name=f"tidegate-cli-{self.speaker.principal}" if self.speaker else "tidegate-cli",
        )
        async with client:
            if self.speaker is None:
                client.speaker = await self._known_to_broker(client)
            repeating.speaks(client.speaker)
            yield client

    async def _known_to_broker(self, client: "Client") -> Speaker:
        """Whom the broker lets this user speak as, in the life that is kept here."""
        from worker.doctor import rights

        settings = self.loaded.settings
        found = await rights.user_info(client.conn)
        may = rights.principals_of(found, client.names) if found else ()
        if self.operates and (OPERATOR_PREFIX in may or not may):
            return _life_of(settings, OPERATOR_PREFIX)
        name = may[0] if may else _broker_user(settings)
        return _life_of(settings, name, kept=not self.looks)


def session(
    config: Path | None,
    nats: str | None,
    space: str | None,
    as_: str | None,
    as_json: bool,
    timeout: str | None,
    *,
    operates: bool = False,
    looks: bool = False,
) -> Session:
    """Read settings and identity.

    Raises:
        BadSettings: If a setting is wrong.
        BadIdentity: If the identity cannot be used.
    """
    from schemas import tokens

    if space is not None and not tokens.is_space(space):
        common.usage("--space", "a space matches [A-Za-z0-9_-]{1,64}")
    loaded = load_settings({"nats_url": nats}, config)
    settings = loaded.settings
    return Session(
        loaded=loaded,
        space=space or settings.spaces[0],
        speaker=_speaker(settings, as_, operates=operates, kept=not looks),
        as_json=as_json,
        timeout_ms=settings.timeout_ms
        if timeout is None
        else common.duration("--timeout", timeout),
        operates=operates,
        looks=looks,
    )


def looking(
    config: Path | None,
    nats: str | None,
    space: str | None,
    as_: str | None,
    as_json: bool,
    timeout: str | None,
) -> Session:
    """A session of somebody who only looks: no identity is made for it."""
    return session(config, nats, space, as_, as_json, timeout, looks=True)


def watching(
    config: Path | None,
    nats: str | None,
    space: str | None,
    as_: str | None,
    as_json: bool,
    timeout: str | None,
) -> Session:
    """A session of somebody who only looks, at what an operator or an observer may see."""
    return session(config, nats, space, as_, as_json, timeout, operates=True, looks=True)


def operators(
    config: Path | None,
    nats: str | None,
    space: str | None,
    as_: str | None,
    as_json: bool,
    timeout: str | None,
) -> Session:
    """A session of an operator, where nobody else may use the command."""
    return session(config, nats, space, as_, as_json, timeout, operates=True)


def load_settings(flags: dict[str, Any], config: Path | None) -> "Loaded":
    """Load the settings and name variables that are most likely misspelt.

    Raises:
        BadSettings: If a setting is wrong.
    """
    from worker import settings

    loaded = settings.load(flags, config_file=config)
    for name in loaded.unknown:
        meant = settings.meant(name)
        todo = "see: tidegate config show" if meant is None else f"is {meant} meant?"
        common.say(f"tidegate: {name} is not a setting; {todo}")
    return loaded


def _speaker(
    settings: "Settings", as_: str | None, *, operates: bool, kept: bool
) -> Speaker | None:
    if as_ is not None:
        principal, dot, uid = as_.partition(".")
        if dot:
            try:
                return Speaker(principal, uid)
            except BadInput as bad:
                common.misspelt("--as", bad)
        if not principal:
            common.usage("--as", "names nobody")
        from schemas import tokens

        if not tokens.is_principal(principal):
            common.usage("--as", f"a principal matches {tokens.NAME_PATTERN}")
        # Who is named for one command is not whom the next one speaks as.
        return _life_of(settings, principal, kept=kept, may_be_default=False)
    if settings.principal:
        return _life_of(settings, settings.principal, kept=kept)
    if _signs_in(settings):
        return None
    return _one_life(OPERATOR_PREFIX) if operates else _life_of(settings, None, kept=kept)


def _life_of(
    settings: "Settings",
    principal: str | None,
    *,
    kept: bool = True,
    may_be_default: bool = True,
) -> Speaker:
    """The life of a principal, or of the default one, that is kept here; a new one is kept.

    A reserved name gets a new one each time, and so does who only looks: nothing is held by them.
    """
    from worker import identity

    found = identity.find(settings.data_dir, principal)
    if found is None:
        name = principal or _local_user()
        if name.startswith(identity.RESERVED) or not kept:
            return _one_life(name)
        uid = identity.new_uid()
        found = identity.init(settings.data_dir, name, uid, may_be_default=may_be_default)
        if found.created:
            common.say(f"tidegate: made an identity for {found.speaker.principal} in {found.path}")
    return found.speaker


def _one_life(principal: str) -> Speaker:
    """A life for one command."""
    from worker import identity

    try:
        return Speaker(principal, identity.new_uid())
    except BadInput as bad:
        common.misspelt("--as", bad)


def _signs_in(settings: "Settings") -> bool:
    """Whether the broker knows who we are."""
    from urllib.parse import urlsplit

    return bool(
        settings.nats_user
        or settings.nats_nkey_seed_file
        or settings.nats_creds_file
        or any(urlsplit(url).username for url in settings.servers)
    )


def _broker_user(settings: "Settings") -> str | None:
    """The broker user, if it could be a principal."""
    from schemas import tokens

    user = settings.nats_user
    return user if user and tokens.is_principal(user) else None


def _local_user() -> str:
    import getpass
    import re

    try:
        return re.sub(r"[^A-Za-z0-9-]+", "-", getpass.getuser()).strip("-")[:64] or "me"
    except (KeyError, OSError):
        return "me"


def with_client(session: Session, work: Callable[["Client"], Awaitable[T]]) -> T:
    """Run work with an open client."""

    async def run() -> T:
        async with session.client() as client:
            return await work(client)

    return ending.run_async(run())


@asynccontextmanager
async def workers_account(settings: "Settings", name: str) -> "AsyncIterator[Connection]":
    """A connection with the worker's rights, to a server that was checked.

    Raises:
        Denied: If the login may not ask about streams.
        StartRefused: If the server is too old, or has no JetStream for this account.
    """
    from worker import broker
    from worker.bus.connection import Connection
    from worker.bus.errors import Denied
    from worker.bus.topology import check_server

    conn = await Connection.open(broker.worker_options(settings), name=name)
    try:
        try:
            await check_server(conn)
        except Denied as denied:
            raise Denied(
                "this needs the worker's login, and the one given may not look at streams",
                subject=denied.subject,
            ) from denied
        yield conn
    finally:
        await conn.close()
