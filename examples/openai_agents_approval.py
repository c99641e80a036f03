"""An agent whose tool asks before it deletes; run it: python examples/openai_agents_approval.py.

It starts a worker of its own, or uses the one behind TIDEGATE_NATS_URL. It needs
``pip install 'tidegate[embedded,openai-agents]'``. The model is a script, so that the example needs
no key and no network; leave ``model`` out to use a real one.
"""

import asyncio
import json
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from beside import answer_as, clients
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from worker.adapters.openai_agents import FileRunStore, Gate


@function_tool(needs_approval=True)
async def delete_branch(name: str) -> str:
    """Delete a branch."""
    return f"{name} is deleted"


class Script(Model):
    """Calls the tool first, then repeats what the tool said."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **options: Any
    ) -> ModelResponse:
        """Answer by what has been said so far."""
        said = [item["output"] for item in input if item.get("type") == "function_call_output"]
        part = ResponseOutputText(type="output_text", text="; ".join(said), annotations=[])
        output: list[Any] = [
            ResponseOutputMessage(
                id="m1", type="message", role="assistant", status="completed", content=[part]
            )
            if said
            else ResponseFunctionToolCall(
                type="function_call",
                id="f1",
                call_id="c1",
                name="delete_branch",
                arguments=json.dumps({"name": "old-idea"}),
            )
        ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Not used here."""
        raise NotImplementedError


async def main() -> None:
    """Approve, deny, and let one expire."""
    set_tracing_disabled(True)
    name = secrets.token_hex(4)
    endpoint = f"runs.branches-{name}"
    agent = Agent(name="janitor", model=Script(), tools=[delete_branch])
    with tempfile.TemporaryDirectory() as folder:
        async with clients("agent", f"maria-{name}") as (speaking, maria):

            def gate(deadline_ms: int) -> Gate:
                return Gate(
                    agent,
                    speaking,
                    endpoint=endpoint,
                    holder=maria.speaker,
                    deadline_ms=deadline_ms,
                    store=FileRunStore(Path(folder)),
                )

            for run, answer in (("monday", "approve"), ("tuesday", "deny")):
                answering = asyncio.create_task(answer_as(maria, endpoint, answer))
                # After a crash: the same call again, from any process.
                progress = await gate(60_000).run(run, input="Delete old branches.")
                await answering
                print(f"{run}: {progress.output}")

            progress = await gate(1_000).run("wednesday", input="Delete old branches.")
            print(f"wednesday: {progress.output}")


if __name__ == "__main__":
    asyncio.run(main())
