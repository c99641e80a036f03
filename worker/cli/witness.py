"""``tidegate witness``: sees processes end on this host, for workers that run elsewhere."""

from typing import TYPE_CHECKING, Annotated

import typer

from worker.cli import sessions
from worker.cli.common import ConfigOption, NatsOption, SpacesOption

if TYPE_CHECKING:
    from worker.evidence.witness import Witness

WITNESS_CODES = (
    "Exit codes: 0 stopped by a signal, 1 it cannot see or lost the broker, 2 wrong settings, "
    "3 the broker refuses it."
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(epilog=WITNESS_CODES)
    def witness(
        nats: NatsOption = None,
        spaces: SpacesOption = None,
        host: Annotated[
            str | None,
            typer.Option(
                "--host",
                help="This host's id; by default TIDEGATE_HOST, else the machine id.",
                metavar="HOST",
            ),
        ] = None,
        config: ConfigOption = None,
    ) -> None:
        """See connectors end on this host, and vouch for it.

        One per host that runs connectors and no worker, in the host's own pid namespace (in a
        container: with the host's pids). It speaks as _witness-HOST and is believed about its own
        host only.
        """
        flags = {"nats_url": nats, "spaces": spaces, "host": host}
        settings = sessions.load_settings(flags, config).settings

        import asyncio

        from worker import identity, logs
        from worker.evidence.verdicts import observer_of
        from worker.evidence.witness import Witness

        logs.configure(settings.log_level, settings.log_format)
        one = Witness(settings, observer_of(settings.host), uid=identity.new_uid())
        asyncio.run(_until_stopped(one))


async def _until_stopped(witness: "Witness") -> None:
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, witness.stop)
    await witness.run()
