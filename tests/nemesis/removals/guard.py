"""A guard and how to remove it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One change of one file.

    Attributes:
        path: The file, from the root of the tree.
        old: A fragment that it holds exactly once.
        new: What takes its place.
    """

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        name: Short, in kebab case.
        removed: What the build does without it, or no longer does.
        edits: How to remove it.
        cases: Tests of which at least one must fail by an assertion then.
        ordinary: A test of the ordinary way, which must still pass.
    """

    name: str
    removed: str
    edits: tuple[Edit, ...]
    cases: tuple[str, ...]
    ordinary: str
