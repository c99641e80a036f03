"""What can be looked at on the broker: version, streams, durability, clock, the workers there."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from schemas.names import Names
from worker.bus.connection import Connection
from worker.bus.errors import BusError
from worker.bus.jetstream import JetStream
from worker.bus.topology import Severity as Difference
from worker.bus.topology import check_server
from worker.doctor.findings import Finding, Severity, fine
from worker.errors import StartRefused
from worker.settings import Settings
from worker.spaces import verify_space

CLOCK_WARNING_MS = 1_000
CLOCK_DANGER_MS = 60_000
RESULT_BYTES = 400
"""Broker memory of one result: each is a subject of its own (measured)."""

RESULTS_WARNING_MB = 1_024


async def examine(
    conn: Connection,
    settings: Settings,
    monitor_url: str | None,
    *,
    own_broker: bool,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[Finding]:
    """Look at the broker; changes nothing.

    Args:
        conn: A connection with the worker's credentials.
        settings: The worker's settings.
        monitor_url: The server's monitoring address, if it is known.
        own_broker: Whether a worker of this machine started the broker itself.
        wall_ms: This machine's clock.
    """
    try:
        await check_server(conn)
    except StartRefused as refused:
        return [
            Finding(
                "server",
                Severity.DANGER,
                refused.message,
                "the worker refuses to start",
                "use nats-server 2.14.3 or newer with JetStream, and the workers' user",
            )
        ]
    version = ".".join(map(str, conn.server_version))
    findings = [fine("server", f"nats-server {version} with JetStream")]
    findings.append(await _durability(monitor_url, own_broker=own_broker))
    for space in settings.spaces:
        names = Names(settings.root, space)
        findings += await _streams(conn, names, settings)
        findings += await _space(JetStream(conn), names, settings, wall_ms)
        findings.append(await _workers(conn, names))
    return findings


async def _streams(conn: Connection, names: Names, settings: Settings) -> list[Finding]:
    try:
        differences = await verify_space(conn, names, settings)
    except StartRefused as refused:
        return [
            Finding(
                "streams",
                Severity.DANGER,
                refused.message,
                "the worker refuses to start",
                f"tidegate setup --new --space {names.space}, or restore the broker's store",
            )
        ]
    if not differences:
        return [fine("streams", f"every stream of {names.space} is as it must be")]
    return [
        Finding(
            "streams",
            Severity.DANGER if one.severity is Difference.DANGER else Severity.WARNING,
            str(one),
            "messages that must be kept could be lost, or promises not be kept"
            if one.severity is Difference.DANGER
            else "nothing; an operator's choice that is left alone",
            f"set it to {one.expected} with: nats stream edit {one.what.partition('.')[0]}",
        )
        for one in differences
    ]


async def _space(
    js: JetStream, names: Names, settings: Settings, wall_ms: Callable[[], int]
) -> list[Finding]:
    try:
        before_ms = wall_ms()
        info = await js.stream_info(names.res_stream)
        offset_ms = (before_ms + wall_ms()) // 2 - info.ts_ms
        log = await js.stream_info(names.log_stream)
    except BusError:
        return []
    findings = [_clock(offset_ms)]
    memory_mb = info.messages * RESULT_BYTES // 1024**2
    if memory_mb > RESULTS_WARNING_MB:
        findings.append(
            Finding(
                "results",
                Severity.WARNING,
                f"{info.messages} results are kept: about {memory_mb} MB of the broker's memory",
                "the broker's memory",
                "lower TIDEGATE_RES_MAX_AGE_MS and the max_age of "
                f"{names.res_stream} together; older outcomes are had by asking again",
            )
        )
    else:
        findings.append(fine("results", f"{info.messages} results are kept, {memory_mb} MB"))
    replicas = int(log.config.get("num_replicas", 1))
    if replicas == 1:
        findings.append(
            Finding(
                "replicas",
                Severity.WARNING,
                f"the streams of {names.space} have one replica",
                "the loss of the broker's disk is the loss of everything it held",
                "run three brokers and create the space with TIDEGATE_REPLICAS=3",
            )
        )
    else:
        findings.append(fine("replicas", f"the streams of {names.space} have {replicas} replicas"))
    return findings


def _clock(offset_ms: int) -> Finding:
    if abs(offset_ms) < CLOCK_WARNING_MS:
        return fine("clock", f"this machine's clock is {offset_ms} ms from the broker's")
    return Finding(
        "clock",
        Severity.DANGER if offset_ms < -CLOCK_DANGER_MS else Severity.WARNING,
        f"this machine's clock is {offset_ms} ms from the broker's",
        "more than a minute behind, the fold stops; deadlines use the broker's clock alone",
        "synchronise both clocks (chrony, systemd-timesyncd)",
    )


async def _durability(monitor_url: str | None, *, own_broker: bool) -> Finding:
    if own_broker and monitor_url is None:
        return fine("sync", "the worker's own broker syncs before it acknowledges")
    if monitor_url is None:
        return Finding(
            "sync",
            Severity.WARNING,
            "whether the broker syncs before it acknowledges cannot be seen from here",
            "without sync_interval: always, a power cut takes back what was acknowledged",
            "name its monitoring address: tidegate doctor --monitor http://HOST:8222",
        )
    try:
        config = await asyncio.to_thread(_varz, monitor_url)
    except (OSError, ValueError, urllib.error.URLError):
        return Finding(
            "sync",
            Severity.WARNING,
            f"{monitor_url} does not answer",
            "without sync_interval: always, a power cut takes back what was acknowledged",
            "check the monitoring address (http_port in the server's configuration)",
        )
    if config.get("sync_always"):
        return fine("sync", "the broker syncs before it acknowledges")
    return Finding(
        "sync",
        Severity.DANGER,
        "the broker acknowledges before it syncs",
        "a power cut takes back checkpoints, Stops and permits that were acknowledged",
        "set jetstream { sync_interval: always } and restart the broker",
    )


def _varz(monitor_url: str) -> dict[str, Any]:
    if not monitor_url.startswith(("http://", "https://")):
        raise ValueError("not a monitoring address")
    address = f"{monitor_url.rstrip('/')}/varz"
    with urllib.request.urlopen(address, timeout=2) as answer:  # noqa: S310 - checked above
        varz = json.load(answer)
    return dict((varz.get("jetstream") or {}).get("config") or {})


async def _workers(conn: Connection, names: Names) -> Finding:
    subject = f"{names.prefix}.qry._op-doctor.{'0' * 26}.sys.status"
    try:
        answer = json.loads((await conn.request(subject, b'{"v":1}', timeout_ms=2_000)).data)
        data = answer["data"]
    except (BusError, ValueError, KeyError):
        return Finding(
            "workers",
            Severity.DANGER,
            f"no worker answers for {names.space}",
            "commands are stored and wait",
            "start one: tidegate run",
        )
    if not data.get("ready"):
        reasons = "; ".join(map(str, data.get("reasons") or []))
        return Finding(
            "workers",
            Severity.DANGER,
            f"a worker of {names.space} is not ready: {reasons}",
            "commands are stored and wait",
            "do what the reason says; /readyz tells when it is mended",
        )
    return fine("workers", f"a worker answers for {names.space} and is ready")
