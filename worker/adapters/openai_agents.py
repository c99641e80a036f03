"""OpenAI Agents SDK: a tool call that needs approval becomes a checkpoint.

``pip install 'tidegate[openai-agents]'``. The run's state is kept by a ``RunStore`` of yours;
Tidegate stores none of it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeAlias

from pydantic_core import to_json, to_jsonable_python

from schemas.model import Message
from schemas.subjects import Speaker
from schemas.views import CheckpointView
from worker.adapters.asking import Asked, Asker, Settlement
from worker.adapters.clock import BrokerTime
from worker.adapters.errors import BadQuestion, MissingExtra, NothingToRun, RunInDoubt
from worker.adapters.lease import DEFAULT_LEASE_MS, Leases
from worker.adapters.questions import Question, prompt_of, with_block, with_json
from worker.adapters.runstore import FileRunStore, RunStore
from worker.adapters.tokens import token_of
from worker.client import Client

try:
    from agents import (
        Agent,
        RunContextWrapper,
        Runner,
        RunResult,
        RunState,
        ToolApprovalItem,
        TResponseInputItem,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("agents", "openai"):
        raise
    raise MissingExtra(__name__, "openai-agents") from error

__all__ = [
    "APPROVE",
    "DENY",
    "Decision",
    "FileRunStore",
    "Gate",
    "Progress",
    "RunInput",
    "RunStore",
    "Runs",
    "decide",
    "question_of",
    "run_it",
]

APPROVE: Final = "approve"
DENY: Final = "deny"
KIND: Final = "oa"

DENIED: Final = "The person who was asked did not approve this call."
TOO_LATE: Final = "Nobody answered in time, so this call was not approved."

RunInput: TypeAlias = str | list[TResponseInputItem]
Runs: TypeAlias = Callable[[Agent[Any], RunInput | RunState[Any], Any], Awaitable[RunResult]]
"""Runs an agent from an input or a state, with a context (``None`` with a state, which has it)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a settlement means for the call.

    Attributes:
        approve: Whether the call may be made.
        message: What the model is told if not.
    """

    approve: bool
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        output: The run's final output as plain JSON, the same before and after a restart; ``None``
            while it waits.
        waiting: Checkpoints the run waits for; empty if it has ended.
        result: The SDK's own result, if the run ended in this call.
    """

    output: Any
    waiting: tuple[CheckpointView, ...]
    result: RunResult | None = None

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return not self.waiting


