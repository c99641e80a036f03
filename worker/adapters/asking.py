"""Asking once: a checkpoint is minted if it does not exist, and otherwise taken as it stands."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from schemas.codes import Code
from schemas.records import prompt_digest
from schemas.subjects import Speaker
from schemas.views import CheckpointDetail, CheckpointView
from worker.adapters.clock import BrokerTime
from worker.adapters.errors import AnswerHidden, QuestionChanged
from worker.adapters.questions import Question
from worker.client import Client, QueryTimeout, Refused

ONE_WAIT_MS: Final = 3_600_000
"""How long one wait for a settlement lasts before it is begun again."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a checkpoint ended.

    Attributes:
        endpoint: Its endpoint.
        token: Its token.
        outcome: ``resumed`` by its holder, or ``expired``.
        answer: What the holder filed; ``None`` if nothing, and if it expired.
        answered_by: The holder's principal; ``None`` if it expired.
        deadline_at_ms: The deadline that was in force.
        settled_at_ms: When it settled, by the broker's clock.
    """

    endpoint: str
    token: str
    outcome: Literal["resumed", "expired"]
    answer: Any
    answered_by: str | None
    deadline_at_ms: int
    settled_at_ms: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that a checkpoint stands for.

    Attributes:
        checkpoint: As it stands.
        settlement: How it ended, if it has.
    """

    checkpoint: CheckpointView
    settlement: Settlement | None


class Asker:
    """Mints checkpoints and reads how they ended.

    Args:
        client: An open client whose speaker may mint at the endpoint.
        endpoint: Where checkpoints are minted, dotted.
        holder: Who may answer, unless a question names another.
        deadline_ms: How long a checkpoint may wait, unless a question says otherwise.
        clock: The broker's time.
    """

    def __init__(
        self,
        client: Client,
        *,
        endpoint: str,
        holder: Speaker,
        deadline_ms: int,
        clock: BrokerTime,
    ) -> None:
        if type(deadline_ms) is not int or deadline_ms <= 0:
            raise ValueError("deadline_ms must be whole milliseconds above zero")
        self._client = client
        self._endpoint = endpoint
        self._holder = holder
        self._deadline_ms = deadline_ms
        self._clock = clock

    async def ask(self, token: str, question: Question) -> Asked:
        """See to it that the checkpoint exists, and say how it stands.

        The deadline counts from the first mint and is not moved by a later call, so a restart
        gives nobody more time. Whatever is lost on the way, the token is minted once.

        Raises:
            QuestionChanged: The token was minted with another holder or prompt.
            AnswerHidden: It was minted by another principal.
            Refused: It cannot be minted or shown.
        """
        holder = question.holder or self._holder
        detail = await self._find(token)
        if detail is None:
            detail = await self._mint(token, question, holder)
        return self._asked(detail, question, holder)

    async def wait_any(self, tokens: Sequence[str], *, until: float | None) -> bool:
        """Wait until one of the checkpoints has settled.

        Args:
            tokens: Which.
            until: Loop time at which to give up; ``None`` waits on.

        Returns:
            Whether one has; ``False`` when the time is up.
        """
        waits = [asyncio.create_task(self._wait(token, until)) for token in tokens]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return any([task.result() for task in done])
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _wait(self, token: str, until: float | None) -> bool:
        loop = asyncio.get_running_loop()
        while True:
            left_ms = ONE_WAIT_MS if until is None else int((until - loop.time()) * 1000)
            if left_ms <= 0:
                return False
            try:
                await self._client.cp.wait_settled(
                    self._endpoint, token, timeout_ms=min(left_ms, ONE_WAIT_MS)
                )
            except QueryTimeout:
                continue
            return True

    async def _find(self, token: str) -> CheckpointDetail | None:
        try:
            return await self._client.cp.show(self._endpoint, token)
        except Refused as refused:
            if refused.code is Code.NOT_FOUND:
                return None
            raise

    async def _mint(self, token: str, question: Question, holder: Speaker) -> CheckpointDetail:
        deadline_ms = self._clock.now_ms() + (question.deadline_ms or self._deadline_ms)
        try:
            await self._client.cp.mint(
                self._endpoint,
                token,
                deadline_at_ms=deadline_ms,
                holder=holder,
                prompt=question.prompt,
            )
        except Refused as refused:
            # Somebody minted it since we looked; whether it is the same question is seen below.
            if refused.reason != "different-checkpoint":
                raise
        return await self._client.cp.show(self._endpoint, token)

    def _asked(self, detail: CheckpointDetail, question: Question, holder: Speaker) -> Asked:
        view = detail.checkpoint
        if view.holder is None or (view.holder.id, view.holder.lifecycleUid) != (
            holder.principal,
            holder.uid,
        ):
            raise QuestionChanged(view.endpoint, view.token, "holder")
        if detail.prompt_digest is None:
            raise AnswerHidden(view.endpoint, view.token)
        if detail.prompt_digest != prompt_digest(question.prompt):
            raise QuestionChanged(view.endpoint, view.token, "prompt")
        return Asked(view, _settlement(detail))


def _settlement(detail: CheckpointDetail) -> Settlement | None:
    view = detail.checkpoint
    if view.state == "waiting" or view.settled_at_ms is None:
        return None
    if view.answer_id is not None and detail.answer is None:
        raise AnswerHidden(view.endpoint, view.token)
    return Settlement(
        endpoint=view.endpoint,
        token=view.token,
        outcome=view.state,
        answer=(detail.answer or {}).get("value"),
        answered_by=view.settled_holder.id if view.settled_holder else None,
        deadline_at_ms=view.deadline_at_ms,
        settled_at_ms=view.settled_at_ms,
    )
