"""What the replicas of one space say to each other, in the workers' account alone."""

import asyncio
import json
from collections.abc import Callable
from typing import Final

import structlog

from schemas.names import Names
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.subscription import Msg, Subscription
from worker.ledger.presence import Standing

GATHER_S: Final = 1.0
_log = structlog.get_logger("tidegate.ledger")


class Control:
    """Asks the other replicas, and answers them.

    Args:
        conn: The workers' connection.
        names: The space.
        standing: Where this replica stands.
        rebase: Set when this replica is asked to begin a new epoch.
        greeted: Set when another replica says that it has come.
    """

    def __init__(
        self,
        conn: Connection,
        names: Names,
        standing: Callable[[], Standing],
        rebase: asyncio.Event,
        greeted: asyncio.Event,
    ) -> None:
        self._conn = conn
        self._prefix = f"{names.prefix}.ctl.ledger"
        self._standing = standing
        self._rebase = rebase
        self._greeted = greeted
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Listen."""
        here = self._standing()
        for subject, callback in (
            (f"{self._prefix}.standing", self._on_standing),
            (f"{self._prefix}.rebase.{here.replica}", self._on_rebase),
            (f"{self._prefix}.hello", self._on_hello),
        ):
            self._subscriptions.append(await self._conn.subscribe(subject, callback))

    async def stop(self) -> None:
        """Listen no more."""
        for subscription in self._subscriptions:
            try:
                await subscription.unsubscribe()
            except BusError as error:
                _log.debug("unsubscribe_failed", error=error.message)
        self._subscriptions.clear()

    async def greet(self) -> None:
        """Tell the other replicas that this one has come.

        Raises:
            BusError: There is no connection.
        """
        await self._conn.publish(f"{self._prefix}.hello", self._standing().replica.encode())

    async def standings(self) -> list[Standing]:
        """Where every replica that answers within a second stands, this one included."""
        found: dict[str, Standing] = {}

        async def receive(msg: Msg) -> None:
            try:
                value = json.loads(msg.data)
                standing = Standing(
                    str(value["replica"]),
                    int(value["epoch"]),
                    int(value["watermark"]),
                    str(value["halted"]),
                )
            except (ValueError, KeyError, TypeError):
                return
            found[standing.replica] = standing

        inbox = self._conn.new_inbox()
        subscription = await self._conn.subscribe(inbox, receive)
        try:
            await self._conn.publish(f"{self._prefix}.standing", b"", reply=inbox)
            await asyncio.sleep(GATHER_S)
        finally:
            await subscription.unsubscribe()
        own = self._standing()
        return list((found | {own.replica: own}).values())

    async def ask_to_rebase(self, replica: str) -> None:
        """Ask one replica to begin a new epoch.

        Raises:
            BusError: It does not answer.
        """
        await self._conn.request(f"{self._prefix}.rebase.{replica}", b"")

    async def _on_standing(self, msg: Msg) -> None:
        here = self._standing()
        await self._reply(
            msg,
            {
                "replica": here.replica,
                "epoch": here.epoch,
                "watermark": here.watermark,
                "halted": here.halted,
            },
        )

    async def _on_hello(self, msg: Msg) -> None:
        if msg.data != self._standing().replica.encode():
            self._greeted.set()

    async def _on_rebase(self, msg: Msg) -> None:
        self._rebase.set()
        await self._reply(msg, {"asked": True})

    async def _reply(self, msg: Msg, value: dict[str, object]) -> None:
        # Only an inbox: whoever asks chooses where we publish with the workers' rights.
        if msg.reply.startswith("_"):
            await self._conn.publish(msg.reply, json.dumps(value).encode())
