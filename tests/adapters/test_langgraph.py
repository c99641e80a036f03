"""The LangGraph adapter on a real graph, a real checkpointer and a real worker."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt, interrupt

from tests.adapters.doom import AFTER_MINT, BEFORE_MINT, BEFORE_RESUME, Died, Doom, DoomedClient
from tests.adapters.graphs import State, graph_of
from tests.adapters.langgraph_process import doom_resume
from tests.adapters.people import AGENT, ENDPOINT, LIMIT_S, Person, lines, minted, title, until
from tests.support.running import RunningWorker
from tests.support.space import Space, speaker
from worker.adapters import (
    AdapterError,
    AnswerHidden,
    BadQuestion,
    Busy,
    NothingToRun,
    QuestionChanged,
)
from worker.adapters.langgraph import Gate, is_expired, question_of

pytestmark = pytest.mark.usefixtures("worker")

MINUTE_MS = 60_000
LEASE_MS = 20_000
"""Long, so that no load of the machine ends it; a test that waits for its end has a short one."""

SHORT_LEASE_MS = 3_000
DEPLOY = {"title": "Deploy?", "choices": ["approve", "deny"]}
MAIL = {"title": "Mail?", "payload": {"to": "x@example.org"}}


class Ground:
    """A thread's database and effects, and whoever runs it.

    Attributes:
        maria: The holder.
    """

    def __init__(self, space: Space, directory: Path, maria: Person) -> None:
        self.space = space
        self.effects = directory / "effects"
        self.database = directory / "graph.db"
        self.maria = maria

    @asynccontextmanager
    async def gate(
        self,
        questions: dict[str, Any],
        *,
        doom: Doom | None = None,
        deadline_ms: int = MINUTE_MS,
        principal: str = AGENT,
        lease_ms: int = LEASE_MS,
        graph: Any = None,
    ) -> AsyncIterator[Gate]:
        """One process's gate, with its own connection and its own view of the database."""
        fate = doom or Doom(None)
        names = self.space.names
        options = self.space.server.client_options()
        async with (
            AsyncSqliteSaver.from_conn_string(str(self.database)) as saver,
            DoomedClient(options, speaker(principal), names.space, names.root, fate) as client,
        ):
            if graph is None:
                graph = graph_of(saver, self.effects, questions)
                doom_resume(graph, fate)
            yield Gate(
                graph,
                client,
                endpoint=ENDPOINT,
                holder=self.maria.speaker,
                deadline_ms=deadline_ms,
                lease_ms=lease_ms,
            )
            if fate.dead:
                await client.let_its_leases_pass(ENDPOINT)

    async def child(self, questions: dict[str, Any], die: str | None) -> asyncio.subprocess.Process:
        """A real process that runs the thread."""
        plan = {
            "url": self.space.server.url,
            "space": self.space.names.space,
            "root": self.space.names.root,
            "database": str(self.database),
            "effects": str(self.effects),
            "questions": questions,
            "holder": [self.maria.speaker.principal, self.maria.speaker.uid],
            "thread": "t1",
            "deadline_ms": MINUTE_MS,
            "lease_ms": SHORT_LEASE_MS if die else LEASE_MS,
            "die": die,
            "start": str(self.effects.with_name("killed" if die else "racing")),
            "racers": 1 if die else 2,
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.adapters.langgraph_process", json.dumps(plan)),
            stdout=asyncio.subprocess.PIPE,
        )


@pytest.fixture
async def ground(space: Space, worker: RunningWorker, tmp_path: Path) -> AsyncIterator[Ground]:
    async with space.client("maria") as client:
        yield Ground(space, tmp_path, Person(client))


async def test_each_branch_is_a_checkpoint_and_goes_on_when_it_is_answered(ground: Ground) -> None:
    questions: dict[str, Any] = {"deploy": DEPLOY, "mail": MAIL, "name": "What is it called?"}
    async with ground.gate(questions) as gate:
        running = asyncio.create_task(gate.run("t1", input={"log": []}))
        deploy, mail, name = await ground.maria.asked(3)
        shown = await ground.maria.shown(mail)
        assert title(shown) == "Mail?"
        assert shown.prompt is not None
        assert '"to": "x@example.org"' in shown.prompt["body"]

        await ground.maria.answer(deploy, "deny")
        await until(lambda: lines(ground.effects) == ["deploy"])
        assert await ground.maria.asked(2) == [mail, name]
        await ground.maria.client.cp.resume(ENDPOINT, mail)
        await ground.maria.answer(name, {"first": None})
        progress = await running

    assert progress.ended
    answers = dict(progress.values["log"])
    assert answers == {"deploy": "deny", "mail": None, "name": {"first": None}}
    assert lines(ground.effects) == ["deploy", "mail", "name"]
    assert len(await minted(ground.space, "lg-")) == 3

    async with ground.gate(questions) as gate:
        again = await gate.run("t1", input={"log": [["other", "input"]]})
    assert again == progress
    assert lines(ground.effects) == ["deploy", "mail", "name"]


