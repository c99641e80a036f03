"""Ledgers on a real broker: running one here, feeding its log, reading what it said."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas import headers, strict_json, subjects
from schemas.names import Names
from schemas.subjects import Speaker
from tests.ledgers import HOLDS
from tests.support.space import Space
from worker import identity
from worker.bus.connection import Connection
from worker.bus.follow import FilteredReader
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing, StoredMessage
from worker.ledger import digest, store
from worker.ledger.fold import Fold
from worker.ledger.plane import Plane
from worker.ledger.rulesets import KNOWN
from worker.ledger.service import LedgerPlane

UID = "c" * 26
KEY = "mintkey-00000001"
FAR_MS = 4_000_000_000_000
BODIES: dict[str, dict[str, Any]] = {
    "reserve": {"latest_expires_at_ms": FAR_MS, "cap": 10},
    "confirm": {"grant_expires_at_ms": FAR_MS},
    "authorize": {"amount": 5, "grant_expires_at_ms": FAR_MS},
    "stop": {},
}
LIMIT_S = 20.0


@dataclass
class Log:
    """Publishes commands to one space's log, and remembers what it published.

    Attributes:
        sent: Subject and command id of every command, by sequence.
    """

    js: JetStream
    names: Names
    sent: dict[int, tuple[str, str]] = field(default_factory=dict)
    number: int = 0

    def command(self, verb: str, user: str, *, command_id: str | None = None) -> Outgoing:
        """The next command; its id is new unless given."""
        self.number += 1
        key = (user, KEY) if verb in ("reserve", "confirm") else (user,)
        subject = subjects.command(self.names, Speaker("alice", UID), "cap", verb, *key)
        body = strict_json.dumps({"v": 1, **BODIES[verb]})
        given = command_id or f"intent-{self.number:012d}"
        return Outgoing(subject, body, {headers.COMMAND: given})

    async def publish(self, *commands: Outgoing) -> list[int]:
        """Store commands; their sequences."""
        found = []
        for command in commands:
            ack = await self.js.publish(command.subject, command.data, headers=command.headers)
            assert command.headers is not None
            self.sent[ack.seq] = (command.subject, command.headers[headers.COMMAND])
            found.append(ack.seq)
        return found

    async def mixed(self, count: int, *, users: int = 5) -> int:
        """Store many commands of all verbs, one in seven a repeat; the last sequence."""
        last, before = 0, self.command("stop", "user-0")
        for number in range(count):
            verb = ("reserve", "confirm", "authorize", "stop")[(number * 7 + number // 5) % 4]
            user = f"user-{number % users}"
            command = self.command(verb, user)
            if number % 7 == 6:
                command = before
            (last,) = await self.publish(command)
            before = command
        return last


@asynccontextmanager
async def a_log(space: Space) -> AsyncIterator[Log]:
    """The log of a space, over a connection of its own."""
    conn = await space.connect("test-log")
    try:
        yield Log(JetStream(conn), space.names)
    finally:
        await conn.close()


@dataclass(frozen=True)
class Running:
    """A ledger that runs in this process.

    Attributes:
        ledger: It.
        conn: Its connection.
        task: Its run.
    """

    ledger: LedgerPlane
    conn: Connection
    task: asyncio.Task[None]

    @property
    def watermark(self) -> int:
        return int(self.ledger.status()["watermark"])

    async def until(self, wanted: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
        """Wait until something is so."""
        await until(wanted, limit_s, lambda: (self.ledger.status(), self.ledger.not_ready()))

    async def folded(self, seq: int, limit_s: float = LIMIT_S) -> None:
        """Wait until a command is folded."""
        await self.until(lambda: self.watermark >= seq, limit_s)

    async def said(self, seq: int, limit_s: float = LIMIT_S) -> None:
        """Wait until a command is folded and everything is published, here or elsewhere."""
        await self.until(
            lambda: self.watermark >= seq and self.ledger.status()["unpublished"] == 0, limit_s
        )

    async def digest(self) -> dict[str, Any]:
        """The digest of its state."""
        handler = self.ledger.queries()["sys", "digest"]
        verdict = await handler(Speaker("_op", UID), b'{"v":1}')
        return verdict.data


@asynccontextmanager
async def folding(
    space: Space,
    data_dir: Path | None = None,
    *,
    planes: Sequence[Plane] = (HOLDS,),
    rulesets: frozenset[int] = KNOWN,
    wall_ms: Callable[[], int] | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Run a ledger in this process until the block ends."""
    given = space.settings(data_dir=data_dir or space.data_dir, **settings)
    replica = identity.replica_id(given.data_dir)
    conn = await space.connect(f"test-ledger-{replica[:6]}")
    more = {} if wall_ms is None else {"wall_ms": wall_ms}
    ledger = LedgerPlane(
        conn, space.names, given, replica, planes=planes, rulesets=rulesets, **more
    )
    task = None
    try:
        await ledger.start()
        task = asyncio.create_task(ledger.run(), name="test-ledger")
        yield Running(ledger, conn, task)
    finally:
        await ledger.stop()
        if task is not None:
            failed = task.done() and not task.cancelled() and task.exception()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                if not failed:
                    await task
        await conn.close()
    if task is not None and failed:
        raise AssertionError("the ledger failed while it ran") from failed


