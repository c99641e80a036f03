"""What the doctor can find, as its source has it, and which test has seen each of it.

A kind of finding is a check and how bad it is. ``provokes`` names the kinds a test breaks things
for, and fails the test if one of them was not looked at; ``possible`` reads all kinds out of
the doctor's modules, so that a new one without a test is noticed.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import worker.doctor
from worker.doctor.findings import Check, Finding, Severity

P = ParamSpec("P")
R = TypeVar("R")
Kind = tuple[Check, Severity]
DECLARED: dict[Kind, list[Callable[..., Any]]] = {}
"""The tests of each kind, filled as their modules are imported."""

_seen: set[Kind] = set()
_MAKES = {
    "danger": (Severity.DANGER,),
    "warning": (Severity.WARNING,),
    "find": (Severity.DANGER, Severity.WARNING),
}
"""What a call of this name makes; ``find`` is chosen between the two."""


def of(check: Check, findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.check is check]


def the(check: Check, findings: Sequence[Finding], severity: Severity, *words: str) -> Finding:
    """The one finding of a check; it is as bad as said, says these words, and says what to do."""
    found = of(check, findings)
    assert len(found) == 1, found or findings
    return saw(found[0], severity, *words)


def saw(found: Finding, severity: Severity, *words: str) -> Finding:
    """Require that a finding is as bad as said, says these words, and what to do about it."""
    assert found.severity is severity, found
    for word in words:
        assert word in f"{found.found} {found.endangers} {found.fix}", found
    assert bool(found.fix) == (severity is not Severity.FINE)
    assert bool(found.endangers) == (severity is not Severity.FINE)
    _seen.add((found.check, severity))
    return found


def read(report: Sequence[dict[str, str]]) -> list[Finding]:
    """The findings that ``tidegate doctor --json`` prints."""
    return [
        Finding(
            Check(one["check"]),
            Severity(one["severity"]),
            one["found"],
            one["endangers"],
            one["fix"],
        )
        for one in report
    ]


def provokes(*kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a test that breaks something for real, so that the doctor finds these kinds.

    A test with an argument ``severity`` must see, each time, the kinds that are as bad as that.
    """

    def mark(test: Callable[P, R]) -> Callable[P, R]:
        for kind in kinds:
            DECLARED.setdefault(kind, []).append(test)

        def check(given: dict[str, Any]) -> None:
            severity = given.get("severity")
            wanted = {kind for kind in kinds if severity in (None, kind[1])}
            assert wanted <= _seen, f"never found: {wanted - _seen}"

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
                _seen.clear()
                await test(*args, **kwargs)
                check(kwargs)

            return later  # type: ignore[return-value]  # it is a coroutine function, as the test is

        @functools.wraps(test)
        def now(*args: P.args, **kwargs: P.kwargs) -> R:
            _seen.clear()
            done = test(*args, **kwargs)
            check(kwargs)
            return done

        return now

    return mark


def possible() -> set[Kind]:
    """Every kind that is not ``fine``, read from the doctor's source."""
    return {
        kind
        for path in Path(worker.doctor.__file__).parent.glob("*.py")
        for kind in _made_in(ast.parse(path.read_text()))
    }


def _made_in(module: ast.Module) -> Iterator[Kind]:
    checks = {check for node in ast.walk(module) if (check := _check_of(node))}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for severity in _MAKES.get(node.func.id, ()):
                check = _check_of(node.args[0])
                # A check that is handed on is any that its module names.
                for one in [check] if check else checks:
                    yield one, severity


def _check_of(node: ast.AST) -> Check | None:
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    if named and node.value.id == "Check":  # type: ignore[attr-defined]  # named
        return Check[node.attr]  # type: ignore[attr-defined]  # named
    return None
