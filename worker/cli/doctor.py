"""``tidegate doctor``: what is wrong, what it endangers, and the exact fix."""

from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli import common, ending, sessions
from worker.cli.common import ConfigOption, JsonFlag, NatsOption, SpacesOption
from worker.showing.columns import wrapped

if TYPE_CHECKING:
    from worker.doctor.findings import Finding
    from worker.settings import Loaded


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog="Exit codes: 0 no danger, 1 at least one danger.")
    def doctor(
        monitor: Annotated[
            str | None,
            typer.Option(
                "--monitor",
                help="The server's monitoring address, http://HOST:8222: shows whether it syncs.",
                metavar="URL",
            ),
        ] = None,
        spaces: SpacesOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say what is wrong, what it endangers, and the exact fix.

        It looks at broker, streams, rights, clock, files and disk, and changes nothing.

        With the worker's credentials (TIDEGATE_NATS_USER and so on) everything is looked at; with a
        client's, its rights, and whether a worker answers it.
        """
        loaded = sessions.load_settings({"nats_url": nats, "spaces": spaces}, config)
        findings = ending.run_async(_examine(loaded, monitor))
        report = {"v": 1, "findings": [finding.to_object() for finding in findings]}
        common.emit_data("findings", report, as_json, _text(findings))
        in_danger = any(finding.severity == "danger" for finding in findings)
        raise typer.Exit(ending.FAILED if in_danger else ending.OK)


async def _examine(loaded: "Loaded", monitor: str | None) -> "list[Finding]":
    from worker.doctor import examination

    return await examination.examine(loaded.settings, unknown=loaded.unknown, monitor_url=monitor)


def _text(findings: "list[Finding]") -> list[str]:
    lines = []
    order = ("danger", "warning", "fine")
    for finding in sorted(findings, key=lambda one: order.index(one.severity)):
        before = f"{finding.severity.value:<8} {finding.check.value:<16} "
        lines += wrapped(before, finding.found)
        if finding.fix:
            lines += wrapped(f"{'':<26}endangers: ", finding.endangers)
            # Not wrapped: whoever copies a command must get it whole.
            lines.append(f"{'':<26}fix: {finding.fix}")
    counts = ", ".join(
        f"{sum(finding.severity == severity for finding in findings)} {severity}"
        for severity in order
    )
    return [*lines, counts]
