"""Taking over a live space of the system that the timer plane comes from, and giving it back.

Such a space has the streams of timers, requests, facts and records, with settings of its own. Every
change is made in place, so no record and no timer is lost. What a stream was like before stands in
its own metadata, written by the very request that changes it: an adoption that broke off goes on
when it is begun again, and one that nothing was minted under can be undone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.names import Names
from worker.bus.comparison import Difference, Severity, compare_stream
from worker.bus.errors import ConsumerMissing
from worker.bus.jetstream import JetStream
from worker.bus.messages import Outgoing
from worker.bus.plan import SPACE_ID_KEY, Config, TopologySettings, durable_configs, stream_of
from worker.bus.topology import SpaceTopology, Survey
from worker.errors import StartRefused

BEFORE_KEY: Final = "tidegate-before"
"""Metadata of an adopted stream: its settings before, as JSON, or ``created``."""

CREATED: Final = "created"
LASTING: Final = frozenset({"deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_schedules"})
"""What the broker never turns off again once it is on; none of it takes anything away."""

ROLLUPS: Final = frozenset({"allow_rollup_hdrs"})
"""What the broker does not allow together with ``deny_purge``."""

_UNCHANGEABLE: Final = frozenset(
    {"storage", "retention", "sealed", "mirror", "allow_msg_counter", "persist_mode"}
)
_WANTED_TOO: Final = frozenset({"allow_atomic"})
"""Differences that endanger nothing, and without which prompts and batches are refused."""


@dataclass(frozen=True, slots=True)
class Change:
    """What adopting does to one stream.

    Attributes:
        stream: Its name.
        config: The whole configuration it is created or updated with.
        differences: What is changed, for people; none for a stream that is created.
        is_new: Whether it is created.
    """

    stream: str
    config: Config
    differences: tuple[Difference, ...]
    is_new: bool

    @property
    def lasting(self) -> tuple[str, ...]:
        """Settings that an undo leaves as they are, since the broker does."""
        changed = {_setting(one) for one in self.differences}
        return tuple(sorted(changed & (LASTING | (ROLLUPS if "deny_purge" in changed else set()))))


class Adoption:
    """Adopts one space.

    Args:
        js: JetStream of the account that holds the streams; its login may update and delete them.
        names: The space.
        settings: What the operator chose; replicas are for the streams that are created.
    """

    def __init__(self, js: JetStream, names: Names, settings: TopologySettings) -> None:
        self._js = js
        self._names = names
        self._settings = settings
        self._topology = SpaceTopology(js, names, settings)

    async def plan(self, space_id: str) -> list[Change]:
        """What would be changed; changes nothing.

        Args:
            space_id: Fresh random id; that of an adoption which broke off is kept.

        Returns:
            A change for each stream that is not yet as it must be.

        Raises:
            StartRefused: There is nothing to adopt, it belongs to Tidegate already, or something
                is as the broker can never change it.
        """
        survey = await self._topology.survey()
        space_id = _id_of(self._names, survey, space_id)
        changes = []
        for planned in self._topology.planned(space_id):
            info = survey.found.get(planned["name"])
            if info is None:
                changes.append(Change(planned["name"], _created(planned), (), is_new=True))
            elif BEFORE_KEY not in (info.config.get("metadata") or {}):
                changes.append(_update(planned, info.config))
        return changes

    async def apply(self, changes: Sequence[Change], first: Outgoing) -> None:
        """Make the changes, then what reads the streams.

        A crash between two of them leaves a space that no worker serves yet; ``plan`` and this
        again make the rest.

        Args:
            changes: As planned.
            first: The first command of the log.

        Raises:
            StartRefused: The broker did not take all of it.
        """
        for change in changes:
            if change.is_new:
                await self._js.stream_create(change.config)
                if change.stream == self._names.log_stream:
                    await self._topology.begin(first)
            else:
                await self._js.stream_update(change.config)
        await self._topology.remake_durables()
        await self._topology.refuse_danger()

    async def undo(self) -> list[str]:
        """Give a space back as it was; only while nothing was ever asked of Tidegate in it.

        Returns:
            Settings that the broker does not set back, as ``<stream>.<setting>``.

        Raises:
            StartRefused: It was not adopted, or a command of ours is stored.
        """
        survey = await self._topology.survey()
        adopted = {
            name: str(info.config["metadata"][BEFORE_KEY])
            for name, info in survey.found.items()
            if BEFORE_KEY in (info.config.get("metadata") or {})
        }
        if not adopted:
            raise StartRefused(f"the space {self._names.space!r} was not adopted")
        for stream, most in ((self._names.cmd_stream, 0), (self._names.log_stream, 1)):
            if stream in survey.found and survey.found[stream].last_seq > most:
                raise StartRefused(
                    f"{stream} holds commands: what they did stands in the records, so the "
                    "adoption can no longer be undone"
                )
        kept: list[str] = []
        for name, before in adopted.items():
            if before == CREATED:
                await self._js.stream_delete(name)
            else:
                kept += await self._restore(name, json.loads(before), survey)
        return kept

    async def _restore(self, name: str, before: Config, survey: Survey) -> list[str]:
        for durable in durable_configs(self._names, ack_wait_ms=1):
            if stream_of(self._names, durable) == name:
                try:
                    await self._js.consumer_delete(name, durable)
                except ConsumerMissing:
                    continue
        now = survey.found[name].config
        lasting = {one: True for one in LASTING if now.get(one) and not before.get(one)}
        if "deny_purge" in lasting:
            lasting |= {one: False for one in ROLLUPS if before.get(one)}
        await self._js.stream_update(before | lasting)
        return [f"{name}.{one}" for one in sorted(lasting)]


def _id_of(names: Names, survey: Survey, fresh: str) -> str:
    """The id to stamp; an adoption that broke off has one."""
    if not survey.found:
        raise StartRefused(
            f"nothing of a space {names.space!r} is there to adopt; make a new one: "
            f"tidegate setup --new --space {names.space}"
        )
    if not survey.space_ids:
        return fresh
    begun = any(BEFORE_KEY in (one.config.get("metadata") or {}) for one in survey.found.values())
    if len(survey.space_ids) > 1 or not begun:
        raise StartRefused(f"the space {names.space!r} is Tidegate's already: tidegate doctor")
    (space_id,) = survey.space_ids
    return space_id


def _created(planned: Config) -> Config:
    return planned | {"metadata": {**planned["metadata"], BEFORE_KEY: CREATED}}


def _update(planned: Config, actual: Mapping[str, Any]) -> Change:
    """A stream as it is, with what endangers it changed and nothing else."""
    found = [
        one
        for one in compare_stream(planned | {"num_replicas": actual["num_replicas"]}, actual)
        if one.severity is Severity.DANGER or _setting(one) in _WANTED_TOO
    ]
    if fixed := [str(one) for one in found if _setting(one) in _UNCHANGEABLE]:
        raise StartRefused(f"the broker cannot change {fixed[0]}: this space cannot be adopted")
    config = dict(actual)
    for setting in map(_setting, found):
        if setting in planned:
            config[setting] = planned[setting]
        else:
            config.pop(setting, None)
        if setting in ("max_msgs", "max_bytes"):
            config["discard"] = planned["discard"]
    before = json.dumps(dict(actual), separators=(",", ":"), sort_keys=True)
    stamp = {SPACE_ID_KEY: planned["metadata"][SPACE_ID_KEY], BEFORE_KEY: before}
    config["metadata"] = {**(actual.get("metadata") or {}), **stamp}
    return Change(planned["name"], config, tuple(found), is_new=False)


def _setting(one: Difference) -> str:
    return one.what.partition(".")[2].partition(".")[0]
