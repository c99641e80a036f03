"""What can be looked at on the broker as a whole: version, limits, durability, doors."""

import asyncio
import ipaddress
import json
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.limits import MAX_RECORD_BYTES
from worker.bus.connection import Connection
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.doctor.findings import Check, Finding, danger, fine, warning
from worker.doctor.rights import user_info
from worker.errors import TidegateError

PAYLOAD_NEEDED: Final = MAX_RECORD_BYTES + 64 * 1024
"""A record with its headers, and room for what the broker puts around it."""

SPACE_WARNING: Final = 0.75
SPACE_DANGER: Final = 0.9
_MIB: Final = 1024**2
_UNSYNCED: Final = "without sync_interval: always, a power cut takes back what was acknowledged"


async def examine(
    conn: Connection,
    options: ConnectOptions,
    monitor_url: str | None,
    *,
    own_broker: bool,
) -> list[Finding]:
    """Look at the broker; changes nothing.

    Args:
        conn: A connection with the worker's credentials, to a server that was checked.
        options: How it was made.
        monitor_url: The server's monitoring address, if it is known.
        own_broker: Whether a worker of this machine started the broker itself.
    """
    account = await JetStream(conn).api("INFO", None)
    version = ".".join(map(str, conn.server_version))
    level = account.get("api", {}).get("level", "?")
    findings = [fine(Check.SERVER, f"nats-server {version} with JetStream, API level {level}")]
    varz = await _ask_monitor(monitor_url)
    findings += [
        _payload(conn.max_payload),
        _sync(monitor_url, varz, own_broker=own_broker),
        _space(account, varz or {}),
    ]
    if not own_broker:
        findings += [_encryption(options, conn.server_info), await _anonymous(options)]
    return findings


def _payload(max_payload: int) -> Finding:
    if max_payload >= PAYLOAD_NEEDED:
        return fine(Check.MAX_PAYLOAD, f"messages of up to {max_payload // 1024} KiB are taken")
    return danger(
        Check.MAX_PAYLOAD,
        f"messages of more than {max_payload // 1024} KiB are refused",
        f"records may have {MAX_RECORD_BYTES // 1024} KiB: a prompt or an answer that is accepted "
        "could not be stored",
        "set max_payload: 1MB in the server's configuration and reload it",
    )


def _sync(monitor_url: str | None, varz: Mapping[str, Any] | None, *, own_broker: bool) -> Finding:
    if own_broker and monitor_url is None:
        return fine(Check.SYNC, "the worker's own broker syncs before it acknowledges")
    if monitor_url is None:
        return warning(
            Check.SYNC,
            "whether the broker syncs before it acknowledges cannot be seen from here",
            _UNSYNCED,
            "name its monitoring address: tidegate doctor --monitor http://HOST:8222",
        )
    if varz is None:
        return warning(
            Check.SYNC,
            f"{monitor_url} does not answer as a server's monitoring does",
            _UNSYNCED,
            "check the address (http in the server's configuration, on loopback in ours)",
        )
    if _jetstream(varz, "config").get("sync_always"):
        return fine(Check.SYNC, "the broker syncs before it acknowledges")
    return danger(
        Check.SYNC,
        "the broker acknowledges before it syncs",
        "a power cut takes back checkpoints, Stops and permits that were acknowledged",
        "set jetstream { sync_interval: always } on every server and restart them one by one",
    )


def _space(account: Mapping[str, Any], varz: Mapping[str, Any]) -> Finding:
    """How full the store is: by the account's limit, else by the server's if it can be seen."""
    limits = account.get("limits") or {}
    used, most, whose = account.get("storage", 0), limits.get("max_storage", -1), "the account"
    if most <= 0:
        used = _jetstream(varz, "stats").get("storage", used)
        most, whose = _jetstream(varz, "config").get("max_storage", 0), "the server"
    if most <= 0:
        return fine(Check.BROKER_SPACE, f"{used // _MIB} MiB are stored, and no limit is seen")
    share = used / most
    found = f"{share:.0%} of the {most // _MIB} MiB that {whose} may store are used"
    if share < SPACE_WARNING:
        return fine(Check.BROKER_SPACE, found)
    find = danger if share >= SPACE_DANGER else warning
    return find(
        Check.BROKER_SPACE,
        found,
        "a full store refuses commands, and a timer that fires into it stays silent",
        "raise the limit (max_file_store, or the account's max_file), or keep less: lower "
        "TIDEGATE_RES_MAX_AGE_MS, set TIDEGATE_LOG_KEEP_MS, or: tidegate ledger trim",
    )


def _encryption(options: ConnectOptions, info: Mapping[str, Any]) -> Finding:
    if info.get("tls_required") or all(url.startswith("tls://") for url in options.servers):
        return fine(Check.ENCRYPTION, "the connection is encrypted")
    if all(map(_is_loopback, options.servers)):
        return fine(Check.ENCRYPTION, "the connection does not leave this machine")
    return warning(
        Check.ENCRYPTION,
        "the connection is not encrypted",
        "passwords, commands and answers can be read and changed on their way",
        "give the server a certificate (tls in nats.conf) and use tls:// in TIDEGATE_NATS_URL",
    )


async def _anonymous(options: ConnectOptions) -> Finding:
    """Knock without credentials, and see who that makes us."""
    knocking = ConnectOptions(
        options.servers, tls=options.tls, connect_timeout_ms=options.connect_timeout_ms
    )
    try:
        conn = await Connection.open(knocking, name="tidegate-doctor-nobody")
    except TidegateError:
        return fine(Check.ANONYMOUS, "the broker lets nobody in without credentials")
    try:
        found = await user_info(conn)
    finally:
        await conn.close(timeout_ms=500)
    if found is None or not found.unlimited:
        return fine(Check.ANONYMOUS, "who comes without credentials has limited rights")
    find = warning if all(map(_is_loopback, options.servers)) else danger
    return find(
        Check.ANONYMOUS,
        f"who comes without credentials is user {found.user!r} of account {found.account!r} "
        "and may do everything there",
        "anybody who reaches the broker may speak as anyone: approve, spend, stop",
        "remove no_auth_user and give every client a user of its own: tidegate setup --print-conf",
    )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _ask_monitor(monitor_url: str | None) -> Mapping[str, Any] | None:
    if monitor_url is None:
        return None
    try:
        varz: Any = await asyncio.to_thread(_varz, monitor_url)
    except (OSError, ValueError):
        return None
    return varz if isinstance(varz, dict) and "jetstream" in varz else None


def _varz(monitor_url: str) -> Any:
    if not monitor_url.startswith(("http://", "https://")):
        raise ValueError("not a monitoring address")
    address = f"{monitor_url.rstrip('/')}/varz"
    with urllib.request.urlopen(address, timeout=2) as answer:  # noqa: S310 - checked above
        return json.load(answer)


def _jetstream(varz: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    return dict((varz.get("jetstream") or {}).get(part) or {})
