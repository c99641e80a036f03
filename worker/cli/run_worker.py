"""``tidegate run``: the worker."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from worker.cli import common, sessions
from worker.cli.common import ConfigOption, SpacesOption

RUN_CODES = (
    "Exit codes: 0 stopped by a signal, 3 refused to start (the last line says why), "
    "2 wrong settings, 1 something failed while running, 75 the shutdown was cut off."
)

RUN_EXAMPLES = common.examples(
    "tidegate run",
    "tidegate run --nats nats://broker:4222 --spaces main,test --health-port 8223",
    more=RUN_CODES,
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog=RUN_EXAMPLES)
    def run(
        nats: Annotated[
            str | None,
            typer.Option(
                "--nats",
                help="Broker URLs, comma separated; by default TIDEGATE_NATS_URL, else a broker of "
                "its own.",
                metavar="URL",
            ),
        ] = None,
        spaces: SpacesOption = None,
        data_dir: Annotated[
            Path | None,
            typer.Option(
                "--data-dir",
                help="Where state is kept; by default TIDEGATE_DATA_DIR, else your state folder.",
                metavar="DIR",
            ),
        ] = None,
        health_port: Annotated[
            int | None,
            typer.Option(
                "--health-port",
                help="Port of /livez, /readyz and /metrics; 0 turns them off. By default "
                "TIDEGATE_HEALTH_PORT, 0.",
                metavar="PORT",
                parser=common.whole(0, 65_535),
            ),
        ] = None,
        wheel: Annotated[
            bool | None,
            typer.Option(
                "--wheel/--no-wheel",
                help="Expire in process too (the default), milliseconds after a deadline, or only "
                "by the broker's timers, up to 250 ms after it.",
            ),
        ] = None,
        log_level: Annotated[
            Literal["debug", "info", "warning", "error"] | None,
            typer.Option("--log-level", help="Least severe level that is logged; by default info."),
        ] = None,
        log_format: Annotated[
            Literal["auto", "json", "console"] | None,
            typer.Option("--log-format", help="By default auto: console on a terminal, else json."),
        ] = None,
        config: ConfigOption = None,
    ) -> None:
        """Run the worker, with its own broker if none is named.

        Options go before TIDEGATE_… variables, these before the settings file. All settings:
        tidegate config show.
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
        settings = sessions.load_settings(flags, config).settings

        from worker import daemon, logs, wiring

        logs.configure(settings.log_level, settings.log_format)
        raise typer.Exit(daemon.run(settings, wiring.planes_of))
