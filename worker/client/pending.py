"""Matching results to the calls that wait for them; no broker in here.

A stored command gets exactly one result per delivery sequence, and the broker's acknowledgement of
the command names that sequence, so a result is a call's own if its id ends in a sequence that was
acknowledged to this call. Only where an acknowledgement was lost does the command id decide; never
for a verb that is judged anew each time: there the answer to an earlier call with the same id says
nothing about this one, however late it comes.
"""

import asyncio
from collections.abc import Iterator

from schemas.results import Result


class Pending:
    """One call that waits.

    Attributes:
        command_id: Of its command.
        anew: Whether the verb is judged anew each time it is stored.
        outcome: Resolves with the call's own result.
        seqs: Sequences under which the broker stored the command.
    """

    def __init__(self, command_id: str, *, anew: bool = False) -> None:
        self.command_id = command_id
        self.anew = anew
        self.outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.seqs: set[int] = set()
        self._unsure = False
        self._early: list[Result] = []

    def stored(self, seq: int) -> None:
        """The broker acknowledged the command under ``seq``."""
        self.seqs.add(seq)
        self._match_early()

    def maybe_stored(self) -> None:
        """An acknowledgement was lost: from now on any result of this command id is ours."""
        self._unsure = not self.anew
        self._match_early()

    def offer(self, result: Result) -> None:
        """Take a result that carries this command id, now or once its sequence is known."""
        if self.outcome.done():
            return
        if self._unsure or sequence_of(result.id) in self.seqs:
            self.outcome.set_result(result)
        else:
            self._early.append(result)

    def _match_early(self) -> None:
        early, self._early = self._early, []
        for result in early:
            self.offer(result)


class Waiting:
    """All calls of one client that wait, by command id."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Pending]] = {}

    def add(self, command_id: str, *, anew: bool = False) -> Pending:
        """A call begins; ``anew`` as for ``Pending``."""
        pending = Pending(command_id, anew=anew)
        self._by_id.setdefault(command_id, []).append(pending)
        return pending

    def remove(self, pending: Pending) -> None:
        """A call has ended."""
        calls = self._by_id[pending.command_id]
        calls.remove(pending)
        if not calls:
            del self._by_id[pending.command_id]

    def offer(self, result: Result) -> None:
        """Hand a result to whoever waits for it."""
        for pending in self._by_id.get(result.command_id, ()):
            pending.offer(result)

    def __iter__(self) -> Iterator[Pending]:
        return (pending for calls in self._by_id.values() for pending in calls)


def sequence_of(result_id: str) -> int:
    """The stream sequence in ``<seq>`` or ``<epoch>-<seq>``; -1 if there is none."""
    digits = result_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def epoch_of(result_id: str) -> str:
    """The log epoch in ``<epoch>-<seq>``; empty for ``<seq>``."""
    return result_id.rpartition("-")[0]
