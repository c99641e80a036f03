"""An agent whose model answers from a script, decided by what it is shown; no network."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    Usage,
    function_tool,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from worker.adapters.openai_agents import RunInput


class TableDropper(Model):
    """Asks to drop the tables it was told, then says what came of it.

    Args:
        tables: One call each.
    """

    def __init__(self, tables: list[str]) -> None:
        self._tables = tables

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        shown = options["input"] if "input" in options else args[1]
        told = [item["output"] for item in shown if item_type(item) == "function_call_output"]
        output: list[Any] = [_call(name) for name in self._tables]
        if told:
            output = [_message("; ".join(told))]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def item_type(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _call(table: str) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call",
        id=f"fc-{table}",
        call_id=f"call-{table}",
        name="drop",
        arguments=json.dumps({"table": table}),
    )


def _message(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[part]
    )


def agent_of(effects: Path, tables: list[str]) -> Agent[Any]:
    """An agent with one tool that needs approval; its effect is a line in ``effects``."""

    @function_tool(needs_approval=True)
    async def drop(table: str) -> str:
        """Drop a table."""
        with effects.open("a") as lines:
            lines.write(f"{table}\n")
        return f"{table} dropped"

    return Agent(name="dba", model=TableDropper(tables), tools=[drop])


async def run_untraced(
    agent: Agent[Any], start: RunInput | RunState[Any], context: Any
) -> RunResult:
    """As the adapter would, with nothing sent anywhere."""
    return await Runner.run(
        agent, start, context=context, run_config=RunConfig(tracing_disabled=True)
    )
