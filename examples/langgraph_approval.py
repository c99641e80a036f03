"""A LangGraph graph that asks before it deploys; run it: python examples/langgraph_approval.py.

It starts a worker of its own, or uses the one behind TIDEGATE_NATS_URL. It needs
``pip install 'tidegate[embedded,langgraph]' langgraph-checkpoint-sqlite``.
"""

import asyncio
import secrets
import tempfile
from pathlib import Path
from typing import Any, TypedDict

from beside import answer_as, clients
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from worker.adapters.langgraph import Gate, is_expired


class State(TypedDict, total=False):
    """What the graph knows."""

    version: str
    outcome: str


async def approve(state: State) -> State:
    """Ask; this node runs from its start again when the answer is there."""
    answer = interrupt(
        {
            "title": f"Deploy {state['version']} to production?",
            "payload": {"version": state["version"], "region": "eu"},
            "choices": ["approve", "deny"],
        }
    )
    if is_expired(answer):
        return {"outcome": "nobody answered, so nothing was deployed"}
    return {"outcome": "deployed" if answer == "approve" else "not deployed"}


def graph() -> "StateGraph[State, Any, Any, Any]":
    """One node that asks."""
    builder = StateGraph(State)
    builder.add_node("approve", approve)
    builder.add_edge(START, "approve")
    builder.add_edge("approve", END)
    return builder


async def main() -> None:
    """Approve, deny, and let one expire."""
    name = secrets.token_hex(4)
    endpoint = f"runs.deploys-{name}"
    with tempfile.TemporaryDirectory() as folder:
        async with (
            clients("agent", f"maria-{name}") as (agent, maria),
            AsyncSqliteSaver.from_conn_string(str(Path(folder) / "threads.db")) as saver,
        ):
            gate = Gate(
                graph().compile(checkpointer=saver),
                agent,
                endpoint=endpoint,
                holder=maria.speaker,
                deadline_ms=60_000,
            )
            for version, answer in (("2.4", "approve"), ("2.5", "deny")):
                answering = asyncio.create_task(answer_as(maria, endpoint, answer))
                # After a crash: the same call again, from any process.
                progress = await gate.run(f"deploy-{version}", input={"version": version})
                await answering
                print(f"{version}: {progress.values['outcome']}")

            impatient = Gate(
                graph().compile(checkpointer=saver),
                agent,
                endpoint=endpoint,
                holder=maria.speaker,
                deadline_ms=1_000,
            )
            progress = await impatient.run("deploy-2.6", input={"version": "2.6"})
            print(f"2.6: {progress.values['outcome']}")


if __name__ == "__main__":
    asyncio.run(main())
