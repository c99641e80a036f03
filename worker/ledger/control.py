"""What the replicas of one space say to each other, in the workers' account alone."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from schemas import strict_json
from schemas.names import Names
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.subscription import Msg, Subscription
from worker.errors import TidegateError
from worker.ledger.digest import Digest
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
        on_alarm: Told of another replica that found the log regressed, or replicas that differ.
        digest: Digests this replica's state.
    """

    def __init__(
        self,
        conn: Connection,
        names: Names,
        standing: Callable[[], Standing],
        rebase: asyncio.Event,
        greeted: asyncio.Event,
        on_alarm: Callable[[Standing], None],
        digest: Callable[[], Awaitable[Digest]],
    ) -> None:
        self._conn = conn
        self._prefix = f"{names.prefix}.ctl.ledger"
        self._standing = standing
        self._rebase = rebase
        self._greeted = greeted
        self._on_alarm_heard = on_alarm
        self._digest = digest
        self._digesting: set[asyncio.Task[None]] = set()
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Listen."""
        here = self._standing()
        for subject, callback in (
            (f"{self._prefix}.standing", self._on_standing),
            (f"{self._prefix}.rebase.{here.replica}", self._on_rebase),
            (f"{self._prefix}.digest.{here.replica}", self._on_digest),
            (f"{self._prefix}.hello", self._on_hello),
            (f"{self._prefix}.alarm", self._on_alarm),
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
        for task in self._digesting:
            task.cancel()

    async def greet(self) -> None:
        """Tell the other replicas that this one has come.

        Raises:
            BusError: There is no connection.
        """
        await self._conn.publish(f"{self._prefix}.hello", self._standing().replica.encode())

    async def alarm(self) -> None:
        """Tell the other replicas that the log is not the one that was folded.

        Raises:
            BusError: There is no connection.
        """
        await self._conn.publish(f"{self._prefix}.alarm", _written(self._standing()))

    async def standings(self, peers: frozenset[str] = frozenset()) -> list[Standing]:
        """Where every replica that answers within a second stands, this one included.

        Args:
            peers: Replicas after whose answers there is nothing to wait for.
        """
        found: dict[str, Standing] = {}
        complete = asyncio.Event()

        async def receive(msg: Msg) -> None:
            standing = _read(msg.data)
            if standing is not None:
                found[standing.replica] = standing
            if peers and peers <= found.keys():
                complete.set()

        inbox = self._conn.new_inbox()
        subscription = await self._conn.subscribe(inbox, receive)
        try:
            await self._conn.publish(f"{self._prefix}.standing", b"", reply=inbox)
            async with asyncio.timeout(GATHER_S):
                await complete.wait()
        except TimeoutError:
            _log.debug("standings_gathered", answers=len(found))
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
        await self._reply(msg, _written(self._standing()))

    async def _on_alarm(self, msg: Msg) -> None:
        standing = _read(msg.data)
        if standing is not None and standing.replica != self._standing().replica:
            self._on_alarm_heard(standing)

    async def _on_hello(self, msg: Msg) -> None:
        if msg.data != self._standing().replica.encode():
            self._greeted.set()

    async def _on_rebase(self, msg: Msg) -> None:
        self._rebase.set()
        await self._reply(msg, b"{}")

    async def _on_digest(self, msg: Msg) -> None:
        # Not in the subscription's own task: it takes as long as the state is large.
        task = asyncio.create_task(self._answer_digest(msg), name="digest-for-verify")
        self._digesting.add(task)
        task.add_done_callback(self._digesting.discard)

    async def _answer_digest(self, msg: Msg) -> None:
        try:
            found = await self._digest()
            await self._reply(msg, strict_json.dumps(found.to_object()))
        except TidegateError as error:
            _log.warning("digest_not_answered", reason=error.reason, error=error.message)

    async def _reply(self, msg: Msg, data: bytes) -> None:
        # Only an inbox: whoever asks chooses where we publish with the workers' rights.
        if msg.reply.startswith("_"):
            await self._conn.publish(msg.reply, data)


def _written(standing: Standing) -> bytes:
    return json.dumps(dataclasses.asdict(standing)).encode()


def _read(data: bytes) -> Standing | None:
    try:
        value = json.loads(data)
        return Standing(
            str(value["replica"]),
            int(value["epoch"]),
            int(value["watermark"]),
            str(value["halted"]),
            tuple(int(one) for one in value.get("rulesets", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
