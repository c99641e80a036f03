"""Folding without a broker's answers: a recorded log, or one that is made up."""

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas import headers, strict_json, subjects
from schemas.names import Names
from schemas.subjects import Speaker
from worker.bench.ground import Rate
from worker.bus.jetstream import JetStream
from worker.bus.reader import LogReader
from worker.ledger import replay as replaying
from worker.ledger.database import Database
from worker.ledger.fold import LogMessage
from worker.planes import PLANES

BATCH: Final = 1_000
"""Commands of one transaction, as the worker folds them."""

NEVER_SAID: Final = 2**62
"""From when on a command says something, where nothing is to be said."""


@dataclass(frozen=True, slots=True)
class Made:
    """A message as the log would hold it."""

    subject: str
    seq: int
    time_ms: int
    headers: Mapping[str, str]
    data: bytes


@dataclass(slots=True)
class Script:
    """A log that is made up, command by command.

    Attributes:
        names: The space.
        messages: The log so far.
    """

    names: Names
    messages: list[Made] = field(default_factory=list)

    def add(
        self, speaker: Speaker, verb: str, *key: str, at_ms: int, body: Mapping[str, Any]
    ) -> int:
        """Add a command of the admission plane; returns its sequence."""
        seq = len(self.messages) + 1
        self.messages.append(
            Made(
                subjects.command(self.names, speaker, "adm", verb, *key),
                seq,
                at_ms,
                {headers.COMMAND: f"scripted-{seq:012d}"},
                strict_json.dumps({"v": 1, **body}),
            )
        )
        return seq


async def read_log(js: JetStream, names: Names) -> list[LogMessage]:
    """Everything in a space's log."""
    last = (await js.stream_info(names.log_stream)).last_seq
    reader = await LogReader.open(js, names.log_stream, 1)
    log: list[LogMessage] = []
    try:
        while len(log) < last:
            log.extend(await reader.next_batch(BATCH, 1_000))
    finally:
        await reader.close()
    return log


async def fold(path: Path, names: Names, *parts: Sequence[LogMessage]) -> list[Rate]:
    """Fold a log part by part into an empty file; how fast each part went.

    Outbox rows are written, and dropped with the next batch, as the worker does.
    """
    database = await Database.open(path, names, PLANES)

    def work(part: Sequence[LogMessage]) -> None:
        said: list[int] = []
        for start in range(0, len(part), BATCH):
            batch = database.fold.apply_batch(part[start : start + BATCH], said=said)
            said = [row.id for row in batch.rows]

    rates = []
    try:
        for part in parts:
            started = time.perf_counter()
            await database.run(functools.partial(work, part))
            rates.append(Rate(len(part), len(part) / (time.perf_counter() - started)))
    finally:
        await database.close()
    return rates


async def replay(path: Path, names: Names, js: JetStream) -> Rate:
    """Read the log from the broker and fold it, overlapping, too old to be said to anyone."""
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    done = await replaying.replay(js, names, PLANES, path)
    return Rate(done.folded, done.folded * 1000 / max(1, done.took_ms))
