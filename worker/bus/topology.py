"""Making a space's streams once, and proving at every start that they are still those.

Only ``create`` makes anything. A stream that is missing later is a loss to be reported, never a
gap to be filled: a fresh stream would answer "absent" to questions whose answer was stored.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas import headers
from schemas.names import Names
from worker import logs
from worker.bus.comparison import Difference, Severity, compare_durable, compare_stream
from worker.bus.connection import Connection
from worker.bus.errors import CasLost, ConsumerMissing, JetStreamMissing, StreamMissing, Unavailable
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing, StreamInfo
from worker.bus.plan import (
    SPACE_ID_KEY,
    Config,
    TopologySettings,
    durable_configs,
    stream_configs,
    stream_of,
)
from worker.errors import StartRefused

__all__ = [
    "Difference",
    "Severity",
    "SpaceTopology",
    "Survey",
    "TopologySettings",
    "check_server",
    "durable_configs",
    "stream_configs",
]

FLOOR: Final = (2, 14, 3)
"""Oldest server whose schedules, message TTLs and atomic batches are what we build on."""

_log = logs.get("tidegate.bus")


@dataclass(frozen=True, slots=True)
class Survey:
    """Which of a space's streams exist.

    Attributes:
        found: Those that do, as the broker describes them.
        missing: Names of those that do not.
        space_ids: The ids they are stamped with; more than one is a mix of two spaces' streams.
    """

    found: Mapping[str, StreamInfo]
    missing: tuple[str, ...]
    space_ids: frozenset[str]

    @property
    def complete(self) -> bool:
        """Whether every stream exists."""
        return not self.missing

    def untouched(self, names: Names) -> bool:
        """Whether nothing was ever stored in any of them but the log's first command."""
        first = {names.log_stream: 1}
        return all(info.last_seq <= first.get(name, 0) for name, info in self.found.items())

    def atomic(self, stream: str) -> bool:
        """Whether a stream takes atomic batches."""
        return bool(self.found[stream].config.get("allow_atomic"))


async def check_server(connection: Connection) -> None:
    """Prove that the server is one we can stand on.

    Raises:
        StartRefused: It is below the floor, or has no JetStream for this account.
        Unavailable: It cannot answer now.
    """
    version = connection.server_version
    if version < FLOOR:
        shown, floor = (".".join(map(str, numbers)) for numbers in (version, FLOOR))
        raise StartRefused(f"nats-server {shown} is too old: {floor} or newer is needed")
    try:
        await JetStream(connection).api("INFO", None)
    except JetStreamMissing:
        raise StartRefused(
            "JetStream is not enabled for this account: enable it, or log in as the workers' user"
        ) from None
    except Unavailable:
        # Nobody answers: either it is still starting, or this server says that it has none.
        if connection.connected and not connection.server_info.get("jetstream"):
            raise StartRefused(
                "JetStream is not enabled on this server: enable it, as nats.conf does"
            ) from None
        raise