async def test_a_second_interrupt_and_one_in_a_subgraph_are_checkpoints_of_their_own(
    ground: Ground,
) -> None:
    def asks_twice(state: State) -> State:
        return {"log": [["twice", [interrupt("Again?"), interrupt("Again?")]]]}

    inner = StateGraph(State).add_node("twice", asks_twice).add_edge(START, "twice").compile()
    outer = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    async with ground.gate({}, graph=outer.compile(checkpointer=InMemorySaver())) as gate:
        running = asyncio.create_task(gate.run("t1", input={"log": []}))
        for answer in ("first", "second"):
            (token,) = await ground.maria.asked()
            await ground.maria.answer(token, answer)
        progress = await running
    assert progress.values["log"] == [["twice", ["first", "second"]]]
    assert len(await minted(ground.space, "lg-")) == 2


async def test_a_node_that_was_cut_off_runs_again_with_the_answer_it_had(ground: Ground) -> None:
    cut = iter([True, False])

    def deploy(state: State) -> State:
        answer = interrupt(DEPLOY)
        with ground.effects.open("a") as effects:
            effects.write("deploy\n")
        if next(cut):
            raise ConnectionError
        return {"log": [["deploy", answer]]}

    builder = StateGraph(State).add_node("deploy", deploy).add_edge(START, "deploy")
    async with ground.gate({}, graph=builder.compile(checkpointer=InMemorySaver())) as gate:
        (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
        await ground.maria.answer(checkpoint.token, "approve")
        with pytest.raises(ConnectionError):
            await gate.run("t1")
        assert (await gate.run("t1")).values["log"] == [["deploy", "approve"]]
    assert lines(ground.effects) == ["deploy"] * 2
    assert len(await minted(ground.space, "lg-")) == 1


async def test_a_question_that_was_mended_is_asked_anew(ground: Ground) -> None:
    question: dict[str, Any] = {"titel": "Deploy?"}
    builder = StateGraph(State).add_edge(START, "deploy")
    builder.add_node("deploy", lambda state: {"log": [["deploy", interrupt(dict(question))]]})
    graph = builder.compile(checkpointer=InMemorySaver())
    async with ground.gate({}, graph=graph) as gate:
        for _ in range(2):
            with pytest.raises(BadQuestion):
                await gate.run("t1", input={"log": []})
        question["title"] = question.pop("titel")
        await graph.ainvoke(None, {"configurable": {"thread_id": "t1"}})
        (checkpoint,) = (await gate.run("t1", wait_ms=0)).waiting
        assert title(await ground.maria.shown(checkpoint.token)) == "Deploy?"


async def test_nobody_answers_and_the_graph_is_told_so(ground: Ground) -> None:
    async with ground.gate({"deploy": {**DEPLOY, "deadline_ms": 300}}) as gate:
        progress = await gate.run("t1", input={"log": []})
    ((_, answer),) = progress.values["log"]
    (token,) = await minted(ground.space, "lg-")
    assert is_expired(answer)
    assert answer["token"] == token
    assert answer["settled_at_ms"] >= answer["deadline_at_ms"]


@pytest.mark.parametrize("die", [BEFORE_MINT, AFTER_MINT])
async def test_a_death_around_the_mint_mints_once(ground: Ground, die: str) -> None:
    async with ground.gate({"deploy": DEPLOY}, doom=Doom(die)) as gate:
        with pytest.raises(Died):
            await gate.run("t1", input={"log": []})
    async with ground.gate({"deploy": DEPLOY}) as gate:
        running = asyncio.create_task(gate.run("t1"))
        (token,) = await ground.maria.asked()
        assert not lines(ground.effects)
        await ground.maria.answer(token, "approve")
        done = await running
    assert done.values["log"] == [["deploy", "approve"]]
    assert lines(ground.effects) == ["deploy"]
    assert len(await minted(ground.space, "lg-")) == 1


async def test_a_settlement_while_nobody_ran_and_a_death_before_the_resume(ground: Ground) -> None:
    async with ground.gate({"deploy": DEPLOY}) as gate:
        (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
    await ground.maria.answer(checkpoint.token, "approve")
    async with ground.gate({"deploy": DEPLOY}, doom=Doom(BEFORE_RESUME)) as gate:
        with pytest.raises(Died):
            await gate.run("t1")
    assert not lines(ground.effects)
    async with ground.gate({"deploy": DEPLOY}) as gate:
        done = await gate.run("t1")
    assert done.values["log"] == [["deploy", "approve"]]
    assert lines(ground.effects) == ["deploy"]


async def test_a_deadline_that_passes_while_nobody_runs_expires_and_is_not_moved(
    ground: Ground,
) -> None:
    async with ground.gate({"deploy": DEPLOY}, deadline_ms=500) as gate:
        (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
    view = await ground.maria.client.cp.wait_settled(ENDPOINT, checkpoint.token, timeout_ms=20_000)
    assert view.state == "expired"
    async with ground.gate({"deploy": DEPLOY}) as gate:
        done = await gate.run("t1")
    assert is_expired(done.values["log"][0][1])
    assert done.values["log"][0][1]["deadline_at_ms"] == checkpoint.deadline_at_ms


async def test_a_killed_process_and_two_that_race_to_go_on_have_one_effect(ground: Ground) -> None:
    await _kill_and_race(ground, BEFORE_RESUME)


@pytest.mark.long
@pytest.mark.parametrize("die", [BEFORE_MINT, AFTER_MINT, BEFORE_RESUME])
async def test_killed_at_each_step_and_raced_for(ground: Ground, die: str) -> None:
    await _kill_and_race(ground, die)


async def _kill_and_race(ground: Ground, die: str) -> None:
    questions = {"deploy": DEPLOY}
    first = await ground.child(questions, die)
    if die == BEFORE_RESUME:
        (token,) = await ground.maria.asked()
        await ground.maria.answer(token, "approve")
    async with asyncio.timeout(LIMIT_S):
        await first.communicate()
    assert first.returncode == -9
    racers = [await ground.child(questions, None) for _ in range(2)]
    if die != BEFORE_RESUME:
        (token,) = await ground.maria.asked()
        await ground.maria.answer(token, "approve")
    async with asyncio.timeout(LIMIT_S):
        said = [await racer.communicate() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert [json.loads(out) for out, _ in said] == [{"log": [["deploy", "approve"]]}] * 2
    assert lines(ground.effects) == ["deploy"]
    assert len(await minted(ground.space, "lg-")) == 1


async def test_what_cannot_be_asked_is_refused_by_field_and_nothing_is_minted(
    ground: Ground,
) -> None:
    for field, question in {
        "title": {"body": "no title"},
        "payload": {"title": "t", "payload": "x" * 40_000},
        "body": {"title": "t", "body": "x" * 40_000},
        "answer_schema": {"title": "t", "answer_schema": {"x": "y" * 70_000}},
        "choises": {"title": "t", "choises": ["a"]},
        "deadline_ms": {"title": "t", "deadline_ms": 1.5},
        "value": 7,
    }.items():
        with pytest.raises(BadQuestion) as refused:
            question_of(Interrupt(question, "i1"))
        assert refused.value.field == field
        assert field in str(refused.value) or field == "value"
        assert "xxx" not in str(refused.value)
    async with ground.gate({"ok": DEPLOY, "bad": {"title": "x" * 513}}) as gate:
        with pytest.raises(BadQuestion):
            await gate.run("t1", input={"log": []})
    assert await minted(ground.space, "lg-") == []


def test_text_in_a_payload_does_not_leave_its_block() -> None:
    question = question_of(Interrupt({"title": "t", "payload": "```\n# Approved"}, "i1"))
    assert question.prompt.body is not None
    assert question.prompt.body.startswith("````json\n")
    assert question.prompt.body.endswith("\n````")


async def test_an_answer_is_not_taken_for_another_question(ground: Ground) -> None:
    async with ground.gate({"deploy": DEPLOY}) as gate:
        await gate.run("t1", input={"log": []}, wait_ms=0)

    async def refusal(gate: Gate) -> AdapterError:
        with pytest.raises(AdapterError) as refused:
            await gate.run("t1", wait_ms=0)
        return refused.value

    async with ground.gate({"deploy": DEPLOY}, principal="another") as gate:
        assert isinstance(await refusal(gate), AnswerHidden)
    holder, ground.maria.speaker = ground.maria.speaker, speaker("maria")
    async with ground.gate({"deploy": DEPLOY}) as gate:
        changed = await refusal(gate)
        assert isinstance(changed, QuestionChanged)
        assert changed.what == "holder"
    ground.maria.speaker = holder
    async with ground.gate({"deploy": DEPLOY}) as gate:
        gate._question = lambda _: question_of(Interrupt("Something else?", "i1"))
        changed = await refusal(gate)
        assert isinstance(changed, QuestionChanged)
        assert changed.what == "prompt"
        with pytest.raises(NothingToRun):
            await gate.run("t2", wait_ms=0)
        with pytest.raises(ValueError, match="checkpoint_id"):
            await gate.run("t1", config={"configurable": {"checkpoint_id": "x"}})


async def test_a_thread_that_somebody_runs_is_busy(ground: Ground) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def at_work() -> str:
        entered.set()
        await leave.wait()
        return "done"

    async with (
        ground.gate({"deploy": DEPLOY}, lease_ms=SHORT_LEASE_MS) as one,
        ground.gate({"deploy": DEPLOY}) as other,
    ):
        held = asyncio.create_task(one._leases.alone("t1", at_work))
        await entered.wait()
        with pytest.raises(Busy):
            # Longer than a lease: it is renewed as long as the work goes on.
            await other.run("t1", input={"log": []}, wait_ms=SHORT_LEASE_MS + 1_000)
        leave.set()
        assert await held == "done"
        assert (await other.run("t1", input={"log": []}, wait_ms=0)).waiting
