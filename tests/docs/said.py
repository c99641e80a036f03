"""Every reason that the product's code can say, read from its source.

A reason stands in the source as a literal: beside its code in a refusal, in bad input, in an
error's constructor or class. Where a name stands instead, ``ELSEWHERE`` says what it can hold;
where an attribute ``reason`` does, it is passed on and was collected where it was made.
"""

import ast
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import schemas
import worker
from schemas import strict_json
from schemas.codes import Code
from schemas.model import OUR_ERRORS
from tests.docs.pages import ROOT
from worker.caps import transitions
from worker.errors import TidegateError
from worker.ledger.errors import LedgerError

NOT_THE_PRODUCT: Final = ("bench", "demo", "soak")
BAD: Final = Code.BAD_REQUEST.value
LATER: Final = Code.UNAVAILABLE.value

Pair = tuple[str, str]


@dataclass
class Found:
    """What was collected.

    Attributes:
        errors: Reasons with their codes, to where they are said.
        endings: Reasons with which a turn is settled.
    """

    errors: dict[Pair, str] = field(default_factory=dict)
    endings: set[str] = field(default_factory=set)


@functools.cache
def collect() -> Found:
    """Read the whole product."""
    found = Found()
    _import_all()
    kinds = {kind.__name__: kind for kind in _errors(TidegateError)}
    for kind in kinds.values():
        for code in _codes(kind):
            found.errors.setdefault((kind.reason, code), kind.__module__)
    for path in _sources():
        _Reader(path, found, kinds).visit(ast.parse(path.read_text()))
    return found


def _sources() -> Iterator[Path]:
    for package in ("schemas", "worker"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.relative_to(ROOT).parts[1] not in NOT_THE_PRODUCT:
                yield path


def _import_all() -> None:
    """So that every class of error is there; what needs an extra that is not installed is not."""
    for package in (schemas, worker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.split(".")[1] in NOT_THE_PRODUCT:
                continue
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                if (error.name or "").split(".")[0] in ("schemas", "worker"):
                    raise


def _errors(kind: type[TidegateError]) -> Iterator[type[TidegateError]]:
    if kind.__module__.split(".")[1] not in NOT_THE_PRODUCT:
        yield kind
    for sub in kind.__subclasses__():
        yield from _errors(sub)


def _codes(kind: type[TidegateError]) -> set[str]:
    # A query that meets a fold which stands still is told why, as unavailable.
    return {kind.code.value, LATER} if issubclass(kind, LedgerError) else {kind.code.value}


def _faults() -> set[Pair]:
    named = vars(strict_json).values()
    return {(fault[0], BAD) for fault in named if type(fault) is tuple and len(fault) == 2}


ELSEWHERE: Final[dict[tuple[str, str], set[Pair]]] = {
    ("schemas/model.py", "_refusal"): {(kind, BAD) for kind in OUR_ERRORS},
    ("schemas/strict_json.py", "_at"): _faults(),
    ("worker/caps/transitions.py", "_authorize"): {
        (reason, code.value) for reason, (code, _) in transitions._NO_GRANT.items()
    },
}
"""By file and function: what a name stands for where a reason is wanted."""

_PREFIXES: Final = ("key", "key-dir")
_BY_POSITION: Final[dict[str, tuple[int, int | str]]] = {
    "Refusal": (1, 0),
    "RequestRefused": (1, 0),
    "BadInput": (1, BAD),
    "PydanticCustomError": (0, BAD),
    "_not_confirmed": (2, 4),
    "halt": (0, LATER),
    "Stop": (0, LATER),
    "Trouble": (0, LATER),
}
"""Callables that take a reason: its position, and the code's position or the code."""

_DEFAULT_CODE: Final = {"_not_confirmed": Code.FAILED_PRECONDITION.value}
_CARRIES_ON: Final = frozenset({"_not_confirmed", "halt", "__init__", "_unopened", "_is_a_link"})
"""Functions whose own parameter is the reason; their callers are read."""


class _Reader(ast.NodeVisitor):
    def __init__(self, path: Path, found: Found, kinds: dict[str, type[TidegateError]]) -> None:
        self._file = path.relative_to(ROOT).as_posix()
        self._found = found
        self._kinds = kinds
        self._within = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._within = self._within, node.name
        self.generic_visit(node)
        self._within = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        outer, self._within = self._within, node.name
        self.generic_visit(node)
        self._within = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        # Why a /proc is blind becomes the reason of an error.
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if "blind" in names and isinstance(node.value, ast.Constant) and node.value.value:
            self._say(str(node.value.value), Code.FAILED_PRECONDITION.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in _BY_POSITION and node.args:  # a body is made by keywords only
            at, code_at = _BY_POSITION[name]
            reason = node.args[at] if len(node.args) > at else named.get("reason")
            code = named.get("code")
            if isinstance(code_at, int) and len(node.args) > code_at:
                code = node.args[code_at]
            default = code_at if isinstance(code_at, str) else _DEFAULT_CODE.get(name, "")
            self._read(node, reason, _code(code) or default)
        elif name in self._kinds and "reason" in named:
            for its_code in _codes(self._kinds[name]):
                self._read(node, named["reason"], its_code)
        elif name in ("settle", "free_debt"):
            ending = named.get("reason") or (node.args[-1] if node.args else None)
            if isinstance(ending, ast.Constant):
                self._found.endings.add(str(ending.value))
        self.generic_visit(node)

    def _read(self, call: ast.Call, reason: ast.expr | None, code: str) -> None:
        where = f"{self._file}:{call.lineno}"
        match reason:
            case ast.Constant(value=str(word)):
                assert code, f"{where}: the code is not a literal"
                self._say(word, code)
            case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name("prefix")), rest]):
                assert isinstance(rest, ast.Constant)
                for prefix in _PREFIXES:
                    self._say(prefix + str(rest.value), code)
            case ast.Attribute(attr="reason" | "blind"):
                pass
            case ast.Name() if (self._file, self._within) in ELSEWHERE:
                for word, its_code in ELSEWHERE[self._file, self._within]:
                    self._say(word, its_code)
            case ast.Name("reason") if self._within in _CARRIES_ON:
                pass
            case _:
                raise AssertionError(f"{where}: the reason is not a literal; see {__name__}")

    def _say(self, word: str, code: str) -> None:
        self._found.errors.setdefault((word, code), self._file)


def _code(node: ast.expr | None) -> str:
    match node:
        case ast.Attribute(value=ast.Name("Code"), attr=name):
            return Code[name].value
        case ast.Constant(value=str(code)):
            return code
    return ""
