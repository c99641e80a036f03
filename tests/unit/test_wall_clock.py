"""The time of day of one process can be set, and nothing else of it changes."""

import subprocess
import sys

from tests.support.wall_clock import WallClock

SAYS = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"


def test_the_time_of_day_of_a_process_is_set_and_its_monotonic_clock_is_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def told() -> list[float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            return [float(word) for word in process.stdout.readline().split()]

        told()
        clock = WallClock(process.pid)
        day, steady = told()
        with clock.ahead(86_400):
            ahead, later = told()
        back, _ = told()
        clock.set(-3_600)
        behind, _ = told()
        process.stdin.close()
    assert 86_400 <= ahead - day < 86_500
    assert 0 <= later - steady < 100
    assert 0 <= back - day < 100
    assert 3_500 < day - behind <= 3_600
