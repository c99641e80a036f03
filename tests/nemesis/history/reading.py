"""Reading back: what every stream holds, once nothing is owed any more."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from schemas import headers as h
from schemas.names import Names, kv_stream
from tests.nemesis.history import events
from tests.nemesis.history.events import Json, Stored
from worker.bench import folds
from worker.bus.errors import BusError
from worker.bus.follow import FilteredReader
from worker.bus.jetstream import JetStream
from worker.bus.messages import StoredMessage
from worker.ledger import digest, store
from worker.ledger.fold import LogMessage
from worker.planes import PLANES

T = TypeVar("T")

Kind = Literal["log", "cmd", "res", "epf", "records", "timers"]

ORDER: Final[tuple[Kind, ...]] = ("timers", "records", "epf", "log", "cmd", "res")
"""What follows from a command is read after it, so that nothing seems to be missing."""


def _streams(names: Names) -> dict[Kind, tuple[str, str]]:
    bucket = names.records_bucket
    return {
        "log": (names.log_stream, ">"),
        "cmd": (names.cmd_stream, ">"),
        "res": (names.res_stream, ">"),
        "epf": (names.epf_stream, ">"),
        "records": (kv_stream(bucket), f"$KV.{bucket}.cp.*.*.status"),
        "timers": (names.ept_stream, f"{names.prefix}.ept.*.*.*.*.armed"),
    }


async def read_space(js: JetStream, names: Names) -> list[Stored]:
    """Everything that matters in a space's streams.

    Raises:
        BusError: The broker cannot be read now.
    """
    streams = _streams(names)
    return [_stored(kind, message) for kind in ORDER for message in await _read(js, *streams[kind])]


async def _read(js: JetStream, stream: str, subject: str) -> list[StoredMessage]:
    reader = await FilteredReader.open(js, stream, subject)
    try:
        batches = reader.to_the_end(1_000, 5_000)
        return [message async for batch in batches for message in batch]
    finally:
        await reader.close()


def _stored(kind: Kind, message: StoredMessage) -> Stored:
    body: Json | None = None
    try:
        parsed: Any = json.loads(message.data)
        body = parsed if isinstance(parsed, dict) else None
    except ValueError:
        body = None
    return Stored(
        kind=kind,
        seq=message.seq,
        time_ns=message.time_ns,
        subject=_printable(message.subject),
        command_id=_printable(message.headers.get(h.COMMAND, "")),
        body=body,
    )


def _printable(text: str) -> str:
    """What a stranger said, as something that JSON can hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


async def patiently(read: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """Read again while the broker cannot be read: a cluster elects leaders a while longer.

    Raises:
        BusError: It still cannot, when time is up.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            return await read()
        except BusError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.2)


async def settled_space(
    js: JetStream, names: Names, owed: Callable[[list[Stored]], list[str]], limit_s: float
) -> None:
    """Read a space again and again until nothing is owed, or time is up."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        with contextlib.suppress(BusError):
            if not owed(await read_space(js, names)):
                return
        await asyncio.sleep(0.5)


async def replicas(
    log: list[LogMessage], names: Names, ledgers: dict[str, Path], folder: Path
) -> AsyncIterator[events.Replica]:
    """Each worker's ledger, and beside it the log folded anew as far as that one had come."""
    for name, path in ledgers.items():
        one = _replica(name, path, names)
        yield one
        fresh = folder / name / "ledger.db"
        fresh.parent.mkdir(parents=True)
        await folds.fold(fresh, names, log[: one.watermark])
        yield _replica(f"{name}-folded-anew", fresh, names)


def _replica(name: str, path: Path, names: Names) -> events.Replica:
    db = store.open_ledger(path, names, PLANES)
    try:
        found = digest.compute(db, PLANES)
    finally:
        db.close()
    return events.Replica(name=name, watermark=found.watermark, digest=found.whole)
