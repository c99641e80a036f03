"""``tidegate bench``: figures beside the raw ceilings of the same broker, in one run."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from schemas.strict_json import JsonObject
from worker.cli import common
from worker.cli.common import JsonFlag

app = typer.Typer(
    no_args_is_help=True,
    help="Measure a plane on a broker and worker of its own, beside the raw broker.",
)

CountOption = Annotated[
    int, typer.Option("--count", min=100, max=1_000_000, help="How many per figure.")
]


@app.command()
def checkpoints(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast runs pause and settle, and how late deadlines expire."""
    from worker.bench import checkpoints as bench

    figures = _measure(bench.run(count, common.say))
    common.emit(figures, as_json, _checkpoints_text(figures))


def _measure(work: Coroutine[Any, Any, JsonObject]) -> JsonObject:
    from worker import daemon, logs

    logs.configure("error", "console")
    with asyncio.Runner(loop_factory=daemon.loop_factory()) as runner:
        return runner.run(work)


def _checkpoints_text(figures: JsonObject) -> str:
    wheel, broker = figures["lateness_wheel"], figures["lateness_broker"]
    return "\n".join(
        (
            f"minted       {figures['minted_per_s']:>9,.0f} /s",
            f"armed        {figures['armed_per_s']:>9,.0f} /s (for foreign owners)",
            f"settled      {figures['settled_per_s']:>9,.0f} /s",
            f"  raw compare-and-set {figures['raw_cas_per_s']:,.0f} /s,"
            f" publish {figures['raw_publish_per_s']:,.0f} /s, same broker, synced:"
            f" settled is {figures['settled_to_raw_cas']:.0%} of the former",
            f"settle       p50 {figures['settle_p50_ms']} ms, p99 {figures['settle_p99_ms']} ms",
            f"late, wheel  p50 {wheel['p50_ms']} ms, p99 {wheel['p99_ms']} ms",
            f"late, broker p50 {broker['p50_ms']} ms, p99 {broker['p99_ms']} ms",
            f"worker       {figures['worker_idle_mb']} MB idle,"
            f" {figures['worker_busy_mb']} MB after the run",
        )
    )
