"""A connector that takes a seat, starts preparing and then waits to be killed.

Run as ``python -m worker.demo.doomed URL SPACE PRINCIPAL UID REQUEST AGENT``; it says ``started``.
"""

import asyncio
import sys

from schemas.subjects import Speaker
from worker.client import Client
from worker.connector import Connector
from worker.demo.stage import HOST


async def main(url: str, space: str, owner: Speaker, request: str, agent: str) -> None:
    """Take the seat of one turn and never use it."""
    async with Client(url, owner, space) as client, Connector(client, host=HOST) as connector:
        turn = connector.turn(
            request,
            session_id=f"chat-of-{agent}",
            agent_id=agent,
            fingerprint=request,
            provider="acme",
            model="large",
        )
        async with turn:
            await turn.start()
            sys.stdout.write("started\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    _, _url, _space, _principal, _uid, _request, _agent = sys.argv
    asyncio.run(main(_url, _space, Speaker(_principal, _uid), _request, _agent))
