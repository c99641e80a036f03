"""The figures as text for people."""

from collections.abc import Iterator
from typing import Any

from schemas.strict_json import JsonObject


def everything(figures: JsonObject) -> str:
    """Of ``tidegate bench all``."""
    lines = [*_rows(figures["figures"]), *_curves(figures["scaling"])]
    if "peers" in figures:
        lines += _peers(figures["peers"])
    return "\n".join(lines)


def timers(figures: JsonObject) -> str:
    """Of ``tidegate bench timers``."""
    one, listed = figures["expiry"], figures["list"]
    late, idle = one["lateness"], figures["idle_cores"]
    lines = [
        f"pending  {figures['pending']:>9,}, minted and armed at {figures['minted_per_s']:,.0f} /s"
        f" ({figures['minted_to_raw_cas']:.0%} of raw compare-and-set), synced",
        f"worker   {figures['worker_bytes_per_timer']:>9,} bytes for each that waits"
        f" ({figures['worker_mb']:,.0f} MB; {figures['worker_warm_mb']:,.0f} MB before),"
        f" index {figures['index_mb']:,.0f} MB on disk",
        f"broker   {figures['broker_bytes_per_timer']:>9,} bytes for each"
        f" ({figures['broker_mb']:,.0f} MB), store {figures['store_mb']:,.0f} MB",
        f"idle     {idle['worker']:>9.2%} of a core by the worker,"
        f" {idle['broker']:.2%} by the broker",
        f"list     {listed['pages']:>9,} pages of {listed['page']:,}:"
        f" {listed['first_pages_ms']} ms a page at the start,"
        f" {listed['last_pages_ms']} ms at the end",
    ]
    lines += [
        f"restart  {restart['ready_ms']:>9,} ms until ready,"
        f" {restart['index_full_ms']:,} ms until the index is full ({name.replace('_', ' ')})"
        for name, restart in figures["restart"].items()
    ]
    lines += [
        f"expired  {one['expired_once']:>9,} of {one['due']:,} due, each once,"
        f" {figures['due_per_s']:,.0f} falling due a second",
        f"late     p50 {late['p50_ms']} ms, p99 {late['p99_ms']} ms, max {late['max_ms']} ms",
    ]
    return "\n".join(lines)


def _rows(rows: list[JsonObject]) -> Iterator[str]:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        beside = f", {row['ratio']:.2f} of {row['ceiling']:,.0f} raw" if row["ceiling"] else ""
        shown = f"{row['value']:>12,.2f} {row['unit']:<3}"
        yield (
            f"{row['name']:<{width}} {shown}{beside}; {row['durability']}; bound by {row['bound']}"
        )


def _curves(scaling: JsonObject) -> Iterator[str]:
    yield "pending timers"
    for one in scaling["pending_timers"]:
        late, listed = one["expiry"]["lateness"], one["list"]
        yield (
            f"  {one['pending']:>9,}  {one['minted_per_s']:>8,.0f} armed/s,"
            f" {one['worker_bytes_per_timer']:,} bytes each, list {listed['first_pages_ms']} to"
            f" {listed['last_pages_ms']} ms a page,"
            f" late p50 {late['p50_ms']} ms, p99 {late['p99_ms']} ms"
        )
    yield "queued turns"
    for one in scaling["queued_turns"]:
        yield (
            f"  {one['queued']:>9,}  {one['decision_us']:>8,.1f} us and"
            f" {one['decision_instructions']:,} instructions a decision, seat to next"
            f" p50 {one['seat_to_next_p50_ms']} ms, p99 {one['seat_to_next_p99_ms']} ms,"
            f" worker {one['worker_mb']} MB"
        )
    yield "replicas"
    for one in scaling["replicas"]:
        yield (
            f"  {one['workers']:>9,}  {one['settled_per_s']:>8,.0f} settled/s"
            f" ({one['settled_to_raw_cas']:.2f} of raw), {one['minted_per_s']:,.0f} minted/s;"
            f" bound by {one['settled_bound']}"
        )


def _peers(peers: JsonObject) -> Iterator[str]:
    yield "the same work by others"
    for name, one in peers.items():
        if name == "work":
            continue
        if "skipped" in one:
            yield f"  {name}: left out, {one['skipped']}"
            continue
        versions = ", ".join(f"{key} {value}" for key, value in one.get("versions", {}).items())
        yield f"  {name}{f' ({versions})' if versions else ''}; {one['durability']}"
        yield from _peer_figures(one)


def _peer_figures(one: dict[str, Any]) -> Iterator[str]:
    for key, value in one.items():
        if isinstance(value, dict) and "p50_ms" in value:
            shown = f"p50 {value['p50_ms']} ms, p99 {value['p99_ms']} ms"
            yield f"    {key.replace('_', ' '):<32} {shown}"
        elif key.endswith("_per_s"):
            yield f"    {key.removesuffix('_per_s').replace('_', ' '):<32} {value:,.0f} /s"


def checkpoints(figures: JsonObject) -> str:
    """Of ``tidegate bench checkpoints``."""
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


def caps(figures: JsonObject) -> str:
    """Of ``tidegate bench caps``."""
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


def admission(figures: JsonObject) -> str:
    """Of ``tidegate bench admission``."""
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
