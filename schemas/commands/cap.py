"""Bodies of the cap verbs (spec/caps.md, Verbs).

The subject's key is ``<user>[.<mint key>]``: both for reserve and confirm, the user alone for
authorize, revoke, stop and bump, none for minting and import.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from schemas.limits import MAX_SAFE_INTEGER
from schemas.model import Body, Query
from schemas.tokens import Instant, MintKey, Name, UserId

MAX_CAP: Final = 1_000_000_000
MAX_PERMIT_MS: Final = 2_000
MAX_IMPORT_RECORDS: Final = 500
LAST_EXPIRY_MS: Final = 253_402_300_799_999
"""The last instant that RFC 3339 can name, 9999-12-31T23:59:59.999Z."""

Cap = Annotated[int, Field(ge=1, le=MAX_CAP)]
Amount = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]


class Reserve(Body):
    """Reserve an expiry second for a cap that is about to be minted.

    Attributes:
        latest_expires_at_ms: The latest expiry wanted; floored to its second.
        cap: Whole currency units a single action may cost.
    """

    PLANE = "cap"
    VERB = "reserve"

    latest_expires_at_ms: Annotated[int, Field(ge=0, le=LAST_EXPIRY_MS)]
    cap: Cap


class Confirm(Body):
    """Make a reserved cap the one that authorises.

    Attributes:
        grant_expires_at_ms: The reserved second, in exact milliseconds.
    """

    PLANE = "cap"
    VERB = "confirm"

    grant_expires_at_ms: Instant


class Authorize(Body):
    """Ask whether one action may be sent now.

    Attributes:
        amount: Whole currency units.
        grant_expires_at_ms: The live grant's second.
    """

    PLANE = "cap"
    VERB = "authorize"

    amount: Amount
    grant_expires_at_ms: Instant


class Revoke(Body):
    """End the active grant, if it is the one named.

    Attributes:
        expires_at_ms: Its second.
    """

    PLANE = "cap"
    VERB = "revoke"

    expires_at_ms: Instant


class Stop(Body):
    """End everything of this person: the active grant and all that is in flight."""

    PLANE = "cap"
    VERB = "stop"


class Bump(Body):
    """Raise the generation alone; what is active then authorises nothing."""

    PLANE = "cap"
    VERB = "bump"


class Minting(Body):
    """Switch new reservations on or off; both settings are durable.

    Attributes:
        enabled: Whether ``reserve`` is served.
        permit_ms: How long a permit is valid at most; as it was if absent.
    """

    PLANE = "cap"
    VERB = "minting"

    enabled: bool
    permit_ms: Annotated[int, Field(ge=1, le=MAX_PERMIT_MS)] | None = None


class Import(Body):
    """One chunk of a predecessor's records; the last chunk sets the marker.

    Attributes:
        import_id: Names this import; another one after the marker is refused.
        chunk: From 1.
        of: How many chunks there are.
        records: Candidates, each checked as ``schemas.caps.LegacyRecord`` by the fold; one that
            is malformed is counted, and refuses nothing.
    """

    PLANE = "cap"
    VERB = "import"

    import_id: Name
    chunk: Annotated[int, Field(ge=1, le=1_000_000)]
    of: Annotated[int, Field(ge=1, le=1_000_000)]
    records: Annotated[list[dict[str, Any]], Field(max_length=MAX_IMPORT_RECORDS)]


class ShowQuery(Query):
    """Body of the query ``cap.show``.

    Attributes:
        user: Whose cap.
        after: Result id the answer must already include; waited for at most 5 s.
        mint_key: Also show this reservation.
    """

    user: UserId
    mint_key: MintKey | None = None
    after: str | None = None


class ListQuery(Query):
    """Body of the query ``cap.list``: whose caps are in force, or which ended last.

    Attributes:
        which: ``active`` by person, or ``ended`` with the latest first.
        limit: How many; of the ended only so many can be had.
        after_user: Last person of the page before, for ``active``.
        after: Result id the answer must already include; waited for at most 5 s.
    """

    which: Literal["active", "ended"] = "active"
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after_user: UserId | None = None
    after: str | None = None


BODIES: tuple[type[Body], ...] = (
    Reserve,
    Confirm,
    Authorize,
    Revoke,
    Stop,
    Bump,
    Minting,
    Import,
)
