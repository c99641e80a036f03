"""Bodies of the cap verbs (spec/caps.md, Verbs).

The subject's key is ``<user>[.<mint key>]``: both for reserve and confirm, the user alone for
authorize, revoke, stop and bump, none for minting and import.
"""

from typing import Annotated, Any

from pydantic import Field

from schemas.model import Body, Closed, Query
from schemas.tokens import Instant, MintKey, Name, UserId

MAX_CAP = 1_000_000_000
Cap = Annotated[int, Field(ge=1, le=MAX_CAP)]
Amount = Annotated[int, Field(ge=1)]


class Reserve(Body):
    """Reserve an expiry second for a cap that is about to be minted.

    Attributes:
        latest_expires_at_ms: The latest expiry wanted; floored to its second.
        cap: Whole currency units a single action may cost.
    """

    PLANE = "cap"
    VERB = "reserve"

    latest_expires_at_ms: Instant
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
    """Switch new reservations on or off.

    Attributes:
        enabled: The durable setting.
    """

    PLANE = "cap"
    VERB = "minting"

    enabled: bool


class LegacyRecord(Closed):
    """One record of a predecessor, already read; a malformed one is counted, not refused.

    Attributes:
        userId: Whose.
        mintKey: Its key.
        expiresAt: Milliseconds; floored to the second.
        perSwapCapUsd: A whole number; it may lie outside our range.
        reservedAt: Milliseconds.
        requiredVersion: If it was recorded.
    """

    userId: UserId
    mintKey: MintKey
    expiresAt: Instant
    perSwapCapUsd: int
    reservedAt: Instant
    requiredVersion: int | None = None


class Import(Body):
    """One chunk of a predecessor's records; the last chunk sets the marker.

    Attributes:
        import_id: Names this import; another one after the marker is refused.
        chunk: From 1.
        of: How many chunks there are.
        records: Candidates, each checked as ``LegacyRecord`` by the fold.
    """

    PLANE = "cap"
    VERB = "import"

    import_id: Name
    chunk: Annotated[int, Field(ge=1, le=1_000_000)]
    of: Annotated[int, Field(ge=1, le=1_000_000)]
    records: Annotated[list[dict[str, Any]], Field(max_length=500)]


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


class StatusQuery(Query):
    """Body of ``sys.status``.

    Attributes:
        after: Result id the answer must already include.
    """

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