class SpaceTopology:
    """The streams, buckets and durables of one space.

    Args:
        js: JetStream of the workers' account.
        names: The space.
        settings: What the operator chose.
    """

    def __init__(self, js: JetStream, names: Names, settings: TopologySettings) -> None:
        self._js = js
        self._names = names
        self._settings = settings

    async def survey(self) -> Survey:
        """Look at what exists; changes nothing."""
        planned = self.planned("")
        infos = await asyncio.gather(*(self._info(config["name"]) for config in planned))
        found = {info.name: info for info in infos if info is not None}
        ids = {(info.config.get("metadata") or {}).get(SPACE_ID_KEY) for info in found.values()}
        return Survey(
            found,
            tuple(config["name"] for config in planned if config["name"] not in found),
            frozenset(str(id_) for id_ in ids if id_ is not None),
        )

    async def create(self, space_id: str, first: Outgoing | None = None) -> str:
        """Make everything; only for a space that does not exist.

        A creation that was interrupted may be repeated: streams that were never written to and
        carry one space id are kept, with that id.

        Args:
            space_id: Fresh random id, stamped on every stream.
            first: The first command of the log, stored before any other can be.

        Returns:
            The id in effect.

        Raises:
            StartRefused: Streams of the space exist, or the server did not take every setting.
            NameTaken: Somebody made one of them at the same moment.
        """
        survey = await self.survey()
        if survey.found:
            if survey.complete or not survey.untouched(self._names) or len(survey.space_ids) != 1:
                shown = ", ".join(sorted(survey.found))
                raise StartRefused(f"the space {self._names.space!r} exists already: {shown}")
            (space_id,) = survey.space_ids
        for config in self.planned(space_id):
            if config["name"] not in survey.found:
                await self._js.stream_create(config)
            if first is not None and config["name"] == self._names.log_stream:
                await self.begin(first)
        for durable, config in self._durables().items():
            await self._js.consumer_create(stream_of(self._names, durable), config)
        dangers = [d for d in await self.verify(space_id) if d.severity is Severity.DANGER]
        if dangers:
            # An older server drops a setting it does not know without a word.
            shown = "; ".join(map(str, dangers))
            raise StartRefused(f"the server did not take what was asked: {shown}")
        _log.info("space_created", space=self._names.space, space_id=space_id)
        return space_id

    async def verify(self, space_id: str | None = None) -> list[Difference]:
        """Compare everything that matters with what exists; changes nothing.

        Args:
            space_id: The id that every stream must carry; ``None`` takes the log's and requires the
                others to agree.

        Returns:
            Every difference. A durable that is missing is not one: the worker makes it again.
        """
        survey = await self.survey()
        differences = self.compare(survey, space_id)
        for durable, config in self._durables().items():
            stream = stream_of(self._names, durable)
            if stream in survey.found:
                try:
                    actual = await self._js.consumer_info(stream, durable)
                except ConsumerMissing:
                    continue
                differences += compare_durable(stream, config, actual.config)
        return differences

    def compare(self, survey: Survey, space_id: str | None = None) -> list[Difference]:
        """Every difference of the streams alone; see ``verify``."""
        if space_id is None:
            log = survey.found.get(self._names.log_stream)
            metadata = (log.config.get("metadata") if log is not None else None) or {}
            space_id = metadata.get(SPACE_ID_KEY) or "stamped by setup"
        differences: list[Difference] = []
        for planned in self.planned(space_id):
            info = survey.found.get(planned["name"])
            if info is None:
                missing = Difference(Severity.DANGER, planned["name"], "a stream", "absent")
                differences.append(missing)
            else:
                differences += compare_stream(planned, info.config)
        return differences

    async def refuse_danger(self, space_id: str | None = None) -> list[Difference]:
        """Verify, and refuse by name what could lose data.

        Returns:
            The harmless differences.

        Raises:
            StartRefused: Naming each dangerous difference.
        """
        differences = await self.verify(space_id)
        dangers = [d for d in differences if d.severity is Severity.DANGER]
        if dangers:
            shown = "; ".join(map(str, dangers))
            raise StartRefused(
                f"the streams of space {self._names.space!r} are not right: {shown}; "
                "tidegate doctor says what that endangers and the fix"
            )
        return differences

    async def let_out_results(self) -> None:
        """Have the stream of results repeat what it stores, if it was made before they did."""
        config = next(c for c in self.planned("") if c["name"] == self._names.res_stream)
        actual = (await self._js.stream_info(self._names.res_stream)).config
        if actual.get("republish") != config["republish"]:
            await self._js.stream_update({**actual, "republish": config["republish"]})

    async def shorten_waits(self) -> list[str]:
        """Have durables that were made to wait longer hand out again as soon as is planned.

        Whoever works on a message says so again and again; waiting longer than that only puts off
        what a worker that was killed had in hand.

        Returns:
            The names of those that were changed; whatever else an operator set on them stays.
        """
        changed = []
        for durable, config in self._durables().items():
            stream = stream_of(self._names, durable)
            try:
                actual = (await self._js.consumer_info(stream, durable)).config
            except ConsumerMissing:
                continue
            if actual.get("ack_wait", 0) > config["ack_wait"]:
                await self._js.consumer_create(stream, {**actual, "ack_wait": config["ack_wait"]})
                changed.append(durable)
        return changed

    async def remake_durables(self) -> list[str]:
        """Make durables that vanished; returns their names."""
        made = []
        for durable, config in self._durables().items():
            stream = stream_of(self._names, durable)
            try:
                await self._js.consumer_info(stream, durable)
            except ConsumerMissing:
                await self._js.consumer_create(stream, config)
                made.append(durable)
        return made

    async def begin(self, first: Outgoing) -> None:
        """Store the first command of the log, unless something is stored there already."""
        expected = {**(first.headers or {}), headers.EXPECTED_LAST_SEQ: "0"}
        # Lost: a creation before this one stored it, and was interrupted.
        with contextlib.suppress(CasLost):
            await self._js.publish(first.subject, first.data, headers=expected)

    def planned(self, space_id: str) -> list[Config]:
        """The configuration of every stream, in the order in which they are made."""
        return stream_configs(self._names, self._settings, space_id)

    def _durables(self) -> dict[str, Config]:
        return durable_configs(self._names, ack_wait_ms=self._settings.ack_wait_ms)

    async def _info(self, stream: str) -> StreamInfo | None:
        try:
            return await self._js.stream_info(stream)
        except StreamMissing:
            return None
