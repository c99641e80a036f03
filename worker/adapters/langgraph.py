"""LangGraph: an ``interrupt()`` becomes a checkpoint, its settlement resumes the graph.

``pip install 'tidegate[langgraph]'``. The graph needs an async checkpointer that survives a restart
(``AsyncSqliteSaver``, ``AsyncPostgresSaver``); Tidegate stores none of the graph's state.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, TypeGuard

from schemas.subjects import Speaker
from schemas.views import CheckpointView
from worker.adapters.asking import Asked, Asker, Settlement
from worker.adapters.clock import BrokerTime
from worker.adapters.errors import BadQuestion, MissingExtra, NothingToRun
from worker.adapters.interrupts import answered, compare_at_interrupts
from worker.adapters.lease import DEFAULT_LEASE_MS, Leases
from worker.adapters.questions import Question, duration_of, prompt_of, with_json
from worker.adapters.tokens import token_of
from worker.client import Client

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.pregel import Pregel
    from langgraph.types import Command, Interrupt, StateSnapshot
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("langgraph", "langchain_core"):
        raise
    raise MissingExtra(__name__, "langgraph") from error

KIND: Final = "lg"
FIELDS: Final = frozenset(
    {"title", "body", "payload", "choices", "answer_schema", "requested_by", "deadline_ms"}
)


class Expired(TypedDict):
    """What ``interrupt()`` returns when nobody answered in time; see ``is_expired``.

    A plain object, so that every checkpointer can store it.

    Attributes:
        tidegate: Always ``expired``.
        endpoint: The checkpoint's endpoint.
        token: Its token.
        deadline_at_ms: The deadline that passed, ms since the epoch of Unix.
        settled_at_ms: When it expired, by the broker's clock.
    """

    tidegate: Literal["expired"]
    endpoint: str
    token: str
    deadline_at_ms: int
    settled_at_ms: int


def is_expired(value: object) -> TypeGuard[Expired]:
    """Whether what ``interrupt()`` returned means that nobody answered in time.

    A holder who files such an object as an answer says that it expired; restrict answers with
    ``choices`` where that matters.
    """
    return isinstance(value, dict) and value.get("tidegate") == "expired"


def question_of(interrupt: Interrupt[Any]) -> Question:
    """The question that an interrupt's value asks.

    Text is the title. An object has a ``title`` and may have ``body`` (Markdown), ``payload`` (any
    JSON, shown under the body), ``choices``, ``answer_schema``, ``requested_by`` and
    ``deadline_ms``. The interrupt's ``response_schema`` stands for a missing ``answer_schema``.

    All of these fields, and nothing else of the graph, are put into the checkpoint's prompt: in the
    clear in the records bucket, readable by the endpoint's minters, the holder and operators. A
    value that may hold secrets needs a function of its own in place of this one.

    Args:
        interrupt: As LangGraph reports it.

    Raises:
        BadQuestion: Naming the field that is missing, unknown, not JSON or too large: a title has
            at most 512 characters, a body with its payload 32,768, and there are at most 64
            choices of 256.
    """
    value = interrupt.value
    if isinstance(value, str):
        value = {"title": value}
    if not isinstance(value, Mapping):
        raise BadQuestion(
            interrupt.id, "value", "its value is neither text nor an object with a title"
        )
    if unknown := [str(name) for name in value if name not in FIELDS]:
        field = unknown[0][:64]
        raise BadQuestion(
            interrupt.id,
            field,
            f"field {field} is not known; fields are {', '.join(sorted(FIELDS))}",
        )
    schema = interrupt.response_schema if isinstance(interrupt.response_schema, dict) else None
    prompt = prompt_of(
        interrupt.id,
        {
            "title": value.get("title"),
            "body": value.get("body"),
            "choices": value.get("choices"),
            "answer_schema": value.get("answer_schema", schema),
            "requested_by": value.get("requested_by"),
        },
    )
    if "payload" in value:
        prompt = with_json(interrupt.id, prompt, "payload", value["payload"])
    return Question(prompt, duration_of(interrupt.id, value.get("deadline_ms")))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a thread has come.

    Attributes:
        values: The graph's state.
        waiting: Checkpoints the thread waits for; empty if the graph has ended.
    """

    values: Any
    waiting: tuple[CheckpointView, ...]

    @property
    def ended(self) -> bool:
        """Whether the graph has run to its end."""
        return not self.waiting


