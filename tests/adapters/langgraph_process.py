"""Runs one thread of the tests' graph to its end, unless told to die on the way."""

import asyncio
import json
import sys
from pathlib import Path

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from schemas.subjects import Speaker
from tests.adapters.doom import BEFORE_RESUME, Doom, DoomedClient, all_there
from tests.adapters.graphs import graph_of
from tests.adapters.people import AGENT, ENDPOINT
from tests.support.space import speaker
from worker.adapters.langgraph import Gate
from worker.bus.options import ConnectOptions


async def main() -> None:
    plan = json.loads(sys.argv[1])
    doom = Doom(plan["die"], really=True)
    options = ConnectOptions((plan["url"],))
    async with (
        AsyncSqliteSaver.from_conn_string(plan["database"]) as saver,
        DoomedClient(options, speaker(AGENT), plan["space"], plan["root"], doom) as client,
    ):
        graph = graph_of(saver, Path(plan["effects"]), plan["questions"], takes_s=0.5)
        gate = Gate(
            graph,
            client,
            endpoint=ENDPOINT,
            holder=Speaker(*plan["holder"]),
            deadline_ms=plan["deadline_ms"],
            lease_ms=plan["lease_ms"],
        )
        if plan["die"] == BEFORE_RESUME:
            doom_resume(graph, doom)
        await asyncio.to_thread(all_there, Path(plan["start"]), plan["racers"])
        progress = await gate.run(plan["thread"], input={"log": []})
        print(json.dumps(progress.values))


def doom_resume(graph: object, doom: Doom) -> None:
    """The graph dies when it is resumed, before anything of it is stored."""
    from langgraph.types import Command

    run = graph.ainvoke  # type: ignore[attr-defined]

    async def ainvoke(given: object, *args: object, **options: object) -> object:
        if isinstance(given, Command):
            doom.at(BEFORE_RESUME)
        return await run(given, *args, **options)

    graph.ainvoke = ainvoke  # type: ignore[attr-defined]


if __name__ == "__main__":
    asyncio.run(main())
