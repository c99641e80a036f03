"""What a broker whose store came back older has lost, as far as this worker's index still knows it.

Settlements come back from the journal. A mint or an extension does not: its prompt and its goal
were in the store alone, and whether its run still waits only its owner knows. So it is noted in a
file beside the index, for ``tidegate cp lost`` to list with what would mint or extend it again.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from schemas.subjects import Checkpoint
from worker import logs
from worker.bus.errors import BusError
from worker.checkpoints.context import Clock
from worker.checkpoints.feed import Feed, IndexBuilding
from worker.checkpoints.index import Pending
from worker.checkpoints.records import Garbled, Records, StatusAt
from worker.checkpoints.settle import together

log = logs.get()

FILE: Final = "lost.jsonl"
PAUSE_S: Final = 1.0
LANES: Final = 4
"""Few, since the looks stand in one line with what falls due."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A mint or an extension that the broker no longer has.

    Attributes:
        endpoint: The checkpoint's endpoint, dotted.
        token: Its token.
        holder_id: Who may resume it, if that was known.
        holder_uid: In which life.
        generation: Generation of the deadline that was lost.
        deadline_at_ms: That deadline.
        stands_at: Generation that stands now; ``None`` if the whole checkpoint is gone.
        noticed_at_ms: When it was noticed, by the broker's clock.
    """

    endpoint: str
    token: str
    holder_id: str | None
    holder_uid: str | None
    generation: int
    deadline_at_ms: int
    stands_at: int | None
    noticed_at_ms: int


def read(directory: Path) -> list[Lost]:
    """What was noted in a space's directory, the newest note of each checkpoint, by deadline."""
    try:
        lines = (directory / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found: dict[tuple[str, str], Lost] = {}
    for line in lines:
        try:
            one = Lost(**json.loads(line))
        except (ValueError, TypeError):
            # Cut off, as by a full disk.
            continue
        found[one.endpoint, one.token] = one
    return sorted(found.values(), key=lambda one: (one.deadline_at_ms, one.endpoint, one.token))


class Losses:
    """Finds out what was lost, once the index was built anew.

    Args:
        space: The space.
        clock: The broker's now.
        feed: The index.
        records: The records, read at the leader.
        directory: Where the note is kept.
    """

    def __init__(
        self, space: str, clock: Clock, feed: Feed, records: Records, directory: Path
    ) -> None:
        self._space = space
        self._clock = clock
        self._feed = feed
        self._records = records
        self._path = directory / FILE
        self._suspected: dict[Checkpoint, Pending] = {}
        self._asked = asyncio.Event()

    def suspect(self, rows: Iterable[Pending]) -> None:
        """Look for these, as the index knew them before it was thrown away."""
        self._suspected |= {row.target: row for row in rows}
        self._asked.set()

    async def run(self, ready: Callable[[], bool]) -> None:
        """Look whenever something is suspected, until cancelled."""
        while True:
            await self._asked.wait()
            if ready() and self._feed.is_built:
                try:
                    await self._look()
                    self._asked.clear()
                    continue
                except (BusError, IndexBuilding) as error:
                    log.debug("losses_put_off", space=self._space, reason=error.reason)
            await asyncio.sleep(PAUSE_S)

    async def _look(self) -> None:
        rows = dict(self._suspected)
        found: list[Lost] = []
        missing = iter(await self._feed.unknown(list(rows.values())))

        async def lane() -> None:
            for row in missing:
                if (one := await self._lost(row)) is not None:
                    found.append(one)

        await together(*(lane() for _ in range(LANES)))
        if found:
            log.error("checkpoints_lost", space=self._space, count=len(found), listed_by="cp lost")
            await asyncio.to_thread(self._note, found)
        for target, row in rows.items():
            if self._suspected.get(target) is row:
                del self._suspected[target]

    async def _lost(self, row: Pending) -> Lost | None:
        try:
            status = await self._records.status(row.target)
        except Garbled:
            return None
        if isinstance(status, StatusAt):
            record = status.record
            if record.state != "waiting" or record.deadlineGeneration >= row.generation:
                return None
        elif status is not None:
            return None
        return Lost(
            row.target.endpoint,
            row.target.token,
            None if row.holder is None else row.holder.id,
            None if row.holder is None else row.holder.lifecycleUid,
            row.generation,
            row.deadline_ms,
            None if status is None else status.record.deadlineGeneration,
            int(self._clock.lower_ms()),
        )

    def _note(self, found: Sequence[Lost]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in found)
        except OSError as error:
            log.error("losses_not_noted", space=self._space, path=str(self._path), error=error)  # noqa: TRY400 - no traceback for an operator's doing
