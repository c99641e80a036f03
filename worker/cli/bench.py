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
    short_help="Measure a plane beside the raw broker.",
    help="Measure a plane on a broker and worker of its own, beside the raw broker.",
)

CountOption = Annotated[
    int,
    typer.Option("--count", min=100, max=1_000_000, help="How many per figure.", metavar="N"),
]


@app.command()
def checkpoints(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast runs settle, and how late they expire."""
    from worker.bench import checkpoints as bench

    figures = _measure(bench.run(count, common.say))
    common.emit(figures, as_json, _checkpoints_text(figures))


@app.command()
def caps(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast caps are reserved, asked for and stopped.

    And how fast a log is folded again.
    """
    from worker.bench import caps as bench

    figures = _measure(bench.run(count, common.say))
    common.emit(figures, as_json, _caps_text(figures))


@app.command()
def admission(count: CountOption = 2_000, as_json: JsonFlag = False) -> None:
    """How fast turns get seats, and what a decision costs."""
    from worker.bench import admission as bench

    figures = _measure(bench.run(count, common.say))
    common.emit(figures, as_json, _admission_text(figures))


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


def _caps_text(figures: JsonObject) -> str:
    fold = figures["fold"]
    lines = []
    for mode, title in (("always", "broker syncs always"), ("default", "broker's default sync")):
        one = figures[mode]
        lines += [
            f"{title}; alone it takes {one['raw_publish_per_s']:,.0f} publishes/s,"
            f" {one['raw_results_one_by_one_per_s']:,.0f} results/s one by one",
            f"  reserve+confirm  {one['pairs_per_s']:>9,.0f} pairs/s"
            f" ({one['pairs_commands_to_raw_publish']:.0%} of the publishes)",
            f"    bound by {one['pairs_bound']}",
            f"  authorize        {one['authorize_per_s']:>9,.0f} /s"
            f" ({one['authorize_to_raw_publish']:.0%} of the publishes),"
            f" {one['commits_per_s']:,.0f} commits/s",
            f"    bound by {one['authorize_bound']}",
            f"  authorize        p50 {one['authorize_p50_ms']} ms,"
            f" p99 {one['authorize_p99_ms']} ms",
            f"  stop to refusal  p50 {one['stop_to_refusal_p50_ms']} ms,"
            f" p99 {one['stop_to_refusal_p99_ms']} ms",
            f"  drained          {one['drained_per_s']:>9,.0f} /s, results included"
            f" ({one['drained_to_one_by_one']:.1f} x its results one by one)",
            f"    bound by {one['drained_bound']}",
        ]
    return "\n".join(
        (
            *lines,
            f"a log of {fold['commands']:,} commands, without waiting for a broker",
            f"  fold             {fold['fold_per_s']:>9,.0f} /s, outbox written",
            f"  replay           {fold['replay_per_s']:>9,.0f} /s, bound by {fold['replay_bound']}",
            f"  plain SQLite     {fold['sqlite_one_by_one_per_s']:>9,.0f} /s, the same rows"
            " in one transaction each",
        )
    )


def _admission_text(figures: JsonObject) -> str:
    fold, decision = figures["fold"], figures["decision"]
    lines = []
    for mode, title in (("always", "broker syncs always"), ("default", "broker's default sync")):
        one = figures[mode]
        lines += [
            f"{title}; alone it takes {one['raw_publish_per_s']:,.0f} publishes/s,"
            f" {one['raw_cas_per_s']:,.0f} compare-and-set/s",
            f"  full turns       {one['turns_per_s']:>9,.0f} /s, enqueue to completed, 5 commands"
            f" each ({one['turns_commands_to_raw_publish']:.0%} of the publishes)",
            f"  enqueue          {one['enqueued_per_s']:>9,.0f} /s"
            f" ({one['enqueued_to_raw_publish']:.0%} of the publishes)",
            f"  call to seat     p50 {one['grant_p50_ms']} ms, p99 {one['grant_p99_ms']} ms",
        ]
    lines += [
        f"a log of {fold['commands']:,} commands, without waiting for a broker",
        f"  full turns       {fold['turns_per_s']:>9,.0f} /s"
        f" ({fold['turn_commands_per_s']:,.0f} commands/s), outbox written",
        f"  enqueue          {fold['enqueued_per_s']:>9,.0f} /s",
        f"  replay           {fold['replay_per_s']:>9,.0f} commands/s",
        "one decision, and the end of the turn before it",
    ]
    lines += [
        f"  {int(queued):>7,} queued   {one['us']:>9,.1f} us, {one['instructions']:,} instructions"
        for queued, one in decision.items()
        if queued.isdecimal()
    ]
    lines.append(
        f"  ratio            {decision['ratio_us']:>9} by time,"
        f" {decision['ratio_instructions']} by instructions"
    )
    return "\n".join(lines)
