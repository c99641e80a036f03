"""``tidegate soak``: steady mixed traffic, watched for anything that only grows."""

from typing import Annotated

import typer

from worker.cli import common, ending
from worker.cli.common import JsonFlag
from worker.showing.columns import fitted


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def soak(
        minutes: Annotated[
            float,
            typer.Option(
                "--minutes",
                help="How long; drift is judged from ten minutes on.",
                metavar="MINUTES",
                parser=common.real(0.05, 100_000),
            ),
        ] = 10.0,
        rate: Annotated[
            float,
            typer.Option(
                "--rate",
                help="Stories begun a second.",
                metavar="PER_S",
                parser=common.real(0.1, 1_000),
            ),
        ] = 9.0,
        seed: Annotated[
            int,
            typer.Option(
                "--seed", help="Where chance comes from.", metavar="N", parser=common.whole(0)
            ),
        ] = 1,
        as_json: JsonFlag = False,
    ) -> None:
        """Run traffic of all planes, and see what drifts.

        It has a broker and a worker of its own. It tells each minute's figures on standard error.
        Exit code 1 if memory, files, tasks or streams grow that should not, or if anything ended
        otherwise than it must. An interrupt ends it with the report so far.
        """
        from worker.soak import report
        from worker.soak.run import Plan, run

        found = ending.run_async(run(Plan(minutes, rate, seed), common.say), fast=True)
        common.emit_data("soak", found, as_json, fitted(report.text(found)))
        raise typer.Exit(ending.OK if found["ok"] else ending.FAILED)
