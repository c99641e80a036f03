"""The whole examination: this machine, then the broker as far as the credential reaches."""

from collections.abc import Sequence

from schemas.names import Names
from schemas.roles import OPERATOR_PREFIX
from worker import broker
from worker.bus.connection import Connection
from worker.bus.errors import BusError, Denied, TlsRefused, Unauthenticated, Unavailable
from worker.bus.options import ConnectOptions
from worker.bus.topology import FLOOR, check_server
from worker.doctor import local, rights, server, space, workers
from worker.doctor.findings import Check, Finding, danger
from worker.errors import StartRefused, TidegateError
from worker.settings import Settings


async def examine(
    settings: Settings, *, unknown: Sequence[str] = (), monitor_url: str | None = None
) -> list[Finding]:
    """Look at everything that can be looked at; changes nothing.

    Args:
        settings: The settings, with the worker's credentials or a client's.
        unknown: Variables that look like settings and are none.
        monitor_url: The server's monitoring address.
    """
    findings = local.examine(settings, unknown)
    try:
        options = broker.worker_options(settings)
        conn = await Connection.open(options, name="tidegate-doctor")
    except TidegateError as error:
        return [_unreachable(error), *findings]
    try:
        return findings + await _broker(conn, options, settings, monitor_url)
    finally:
        await conn.close()


async def _broker(
    conn: Connection, options: ConnectOptions, settings: Settings, monitor_url: str | None
) -> list[Finding]:
    names = [Names(settings.root, name) for name in settings.spaces]
    own_broker = not settings.servers
    found = await rights.user_info(conn)
    try:
        await check_server(conn)
        is_worker = True
    except Unavailable as error:
        # It has streams for this account, and cannot say anything of them now.
        return [_silent(error)]
    except (Denied, StartRefused) as error:
        is_worker = False
        if isinstance(error, StartRefused) and not _has_streams(conn):
            return [_unfit(error)]
    findings: list[Finding] = []
    if is_worker:
        looks = [
            server.examine(conn, options, monitor_url, own_broker=own_broker),
            *(space.examine(conn, one, settings, own_broker=own_broker) for one in names),
        ]
        for look in looks:
            try:
                findings += await look
            except BusError as error:
                findings.append(_silent(error))
    findings += rights.examine(found, names, is_worker=is_worker, own_broker=own_broker)
    for one in names:
        speaker = OPERATOR_PREFIX if found is None else rights.speaker_of(found, one)
        findings.append(await workers.examine(conn, one, speaker, is_worker=is_worker))
    return findings


def _has_streams(conn: Connection) -> bool:
    """Whether it is the account, and not the server, that has no streams."""
    return conn.server_version >= FLOOR and bool(conn.server_info.get("jetstream"))


def _unreachable(error: TidegateError) -> Finding:
    return danger(
        Check.BROKER,
        "no broker is configured, and none that a worker started is found here"
        if isinstance(error, broker.NoBroker)
        else error.message,
        "nothing can be stored or served",
        _way_in(error),
    )


def _way_in(error: TidegateError) -> str:
    match error:
        case Unauthenticated() | Denied():
            return (
                "correct TIDEGATE_NATS_USER and TIDEGATE_NATS_PASSWORD (or TIDEGATE_NATS_CREDS_FILE"
                ", TIDEGATE_NATS_NKEY_SEED_FILE): a user of the broker's configuration"
            )
        case TlsRefused():
            return "enable TLS on the server, or take tls:// and TIDEGATE_TLS_CA away"
        case broker.NoBroker():
            return "start one with its worker: tidegate run; or set TIDEGATE_NATS_URL"
        case _:
            return "start the broker, or correct TIDEGATE_NATS_URL"


def _silent(error: BusError) -> Finding:
    return danger(
        Check.BROKER,
        f"the broker did not answer while it was looked at: {error.message}",
        "what it keeps can be neither read nor written",
        "see the server's log; in a cluster, start the servers that are missing",
    )


def _unfit(error: TidegateError) -> Finding:
    return danger(
        Check.SERVER,
        error.message,
        "the worker refuses to start",
        "use nats-server 2.14.3 or newer with JetStream enabled",
    )
