"""What can be looked at of one space: its streams and durables, replicas, backlog, snapshots."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemas.names import Names, kv_stream
from worker.bus.connection import Connection
from worker.bus.errors import BusError, ConsumerMissing, StreamMissing, Unavailable
from worker.bus.jetstream import JetStream
from worker.bus.messages import StreamInfo
from worker.bus.plan import (
    MAX_ACK_PENDING,
    TopologySettings,
    durable_configs,
    stream_configs,
    stream_of,
)
from worker.doctor import checkpoints, streams
from worker.doctor.findings import Check, Finding, danger, fine, warning
from worker.errors import StartRefused
from worker.inventory import CONFIRM, made_anew
from worker.ledger.snapshots import Snapshots
from worker.planes import PLANES
from worker.settings import Settings
from worker.spaces import space_dir, topology_of, verify_space

CLOCK_WARNING_MS: Final = 1_000
CLOCK_DANGER_MS: Final = 60_000
"""Behind the broker by more, the fold takes commands for messages from the future and stops."""

CLOCK_ASKED: Final = 5
RESULT_BYTES: Final = 400
"""Broker memory of one result: each is a subject of its own (measured)."""

RESULTS_WARNING_MIB: Final = 1_024
BACKLOG_WARNING: Final = 1_000
ANSWER_MS: Final = 2_000
SNAPSHOT_SLACK: Final = 2
"""A newest snapshot that is this many intervals old is late."""

_MIB: Final = 1024**2


async def examine(
    conn: Connection,
    names: Names,
    settings: Settings,
    *,
    own_broker: bool,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[Finding]:
    """Look at a space's part of the broker; changes nothing.

    Args:
        conn: A connection in the workers' account.
        names: The space.
        settings: The worker's settings.
        own_broker: Whether a worker of this machine started the broker itself.
        wall_ms: This machine's clock.
    """
    leaderless = await _leaderless(conn, names, settings)
    if leaderless:
        return [
            danger(
                Check.CLUSTER,
                f"nobody answers for {', '.join(leaderless[:4])}",
                "nothing is stored and nothing is served until a majority of servers is back",
                "start the servers that are missing: nats server list",
            )
        ]
    try:
        differences = await verify_space(conn, names, settings)
    except StartRefused as refused:
        return [
            danger(
                Check.SPACE,
                refused.message.partition("; ")[0],
                "the worker refuses to start",
                f"tidegate setup --new --space {names.space}, or restore the broker's store if "
                "the space has existed before",
            )
        ]
    js = JetStream(conn)
    survey = await topology_of(conn, names, settings).survey()
    findings = streams.judge(names, settings, survey, differences)
    findings += [
        danger(
            Check.STREAM_ANEW,
            f"the stream {stream} was deleted and made anew",
            "what it held is gone, and whoever asks for it is told that it never was",
            f"restore the broker's store, or accept the loss: {CONFIRM}",
        )
        for stream in made_anew(settings.data_dir, names, survey)
    ]
    findings.append(await _durables(js, names, settings))
    findings += await _replicas(js, names, survey.found, own_broker=own_broker)
    if names.res_stream in survey.found:
        findings.append(_results(names, survey.found[names.res_stream]))
        findings.append(await _clock(js, names.res_stream, wall_ms))
    findings.append(await _backlog(js, names))
    if kv_stream(names.records_bucket) in survey.found:
        findings.append(await checkpoints.examine(js, names))
    if names.log_stream in survey.found:
        findings.append(await _snapshots(js, names, settings, survey.found[names.log_stream]))
    return findings


async def _leaderless(conn: Connection, names: Names, settings: Settings) -> list[str]:
    """Streams whose leader does not answer."""
    js = JetStream(conn)
    planned = stream_configs(
        names, TopologySettings(settings.replicas, settings.res_max_age_ms), ""
    )
    streams = [config["name"] for config in planned]
    asks = (js.stream_info(stream, timeout_ms=ANSWER_MS) for stream in streams)
    answers = await asyncio.gather(*asks, return_exceptions=True)
    return [
        stream
        for stream, answer in zip(streams, answers, strict=True)
        if isinstance(answer, Unavailable)
    ]


async def _durables(js: JetStream, names: Names, settings: Settings) -> Finding:
    missing = []
    for durable in durable_configs(names, ack_wait_ms=settings.ack_wait_ms):
        try:
            await js.consumer_info(stream_of(names, durable), durable)
        except ConsumerMissing:
            missing.append(durable)
        except StreamMissing:
            continue
    if not missing:
        return fine(Check.DURABLES, f"every durable of {names.space} is there")
    return warning(
        Check.DURABLES,
        f"missing: {', '.join(missing)}",
        "until a worker makes it again, what it feeds is stored and waits",
        "start a worker, which makes it again; nothing is lost",
    )


async def _replicas(
    js: JetStream, names: Names, found: Mapping[str, StreamInfo], *, own_broker: bool
) -> list[Finding]:
    fewest = min((int(info.config.get("num_replicas", 1)) for info in found.values()), default=1)
    if fewest > 1:
        findings = [fine(Check.REPLICAS, f"the streams of {names.space} have {fewest} replicas")]
    elif own_broker:
        findings = [fine(Check.REPLICAS, "the worker's own broker keeps one copy, on this disk")]
    else:
        findings = [
            warning(
                Check.REPLICAS,
                f"the streams of {names.space} have one replica",
                "the loss of the broker's disk is the loss of everything it held",
                "run three brokers and create spaces with TIDEGATE_REPLICAS=3",
            )
        ]
    troubles = []
    for stream in found:
        cluster = (await js.api(f"STREAM.INFO.{stream}", None)).get("cluster")
        if cluster:
            troubles += _cluster_troubles(stream, cluster)
    if troubles:
        findings.append(
            warning(
                Check.CLUSTER,
                "; ".join(troubles[:4]),
                "one more server that fails stops every write, or loses what only it holds",
                "start the server that is missing and let it catch up: nats stream report",
            )
        )
    elif fewest > 1:
        findings.append(fine(Check.CLUSTER, "every replica is there and current"))
    return findings


def _cluster_troubles(stream: str, cluster: Mapping[str, Any]) -> list[str]:
    troubles = [] if cluster.get("leader") else [f"{stream} has no leader"]
    for peer in cluster.get("replicas") or ():
        if peer.get("offline"):
            troubles.append(f"{stream}: {peer.get('name')} is offline")
        elif not peer.get("current"):
            troubles.append(f"{stream}: {peer.get('name')} is {peer.get('lag', '?')} behind")
    return troubles


def _results(names: Names, info: StreamInfo) -> Finding:
    memory = info.messages * RESULT_BYTES // _MIB
    found = f"{info.messages} results are kept: about {memory} MiB of the broker's memory"
    if memory < RESULTS_WARNING_MIB:
        return fine(Check.RESULTS, found)
    return warning(
        Check.RESULTS,
        found,
        "the broker's memory: each result is a subject of its own",
        f"lower TIDEGATE_RES_MAX_AGE_MS and the max_age of {names.res_stream} together; an older "
        "outcome is had by asking again with the same command id",
    )


async def _clock(js: JetStream, stream: str, wall_ms: Callable[[], int]) -> Finding:
    """The offset to the broker's clock, by the quickest of several answers."""
    answers = []
    for _ in range(CLOCK_ASKED):
        began = wall_ms()
        info = await js.stream_info(stream)
        took_ms = wall_ms() - began
        answers.append((took_ms, began + took_ms // 2 - info.ts_ms))
    offset_ms = min(answers)[1]
    found = f"this machine's clock is {offset_ms} ms from the broker's"
    if abs(offset_ms) < CLOCK_WARNING_MS:
        return fine(Check.CLOCK, found)
    find = danger if offset_ms < -CLOCK_DANGER_MS else warning
    return find(
        Check.CLOCK,
        found,
        "more than a minute behind, the fold stops; deadlines use the broker's clock alone",
        "synchronise both clocks (chrony, systemd-timesyncd)",
    )


async def _backlog(js: JetStream, names: Names) -> Finding:
    waiting = []
    for durable in (names.cp_durable, names.timers_durable, names.fires_durable):
        try:
            info = await js.consumer_info(stream_of(names, durable), durable)
        except (ConsumerMissing, StreamMissing):
            continue
        if info.pending >= BACKLOG_WARNING or info.ack_pending >= MAX_ACK_PENDING:
            waiting.append(f"{durable}: {info.pending} to deliver, {info.ack_pending} unanswered")
    if not waiting:
        return fine(Check.BACKLOG, f"less than {BACKLOG_WARNING} messages wait in each durable")
    return warning(
        Check.BACKLOG,
        "; ".join(waiting),
        "answers come late, and deadlines rest on the sweep alone",
        "start more workers, or see in their logs what keeps them from answering",
    )


async def _snapshots(js: JetStream, names: Names, settings: Settings, log: StreamInfo) -> Finding:
    snapshots = Snapshots(
        js,
        names,
        PLANES,
        space_dir(settings.data_dir, names.space) / "snapshots",
        wall_ms=lambda: 0,
    )
    try:
        found = await snapshots.list()
    except BusError as error:
        return warning(
            Check.SNAPSHOTS,
            f"the snapshots of {names.space} cannot be listed: {error.message}",
            "whether a lost ledger could be built again is not known",
            f"see that the bucket {names.snapshots_bucket} is there and may be read",
        )
    newest = found[0].watermark if found else 0
    if log.first_seq > newest + 1 and log.first_seq > 1:
        return danger(
            Check.SNAPSHOTS,
            f"the log begins at {log.first_seq} and no snapshot reaches it",
            "a ledger that is lost cannot be built again, and no further worker can start",
            "while a worker still runs: tidegate ledger snapshot; else restore the broker's store",
        )
    behind = log.last_seq - newest
    if behind > SNAPSHOT_SLACK * settings.snapshot_commands:
        return warning(
            Check.SNAPSHOTS,
            f"the newest snapshot is {behind} commands old"
            if found
            else f"no snapshot was taken in {behind} commands",
            "a worker that starts anew folds all of them before it is ready",
            "tidegate ledger snapshot, and see in the workers' logs why none was taken "
            "(snapshot_failed)",
        )
    if not found:
        return fine(
            Check.SNAPSHOTS,
            f"no snapshot yet, and none is due: the log holds {log.last_seq} commands",
        )
    count = "1 snapshot" if len(found) == 1 else f"{len(found)} snapshots"
    return fine(Check.SNAPSHOTS, f"{count}; the newest is {behind} commands old")
