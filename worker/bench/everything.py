"""``tidegate bench all``: every bench after the other, scaling curves, and on request the peers."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from schemas.strict_json import JsonObject
from worker.bench import admission, caps, checkpoints, ground, scaling
from worker.bench.ground import Say, saying
from worker.bench.peers import comparison

SYNC: Final = {
    "always": "fsync before each acknowledgement",
    "default": "acknowledged before fsync",
    "fold": "SQLite, synchronous FULL, one commit per batch",
}
ONE_AFTER_ANOTHER: Final = "synced writes and the ways between processes, one after another"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as a row.

    Attributes:
        name: Of what, as ``<bench>.<mode>.<what>``.
        value: How much.
        unit: ``/s`` or ``ms``.
        durability: What an acknowledgement meant.
        bound: What kept it from being better.
        ceiling: The raw ceiling of the same run; ``None`` where there is none.
        ratio: The value as a part of the ceiling.
    """

    name: str
    value: float
    unit: str
    durability: str
    bound: str
    ceiling: float | None = None
    ratio: float | None = None


async def run(
    count: int, max_timers: int, max_turns: int, say: Say, *, peers: bool = False
) -> JsonObject:
    """Measure everything.

    Args:
        count: Per figure.
        max_timers: Most deadlines that are pending at once in the scaling curve.
        max_turns: Most turns that are queued at once in the scaling curve.
        say: Told what is being measured.
        peers: Also let others do the same work, in environments of their own.
    """
    found: JsonObject = {
        "checkpoints": await checkpoints.run(count, saying(say, "checkpoints")),
        "caps": await caps.run(count, saying(say, "caps")),
        "admission": await admission.run(count, saying(say, "admission")),
        "scaling": await scaling.curves(count, max_timers, max_turns, saying(say, "scaling")),
    }
    if peers:
        found["peers"] = await comparison.run(count, say)
    return {
        "v": 1,
        "bench": "all",
        "count": count,
        "machine": ground.machine(),
        "figures": [asdict(figure) for figure in figures(found)],
        **found,
    }


def figures(found: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of the single benches as rows, each with all that has to stand beside it."""
    yield from _checkpoints(found["checkpoints"])
    for mode in ("always", "default"):
        yield from _caps(found["caps"][mode], mode)
    yield from _folds("caps", found["caps"]["fold"], ("fold_per_s", "replay_per_s"))
    for mode in ("always", "default"):
        yield from _admission(found["admission"][mode], mode)
    yield from _folds(
        "admission", found["admission"]["fold"], ("turn_commands_per_s", "replay_per_s")
    )


def _checkpoints(one: Mapping[str, Any]) -> Iterator[Figure]:
    sync, cas = SYNC["always"], one["raw_cas_per_s"]
    for what in ("minted", "settled"):
        yield _rate(
            f"checkpoints.always.{what}", one[f"{what}_per_s"], sync, one[f"{what}_bound"], cas
        )
    yield _rate(
        "checkpoints.always.armed", one["armed_per_s"], sync, "the reads at the leader", cas
    )
    yield from _latencies("checkpoints.always.settle", one, "settle", sync, ONE_AFTER_ANOTHER)
    bounds = {
        "wheel": "the uncertainty of the broker's clock, and " + ONE_AFTER_ANOTHER,
        "broker": "the broker, which fires 0 to 250 ms late",
    }
    for path, bound in bounds.items():
        late = one[f"lateness_{path}"]
        for percent in ("p50", "p99"):
            name = f"checkpoints.always.lateness_{path}_{percent}"
            yield Figure(name, late[f"{percent}_ms"], "ms", sync, bound)


def _caps(one: Mapping[str, Any], mode: str) -> Iterator[Figure]:
    sync, raw = SYNC[mode], one["raw_publish_per_s"]
    pairs, authorize = one["pairs_per_s"], one["authorize_per_s"]
    # A pair is two commands, and each of those at least one publish.
    yield _rate(f"caps.{mode}.pairs", pairs, sync, one["pairs_bound"], raw, publishes=2)
    yield _rate(f"caps.{mode}.authorize", authorize, sync, one["authorize_bound"], raw)
    ceiling = one["raw_results_one_by_one_per_s"]
    yield _rate(f"caps.{mode}.drained", one["drained_per_s"], sync, one["drained_bound"], ceiling)
    for what in ("authorize", "stop_to_refusal"):
        yield from _latencies(f"caps.{mode}.{what}", one, what, sync, ONE_AFTER_ANOTHER)


def _admission(one: Mapping[str, Any], mode: str) -> Iterator[Figure]:
    sync, raw = SYNC[mode], one["raw_publish_per_s"]
    # A turn is five commands: enqueue, start, intent, active, complete.
    turns = one["turns_per_s"]
    yield _rate(f"admission.{mode}.turns", turns, sync, one["turns_bound"], raw, publishes=5)
    queued = one["enqueued_per_s"]
    yield _rate(f"admission.{mode}.enqueued", queued, sync, one["enqueued_bound"], raw)
    yield from _latencies(f"admission.{mode}.grant", one, "grant", sync, ONE_AFTER_ANOTHER)


def _folds(plane: str, fold: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Figure]:
    ceiling = fold.get("sqlite_one_by_one_per_s")
    for name in names:
        what = name.removesuffix("_per_s")
        bound = "one core: decoding, judging and writing rows"
        yield _rate(f"{plane}.fold.{what}", fold[name], SYNC["fold"], bound, ceiling)


def _rate(
    name: str,
    value: float,
    durability: str,
    bound: str,
    ceiling: float | None,
    *,
    publishes: int = 1,
) -> Figure:
    ratio = None if ceiling is None else round(publishes * value / ceiling, 3)
    return Figure(name, value, "/s", durability, bound, ceiling, ratio)


def _latencies(
    name: str, one: Mapping[str, Any], what: str, durability: str, bound: str
) -> Iterator[Figure]:
    for percent in ("p50", "p99"):
        yield Figure(f"{name}_{percent}", one[f"{what}_{percent}_ms"], "ms", durability, bound)
