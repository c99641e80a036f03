"""Probes: small real operations, repeated, so that readiness says what works and not what should.

A connection that is up, a fold that stands still and a store that takes nothing more look alike
from memory. So every few seconds the worker asks the broker to answer, writes one key of its own by
compare-and-set, and writes one note into the ledger's file (DESIGN section 5; field-reports.md,
house rule 6).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from schemas import headers
from schemas.names import Names, kv_stream
from schemas.strict_json import JsonObject
from worker import logs, metrics
from worker.bus.connection import Connection
from worker.bus.errors import BusError, CasLost
from worker.bus.jetstream import JetStream
from worker.bus.kv import Bucket
from worker.bus.window import GroupPublisher
from worker.errors import TidegateError
from worker.ledger.service import LedgerPlane
from worker.queries import QueryHandler

INTERVAL_S: Final = 3.0
LIMIT_S: Final = 3.0
STALE_S: Final = 4 * INTERVAL_S
"""Without a success for so long a probe counts as failed, whatever keeps it."""

KEY: Final = "probe"
KEY_TTL: Final = "1h"
"""How long the key of a worker that is gone stays."""

STORING: Final = "compare_and_set"
WRITES_NO_MORE: Final = (
    ", although it answers: once its disk was full, a stream takes writes again only after "
    "a restart of the broker, not of this worker"
)

log = logs.get()


class _Probe:
    """One operation and how it went."""

    def __init__(self, sentence: str, attempt: Callable[[], Awaitable[None]], now_s: float) -> None:
        self.sentence = sentence
        self.attempt = attempt
        self.succeeded_s = now_s
        self.trouble = ""


class Probes:
    """Proves for one space that the broker answers and that both stores take writes.

    Args:
        conn: The worker's connection.
        names: The space.
        replica: This worker's id; its key is ``probe.<replica>``.
        ledger: The space's ledger, if it has one.
        monotonic: Seconds that never go back.
        interval_s: Time between two rounds.
        limit_s: Longest one probe may take; then it has failed.
    """

    name = "probes"

    def __init__(
        self,
        conn: Connection,
        names: Names,
        replica: str,
        ledger: LedgerPlane | None,
        *,
        monotonic: Callable[[], float],
        interval_s: float = INTERVAL_S,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._conn = conn
        self._names = names
        self._ledger = ledger
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._limit_s = limit_s
        self._js = js = JetStream(conn)
        self._group = GroupPublisher(js, kv_stream(names.leases_bucket), atomic=False)
        self._bucket = Bucket(js, names.leases_bucket, self._group)
        self._key = f"{KEY}.{replica}"
        self._revision = 0
        self._theirs_before = False
        self._stopping = asyncio.Event()
        now_s = monotonic()
        self._probes = {
            "round_trip": _Probe("the broker does not answer", self._round_trip, now_s),
            STORING: _Probe("the broker stores nothing", self._compare_and_set, now_s),
        }
        if ledger is not None:
            self._probes["database"] = _Probe(
                "the ledger's file takes no write", ledger.write_probe, now_s
            )

    async def start(self) -> None:
        """Nothing to make ready; the first round is made at once when it runs."""

    async def run(self) -> None:
        """Probe, round after round, until stopped."""
        while not self._stopping.is_set():
            if self._conn.connected:
                for name, probe in self._probes.items():
                    await self._try(name, probe)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._stopping.wait()

    async def stop(self) -> None:
        """End after the probe that is under way."""
        self._stopping.set()
        await self._group.close(timeout_ms=200)

    def queries(self) -> Mapping[tuple[str, str], QueryHandler]:
        """None."""
        return {}

    def status(self) -> JsonObject:
        """What ``sys.status`` shows: how long ago each last succeeded, in milliseconds."""
        now_s = self._monotonic()
        return {
            f"{name}_age_ms": int((now_s - probe.succeeded_s) * 1000)
            for name, probe in self._probes.items()
        }

    def not_ready(self) -> list[str]:
        """What did not work the last time, or not for too long."""
        now_s = self._monotonic()
        reasons = []
        for probe in self._probes.values():
            silent_s = now_s - probe.succeeded_s
            if probe.trouble:
                reasons.append(f"{probe.sentence}: {probe.trouble}")
            elif silent_s > STALE_S:
                reasons.append(f"{probe.sentence}: no success for {silent_s:.0f} s")
        return reasons

    async def sample(self) -> None:
        """Bring the gauges up to date."""
        now_s = self._monotonic()
        for name, probe in self._probes.items():
            age_s = now_s - probe.succeeded_s
            metrics.PROBE_AGE.labels(self._names.space, name).set(age_s)

    async def _try(self, name: str, probe: _Probe) -> None:
        before = probe.trouble
        try:
            async with asyncio.timeout(self._limit_s):
                await probe.attempt()
        except TimeoutError:
            probe.trouble = f"not within {self._limit_s:g} s"
            if name == STORING and await self._stream_answers():
                probe.trouble += WRITES_NO_MORE
        except TidegateError as error:
            probe.trouble = error.message
        else:
            probe.trouble = ""
            probe.succeeded_s = self._monotonic()
        if probe.trouble and not before:
            log.warning("probe_failed", space=self._names.space, probe=name, error=probe.trouble)
        elif before and not probe.trouble:
            log.info("probe_succeeded", space=self._names.space, probe=name)

    async def _stream_answers(self) -> bool:
        """Whether the stream that takes no write still tells of itself."""
        try:
            await self._js.stream_info(self._bucket.stream, timeout_ms=1_000)
        except BusError:
            return False
        return True

    async def _round_trip(self) -> None:
        await self._conn.flush()

    async def _compare_and_set(self) -> None:
        """Write the key at the revision that we wrote last.

        Raises:
            TidegateError: Another process keeps writing the key: it runs with our identity.
            BusError: The broker did not take it.
        """
        expected, theirs = self._revision, False
        try:
            await self._write()
        except CasLost:
            entry = await self._bucket.read(self._key)
            self._revision = 0 if entry is None else entry.revision
            await self._write()
            theirs = expected != 0 and entry is not None
        except BusError:
            self._revision = 0
            raise
        # Once may be a write of ours of which we never heard; again and again is somebody else.
        before, self._theirs_before = self._theirs_before, theirs
        if theirs and before:
            raise TidegateError(
                "another worker writes under this one's replica id; two workers must not share a "
                "data directory or a copy of one"
            )

    async def _write(self) -> None:
        self._revision = await self._bucket.put_if(
            self._key, b"{}", self._revision, {headers.TTL: KEY_TTL}
        )
