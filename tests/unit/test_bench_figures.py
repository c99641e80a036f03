"""The pure parts of the benchmarks: what makes a figure out of what was measured."""

import math
import time
from typing import Any

import pytest

from worker.bench import everything, text
from worker.bench.ground import BenchError, Rate, percentile, spread
from worker.bench.load import Load, cores, machine_s
from worker.bench.scaling import tenfold
from worker.bench.timers import Plan


def test_percentiles_are_ranks_of_what_was_measured() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (
        50,
        99,
        100,
    )
    assert math.isnan(percentile([], 50))
    assert spread([3.0, 1.0, 2.0]) == {
        "count": 3,
        "min_ms": 1.0,
        "p50_ms": 2.0,
        "p99_ms": 3.0,
        "max_ms": 3.0,
    }


def test_the_last_to_fall_due_is_minted_first_and_all_fall_due_at_one_rate() -> None:
    plan = Plan(count=5, end_ms=10_000, per_s=2.0)
    due = [plan.deadline_ms(plan.number(plan.token(number))) for number in range(plan.count)]
    assert due == [10_000, 9_500, 9_000, 8_500, 8_000]
    with pytest.raises(BenchError):
        plan.number(Plan.token(5))


@pytest.mark.parametrize(
    ("most", "points"),
    [(1_000, [1_000]), (2_000, [1_000, 2_000]), (100_000, [1_000, 10_000, 100_000])],
)
def test_a_curve_goes_up_tenfold_and_ends_where_it_is_told(most: int, points: list[int]) -> None:
    assert list(tenfold(1_000, most)) == points


def test_a_figure_is_bound_by_what_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    used = cores({"worker": 1.0, "broker": 2.0}, {"worker": 10.0, "broker": 3.0}, 10.0)
    assert used == {"worker": 0.9, "broker": 0.1}
    assert Load(Rate(1, 1.0), used).bound().startswith("one core of the worker")
    assert "the machine's 2 cores" in Load(Rate(1, 1.0), {"worker": 0.9, "broker": 0.9}).bound()
    assert "waiting" in Load(Rate(1, 1.0), {"worker": 0.3, "broker": 0.2}).bound()
    assert "other work" in Load(Rate(1, 1.0), {"worker": 0.3, "broker": 0.2}, 1.4).bound()


def test_the_machine_counts_the_processor_time_of_everybody() -> None:
    before, own = machine_s(), time.process_time()
    while time.process_time() - own < 0.1:
        pass
    assert machine_s() - before >= 0.05


def test_every_figure_stands_beside_its_durability_its_bound_and_the_raw_ceiling() -> None:
    rows = {figure.name: figure for figure in everything.figures(MEASURED)}
    assert all(row.durability and row.bound for row in rows.values())
    assert all((row.ceiling is None) == (row.ratio is None) for row in rows.values())
    assert {row.unit for row in rows.values()} == {"/s", "ms"}
    settled = rows["checkpoints.always.settled"]
    assert (settled.ceiling, settled.ratio) == (4_000.0, 0.25)
    turns = rows["admission.default.turns"]
    assert turns.ratio == pytest.approx(5 * turns.value / 10_000, abs=0.001)
    assert rows["caps.always.pairs"].durability != rows["caps.default.pairs"].durability


def test_figures_as_text_name_each_figure_and_what_was_left_out() -> None:
    figures: dict[str, Any] = {
        "figures": [vars_of(figure) for figure in everything.figures(MEASURED)],
        "scaling": {"pending_timers": [], "queued_turns": [], "replicas": []},
        "peers": {
            "work": {},
            "other": {
                "versions": {"other": "1.2"},
                "durability": "fsync per commit",
                "lateness": spread([1.0, 2.0]),
                "done_per_s": 12.0,
            },
            "absent": {"skipped": "there is none on this machine"},
        },
    }
    said = text.everything(figures)
    assert all(row["name"] in said for row in figures["figures"])
    assert "other (other 1.2); fsync per commit" in said
    assert "absent: left out, there is none on this machine" in said


def vars_of(figure: everything.Figure) -> dict[str, object]:
    return {name: getattr(figure, name) for name in figure.__slots__}


_LATENCY = {"p50_ms": 1.0, "p99_ms": 2.0}
_CAPS = {
    "raw_publish_per_s": 10_000.0,
    "raw_results_one_by_one_per_s": 5_000.0,
    "pairs_per_s": 1_000.0,
    "pairs_bound": "the disk",
    "authorize_per_s": 2_000.0,
    "authorize_bound": "the disk",
    "drained_per_s": 9_000.0,
    "drained_bound": "one core",
    "authorize_p50_ms": 1.0,
    "authorize_p99_ms": 2.0,
    "stop_to_refusal_p50_ms": 1.0,
    "stop_to_refusal_p99_ms": 2.0,
}
_ADMISSION = {
    "raw_publish_per_s": 10_000.0,
    "turns_per_s": 700.0,
    "turns_bound": "the disk",
    "enqueued_per_s": 3_000.0,
    "enqueued_bound": "the disk",
    "grant_p50_ms": 1.0,
    "grant_p99_ms": 2.0,
}
MEASURED = {
    "checkpoints": {
        "raw_cas_per_s": 4_000.0,
        "minted_per_s": 800.0,
        "minted_bound": "the disk",
        "settled_per_s": 1_000.0,
        "settled_bound": "the disk",
        "armed_per_s": 2_000.0,
        "settle_p50_ms": 1.0,
        "settle_p99_ms": 2.0,
        "lateness_wheel": _LATENCY,
        "lateness_broker": _LATENCY,
    },
    "caps": {
        "always": _CAPS,
        "default": _CAPS,
        "fold": {"fold_per_s": 9.0, "replay_per_s": 8.0, "sqlite_one_by_one_per_s": 3.0},
    },
    "admission": {
        "always": _ADMISSION,
        "default": _ADMISSION,
        "fold": {"turn_commands_per_s": 9.0, "replay_per_s": 8.0},
    },
}
"""The single benches' answers, as far as the rows are made of them."""