class Gate:
    """Runs a graph whose interrupts are checkpoints.

    Args:
        graph: A compiled graph with an async checkpointer.
        client: An open client; its principal may mint at the endpoint and must be the same after a
            restart, since answers are shown to who minted.
        endpoint: Where checkpoints are minted, dotted.
        holder: Who may answer, unless a question names another.
        deadline_ms: How long a checkpoint may wait, unless an interrupt says otherwise.
        question: What an interrupt asks; the same interrupt must give the same question.
        lease_ms: How long a process that died keeps others from running its thread.
    """

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        client: Client,
        *,
        endpoint: str,
        holder: Speaker,
        deadline_ms: int,
        question: Callable[[Interrupt[Any]], Question] = question_of,
        lease_ms: int = DEFAULT_LEASE_MS,
    ) -> None:
        compare_at_interrupts()
        clock = BrokerTime()
        self._graph = graph
        self._question = question
        self._asker = Asker(
            client, endpoint=endpoint, holder=holder, deadline_ms=deadline_ms, clock=clock
        )
        self._leases = Leases(client, endpoint=endpoint, lease_ms=lease_ms, clock=clock)

    async def run(
        self,
        thread_id: str,
        *,
        input: Any = None,
        config: RunnableConfig | None = None,
        wait_ms: int | None = None,
    ) -> Progress:
        """Run a thread until its graph has ended, pausing at every interrupt.

        Call it again with the same arguments after a crash, from any process: it goes on where the
        thread stands. An interrupt is minted once, since its token derives from the thread's and
        the interrupt's id, and its deadline counts from that mint; a settlement that happened while
        nobody ran the thread is taken up; an answered interrupt is not answered again. One process
        at a time runs a thread. A node that was cut off runs again from its start, as LangGraph
        always does it, with the answers it had: what it does to the world after ``interrupt()`` may
        then be done again.

        ``interrupt()`` returns what the holder answered, ``None`` if nothing was filed, or an
        ``Expired``, which a ``response_schema`` that validates must accept too. Of several
        interrupts each goes on as soon as it has settled.

        Args:
            thread_id: The thread.
            input: Given to the graph if nothing of the thread is stored yet, else not looked at.
            config: More configuration; its ``thread_id`` is set here.
            wait_ms: How long to wait for settlements; ``None`` waits until the graph ends, 0 takes
                up what has settled and returns.

        Raises:
            NothingToRun: Nothing of the thread is stored, and there is no input.
            BadQuestion: An interrupt cannot be asked; none of those beside it was minted.
            QuestionChanged: A repeated node asks something else than its checkpoint does; it is not
                given the answer, at the moment at which it asks.
            Busy: Another process ran the thread for all of ``wait_ms``.
            LeaseLost: The broker was away for longer than the lease; call again.
            ValueError: The configuration names a checkpoint: threads are run at their head.
        """
        at = _at(thread_id, config)
        loop = asyncio.get_running_loop()
        until = None if wait_ms is None else loop.time() + wait_ms / 1000
        while True:
            progress = await self._leases.alone(
                thread_id, lambda: self._advance(thread_id, at, input), until=until
            )
            tokens = [checkpoint.token for checkpoint in progress.waiting]
            if not tokens or not await self._asker.wait_any(tokens, until=until):
                return progress

    async def _advance(self, thread_id: str, at: RunnableConfig, input: Any) -> Progress:
        """Run until the graph has ended or waits for what has not settled."""
        snapshot = await self._graph.aget_state(at)
        if snapshot.created_at is None:
            if input is None:
                raise NothingToRun(thread_id)
            snapshot = await self._step(input, at)
        while snapshot.next or snapshot.interrupts:
            if not snapshot.interrupts:
                snapshot = await self._step(None, at)
                continue
            asked = await self._ask(thread_id, snapshot.interrupts)
            answers = {
                interrupt.id: answered(
                    interrupt.value, one.settlement, _resumed_with(one.settlement)
                )
                for interrupt, one in zip(snapshot.interrupts, asked, strict=True)
                if one.settlement is not None
            }
            if not answers:
                return Progress(snapshot.values, tuple(one.checkpoint for one in asked))
            snapshot = await self._step(Command(resume=answers), at)
        return Progress(snapshot.values, ())

    async def _step(self, input: Any, at: RunnableConfig) -> StateSnapshot:
        await self._graph.ainvoke(input, at, durability="sync")
        return await self._graph.aget_state(at)

    async def _ask(self, thread_id: str, interrupts: tuple[Interrupt[Any], ...]) -> list[Asked]:
        questions = [self._question(interrupt) for interrupt in interrupts]
        return [
            await self._asker.ask(token_of(KIND, thread_id, interrupt.id), question)
            for interrupt, question in zip(interrupts, questions, strict=True)
        ]


def _at(thread_id: str, config: RunnableConfig | None) -> RunnableConfig:
    given = dict((config or {}).get("configurable") or {})
    if addressed := given.keys() & {"checkpoint_id", "checkpoint_ns"}:
        raise ValueError(f"config may not name a {sorted(addressed)[0]}: a thread runs at its head")
    at: RunnableConfig = {**(config or {}), "configurable": {**given, "thread_id": thread_id}}
    return at


def _resumed_with(settlement: Settlement) -> Any:
    if settlement.outcome == "resumed":
        return settlement.answer
    return Expired(
        tidegate="expired",
        endpoint=settlement.endpoint,
        token=settlement.token,
        deadline_at_ms=settlement.deadline_at_ms,
        settled_at_ms=settlement.settled_at_ms,
    )
