"""Turns over a real broker, step by step, as a connector that names other processes would."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from schemas.commands.sys import ProcessIdentity
from schemas.names import Names
from worker.admission.plane import PLANE
from worker.bus.connection import Connection
from worker.client import Client
from worker.client.errors import Refused
from worker.component import SpaceComponent
from worker.evidence.plane import EvidencePlane
from worker.evidence.procfs import ProcReader
from worker.ledger.service import LedgerPlane
from worker.settings import Settings

LIMIT_S = 15.0


def recovering(reader: ProcReader | None = None) -> Callable[..., Sequence[SpaceComponent]]:
    """Makes a worker's components: the ledger with admission, and recovery by evidence."""

    def planes_of(
        conn: Connection, names: Names, settings: Settings, replica: str
    ) -> Sequence[SpaceComponent]:
        ledger = LedgerPlane(conn, names, settings, replica, planes=(PLANE,))
        return ledger, EvidencePlane(conn, names, settings, replica, ledger, reader=reader)

    return planes_of


async def policy(operator: Client, **values: Any) -> None:
    """Claim the next policy."""
    now = (await operator.query("adm", "policy", {})).data
    body = {"epoch": now["epoch"] + 1, **now["policy"], **values}
    await operator.call("adm", "policy", (), body)


class Turn:
    """One turn of one client.

    Args:
        client: Who enqueues it; open.
        request_id: Its id.
        connector: The process that is said to run it.
    """

    def __init__(self, client: Client, request_id: str, connector: ProcessIdentity) -> None:
        self.client = client
        self.request_id = request_id
        self.connector = connector

    async def enqueue(self, *, agent: str | None = None, **more: Any) -> str:
        """Enqueue it; its state."""
        body = {
            "session_id": "session",
            "agent_id": agent or f"agent-of-{self.request_id}",
            "fingerprint": f"print-of-{self.request_id}",
            "provider": "acme",
            "model": "m1",
            "identity": self.connector.to_object(),
            **more,
        }
        result = await self.client.call("adm", "enqueue", (self.request_id,), body)
        return str(result.data["state"])

    async def view(self) -> dict[str, Any]:
        """As ``adm.request`` shows it."""
        return (await self.client.query("adm", "request", {"request_id": self.request_id})).data

    async def state(self) -> str:
        return str((await self.view())["state"])

    async def fence(self) -> dict[str, Any]:
        lease = (await self.view())["lease"]
        return {"lease_id": lease["lease_id"], "generation": lease["generation"]}

    async def step(self, verb: str, **body: Any) -> None:
        """A verb under its fence."""
        await self.client.call("adm", verb, (self.request_id,), {**await self.fence(), **body})

    async def bring_to(
        self,
        state: str,
        child: ProcessIdentity | None = None,
        *,
        channel: str = "pty",
        **enqueued: Any,
    ) -> "Turn":
        """Enqueue it, wait for its seat and lead it to a state."""
        await self.enqueue(**enqueued)
        await self.become("admitted")
        steps = ["start", "intent", "active", "recover"]
        wanted = {
            "admitted": 0,
            "starting": 1,
            "dispatch_intent": 2,
            "active": 3,
            "recovery_required": 4,
        }[state]
        for verb in steps[:wanted]:
            if verb == "intent":
                identity = {"connector": self.connector.to_object()}
                if child is not None:
                    identity["child"] = child.to_object()
                await self.step("intent", identity=identity, channel=channel)
            else:
                await self.step(verb)
        assert await self.state() == state
        return self

    async def become(self, state: str, limit_s: float = LIMIT_S) -> None:
        """Wait until it is in a state."""
        await until(self.state, state, limit_s, self.request_id)

    async def sealed(self) -> bytes:
        """Its sealed prompt, by ``adm.payload`` under its fence."""
        body = {"request_id": self.request_id, **await self.fence()}
        answer = await self.client.query("adm", "payload", body)
        return base64.b64decode(answer.data["sealed"])


async def until(
    look: Callable[[], Awaitable[Any]], wanted: Any, limit_s: float = LIMIT_S, what: str = ""
) -> None:
    """Look again and again until what is wanted shows.

    Raises:
        AssertionError: It did not.
    """
    found = None
    try:
        async with asyncio.timeout(limit_s):
            while (found := await look()) != wanted:  # noqa: ASYNC110 - each look asks a worker
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what} is {found}, not {wanted}") from None


async def seats(operator: Client) -> dict[str, dict[str, Any]]:
    """Every held seat by request id."""
    found = (await operator.query("adm", "leases", {})).data["leases"]
    return {seat["request_id"]: seat for seat in found}


async def refused(work: Any) -> str:
    """The reason for which something is refused."""
    try:
        await work
    except Refused as error:
        return error.reason
    raise AssertionError("it was not refused")
