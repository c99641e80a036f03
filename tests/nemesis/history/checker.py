"""The checker: a pure function from a history to the promises it breaks.

``python -m tests.nemesis.history.checker FILE…`` judges kept histories again.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.nemesis.history import answers, caps, checkpoints, events, queries, replicas, seats
from tests.nemesis.history.events import Event
from tests.nemesis.history.past import History, Violation


def check(recorded: Iterable[Event]) -> list[Violation]:
    """Everything that a history shows to have gone wrong; empty if it is in order."""
    history = History.of(recorded)
    found = [
        violation
        for judge in (answers, checkpoints, caps, seats, queries, replicas)
        for violation in judge.check(history)
    ]
    if history.ended is None:
        found.append(Violation("broke-off", "the history has no end"))
    return found


def main(paths: list[str]) -> int:
    """Judge files; 1 if any of them shows a violation."""
    bad = False
    for path in paths:
        violations = check(events.read(Path(path)))
        bad = bad or bool(violations)
        for violation in violations:
            print(f"{path}: {violation}")
        if not violations:
            print(f"{path}: in order")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
