"""Typed calls of the cap plane (spec/caps.md, Verbs)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from schemas.caps import (
    BumpView,
    CapDetail,
    CapSettings,
    CapsPage,
    CapView,
    ImportView,
    Permit,
    StopView,
)
from schemas.commands.cap import (
    Authorize,
    Bump,
    Confirm,
    Import,
    ListQuery,
    Minting,
    Reserve,
    Revoke,
    ShowQuery,
    Stop,
)
from schemas.model import Body
from schemas.results import Result
from schemas.strict_json import JsonObject
from worker.bus.errors import Unavailable
from worker.client import given
from worker.client.checkpoints import Calls
from worker.client.errors import CallTimeout, NobodyThere, Refused
from worker.client.given import When

UNANSWERED: Final = "unavailable"
"""Reason of an authorization that nobody answered in time."""

PERMIT_LAPSED: Final = "permit-lapsed"
"""Reason of an authorization whose answer took longer than its permit."""


@dataclass(frozen=True, slots=True)
class Capped:
    """What reserve, confirm or revoke led to.

    Attributes:
        word: Stable word of the verb: ``reserved``, ``already_confirmed``, ``revoked``, …
        cap: The reservation as it stands now; ``None`` if there was nothing to revoke.
        result: The whole result.
    """

    word: str
    cap: CapView | None
    result: Result


@dataclass(frozen=True, slots=True)
class Authorization:
    """Whether one send may begin, and until when; true only while it may.

    Attributes:
        allowed: Whether it may; any doubt says no.
        reason: Why not; empty if it may.
        ends_at_s: When the permit ends, on the clock of ``time.monotonic``.
        result: The whole result; ``None`` if none came.
        monotonic: The clock that the permit is counted on.
    """

    allowed: bool
    reason: str
    ends_at_s: float = 0.0
    result: Result | None = None
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    def __bool__(self) -> bool:
        """Whether the send may begin now: it was allowed, and the permit has not run out."""
        return self.allowed and self.monotonic() < self.ends_at_s


class Caps:
    """The verbs and queries of the plane ``cap``; errors are those of ``Client.call``.

    Args:
        client: Speaks for it.
        monotonic: Seconds that never go back; permits are counted on it.
    """

    def __init__(self, client: Calls, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic

    async def reserve(
        self,
        user: str,
        mint_key: str,
        *,
        latest_expires_at_ms: When,
        cap: int,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Capped:
        """Reserve the requested expiry second, or the nearest earlier free one.

        Args:
            user: Whose cap.
            mint_key: Its key, never used for another reservation.
            latest_expires_at_ms: The latest expiry wanted.
            cap: Whole currency units a single action may cost.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            Refused: ``minting-paused``, ``different-reservation`` or ``no-free-second``.
        """
        at_ms = given.instant_ms("latest_expires_at_ms", latest_expires_at_ms)
        body = Reserve.from_object({"v": 1, "latest_expires_at_ms": at_ms, "cap": cap})
        return await self._capped((user, mint_key), body, command_id, timeout_ms)

    async def confirm(
        self,
        user: str,
        mint_key: str,
        *,
        grant_expires_at_ms: When,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Capped:
        """Make a reserved cap the one that authorises.

        Raises:
            Refused: With a reason of the table of ``confirm``.
        """
        at_ms = given.instant_ms("grant_expires_at_ms", grant_expires_at_ms)
        body = Confirm.from_object({"v": 1, "grant_expires_at_ms": at_ms})
        return await self._capped((user, mint_key), body, command_id, timeout_ms)

    async def authorize(
        self,
        user: str,
        *,
        amount: int,
        grant_expires_at_ms: When,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Authorization:
        """Ask whether one action may be sent now.

        A refusal, an answer that does not come and one that comes too late all say no, and are
        false: ``if await client.cap.authorize(…):`` is a question rightly asked. A permit
        counts from before the command was published, whatever was sent again since.

        Raises:
            Denied: The broker's permissions do not allow it.
        """
        at_ms = given.instant_ms("grant_expires_at_ms", grant_expires_at_ms)
        body = Authorize.from_object({"v": 1, "amount": amount, "grant_expires_at_ms": at_ms})
        began = self._monotonic()
        try:
            result = await self._call((user,), body, command_id, timeout_ms)
        except Refused as refused:
            return Authorization(False, refused.reason, result=refused.result)
        except (CallTimeout, NobodyThere, Unavailable):
            return Authorization(False, UNANSWERED)
        ends_at_s = began + Permit.from_object(result.data).valid_for_ms / 1000
        if ends_at_s <= self._monotonic():
            return Authorization(False, PERMIT_LAPSED, result=result)
        return Authorization(True, "", ends_at_s, result, self._monotonic)

    async def revoke(
        self,
        user: str,
        *,
        expires_at_ms: When,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Capped:
        """End the active grant if it is the one that expires at this second."""
        at_ms = given.instant_ms("expires_at_ms", expires_at_ms)
        body = Revoke.from_object({"v": 1, "expires_at_ms": at_ms})
        return await self._capped((user,), body, command_id, timeout_ms)

    async def stop(
        self, user: str, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> StopView:
        """End everything of a person: the active grant and all that is in flight."""
        result = await self._call((user,), Stop(v=1), command_id, timeout_ms)
        return StopView.from_object(result.data)

    async def bump(
        self, user: str, *, command_id: str | None = None, timeout_ms: int | None = None
    ) -> BumpView:
        """Raise a person's generation alone."""
        result = await self._call((user,), Bump(v=1), command_id, timeout_ms)
        return BumpView.from_object(result.data)

    async def minting(
        self,
        enabled: bool,
        *,
        permit_ms: int | None = None,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> CapSettings:
        """Switch new reservations on or off; an operator's verb."""
        body = Minting.from_object({"v": 1, "enabled": enabled, "permit_ms": permit_ms})
        result = await self._call((), body, command_id, timeout_ms)
        return CapSettings.from_object(result.data)

    async def take_in(
        self,
        import_id: str,
        chunk: int,
        of: int,
        records: list[JsonObject],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> ImportView:
        """Import one chunk of a predecessor's records; an operator's verb.

        Raises:
            Refused: ``already-imported`` or ``chunk-out-of-order``.
        """
        body = Import.from_object(
            {"v": 1, "import_id": import_id, "chunk": chunk, "of": of, "records": records}
        )
        result = await self._call((), body, command_id, timeout_ms)
        return ImportView.from_object(result.data)

    async def show(
        self,
        user: str,
        *,
        mint_key: str | None = None,
        after: str | None = None,
        timeout_ms: int | None = None,
    ) -> CapDetail:
        """A person's authority, active grant, generation and one reservation.

        Args:
            user: Whose.
            mint_key: Also show this reservation.
            after: Id of a result that the answer must include.
            timeout_ms: How long to wait for the answer.

        Raises:
            Refused: ``internal`` if the person's rows are damaged.
        """
        body = ShowQuery.from_object({"user": user, "mint_key": mint_key, "after": after})
        answer = await self._client.query("cap", "show", body, timeout_ms=timeout_ms)
        return CapDetail.from_object(answer.data)

    async def list(
        self,
        *,
        which: str = "active",
        limit: int = 100,
        after_user: str | None = None,
        timeout_ms: int | None = None,
    ) -> CapsPage:
        """A page of the caps in force by person, or of those that ended last.

        Args:
            which: ``active`` or ``ended``.
            limit: How many at most.
            after_user: Last person of the page before, for ``active``.
            timeout_ms: How long to wait for the answer.
        """
        body = ListQuery.from_object({"which": which, "limit": limit, "after_user": after_user})
        answer = await self._client.query("cap", "list", body, timeout_ms=timeout_ms)
        return CapsPage.from_object(answer.data)

    async def _capped(
        self,
        key: tuple[str, ...],
        body: Body,
        command_id: str | None,
        timeout_ms: int | None,
    ) -> Capped:
        result = await self._call(key, body, command_id, timeout_ms)
        cap = CapView.from_object(result.data) if result.data else None
        return Capped(result.outcome, cap, result)

    async def _call(
        self,
        key: tuple[str, ...],
        body: Body,
        command_id: str | None,
        timeout_ms: int | None,
    ) -> Result:
        return await self._client.call(
            body.PLANE, body.VERB, key, body, command_id=command_id, timeout_ms=timeout_ms
        )