async def until(
    wanted: Callable[[], Any], limit_s: float = LIMIT_S, shown: Callable[[], Any] = lambda: ""
) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: It did not become so.
    """
    try:
        async with asyncio.timeout(limit_s):
            while not wanted():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it did not happen within {limit_s} s: {shown()}") from None


async def read_all(js: JetStream, stream: str, subject: str) -> list[StoredMessage]:
    """Every message of a stream whose subject matches, in order."""
    reader = await FilteredReader.open(js, stream, subject)
    try:
        batches = reader.to_the_end(1_000, 5_000)
        return [message async for batch in batches for message in batch]
    finally:
        await reader.close()


async def results(log: Log) -> dict[str, dict[str, Any]]:
    """Every result by its id, less the workers' own; none may be there twice."""
    found: dict[str, dict[str, Any]] = {}
    for message in await read_all(log.js, log.names.res_stream, f"{log.names.prefix}.res.>"):
        result = json.loads(message.data)
        if ".res._worker." in message.subject:
            continue
        assert result["id"] not in found, f"two results for {result['id']}"
        assert message.subject.endswith(f".{result['id']}")
        found[result["id"]] = result
    return found


async def facts(log: Log) -> list[str]:
    """The subject of every fact, in order."""
    found = await read_all(log.js, log.names.res_stream, f"{log.names.prefix}.fact.cap.>")
    return [message.subject for message in found]


async def replay(log: Log, path: Path, *, through: int | None = None) -> Fold:
    """Fold the log from its start into a fresh file, as the oracle."""
    fold = Fold(store.open_ledger(path, log.names, [HOLDS]), log.names, [HOLDS])
    messages = await read_all(log.js, log.names.log_stream, f"{log.names.prefix}.>")
    wanted = [m for m in messages if through is None or m.seq <= through]
    for start in range(0, len(wanted), 100):
        fold.apply_batch(wanted[start : start + 100])
    return fold


def digest_of(fold: Fold) -> dict[str, Any]:
    """The digest of a replay."""
    return digest.compute(fold.connection, [HOLDS]).to_object()


async def prove_clean(log: Log, found_digest: dict[str, Any], path: Path) -> None:
    """Assert that a ledger did to its log exactly what a clean replay does.

    State, every result and every fact: each once, none missing, each the same bytes' worth.
    """
    through = found_digest["watermark"]
    fold = await replay(log, path, through=through)
    assert digest_of(fold) == found_digest
    rows = fold.unsaid()
    said = [r for r in rows if ".res." in r.subject and ".res._worker." not in r.subject]
    assert await results(log) == {json.loads(r.body)["id"]: json.loads(r.body) for r in said}
    assert sorted(await facts(log)) == sorted(r.subject for r in rows if ".fact.cap." in r.subject)
    fold.connection.close()
