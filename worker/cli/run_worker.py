"""``tidegate run``: the worker."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from worker.cli import common
from worker.cli.common import ConfigOption, NatsOption

RUN_CODES = (
    "Exit codes: 0 stopped by a signal, 3 refused to start (the last line says why), "
    "2 wrong settings, 1 something failed while running, 75 the shutdown was cut off."
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog=RUN_CODES)
    def run(
        nats: NatsOption = None,
        spaces: Annotated[
            str | None,
            typer.Option("--space", "--spaces", help="Spaces to serve, comma separated."),
        ] = None,
        data_dir: Annotated[
            Path | None, typer.Option("--data-dir", help="Where state is kept.", metavar="DIR")
        ] = None,
        health_port: Annotated[
            int | None, typer.Option("--health-port", help="Port of /livez, /readyz, /metrics.")
        ] = None,
        wheel: Annotated[
            bool | None,
            typer.Option(
                "--wheel/--no-wheel", help="Expire in process too, or only by the broker."
            ),
        ] = None,
        log_level: Annotated[
            Literal["debug", "info", "warning", "error"] | None,
            typer.Option("--log-level", help="Least severe level that is logged."),
        ] = None,
        log_format: Annotated[
            Literal["auto", "json", "console"] | None,
            typer.Option("--log-format", help="json, console, or auto: console on a terminal."),
        ] = None,
        config: ConfigOption = None,
    ) -> None:
        """Run the worker, with a broker of its own if no broker is named.

        Every setting is also a TIDEGATE_… variable: tidegate config show.
        """
        flags = {
            "nats_url": nats,
            "spaces": spaces,
            "data_dir": data_dir,
            "health_port": health_port,
            "wheel": wheel,
            "log_level": log_level,
            "log_format": log_format,
        }
        settings = common.load_settings(flags, config).settings

        from worker import daemon, logs, wiring

        logs.configure(settings.log_level, settings.log_format)
        raise typer.Exit(daemon.run(settings, wiring.planes_of))
