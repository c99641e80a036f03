"""Typed calls of the checkpoint plane (spec/checkpoints.md, Verbs)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from schemas.commands.cp import (
    Expire,
    Heartbeat,
    ListQuery,
    Mint,
    Repair,
    ShowQuery,
    WaitQuery,
)
from schemas.model import Closed
from schemas.records import Goal, Obligation, PromptRecord
from schemas.results import Result
from schemas.strict_json import JsonObject
from schemas.subjects import Checkpoint, Speaker
from schemas.views import CheckpointDetail, CheckpointView
from worker.client import given
from worker.client.errors import Answer, NobodyThere, QueryTimeout, Refused
from worker.client.given import When
from worker.errors import ClientError

NO_ANSWER: Final = object()
"""Resume without filing an answer; ``None`` would file null."""

LONGEST_POLL_MS: Final = 30_000
POLL_SLACK_MS: Final = 2_000
RETRY_S: Final = 0.5


class Calls(Protocol):
    """What this module needs of a client; see ``worker.client.core.Client``."""

    async def call(
        self,
        plane: str,
        verb: str,
        key: Sequence[str],
        body: Closed | Mapping[str, Any],
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        """Send a command and return its result."""
        ...

    async def query(
        self,
        plane: str,
        name: str,
        body: Closed | Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
    ) -> Answer:
        """Ask a worker."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a checkpoint verb led to.

    Attributes:
        word: Stable word of the verb: ``minted``, ``extended``, ``resumed``, ``expired``, …
        checkpoint: The checkpoint as it stands now.
        result: The whole result.
    """

    word: str
    checkpoint: CheckpointView
    result: Result


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did.

    Attributes:
        repairs: ``expired``, ``rearmed``, ``fact-published``, ``timer-cancelled``,
            ``status-restored``; empty if nothing was amiss.
        checkpoint: The checkpoint as it stands now.
        result: The whole result.
    """

    repairs: tuple[str, ...]
    checkpoint: CheckpointView
    result: Result


@dataclass(frozen=True, slots=True)
class Page:
    """One page of waiting checkpoints.

    Attributes:
        items: The checkpoints.
        next_cursor: Asks for the page after this one; ``None`` on the last.
    """

    items: tuple[CheckpointView, ...]
    next_cursor: str | None


class Settled(CheckpointView):
    """A checkpoint that has settled, and what was answered.

    It is neither true nor false: a run that was resumed may have been answered with a no.

    Attributes:
        answer: The record of the answer; ``None`` if there is none, or it is not for our eyes.
    """

    answer: dict[str, Any] | None = None

    @property
    def resumed(self) -> bool:
        """Whether its holder let the run go on, with whatever answer; else it expired."""
        return self.state == "resumed"

    @property
    def value(self) -> Any:
        """What was answered; ``None`` if nothing was, or it is not for our eyes."""
        return None if self.answer is None else self.answer.get("value")

    def __bool__(self) -> bool:
        """Refuse to be asked: see ``resumed`` and ``value``."""
        raise TypeError("a settlement is neither true nor false; ask for .resumed and .value")


