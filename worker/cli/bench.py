"""``tidegate bench``: figures beside the raw ceilings of the same broker, in one run."""

from collections.abc import Callable
from typing import Annotated

import typer

from schemas.strict_json import JsonObject
from worker.bench import text
from worker.cli import common, ending
from worker.cli.common import JsonFlag
from worker.showing.columns import fitted

app = typer.Typer(
    no_args_is_help=True,
    short_help="Measure a plane beside the raw broker.",
    help="Measure a plane on a broker and worker of its own, beside the raw broker.",
)

CountOption = Annotated[
    int,
    typer.Option(
        "--count", help="How many per figure.", metavar="N", parser=common.whole(100, 1_000_000)
    ),
]


@app.command()
def checkpoints(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast runs settle, and how late they expire."""
    from worker.bench import checkpoints as bench

    figures = ending.run_async(bench.run(count, common.say), fast=True)
    _tell(figures, as_json, text.checkpoints)


@app.command()
def caps(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast caps are reserved, asked for and stopped.

    And how fast a log is folded again.
    """
    from worker.bench import caps as bench

    figures = ending.run_async(bench.run(count, common.say), fast=True)
    _tell(figures, as_json, text.caps)


@app.command()
def admission(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast turns get seats, and what a decision costs."""
    from worker.bench import admission as bench

    figures = ending.run_async(bench.run(count, common.say), fast=True)
    _tell(figures, as_json, text.admission)


@app.command()
def timers(
    pending: Annotated[
        int,
        typer.Option(
            "--pending",
            help="How many wait at once.",
            metavar="N",
            parser=common.whole(100, 10_000_000),
        ),
    ] = 10_000,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            help="How many fall due a second; by default half of what settles in this run.",
            metavar="PER_S",
            parser=common.real(1),
        ),
    ] = None,
    lead: Annotated[
        float | None,
        typer.Option(
            "--lead",
            help="Seconds from the first mint to the first deadline; by default foreseen.",
            metavar="SECONDS",
            parser=common.real(1),
        ),
    ] = None,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            help="Commands under way at once.",
            metavar="N",
            parser=common.whole(1, 4_096),
        ),
    ] = 64,
    minters: Annotated[
        int,
        typer.Option(
            "--minters", help="How many workers mint.", metavar="N", parser=common.whole(1, 16)
        ),
    ] = 1,
    stop_after: Annotated[
        float | None,
        typer.Option(
            "--stop-after",
            help="Seconds after the first deadline to look; by default until all have expired.",
            metavar="SECONDS",
            parser=common.real(1),
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """How many deadlines can wait, and how late they expire.

    And what each takes of memory and disk.
    """
    from worker.bench import timers as bench

    work = bench.run(
        pending, rate, lead, common.say, in_flight=in_flight, minters=minters, for_s=stop_after
    )
    figures = ending.run_async(work, fast=True)
    _tell(figures, as_json, text.timers)


@app.command("all")
def everything(
    count: CountOption = 2_000,
    max_timers: Annotated[
        int,
        typer.Option(
            "--max-timers",
            help="Most deadlines pending at once; a million takes more than an hour.",
            metavar="N",
            parser=common.whole(1_000, 10_000_000),
        ),
    ] = 10_000,
    max_turns: Annotated[
        int,
        typer.Option(
            "--max-turns",
            help="Most turns queued at once.",
            metavar="N",
            parser=common.whole(100, 1_000_000),
        ),
    ] = 100_000,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Also let other tools do the same work, in environments of their own.",
            show_default=False,
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Every bench, scaling curves, with --peers others too.

    Others (DBOS, Procrastinate, APScheduler, taskiq-nats) are installed with pip into the user's
    cache; what cannot be is left out with the reason.
    """
    from worker.bench import everything as bench

    work = bench.run(count, max_timers, max_turns, common.say, peers=peers)
    figures = ending.run_async(work, fast=True)
    _tell(figures, as_json, text.everything)


def _tell(figures: JsonObject, as_json: bool, shown: Callable[[JsonObject], str]) -> None:
    """Print figures; what is made for people alone can lose no measurement."""
    common.emit_data(
        "figures", figures, as_json, [] if as_json else fitted(shown(figures).splitlines())
    )
