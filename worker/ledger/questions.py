"""Queries of the ledger's planes: answered from the file, between two batches, without writing."""

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from schemas import strict_json
from schemas.codes import BadInput, Code
from schemas.results import Refusal, Verdict
from schemas.subjects import Speaker
from worker.bus.errors import BusError
from worker.ledger.plane import NO_SPACE_KEY, Plane, Query, View
from worker.ledger.runner import Runner
from worker.ledger.space_key import KeyDamaged, SpaceKey
from worker.ledger.watch import LogWatch
from worker.queries import QueryHandler

AFTER_MS: Final = 5_000
"""How long a query waits for the result that its answer must include."""

READS_AT_ONCE: Final = 2
"""Queries that stand before a batch at most: one that is read, and one that is next."""

_RESULT_ID = re.compile(r"([1-9][0-9]{0,15})-([1-9][0-9]{0,15})")


class Questions:
    """Answers queries of one space's ledger.

    Args:
        runner: The fold.
        watch: The broker's time.
        planes: Planes whose queries are answered.
        key: The space's key.
    """

    def __init__(
        self, runner: Runner, watch: LogWatch, planes: Sequence[Plane], key: SpaceKey
    ) -> None:
        self._runner = runner
        self._watch = watch
        self._planes = planes
        self._key = key
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._askers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def handlers(self) -> Mapping[tuple[str, str], QueryHandler]:
        """The planes' queries by (plane, name)."""
        return {
            (plane.name, name): self._handler(query)
            for plane in self._planes
            for name, query in plane.queries.items()
        }

    async def wait_for(self, after: str | None) -> Refusal | None:
        """Wait until the fold has reached a result.

        Args:
            after: A result id, ``<epoch>-<seq>``; ``None`` waits for nothing.

        Returns:
            ``None`` if it has, else why not.

        Raises:
            BadInput: It is not a result id.
        """
        if after is None:
            return None
        found = _RESULT_ID.fullmatch(after)
        if found is None:
            raise BadInput(
                "after", "bad-result-id", "field after must be a result id, <epoch>-<seq>"
            )
        if await self._runner.wait_for(int(found[1]), int(found[2]), AFTER_MS):
            return None
        return Refusal(
            Code.UNAVAILABLE,
            "not-reached",
            f"the fold has not reached {after} within {AFTER_MS // 1000} s",
        )

    async def ask(self, query: Query, speaker: Speaker, raw: bytes) -> Verdict:
        """Answer one query.

        Raises:
            BadInput: The body is not what the query takes.
        """
        # A query may page by a number of that name; whatever is no text is the query's business.
        after = strict_json.loads(raw).get("after")
        late = await (self.wait_for(after) if isinstance(after, str) else self._be_current())
        trouble = self._runner.trouble
        if trouble is not None:
            return Refusal(Code.UNAVAILABLE, trouble.reason, trouble.message)
        if late is not None:
            return late
        verdict = await self._read(query, speaker, raw)
        if isinstance(verdict, Refusal) and verdict.reason == NO_SPACE_KEY:
            # Nothing keyed has left since this worker started, so nobody has read the key yet.
            with contextlib.suppress(BusError, KeyDamaged):
                await self._key.get()
                verdict = await self._read(query, speaker, raw)
        return verdict

    async def _be_current(self) -> Refusal | None:
        """Wait until everything is folded that the log held when the question came.

        A replica that lags would say "no such turn" of one that another replica has let begin.
        """
        if self._runner.trouble is not None:
            return None
        epoch = self._runner.position.epoch
        try:
            info = await self._watch.look()
        except BusError as error:
            return Refusal(Code.UNAVAILABLE, error.reason, "the log does not answer")
        if await self._runner.wait_for(epoch, info.last_seq, AFTER_MS):
            return None
        return Refusal(
            Code.UNAVAILABLE,
            "not-reached",
            f"this worker has not folded within {AFTER_MS // 1000} s what the log holds",
        )

    async def _read(self, query: Query, speaker: Speaker, raw: bytes) -> Verdict:
        # The fold has the same thread: a batch waits behind so few of them, however many ask, and
        # whoever asks much waits for himself.
        asker = self._askers.setdefault(speaker.principal, asyncio.Lock())
        async with asker, self._reading:
            database, now_ms, key = self._runner.database, self._watch.now_ms(), self._key.known
            return await database.read(
                lambda db, state: query(
                    View(
                        db,
                        database.names,
                        max(now_ms, state.now_ms),
                        state.epoch,
                        state.watermark,
                        state.ruleset,
                        speaker,
                        key,
                    ),
                    raw,
                )
            )

    def _handler(self, query: Query) -> QueryHandler:
        async def answer(speaker: Speaker, raw: bytes) -> Verdict:
            return await self.ask(query, speaker, raw)

        return answer
