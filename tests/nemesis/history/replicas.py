"""Replicas: every ledger that has folded as much of the log is the same, byte for byte."""

from collections.abc import Iterator

from tests.nemesis.history.past import History, Violation


def check(history: History) -> Iterator[Violation]:
    first: dict[int, tuple[str, str]] = {}
    for replica in history.replicas:
        name, digest = first.setdefault(replica.watermark, (replica.name, replica.digest))
        if digest != replica.digest:
            yield Violation("replicas-differ", f"{name} and {replica.name} at {replica.watermark}")
