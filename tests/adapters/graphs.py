"""A graph with one interrupt in each of its parallel branches."""

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    """What the branches were answered: ``[branch, answer]``."""

    log: Annotated[list[list[Any]], operator.add]


def graph_of(
    saver: "BaseCheckpointSaver[Any]",
    effects: Path,
    questions: dict[str, Any],
    *,
    takes_s: float = 0.0,
) -> "CompiledStateGraph[Any, Any, Any, Any]":
    """A branch per question; each asks, then has an effect, a line in ``effects``.

    What takes a while leaves time for a second process to fall into it.
    """
    builder = StateGraph(State)
    for name, question in questions.items():
        builder.add_node(name, _branch(name, question, effects, takes_s))
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=saver)


def _branch(name: str, question: Any, effects: Path, takes_s: float) -> Any:
    async def branch(_: State) -> State:
        answer = interrupt(question)
        with effects.open("a") as lines:
            lines.write(f"{name}\n")
        await asyncio.sleep(takes_s)
        return {"log": [[name, answer]]}

    return branch
