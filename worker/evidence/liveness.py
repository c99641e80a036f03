"""Who has fallen silent: the rules against deaf observers, as a pure table of instants.

That nobody was heard proves nothing about them if we could not hear. So silence is counted only
over an interval of which the observer's own beats came back: everything that reached the broker
before one of them was sent has been heard when it comes back. A stall, a reconnect or a beat of its
own that went missing ends the interval, and counting begins anew (spec/admission.md, Recovery).

All instants are milliseconds of one monotonic clock.
"""

from dataclasses import dataclass
from typing import Final, Literal

from schemas.subjects import Speaker

State = Literal["silent", "alive"]

SILENCE_MS: Final = 4_000
"""So long is fresh; one millisecond more is silence."""

OWN_GAP_MS: Final = 2_000
"""Two own beats further apart than this do not prove what lies between them."""

STALL_MS: Final = 1_000
"""An observer that did not get to look for longer than this has stalled."""

RETRY_MS: Final = 1_000
FORGET_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Change:
    """Something to be reported.

    Attributes:
        owner: About whom.
        state: What it is now.
        heard_ms: When it was last heard.
    """

    owner: Speaker
    state: State
    heard_ms: int


@dataclass(slots=True)
class _Watched:
    heard_ms: int
    state: State = "alive"
    reported: State | None = None
    retry_at_ms: int = 0


class Watch:
    """Watches owners, each from its first beat.

    Attributes:
        silence_ms: Longest time without a beat that is still fresh.
        disturbances: How often an interval ended because something may have been missed.
    """

    def __init__(
        self,
        now_ms: int,
        *,
        silence_ms: int = SILENCE_MS,
        own_gap_ms: int = OWN_GAP_MS,
        stall_ms: int = STALL_MS,
    ) -> None:
        self.silence_ms = silence_ms
        self.disturbances = 0
        self._own_gap_ms = own_gap_ms
        self._stall_ms = stall_ms
        self._owners: dict[Speaker, _Watched] = {}
        self._looked_ms = now_ms
        # The interval we are known to have heard in, by when own beats were sent.
        self._since_ms: int | None = None
        self._until_ms: int | None = None
        self._not_before_ms = now_ms

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def hearing_since_ms(self) -> int | None:
        """Since when we are known to hear everything; ``None`` while that is not proven."""
        return self._since_ms

    def beat(self, owner: Speaker, now_ms: int) -> None:
        """An owner was heard: a heartbeat, or any command of it that is as fresh as one.

        Args:
            owner: Who.
            now_ms: When it was heard, which is never before it was sent.
        """
        watched = self._owners.get(owner)
        if watched is None:
            self._owners[owner] = _Watched(now_ms)
            return
        watched.heard_ms = max(watched.heard_ms, now_ms)
        if watched.state == "silent":
            watched.state, watched.retry_at_ms = "alive", 0

    def own_beat(self, sent_ms: int) -> None:
        """A beat of our own came back.

        Args:
            sent_ms: When it was *sent*: it stood in line behind all that came before it.
        """
        if sent_ms < self._not_before_ms:
            return
        if self._until_ms is None or sent_ms - self._until_ms > self._own_gap_ms:
            self._since_ms = self._until_ms = sent_ms
        else:
            self._until_ms = max(self._until_ms, sent_ms)

    def disturbed(self, now_ms: int) -> None:
        """Something may have been missed: only own beats sent from now on count."""
        self.disturbances += self._since_ms is not None
        self._since_ms = self._until_ms = None
        self._not_before_ms = now_ms

    def look(self, now_ms: int) -> list[Change]:
        """Judge everybody; call it several times a second.

        Returns:
            What is to be reported, again and again until ``reported`` says that it was.
        """
        if now_ms - self._looked_ms > self._stall_ms:
            self.disturbed(now_ms)
        self._looked_ms = now_ms
        changes = []
        for owner, watched in list(self._owners.items()):
            if watched.state == "alive" and self._is_silent(watched.heard_ms):
                watched.state, watched.retry_at_ms = "silent", 0
            if watched.state != watched.reported:
                if now_ms >= watched.retry_at_ms:
                    changes.append(Change(owner, watched.state, watched.heard_ms))
            elif watched.state == "silent" and now_ms - watched.heard_ms > FORGET_MS:
                del self._owners[owner]
        return changes

    def reported(self, change: Change) -> None:
        """A change is in the log; what has become true since is still to be reported."""
        if (watched := self._owners.get(change.owner)) is not None:
            watched.reported = change.state

    def not_reported(self, change: Change, now_ms: int) -> None:
        """A change is not, or not surely, in the log; it is offered again in a second."""
        if (watched := self._owners.get(change.owner)) is not None:
            # It may have landed all the same, so whatever is true by then must be said again.
            watched.reported = None
            watched.retry_at_ms = now_ms + RETRY_MS

    def _is_silent(self, heard_ms: int) -> bool:
        if self._since_ms is None or self._until_ms is None:
            return False
        return self._until_ms - max(heard_ms, self._since_ms) > self.silence_ms
