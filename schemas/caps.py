"""What results, facts and queries of the cap plane show, and what a predecessor left behind."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from schemas.commands.cap import LAST_EXPIRY_MS, MAX_PERMIT_MS
from schemas.model import Closed, Message
from schemas.tokens import Count, Generation, Instant, MintKey, Name, UserId

RESERVED: Final = "reserved"
ACTIVE: Final = "confirmed_active"
SUPERSEDED: Final = "superseded"
REVOKED: Final = "revoked"
EXPIRED: Final = "expired"
LEGACY: Final = "legacy"

CapState = Literal["reserved", "confirmed_active", "superseded", "revoked", "expired", "legacy"]

NONE_ACTIVE: Final = "none-active"
STOPPED: Final = "stopped"
LAPSED: Final = "grant-lapsed"
MISMATCH: Final = "grant-mismatch"
OVER_CAP: Final = "over-cap"
TOO_NEW: Final = "ruleset-too-new"

WhyNot = Literal[
    "none-active", "stopped", "grant-lapsed", "grant-mismatch", "over-cap", "ruleset-too-new"
]
"""Why an authorization is refused, in the order in which it is judged."""


class CapView(Closed):
    """A reservation, and the grant it became, as results and queries show it.

    Attributes:
        user: Whose cap.
        mint_key: Its key.
        state: Where it is.
        expires_at_ms: The reserved second: the grant's name.
        latest_expires_at_ms: What was asked for.
        wire_expires_at: The expiry to mint with, RFC 3339: the reserved second plus 1 ms.
        cap: Whole currency units a single action may cost.
        required_version: Ruleset that a worker must know to honour it.
        generation: The user's generation when it was reserved; absent for ``legacy``.
        reserved_at_ms: When it was reserved.
        confirmed_at_ms: When it was confirmed.
        ended_at_ms: When it was superseded, revoked or found expired.
    """

    user: UserId
    mint_key: MintKey
    state: CapState
    expires_at_ms: Instant
    latest_expires_at_ms: Instant
    wire_expires_at: str
    cap: int
    required_version: Count
    generation: Count | None = None
    reserved_at_ms: Instant
    confirmed_at_ms: Instant | None = None
    ended_at_ms: Instant | None = None


class Permit(Closed):
    """Data of the result ``allowed``: one send may begin now.

    Attributes:
        valid_for_ms: For how long, counted by the caller from before it published.
        cap: Whole currency units the action may cost.
        expires_at_ms: The live grant's second.
    """

    valid_for_ms: Annotated[int, Field(ge=1, le=MAX_PERMIT_MS)]
    cap: int
    expires_at_ms: Instant


class StopView(Closed):
    """Data of the result ``stopped``.

    Attributes:
        generation: The new one.
        quiet_after_ms: The instant, on the broker's clock, at which the last permit already given
            ends; the Stop's own instant if none is left.
        expires_at_ms: The second of the grant that was ended, if one was.
        known: Whether anybody ever reserved a cap under that name; not said before ruleset 3.
    """

    generation: Generation
    quiet_after_ms: Instant
    expires_at_ms: Instant | None = None
    known: bool | None = None


class BumpView(Closed):
    """Data of the result ``bumped``.

    Attributes:
        generation: The new one.
        known: Whether anybody ever reserved a cap under that name; not said before ruleset 3.
    """

    generation: Generation
    known: bool | None = None


class CapSettings(Closed):
    """The plane's durable settings; also data of the result of ``minting``.

    Attributes:
        enabled: Whether ``reserve`` is served.
        permit_ms: How long a permit is valid at most.
    """

    enabled: bool
    permit_ms: Annotated[int, Field(ge=1, le=MAX_PERMIT_MS)]


class Authority(Closed):
    """What ``authorize`` would say now, amount and grant aside.

    Attributes:
        authorizes: Whether an action within the cap would be allowed.
        reason: Why not.
        cap: Of the grant confirmed last, if it has not ended.
        expires_at_ms: Its second.
    """

    authorizes: bool
    reason: WhyNot | None = None
    cap: int | None = None
    expires_at_ms: Instant | None = None


class CapDetail(Closed):
    """Answer of the query ``cap.show``.

    Attributes:
        user: Whose cap.
        authority: What ``authorize`` would say.
        generation: How often this person stopped or bumped.
        active: The grant that is active, if one is.
        reservation: The reservation asked for by its key, if there is one.
        settings: The plane's.
    """

    user: UserId
    authority: Authority
    generation: Count
    active: CapView | None = None
    reservation: CapView | None = None
    settings: CapSettings


class ListedCap(Closed):
    """One cap of the query ``cap.list``.

    Attributes:
        cap: The reservation and the grant it became.
        stopped: Whether the person stopped or bumped since: it authorises nothing.
    """

    cap: CapView
    stopped: bool


class CapsPage(Closed):
    """Answer of the query ``cap.list``.

    Attributes:
        caps: In the order that was asked for.
        damaged: Rows of the page that could not be read; they hold up no other.
        next_after_user: ``after_user`` of the next page; absent on the last one.
    """

    caps: list[ListedCap]
    damaged: Count
    next_after_user: UserId | None = None


class GrantFact(Message):
    """Body of ``fact.cap.<kind>.<user>``: reserved, confirmed, superseded, revoked, expired.

    Attributes:
        at_ms: When.
        expires_at_ms: The second that names the grant.
        cap: Whole currency units.
        generation: Of the reservation.
    """

    at_ms: Instant
    expires_at_ms: Instant
    cap: int
    generation: Count


class StoppedFact(Message):
    """Body of ``fact.cap.stopped.<user>``.

    Attributes:
        at_ms: When.
        generation: The new one.
        quiet_after_ms: When the last permit already given ends.
        expires_at_ms: The second of the grant that was ended, if one was.
    """

    at_ms: Instant
    generation: Generation
    quiet_after_ms: Instant
    expires_at_ms: Instant | None = None


class BumpedFact(Message):
    """Body of ``fact.cap.bumped.<user>``.

    Attributes:
        at_ms: When.
        generation: The new one.
    """

    at_ms: Instant
    generation: Generation


class RefusedFact(Message):
    """Body of ``fact.cap.refused.<user>``: an authorization was refused.

    Attributes:
        at_ms: When.
        reason: Why; ``internal`` for a damaged row.
        amount: What was asked.
        grant_expires_at_ms: For which grant.
    """

    at_ms: Instant
    reason: WhyNot | Literal["internal"]
    amount: Generation
    grant_expires_at_ms: Instant


FACTS: Final[Mapping[str, type[Message]]] = MappingProxyType(
    {
        "reserved": GrantFact,
        "confirmed": GrantFact,
        "superseded": GrantFact,
        "revoked": GrantFact,
        "expired": GrantFact,
        "stopped": StoppedFact,
        "bumped": BumpedFact,
        "refused": RefusedFact,
    }
)
"""Kind to the body of ``fact.cap.<kind>.<user>``."""


class ImportView(Closed):
    """Data of a result of ``cap.import``: where the import stands, all its chunks together.

    Attributes:
        import_id: Which import.
        chunks: Chunks taken in.
        of: Of how many.
        imported: Records that became ``legacy``.
        malformed: Records that are none and were skipped.
        duplicates: Records that said nothing new.
        shared_seconds: Imported records whose second another record of the user holds already.
        shared_keys: Imported records whose key already names another second.
        done_at_ms: When the last chunk was taken in.
    """

    import_id: Name
    chunks: Count
    of: Generation
    imported: Count
    malformed: Count
    duplicates: Count
    shared_seconds: Count
    shared_keys: Count
    done_at_ms: Instant | None = None


_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _instant(value: Any) -> Any:
    """Milliseconds of an RFC 3339 instant; anything else as it is, for the type to judge."""
    match = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, zone_hours, zone_minutes = match.groups()[6:]
    millis = int(((fraction or "") + "000")[:3])
    offset = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    try:
        zone = timezone(-offset if sign == "-" else offset)
        moment = datetime(year, month, day, hour, minute, second, millis * 1000, zone)
    except ValueError:
        return value
    return (moment - _EPOCH) // timedelta(milliseconds=1)


LegacyInstant = Annotated[int, Field(ge=0, le=LAST_EXPIRY_MS), BeforeValidator(_instant)]
"""Milliseconds since 1970, or an RFC 3339 instant."""


class LegacyRecord(Closed):
    """One record of a predecessor; fields that are not listed are ignored.

    Attributes:
        userId: Whose.
        mintKey: Its key.
        expiresAt: When it expires; floored to its second.
        perSwapCapUsd: A whole number; it may lie outside our range.
        reservedAt: When it was reserved.
        requiredVersion: If it was recorded.
    """

    model_config = ConfigDict(extra="ignore")

    userId: UserId
    mintKey: MintKey
    expiresAt: LegacyInstant
    perSwapCapUsd: Annotated[int, Field(ge=-(2**53 - 1), le=2**53 - 1)]
    reservedAt: LegacyInstant
    requiredVersion: Count | None = None
