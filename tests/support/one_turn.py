"""A connector as a process of its own that runs one turn, and says how it ended.

Run as ``python -m tests.support.one_turn URL SPACE REQUEST PROVIDER``; a turn is written to its
provider by appending its name to the file ``PROVIDER``.
"""

import asyncio
import sys
from pathlib import Path

from tests.support.space import speaker
from worker.bus.options import ConnectOptions
from worker.client import Client
from worker.connector import Connector, LeaseLost

HOST = "host-of-this-test"


def write(provider: Path, request: str) -> None:
    with provider.open("a") as file:
        file.write(request + "\n")


async def main(url: str, space: str, request: str, provider: str) -> str:
    async with (
        Client(ConnectOptions((url,)), speaker("conn"), space) as client,
        Connector(client, host=HOST) as connector,
    ):
        turn = connector.turn(
            request, session_id="s", agent_id=request, fingerprint="f", provider="acme", model="m"
        )
        try:
            async with turn:
                await turn.start()
                await turn.intent(channel="http")
                write(Path(provider), request)
                await turn.active()
                await turn.complete()
        except LeaseLost as lost:
            return f"lost: {lost.why}"
    return "completed"


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:])))
