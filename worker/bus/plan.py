"""What a space's streams, buckets and durables look like (DESIGN section 4).

Only data: the broker's own configuration objects, built from names and settings.
"""

from dataclasses import dataclass
from typing import Any, Final

from schemas.names import Names, kv_stream, object_stream
from schemas.subjects import HEARD

NS_PER_MS: Final = 1_000_000
DAY_MS: Final = 24 * 3600 * 1000
COMMANDS_MAX_AGE_MS: Final = 7 * DAY_MS
REQUESTS_MAX_AGE_MS: Final = DAY_MS
MAX_ACK_PENDING: Final = 10_000
SPACE_ID_KEY: Final = "tidegate-space-id"
"""Metadata under which every stream of a space carries the space's id."""

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """What an operator chooses about a space's streams.

    Attributes:
        replicas: 1 or 3.
        res_max_age_ms: How long results, grants and facts can be read back.
        ack_wait_ms: When a delivery that nobody answered is made again.
    """

    replicas: int = 1
    res_max_age_ms: int = 3_600_000
    ack_wait_ms: int = 1_500

    def __post_init__(self) -> None:
        if self.replicas not in (1, 3):
            raise ValueError("replicas must be 1 or 3")


def stream_configs(names: Names, settings: TopologySettings, space_id: str) -> list[Config]:
    """Every stream of a space, in the order in which they are created."""
    prefix = names.prefix
    timer = f"{prefix}.ept.*.*.*.*"
    command = f"{prefix}.cmd.*.*"
    streams: list[Config] = [
        {
            "name": names.log_stream,
            "subjects": [f"{command}.adm.>", f"{command}.cap.>", f"{command}.sys.>"],
            "deny_delete": True,
        },
        {
            "name": names.cmd_stream,
            "subjects": [f"{command}.cp.>"],
            "max_age": COMMANDS_MAX_AGE_MS * NS_PER_MS,
        },
        {
            "name": names.res_stream,
            "subjects": [f"{prefix}.res.>", f"{prefix}.grant.>", f"{prefix}.fact.>"],
            "max_age": settings.res_max_age_ms * NS_PER_MS,
            "allow_atomic": True,
            "allow_direct": True,
            # Listeners hear the repetition, which the broker makes of what it has stored: with
            # three servers, of what a majority of them has.
            "republish": {"src": f"{prefix}.>", "dest": f"{prefix}.{HEARD}.>"},
        },
        {
            "name": names.ept_stream,
            "subjects": [f"{timer}.armed", f"{timer}.fire", f"{timer}.cancel"],
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            # A schedule clears its own subject with a rollup when it fires or is cancelled.
            "allow_rollup_hdrs": True,
            "allow_atomic": True,
            # Schedules exclude the other policy; without a limit nothing is discarded anyway.
            "discard": "old",
        },
        {
            "name": names.ept_req_stream,
            "subjects": [f"{timer}.schedule"],
            "max_age": REQUESTS_MAX_AGE_MS * NS_PER_MS,
        },
        {
            "name": names.epf_stream,
            # Every family of one-use facts, as on a Cotal space; ours is `….cp.<token>`.
            "subjects": [f"{prefix}.epf.>"],
            "deny_delete": True,
            "deny_purge": True,
            "allow_atomic": True,
            "allow_direct": True,
        },
        # Nothing takes a record away; a Cotal manager verifies exactly these settings.
        _bucket(names.records_bucket, allow_atomic=True, deny_purge=True),
        # Sealed prompts end by themselves at their expiry.
        _bucket(names.payloads_bucket, allow_msg_ttl=True),
        _bucket(names.keys_bucket),
        _bucket(names.leases_bucket, allow_msg_ttl=True),
        {
            "name": object_stream(names.snapshots_bucket),
            "subjects": [f"$O.{names.snapshots_bucket}.{part}.>" for part in ("C", "M")],
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
    ]
    common: Config = {
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "num_replicas": settings.replicas,
        "max_msgs": -1,
        "max_bytes": -1,
        "metadata": {SPACE_ID_KEY: space_id},
    }
    return [common | stream for stream in streams]


def durable_configs(names: Names, *, ack_wait_ms: int) -> dict[str, Config]:
    """Every durable of a space by its name; ``stream_of`` says where it belongs."""
    common: Config = {
        "ack_policy": "explicit",
        "ack_wait": ack_wait_ms * NS_PER_MS,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "max_deliver": -1,
        "max_ack_pending": MAX_ACK_PENDING,
    }
    # A stream that holds one kind of message is not filtered finer than need be: a stored subject
    # may have `>` for a token, and the server's search of a backlog never matches that with `*`.
    filters = {
        names.cp_durable: f"{names.prefix}.cmd.>",
        names.timers_durable: f"{names.prefix}.ept.>",
        names.fires_durable: f"{names.prefix}.ept.*.*.*.*.fire",
    }
    return {
        durable: common | {"durable_name": durable, "filter_subject": subject}
        for durable, subject in filters.items()
    }


def stream_of(names: Names, durable: str) -> str:
    """The stream that a durable of this space belongs to."""
    return {
        names.cp_durable: names.cmd_stream,
        names.timers_durable: names.ept_req_stream,
        names.fires_durable: names.ept_stream,
    }[durable]


def _bucket(name: str, **more: Any) -> Config:
    # No rollups: clients write sealed prompts, and a rollup header on one would remove all others.
    return {
        "name": kv_stream(name),
        "subjects": [f"$KV.{name}.>"],
        "max_msgs_per_subject": 1,
        "deny_delete": True,
        "allow_rollup_hdrs": False,
        "allow_direct": True,
        **more,
    }