class Checkpoints:
    """The verbs and queries of the plane ``cp``; errors are those of ``Client.call``."""

    def __init__(self, client: Calls) -> None:
        self._client = client

    async def mint(
        self,
        endpoint: str,
        token: str,
        *,
        deadline_at_ms: When,
        holder: Speaker | str | None = None,
        goal: Goal | None = None,
        obligations: Sequence[Obligation] | None = None,
        prompt: PromptRecord | Mapping[str, Any] | None = None,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Outcome:
        """Pause a run until a deadline; the speaker is the holder unless another is named.

        Idempotent: the same mint by another command answers ``already_minted``.

        Args:
            endpoint: Its endpoint, dotted.
            token: Its token, never used before.
            deadline_at_ms: Milliseconds since 1970, or a ``datetime`` with a zone.
            holder: Who may resume: a ``Speaker``, or ``principal.uid``.
            goal: What it is part of.
            obligations: What it owes; with a goal only.
            prompt: What a person is asked: the record, or its fields (``{"title": "Ship?"}``).
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            BadInput: An argument cannot be; nothing was sent.
            Refused: ``conflict`` if the token was minted before with other terms.
        """
        body = Mint.from_object(
            {
                "v": 1,
                "deadline_at_ms": given.instant_ms("deadline_at_ms", deadline_at_ms),
                "holder": given.holder(holder),
                "goal": goal.to_object() if goal else None,
                "obligations": [item.to_object() for item in obligations] if obligations else None,
                "prompt": given.prompt(prompt),
            }
        )
        return await self._verb("mint", endpoint, token, body, command_id, timeout_ms)

    async def heartbeat(
        self,
        endpoint: str,
        token: str,
        *,
        generation: int,
        deadline_at_ms: When,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Outcome:
        """Move a waiting checkpoint's deadline, earlier or later.

        Args:
            endpoint: Its endpoint, dotted.
            token: Its token.
            generation: The generation being extended.
            deadline_at_ms: The new one: milliseconds since 1970, or a ``datetime`` with a zone.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            Refused: ``conflict`` if another generation is in force or it is settled, ``expired``
                if it is due.
        """
        at_ms = given.instant_ms("deadline_at_ms", deadline_at_ms)
        body = Heartbeat.from_object({"v": 1, "generation": generation, "deadline_at_ms": at_ms})
        return await self._verb("heartbeat", endpoint, token, body, command_id, timeout_ms)

    async def resume(
        self,
        endpoint: str,
        token: str,
        *,
        answer: Any = NO_ANSWER,
        artifact: str | None = None,
        prompt_digest: str | None = None,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Outcome:
        """Let the run go on; only its holder may.

        Args:
            endpoint: Its endpoint, dotted.
            token: Its token.
            answer: Any JSON value to file; ``None`` files null.
            artifact: Digest of what the holder was shown.
            prompt_digest: Refuses unless the stored prompt digests to it.
            command_id: One per intent; a new one if absent.
            timeout_ms: How long to wait for the result.

        Raises:
            Refused: ``permission-denied`` if the speaker is not the holder, ``expired`` if the
                deadline came first, ``conflict`` if it was resumed before.
        """
        body: JsonObject = {"v": 1}
        if answer is not NO_ANSWER:
            body["answer"] = answer
        if artifact is not None:
            body["artifact"] = artifact
        if prompt_digest is not None:
            body["prompt_digest"] = prompt_digest
        return await self._verb("resume", endpoint, token, body, command_id, timeout_ms)

    async def expire(
        self,
        endpoint: str,
        token: str,
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Outcome:
        """Settle a checkpoint whose deadline has passed; a settled one answers as it is.

        Raises:
            Refused: ``failed-precondition`` if it is not due.
        """
        return await self._verb("expire", endpoint, token, Expire(v=1), command_id, timeout_ms)

    async def repair(
        self,
        endpoint: str,
        token: str,
        *,
        command_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> Repaired:
        """Run the sweep for one checkpoint and say what it did."""
        target = Checkpoint(endpoint, token)
        result = await self._client.call(
            "cp",
            "repair",
            (target.wire_endpoint, target.token),
            Repair(v=1),
            command_id=command_id,
            timeout_ms=timeout_ms,
        )
        shown = dict(result.data)
        repairs = tuple(shown.pop("repairs"))
        return Repaired(repairs, CheckpointView.from_object(shown), result)

    async def show(
        self, endpoint: str, token: str, *, timeout_ms: int | None = None
    ) -> CheckpointDetail:
        """Everything there is about one checkpoint.

        Raises:
            Refused: ``not-found`` if there is none.
        """
        answer = await self._client.query(
            "cp", "show", ShowQuery(endpoint=endpoint, token=token), timeout_ms=timeout_ms
        )
        return CheckpointDetail.from_object(answer.data)

    async def list(
        self,
        *,
        endpoint: str | None = None,
        holder: str | None = None,
        due_before_ms: When | None = None,
        limit: int = 100,
        cursor: str | None = None,
        timeout_ms: int | None = None,
    ) -> Page:
        """One page of waiting checkpoints."""
        body = ListQuery.from_object(
            {
                "endpoint": endpoint,
                "holder": holder,
                "due_before_ms": None
                if due_before_ms is None
                else given.instant_ms("due_before_ms", due_before_ms),
                "limit": limit,
                "cursor": cursor,
            }
        )
        answer = await self._client.query("cp", "list", body, timeout_ms=timeout_ms)
        items = tuple(
            CheckpointView.from_object({"state": "waiting", **item})
            for item in answer.data["items"]
        )
        return Page(items, answer.data.get("next_cursor"))

    async def pages(
        self,
        *,
        endpoint: str | None = None,
        holder: str | None = None,
        due_before_ms: When | None = None,
        limit: int = 1_000,
    ) -> AsyncIterator[Page]:
        """Every page of waiting checkpoints, one after another."""
        cursor: str | None = None
        while True:
            page = await self.list(
                endpoint=endpoint,
                holder=holder,
                due_before_ms=due_before_ms,
                limit=limit,
                cursor=cursor,
            )
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def wait_settled(self, endpoint: str, token: str, *, timeout_ms: int) -> "Settled":
        """Wait until a checkpoint has settled, through restarts of workers and broker.

        What was answered is there too, for whoever may see it.

        Args:
            endpoint: Its endpoint, dotted.
            token: Its token.
            timeout_ms: How long to wait.

        Raises:
            QueryTimeout: It has not settled by then.
            Refused: There is no such checkpoint.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        while (left_ms := int((until - loop.time()) * 1000)) > 0:
            poll_ms = min(left_ms, LONGEST_POLL_MS)
            body = WaitQuery(endpoint=endpoint, token=token, timeout_ms=poll_ms)
            try:
                answer = await self._client.query(
                    "cp", "wait", body, timeout_ms=poll_ms + POLL_SLACK_MS
                )
            except (QueryTimeout, NobodyThere):
                await asyncio.sleep(RETRY_S)
            except Refused as refused:
                if not refused.retryable:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                if answer.outcome == "settled":
                    return await self._settled(endpoint, token, answer.data)
        raise QueryTimeout("the checkpoint has not settled in time")

    async def _settled(self, endpoint: str, token: str, data: JsonObject) -> "Settled":
        settled = Settled.from_object(data)
        if settled.answer_id is None:
            return settled
        try:
            detail = await self.show(endpoint, token)
        except ClientError:
            return settled
        return settled.model_copy(update={"answer": detail.answer})

    async def _verb(
        self,
        verb: str,
        endpoint: str,
        token: str,
        body: Closed | JsonObject,
        command_id: str | None,
        timeout_ms: int | None,
    ) -> Outcome:
        target = Checkpoint(endpoint, token)
        result = await self._client.call(
            "cp",
            verb,
            (target.wire_endpoint, target.token),
            body,
            command_id=command_id,
            timeout_ms=timeout_ms,
        )
        return Outcome(result.outcome, CheckpointView.from_object(result.data), result)
