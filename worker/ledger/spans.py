"""Spans of the ledger's commands: one for each result, made by the replica that stored it."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from worker import tracing
from worker.ledger.counting import outcome_of, spoken, status_of
from worker.ledger.tx import Kind, OutRow

REMEMBERED: Final = 10_000
"""Batches whose beginning is remembered until their results are stored."""


class LedgerSpans:
    """Remembers when batches were taken up, and makes spans when their results are stored.

    Args:
        space: The tenant.
    """

    def __init__(self, space: str) -> None:
        self._space = space
        self._taken: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    def take(self, last_seq: int) -> None:
        """A batch of commands up to a sequence is about to be folded."""
        if tracing.spans() is not None:
            self._taken.append((last_seq, tracing.now_ns()))

    def tell(self, rows: Sequence[OutRow]) -> None:
        """Make the spans of results that are stored now; rows come in the order of the log."""
        spans = tracing.spans()
        if spans is None:
            return
        for row in rows:
            if row.kind is not Kind.RESULT:
                continue
            plane, verb = spoken(row.subject)
            spans.answered(
                self._space,
                plane,
                verb,
                status=status_of(row.body),
                outcome=outcome_of(row.body),
                sequence=row.seq,
                traceparent=row.trace,
                began_ns=self._taken_at(row.seq),
            )

    def _taken_at(self, seq: int) -> int:
        while self._taken and self._taken[0][0] < seq:
            self._taken.popleft()
        # What was folded before a restart is taken up again by saying it.
        return self._taken[0][1] if self._taken else tracing.now_ns()
