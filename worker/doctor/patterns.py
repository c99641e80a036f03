"""Subject patterns: whether one allows all that another does, or some of it."""


def covers(wide: str, narrow: str) -> bool:
    """Whether every subject of ``narrow`` is one of ``wide``; both with ``*`` and ``>``."""
    outer, inner = wide.split("."), narrow.split(".")
    for index, part in enumerate(outer):
        if part == ">":
            return len(inner) > index
        if index >= len(inner) or inner[index] == ">":
            return False
        if part not in ("*", inner[index]):
            return False
    return len(outer) == len(inner)


def overlap(one: str, other: str) -> bool:
    """Whether some subject is of both patterns."""
    left, right = one.split("."), other.split(".")
    for index in range(max(len(left), len(right))):
        if index >= len(left) or index >= len(right):
            return False
        a, b = left[index], right[index]
        if ">" in (a, b):
            return True
        if "*" not in (a, b) and a != b:
            return False
    return True
