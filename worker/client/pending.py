"""Matching results to the calls that wait for them; no broker in here.

A stored command gets exactly one result per delivery sequence, and the broker's acknowledgement of
the command names that sequence, so a result that is heard is a call's own if it answers its verb
and id, and its id ends in a sequence that was acknowledged to this call. Only where an
acknowledgement was lost do verb and id decide; never for a verb that is judged anew each time:
there the answer to an earlier call with the same id says nothing about this one, however late.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas.results import Result


@dataclass(frozen=True, slots=True)
class Asked:
    """What a result has to answer: sequences are those of a plane's stream.

    Attributes:
        plane: The command's plane.
        verb: Its verb.
        command_id: Its id.
    """

    plane: str
    verb: str
    command_id: str


class Pending:
    """One call that waits.

    Attributes:
        asked: Its command.
        anew: Whether the verb is judged anew each time it is stored.
        outcome: Resolves with the call's own result.
        seqs: Sequences under which the broker stored the command.
        maybe: Whether it may be stored under others: an acknowledgement was lost.
    """

    def __init__(self, asked: Asked, *, anew: bool = False) -> None:
        self.asked = asked
        self.anew = anew
        self.outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._hinted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.seqs: set[int] = set()
        self.maybe = False
        self._early: list[Result] = []

    def stored(self, seq: int) -> None:
        """The broker acknowledged the command under ``seq``."""
        self.seqs.add(seq)
        self._match_early()

    def maybe_stored(self) -> None:
        """An acknowledgement was lost: from now on any result of this command id is ours."""
        self.maybe = True
        self._match_early()

    def offer(self, result: Result) -> None:
        """Take a result that was heard, now or once its sequence is known."""
        if self.outcome.done():
            return
        if (self.maybe and not self.anew) or sequence_of(result.id) in self.seqs:
            self.outcome.set_result(result)
        else:
            self._early.append(result)

    def hint(self) -> None:
        """A result was said of which nobody knows whether it is stored; it may be looked for."""
        if not self._hinted.done():
            self._hinted.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Wait for the result, or for a hint since the last wait that it is worth a look."""
        first: set[asyncio.Future[Any]] = {self.outcome, self._hinted}
        await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._hinted.done():
            self._hinted = asyncio.get_running_loop().create_future()

    def _match_early(self) -> None:
        early, self._early = self._early, []
        for result in early:
            self.offer(result)


class Waiting:
    """All calls of one client that wait, by what they ask."""

    def __init__(self) -> None:
        self._by_asked: dict[Asked, list[Pending]] = {}

    def add(self, asked: Asked, *, anew: bool = False) -> Pending:
        """A call begins; ``anew`` as for ``Pending``."""
        pending = Pending(asked, anew=anew)
        self._by_asked.setdefault(asked, []).append(pending)
        return pending

    def remove(self, pending: Pending) -> None:
        """A call has ended."""
        calls = self._by_asked[pending.asked]
        calls.remove(pending)
        if not calls:
            del self._by_asked[pending.asked]

    def offer(self, asked: Asked, result: Result) -> None:
        """Hand a result that was heard to whoever waits for it."""
        for pending in self._by_asked.get(asked, ()):
            pending.offer(result)

    def hint(self, asked: Asked) -> None:
        """A result was said: those that wait for one may look for it where it is stored."""
        for pending in self._by_asked.get(asked, ()):
            pending.hint()

    def __iter__(self) -> Iterator[Pending]:
        return (pending for calls in self._by_asked.values() for pending in calls)


def sequence_of(result_id: str) -> int:
    """The stream sequence in ``<seq>`` or ``<epoch>-<seq>``; -1 if there is none."""
    digits = result_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1