def question_of(item: ToolApprovalItem) -> Question:
    """The question that a tool call asks: may this agent call this tool with these arguments?

    The agent's name, the tool's name and **all arguments** of the call are put into the
    checkpoint's prompt: in the clear in the records bucket, readable by the endpoint's minters, the
    holder and operators. Nothing else of the conversation is. Arguments that may hold secrets need
    a function of your own in place of this one. The choices are ``approve`` and ``deny``.

    Args:
        item: As the SDK reports it.

    Raises:
        BadQuestion: Naming ``arguments`` if they do not fit into a body of 32,768 characters,
            ``tool`` if the names do not fit into a title of 512.
    """
    call_id = item.call_id or ""
    agent = _name_of(item)
    tool = item.qualified_name or item.name or "a tool"
    try:
        prompt = prompt_of(
            call_id,
            {
                "title": f"May {agent} call {tool}?" if agent else f"Call {tool}?",
                "choices": [APPROVE, DENY],
                "requested_by": agent[:256] or None,
            },
        )
    except BadQuestion as bad:
        raise BadQuestion(call_id, "tool", bad.why) from None
    if not item.arguments:
        return Question(prompt)
    try:
        arguments = json.loads(item.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return Question(with_block(call_id, prompt, "arguments", item.arguments))
    return Question(with_json(call_id, prompt, "arguments", arguments))


def decide(settlement: Settlement) -> Decision:
    """Only the answer ``approve`` approves; any other answer, none at all and expiry reject."""
    if settlement.outcome == "expired":
        return Decision(approve=False, message=TOO_LATE)
    if settlement.answer == APPROVE:
        return Decision(approve=True)
    return Decision(approve=False, message=DENIED)


async def run_it(agent: Agent[Any], start: RunInput | RunState[Any], context: Any) -> RunResult:
    """``Runner.run`` with the SDK's own defaults."""
    return await Runner.run(agent, start, context=context)


class _Snapshot(Message):
    """What the store keeps of a run.

    Attributes:
        stage: ``running`` (a process is at it, or was cut off), ``waiting`` or ``ended``.
        state: The SDK's run state; absent in the first stretch of a run and at its end.
        output: The final output; ended only.
    """

    stage: Literal["running", "waiting", "ended"]
    state: dict[str, Any] | None = None
    output: Any = None


class Gate:
    """Runs an agent whose tool approvals are checkpoints.

    Args:
        agent: The agent a run starts with.
        client: An open client; its principal may mint at the endpoint and must be the same after a
            restart, since answers are shown to who minted.
        endpoint: Where checkpoints are minted, dotted.
        holder: Who may answer, unless a question names another.
        deadline_ms: How long a checkpoint may wait, unless a question says otherwise.
        store: Where runs are kept.
        question: What a tool call asks; the same call must give the same question.
        decision: What a settlement means.
        run_with: Runs the agent; give one to pass a ``RunConfig``, hooks or a session.
        lease_ms: How long a process that died keeps others from running its run.
    """

    def __init__(
        self,
        agent: Agent[Any],
        client: Client,
        *,
        endpoint: str,
        holder: Speaker,
        deadline_ms: int,
        store: RunStore,
        question: Callable[[ToolApprovalItem], Question] = question_of,
        decision: Callable[[Settlement], Decision] = decide,
        run_with: Runs = run_it,
        lease_ms: int = DEFAULT_LEASE_MS,
    ) -> None:
        clock = BrokerTime()
        self._agent = agent
        self._store = store
        self._question = question
        self._decision = decision
        self._run_with = run_with
        self._asker = Asker(
            client, endpoint=endpoint, holder=holder, deadline_ms=deadline_ms, clock=clock
        )
        self._leases = Leases(client, endpoint=endpoint, lease_ms=lease_ms, clock=clock)

    async def run(
        self,
        run_id: str,
        *,
        input: RunInput | None = None,
        context: Any = None,
        wait_ms: int | None = None,
        on_doubt: Literal["refuse", "rerun"] = "refuse",
    ) -> Progress:
        """Run an agent to its end, pausing at every tool call that needs approval.

        Call it again with the same arguments after a crash, from any process: it goes on where the
        run stands. A call's checkpoint is minted once, since its token derives from the run's and
        the call's id, and its deadline counts from that mint; a settlement that happened while
        nobody ran the run is taken up; a run that has ended is not run again. One process at a time
        runs a run.

        Before the agent runs, the store is told so. If the process dies while it runs, or the run
        raises, nobody knows which of its tools were called, and the run is refused from then on,
        unless ``on_doubt`` says to run it again from its last pause, with the same decisions.

        Of several calls that wait each is decided as soon as its checkpoint has settled.

        Args:
            run_id: The run, unique in the store and the endpoint.
            input: Given to the agent if nothing of the run is stored yet, else not looked at.
            context: The agent's context. A mapping is stored with the run and restored from there;
                any other object is not stored and is taken from this call.
            wait_ms: How long to wait for settlements; ``None`` waits until the run ends, 0 takes up
                what has settled and returns.
            on_doubt: What to do with a run that was cut off: ``refuse`` or ``rerun``.

        Raises:
            NothingToRun: Nothing of the run is stored, and there is no input.
            RunInDoubt: It was cut off while it ran.
            BadQuestion: A call cannot be asked; none of those beside it was minted.
            QuestionChanged: A repeated call asks something else than its checkpoint does.
            Busy: Another process ran the run for all of ``wait_ms``.
            LeaseLost: The broker was away for longer than the lease; the run is in doubt.
        """
        loop = asyncio.get_running_loop()
        until = None if wait_ms is None else loop.time() + wait_ms / 1000
        while True:
            progress = await self._leases.alone(
                run_id, lambda: self._advance(run_id, input, context, on_doubt), until=until
            )
            tokens = [checkpoint.token for checkpoint in progress.waiting]
            if not tokens or not await self._asker.wait_any(tokens, until=until):
                return progress

    async def _advance(
        self, run_id: str, input: RunInput | None, context: Any, on_doubt: str
    ) -> Progress:
        """Run until the run has ended or waits for what has not settled."""
        raw = await self._store.load(run_id)
        snapshot = None if raw is None else _Snapshot.model_validate_json(raw)
        result: RunResult | None = None
        while snapshot is None or snapshot.stage != "ended":
            if snapshot is not None and snapshot.stage == "waiting" and snapshot.state is not None:
                state = await self._restored(snapshot.state, context)
                asked = await self._decided(run_id, state)
                if asked is not None:
                    return Progress(None, tuple(one.checkpoint for one in asked))
                start: RunInput | RunState[Any] = state
            elif snapshot is not None and on_doubt == "refuse":
                raise RunInDoubt(run_id)
            elif snapshot is not None and snapshot.state is not None:
                start = await self._restored(snapshot.state, context)
            elif input is None:
                raise NothingToRun(run_id)
            else:
                start = input
            result = await self._stretch(run_id, start, context)
            snapshot = _after(result)
            await self._save(run_id, snapshot)
        return Progress(snapshot.output, (), result)

    async def _stretch(
        self, run_id: str, start: RunInput | RunState[Any], context: Any
    ) -> RunResult:
        """Run up to the next pause or the end; the store knows beforehand."""
        if isinstance(start, RunState):
            await self._save(run_id, _Snapshot(v=1, stage="running", state=_as_json(start)))
            return await self._run_with(self._agent, start, None)
        await self._save(run_id, _Snapshot(v=1, stage="running"))
        return await self._run_with(self._agent, start, context)

    async def _decided(self, run_id: str, state: RunState[Any]) -> list[Asked] | None:
        """Enter every decision there is into the state; what is waited for if there is none."""
        items = state.get_interruptions()
        questions = [self._question(item) for item in items]
        asked = [
            await self._asker.ask(token_of(KIND, run_id, _call_id(item)), question)
            for item, question in zip(items, questions, strict=True)
        ]
        if all(one.settlement is None for one in asked):
            return asked
        for item, one in zip(items, asked, strict=True):
            if one.settlement is None:
                continue
            decision = self._decision(one.settlement)
            if decision.approve:
                state.approve(item)
            else:
                state.reject(item, rejection_message=decision.message)
        return None

    async def _restored(self, state: dict[str, Any], context: Any) -> RunState[Any]:
        stored = context is None or isinstance(context, Mapping)
        override: RunContextWrapper[Any] | None = None if stored else RunContextWrapper(context)
        return await RunState.from_json(self._agent, state, context_override=override)

    async def _save(self, run_id: str, snapshot: _Snapshot) -> None:
        await self._store.save(run_id, to_json(snapshot))


def _after(result: RunResult) -> _Snapshot:
    if result.interruptions:
        return _Snapshot(v=1, stage="waiting", state=_as_json(result.to_state()))
    return _Snapshot(
        v=1, stage="ended", output=to_jsonable_python(result.final_output, fallback=str)
    )


def _as_json(state: RunState[Any]) -> dict[str, Any]:
    return state.to_json(context_serializer=_not_stored)


def _refuse(_: str) -> NoReturn:
    raise ValueError


def _not_stored(_: Any) -> Mapping[str, Any]:
    """Contexts that are not mappings come from the caller, each time."""
    return {}


def _call_id(item: ToolApprovalItem) -> str:
    call_id = item.call_id
    if not call_id:
        raise BadQuestion(item.name or "a tool", "call_id", "the call has no id to be known by")
    return call_id


def _name_of(item: ToolApprovalItem) -> str:
    name = getattr(item.agent, "name", None)
    return name if isinstance(name, str) else ""
