"""``tidegate doctor``: what is wrong, what it endangers, and the exact fix."""

from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli import common
from worker.cli.common import ConfigOption, JsonFlag, NatsOption

if TYPE_CHECKING:
    from worker.doctor.findings import Finding
    from worker.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog="Exit codes: 0 no danger, 1 at least one danger.")
    def doctor(
        monitor: Annotated[
            str | None,
            typer.Option("--monitor", help="The server's monitoring address, http://HOST:8222."),
        ] = None,
        spaces: Annotated[
            str | None, typer.Option("--space", "--spaces", help="Spaces, comma separated.")
        ] = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Look at broker, streams, rights, clock, files and disk; changes nothing.

        It uses the worker's credentials (TIDEGATE_NATS_USER and so on).
        """
        flags = {"nats_url": nats, "spaces": spaces}
        settings = common.load_settings(flags, config).settings
        findings = common.run_async(_examine(settings, monitor))
        report = {"v": 1, "findings": [finding.to_object() for finding in findings]}
        common.emit(report, as_json, _text(findings))
        in_danger = any(finding.severity == "danger" for finding in findings)
        raise typer.Exit(common.FAILED if in_danger else common.OK)


async def _examine(settings: "Settings", monitor: str | None) -> "list[Finding]":
    from schemas.names import Names
    from worker import broker
    from worker.bus.connection import Connection
    from worker.doctor import local, remote, rights
    from worker.doctor.findings import Finding, Severity
    from worker.errors import TidegateError

    findings = local.examine(settings)
    try:
        conn = await Connection.open(broker.worker_options(settings), name="tidegate-doctor")
    except TidegateError as error:
        trouble = Finding(
            "broker",
            Severity.DANGER,
            error.message,
            "nothing can be stored or served",
            "start the broker, or correct TIDEGATE_NATS_URL and the worker's credentials",
        )
        return [trouble, *findings]
    try:
        own_broker = not settings.servers
        names = [Names(settings.root, space) for space in settings.spaces]
        findings += await remote.examine(conn, settings, monitor, own_broker=own_broker)
        findings += await rights.examine(conn, names)
    finally:
        await conn.close()
    return findings


def _text(findings: "list[Finding]") -> str:
    lines = []
    for finding in sorted(
        findings, key=lambda one: ("danger", "warning", "fine").index(one.severity)
    ):
        lines.append(f"{finding.severity.value:<8} {finding.check:<15} {finding.found}")
        if finding.fix:
            lines.append(f"{'':<25}endangers: {finding.endangers}")
            lines.append(f"{'':<25}fix: {finding.fix}")
    return "\n".join(lines)
