"""Seeded faults under mixed traffic: whatever happens, the recorded history keeps every promise.

A failed run names its seed, keeps its history and says how to run it again. See
docs/reliability.md.
"""

import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.nemesis import run

SHORT_S = 8.0
LONG_S = 65.0
SHORT_SEEDS = {1: 803, 3: 1255}
"""By the number of brokers; each kills a worker and a broker, and more."""

LONG_SEED = 1
THIS = "tests/nemesis/test_histories.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped and limited")


async def histories_of(
    seed: int, seconds: float, brokers: int, directory: Path, again: str
) -> None:
    """Run one seed and fail with everything that is needed to look at it."""
    note = (
        f"the history is kept in {directory}\n"
        f"again: pytest {again}\n"
        f"judged again: python -m tests.nemesis.history.checker "
        f"{directory / f'history-{seed}.jsonl'}"
    )
    try:
        outcome = await run.run(seed, seconds, brokers, directory)
    except BaseException as error:
        error.add_note(f"seed {seed}; {note}")
        raise
    print(f"seed {seed}: {outcome.summary}")
    if outcome.violations:
        shown = "\n".join(map(str, outcome.violations[:20]))
        pytest.fail(f"seed {seed}: {len(outcome.violations)} violations\n{shown}\n{note}")


@pytest.mark.parametrize("brokers", [1, 3])
async def test_a_short_seed_keeps_every_promise(
    brokers: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = _given_seed(request) or SHORT_SEEDS[brokers]
    again = f"'{THIS}::test_a_short_seed_keeps_every_promise[{brokers}]' --seed {seed}"
    await histories_of(seed, SHORT_S, brokers, tmp_path, again)


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_long_seed_keeps_every_promise(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = _given_seed(request) or LONG_SEED
    again = f"-m long '{THIS}::test_a_long_seed_keeps_every_promise' --seed {seed}"
    await histories_of(seed, LONG_S, 3, tmp_path, again)


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_seeds_for_as_long_as_wanted(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    minutes = request.config.getoption("--nemesis-minutes", default=None) or float(
        os.environ.get("TIDEGATE_NEMESIS_MINUTES", "0")
    )
    if not minutes:
        pytest.skip("give --nemesis-minutes or TIDEGATE_NEMESIS_MINUTES")
    until = time.monotonic() + 60 * minutes
    drawn = random.Random(_given_seed(request))
    while time.monotonic() < until:
        seed = drawn.randrange(1, 1 << 31)
        again = f"-m long '{THIS}::test_a_long_seed_keeps_every_promise' --seed {seed}"
        directory = tmp_path / str(seed)
        directory.mkdir()
        await histories_of(seed, LONG_S, 3, directory, again)
        shutil.rmtree(directory)


def _given_seed(request: pytest.FixtureRequest) -> int | None:
    given: int | None = request.config.getoption("--seed", default=None)
    variable = os.environ.get("TIDEGATE_NEMESIS_SEED")
    return given if given is not None else int(variable) if variable else None
