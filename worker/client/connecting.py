"""The front door: a client of this machine's settings, who speaks as somebody kept here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from schemas.codes import BadInput
from schemas.subjects import Speaker
from worker.client.core import Client

if TYPE_CHECKING:
    from worker.settings import Settings


@asynccontextmanager
async def connect(
    who: Speaker | str | None = None,
    *,
    space: str | None = None,
    timeout_ms: int | None = None,
) -> AsyncIterator[Client]:
    """An open client, from ``TIDEGATE_…`` variables as the command line reads them.

    ``async with connect("maria") as client:`` is all that a program beside a worker needs.

    Args:
        who: A ``Speaker``, ``principal.uid``, or a principal: the life that is kept in the data
            directory, or a new one that is kept from now on. Absent, it is ``TIDEGATE_PRINCIPAL``,
            else the identity kept here, else the broker user.
        space: The tenant; the first of ``TIDEGATE_SPACES`` if absent.
        timeout_ms: How long a call waits; ``TIDEGATE_TIMEOUT_MS`` if absent.

    Raises:
        BadSettings: A setting is wrong.
        BadIdentity: Nobody is named, or the identity cannot be used or kept.
        BadInput: ``who`` is not a name.
        NoBroker: No broker is configured, and no worker here has one of its own.
        BusError: The broker cannot be reached or refuses us.
    """
    from worker import broker, settings

    given = settings.load().settings
    client = Client(
        broker.client_options(given),
        _speaker(who, given),
        space or given.spaces[0],
        root=given.root,
        timeout_ms=timeout_ms or given.timeout_ms,
    )
    async with client:
        yield client


def _speaker(who: Speaker | str | None, given: "Settings") -> Speaker:
    from worker import identity

    if isinstance(who, Speaker):
        return who
    name = who or given.principal
    if name is None:
        kept = identity.default(given.data_dir)
        if kept is not None:
            return kept.speaker
        name = given.nats_user
    if name is None:
        raise identity.BadIdentity(
            'nobody is named to speak: connect("NAME"), TIDEGATE_PRINCIPAL, or once: '
            "tidegate identity init NAME"
        )
    principal, dot, uid = name.partition(".")
    if dot:
        return Speaker(principal, uid)
    if principal.startswith(identity.RESERVED):
        return Speaker(principal, identity.new_uid())
    try:
        uid = identity.new_uid()
        return identity.init(given.data_dir, principal, uid, may_be_default=False).speaker
    except identity.NoName as error:
        raise BadInput("who", "bad-token", error.message) from None
