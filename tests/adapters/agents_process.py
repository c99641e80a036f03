"""Runs one run of the tests' agent to its end, unless told to die on the way."""

import asyncio
import json
import sys
from pathlib import Path

from schemas.subjects import Speaker
from tests.adapters.agents_sdk import agent_of, run_untraced
from tests.adapters.doom import BEFORE_RESUME, Doom, DoomedClient, all_there
from tests.adapters.people import AGENT, ENDPOINT
from tests.support.space import speaker
from worker.adapters import RunInDoubt
from worker.adapters.openai_agents import FileRunStore, Gate
from worker.bus.options import ConnectOptions


class DoomedStore(FileRunStore):
    """Dies when the run is about to go on, before the store is told so."""

    def __init__(self, directory: Path, doom: Doom) -> None:
        super().__init__(directory)
        self._doom = doom

    async def save(self, run_id: str, snapshot: bytes) -> None:
        value = json.loads(snapshot)
        going_on = value["stage"] == "running" and value["state"] is not None
        self._doom.at(BEFORE_RESUME if going_on else "")
        await super().save(run_id, snapshot)


async def main() -> None:
    plan = json.loads(sys.argv[1])
    doom = Doom(plan["die"], really=True)
    options = ConnectOptions((plan["url"],))
    async with DoomedClient(options, speaker(AGENT), plan["space"], plan["root"], doom) as client:
        gate = Gate(
            agent_of(Path(plan["effects"]), plan["tables"]),
            client,
            endpoint=ENDPOINT,
            holder=Speaker(*plan["holder"]),
            deadline_ms=plan["deadline_ms"],
            store=DoomedStore(Path(plan["store"]), doom),
            run_with=run_untraced,
            lease_ms=plan["lease_ms"],
        )
        await asyncio.to_thread(all_there, Path(plan["start"]), plan["racers"])
        try:
            progress = await gate.run(plan["run"], input="Tidy up.")
        except RunInDoubt:
            print(json.dumps("in doubt"))
        else:
            print(json.dumps(progress.output))


if __name__ == "__main__":
    asyncio.run(main())
