"""What was approved is what runs: a node that asks something else does not get the answer."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from langgraph.types import interrupt as ask
from pydantic import BaseModel

from tests.adapters.graphs import State
from tests.adapters.people import lines
from tests.adapters.test_langgraph import Ground, ground
from worker.adapters import QuestionChanged
from worker.adapters.interrupts import compare_at_interrupts

__all__ = ["ground"]

pytestmark = pytest.mark.usefixtures("worker")


class Verdict(BaseModel):
    """An answer that LangGraph validates."""

    approve: bool


def pays(ground: Ground, asked: Callable[[], list[Any]], schema: Any = None) -> Any:
    """A node that asks each question in turn, then pays what it last asked for."""

    def pay(_: State) -> State:
        answers = []
        for question in asked():
            answers.append(ask(question, response_schema=schema))
        with ground.effects.open("a") as effects:
            effects.write(json.dumps([question, *map(str, answers)]) + "\n")
        return {"log": [["pay", str(answers)]]}

    node: Any = pay
    return StateGraph(State).add_node("pay", node).add_edge(START, "pay")


def pay(amount: int, **more: Any) -> dict[str, Any]:
    return {"title": "Pay?", "payload": {"amount": amount, "to": "acme"}, **more}


@pytest.mark.parametrize("schema", [None, {"type": "string"}])
async def test_a_node_that_asks_for_more_than_was_approved_gets_no_answer(
    ground: Ground, schema: Any
) -> None:
    asked = [pay(100)]
    graph = pays(ground, lambda: asked, schema).compile(checkpointer=InMemorySaver())
    async with ground.gate({}, graph=graph) as gate:
        (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
        await ground.maria.answer(checkpoint.token, "approve")
        asked[0] = pay(100_000)
        for _ in range(2):
            with pytest.raises(QuestionChanged) as changed:
                await gate.run("t1", wait_ms=0)
            assert changed.value.token == checkpoint.token
        assert lines(ground.effects) == []
        asked[0] = pay(100)
        assert (await gate.run("t1", wait_ms=0)).ended
    assert json.loads(lines(ground.effects)[0]) == [pay(100), "approve"]


async def test_an_answer_with_a_schema_is_compared_and_validated(ground: Ground) -> None:
    asked = [pay(100)]
    graph = pays(ground, lambda: asked, Verdict).compile(checkpointer=InMemorySaver())
    async with ground.gate({}, graph=graph) as gate:
        (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
        shown = await ground.maria.shown(checkpoint.token)
        assert shown.prompt is not None
        assert shown.prompt["answer_schema"]["required"] == ["approve"]
        await ground.maria.answer(checkpoint.token, {"approve": True})
        asked[0] = pay(100_000)
        with pytest.raises(QuestionChanged):
            await gate.run("t1", wait_ms=0)
        asked[0] = pay(100)
        progress = await gate.run("t1", wait_ms=0)
    assert progress.values["log"] == [["pay", "[Verdict(approve=True)]"]]


async def test_the_first_of_two_questions_changes_after_the_second_was_answered(
    ground: Ground,
) -> None:
    asked = [pay(100), {"title": "Sure?"}]
    inner = pays(ground, lambda: asked).compile(checkpointer=True)
    outer = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    graph = outer.compile(checkpointer=InMemorySaver())
    async with ground.gate({}, graph=graph) as gate:
        for _ in range(2):
            (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
            await ground.maria.answer(checkpoint.token, "approve")
        asked[0] = pay(100_000)
        with pytest.raises(QuestionChanged):
            await gate.run("t1", wait_ms=0)
        # Nor does it help to ask the approved ones in another order.
        asked.reverse()
        asked[1] = pay(100)
        with pytest.raises(QuestionChanged):
            await gate.run("t1", wait_ms=0)
    assert lines(ground.effects) == []


async def test_one_branch_changes_beside_one_that_does_not(ground: Ground) -> None:
    amounts = {"one": 1, "two": 2}

    def branch(name: str) -> Any:
        def node(_: State) -> State:
            answer = ask(pay(amounts[name]))
            with ground.effects.open("a") as effects:
                effects.write(f"{name} {amounts[name]}\n")
            return {"log": [[name, answer]]}

        return node

    builder = StateGraph(State)
    for name in amounts:
        builder.add_node(name, branch(name)).add_edge(START, name)
    async with ground.gate({}, graph=builder.compile(checkpointer=InMemorySaver())) as gate:
        for checkpoint in (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting:
            await ground.maria.answer(checkpoint.token, "approve")
        amounts["two"] = 2_000
        with pytest.raises(QuestionChanged):
            await gate.run("t1", wait_ms=0)
    assert "two 2000" not in lines(ground.effects)


async def test_the_same_question_in_another_order_or_with_less_time_is_the_same(
    ground: Ground,
) -> None:
    asked = [pay(100, deadline_ms=60_000)]
    graph = pays(ground, lambda: asked).compile(checkpointer=InMemorySaver())
    async with ground.gate({}, graph=graph) as gate:
        (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
        await ground.maria.answer(checkpoint.token, "approve")
        asked[0] = {
            "deadline_ms": 50_000,
            "payload": {"to": "acme", "amount": 100},
            "title": "Pay?",
        }
        assert (await gate.run("t1", wait_ms=0)).ended


async def test_a_thread_that_no_gate_runs_gets_no_bare_answer(ground: Ground) -> None:
    """Its process has not compared, so what it reads is no answer to anything."""
    program = """
import sys, json
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from tests.adapters.graphs import State
said = lambda state: {"log": [["pay", interrupt({"title": "Pay?"})]]}
builder = StateGraph(State).add_node("pay", said).add_edge(START, "pay")
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    done = builder.compile(checkpointer=saver).invoke(None, {"configurable": {"thread_id": "t1"}})
print(json.dumps(done["log"]))
"""
    died = iter([True, False])

    def answered(_: State) -> State:
        answer = ask({"title": "Pay?"})
        if next(died):
            raise ConnectionError
        return {"log": [["pay", answer]]}

    node: Any = answered

    async with AsyncSqliteSaver.from_conn_string(str(ground.database)) as saver:
        builder = StateGraph(State).add_node("pay", node).add_edge(START, "pay")
        async with ground.gate({}, graph=builder.compile(checkpointer=saver)) as gate:
            (checkpoint,) = (await gate.run("t1", input={"log": []}, wait_ms=0)).waiting
            await ground.maria.answer(checkpoint.token, "approve")
            with pytest.raises(ConnectionError):
                await gate.run("t1", wait_ms=0)
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(ground.database)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    said, _ = await done.communicate()
    ((_, given),) = json.loads(said)
    assert given["tidegate"] == "answered"


async def test_a_graph_that_no_gate_runs_is_left_alone() -> None:
    compare_at_interrupts()
    compare_at_interrupts()

    class Plain(TypedDict, total=False):
        said: Any

    builder = StateGraph(Plain).add_edge(START, "n")
    builder.add_node("n", lambda _: {"said": ask("?", response_schema=Verdict)})
    graph = builder.compile(checkpointer=InMemorySaver())
    at: Any = {"configurable": {"thread_id": "t"}}
    (found,) = (await graph.ainvoke({}, at))["__interrupt__"]
    assert found.response_schema["title"] == "Verdict"
    done = await graph.ainvoke(Command(resume={"approve": False}), at)
    assert done["said"] == Verdict(approve=False)
