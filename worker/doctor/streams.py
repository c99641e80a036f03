"""What differs between a space's streams and what they must be, what that endangers, and its cure.

What the broker can change in place is cured by one request to its API, spelt out. A request holds
the whole configuration, so it cures all of its stream at once: each of two would undo the other.
What the broker cannot change, or what has lost data already, needs a person.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas.names import Names, kv_stream, object_stream
from worker.bus.comparison import Difference, Severity
from worker.bus.plan import SPACE_ID_KEY, TopologySettings, durable_configs, stream_configs
from worker.bus.topology import Survey
from worker.doctor.findings import Check, Finding, danger, fine, warning
from worker.settings import Settings

_FIXED: Final = frozenset(
    {
        "storage",
        "retention",
        "sealed",
        "mirror",
        "deny_delete",
        "deny_purge",
        "allow_msg_counter",
        "persist_mode",
        "max_consumers",
    }
)
"""What the broker never changes on a stream that exists, at least not back to what it must be."""

_EVICTS: Final = frozenset({"max_age", "max_msgs", "max_bytes", "max_msgs_per_subject", "discard"})


def judge(
    names: Names, settings: Settings, survey: Survey, differences: Sequence[Difference]
) -> list[Finding]:
    """A finding for each difference, or one that there is none.

    Args:
        names: The space.
        settings: What the operator chose.
        survey: The streams as they are.
        differences: As ``verify_space`` found them.
    """
    if not differences:
        count = len(survey.found)
        return [
            fine(Check.STREAM_SETTINGS, f"{count} streams of {names.space} are as they must be")
        ]
    return [_judge_one(names, settings, survey, differences, one) for one in differences]


def _judge_one(
    names: Names,
    settings: Settings,
    survey: Survey,
    differences: Sequence[Difference],
    one: Difference,
) -> Finding:
    stream, durable, setting = _place(one)
    if not setting:
        return danger(
            Check.STREAM_MISSING,
            f"the stream {stream} is gone",
            f"{_holds(names, stream)} went with it; the worker refuses to start, since a new "
            "stream would answer that none of it ever was",
            "restore the broker's store from its backup",
        )
    if setting.endswith(SPACE_ID_KEY):
        return danger(
            Check.SPACE,
            f"{stream} belongs to another space: its id is {one.found}, not {one.expected}",
            "two stores were mixed, or this data directory belongs to another broker",
            "restore all streams from one backup, or use the data directory that goes with them",
        )
    if durable:
        cure = _durable_cure(names, settings, stream, durable)
    else:
        beside = [
            _place(other)[2]
            for other in differences
            if _place(other)[:2] == (stream, "") and (_must(other) or not _must(one))
        ]
        cure = _stream_cure(names, settings, survey, stream, setting, beside)
    if setting == "republish":
        return warning(
            Check.STREAM_SETTINGS,
            str(one),
            "nobody hears what is stored: results and seats are found by asking, seconds late, and "
            "facts only by reading them back",
            cure,
        )
    if one.severity is Severity.HARMLESS:
        return warning(
            Check.STREAM_SETTINGS,
            str(one),
            "nothing that is promised; the worker leaves it alone",
            f"if it is not meant: {cure}",
        )
    return danger(Check.STREAM_SETTINGS, str(one), _endangers(names, stream, setting), cure)


def _holds(names: Names, stream: str) -> str:
    held = {
        names.log_stream: "every admission and cap command",
        names.cmd_stream: "checkpoint commands of the last week",
        names.res_stream: "results, grants and facts",
        names.ept_stream: "every armed timer",
        names.ept_req_stream: "timer requests of foreign owners",
        names.epf_stream: "every settle fact",
        kv_stream(names.records_bucket): "every checkpoint, prompt and answer",
        kv_stream(names.payloads_bucket): "the sealed prompts of queued turns",
        kv_stream(names.keys_bucket): "the space's key",
        kv_stream(names.leases_bucket): "who publishes",
        object_stream(names.snapshots_bucket): "the ledger's snapshots",
    }
    return held.get(stream, "what it held")


def _endangers(names: Names, stream: str, setting: str) -> str:
    held = _holds(names, stream)
    if setting in _EVICTS and stream == names.ept_stream:
        return "a timer that is due later than that would be dropped and never fire"
    if setting in _EVICTS:
        return f"{held} could be dropped while they are still needed"
    if setting == "allow_rollup_hdrs":
        return f"one message with a rollup header could remove {held}"
    if setting == "num_replicas":
        return f"the loss of one server could be the loss of {held}"
    if setting in ("allow_msg_schedules", "allow_msg_ttl"):
        return "timers could not be armed, or would be taken for plain messages"
    return f"{held} could be lost, or not be written as they must be; the worker refuses to start"


def _must(one: Difference) -> bool:
    """Whether a difference has to be cured; others may be what an operator wants."""
    return one.severity is Severity.DANGER or _place(one)[2] == "republish"


def _place(one: Difference) -> tuple[str, str, str]:
    """Stream, durable and setting that a difference is about; what it does not name is empty."""
    where, _, setting = one.what.partition(".")
    stream, _, durable = where.partition("/")
    return stream, durable, setting


def _stream_cure(
    names: Names,
    settings: Settings,
    survey: Survey,
    stream: str,
    setting: str,
    beside: Sequence[str],
) -> str:
    """The request that sets what can be set to what it must be, and leaves the rest as it is.

    Args:
        names: The space.
        settings: What the operator chose.
        survey: The streams as they are.
        stream: Which.
        setting: What it is a cure of.
        beside: Every setting that is cured with it.
    """
    planned = next(
        config
        for config in stream_configs(
            names, TopologySettings(settings.replicas, settings.res_max_age_ms), ""
        )
        if config["name"] == stream
    )
    if setting in _FIXED:
        return (
            f"the broker cannot change {setting} of a stream that exists: stop the workers, make "
            "a new space (tidegate setup --new --space NAME) and let what waits here run out"
        )
    wanted: dict[str, Any] = dict(survey.found[stream].config)
    for name in (one for one in beside if one not in _FIXED and not one.endswith(SPACE_ID_KEY)):
        if name in planned:
            wanted[name] = planned[name]
        else:
            wanted.pop(name, None)
        if name in ("max_msgs", "max_bytes", "max_msgs_per_subject"):
            wanted["discard"] = planned.get("discard", wanted.get("discard"))
    return _request(f"STREAM.UPDATE.{stream}", wanted)


def _durable_cure(names: Names, settings: Settings, stream: str, durable: str) -> str:
    config = durable_configs(names, ack_wait_ms=settings.ack_wait_ms)[durable]
    remake = {"stream_name": stream, "config": config}
    create = f"CONSUMER.CREATE.{stream}.{durable}.{config['filter_subject']}"
    return (
        f"{_request(f'CONSUMER.DELETE.{stream}.{durable}', None)} && {_request(create, remake)}; "
        "what it delivered before comes again, and what was answered is recognised"
    )


def _request(call: str, body: Mapping[str, Any] | None) -> str:
    text = "" if body is None else json.dumps(body, separators=(",", ":"), sort_keys=True)
    return f"nats request '$JS.API.{call}' '{text}'"
