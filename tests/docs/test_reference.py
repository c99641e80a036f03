"""The reference shows every message, with an example that its model takes."""

import ast
from collections.abc import Iterator

import pytest

from schemas import admission
from schemas.catalog import CATALOG
from schemas.commands import BODIES, QUERIES
from schemas.model import Closed
from schemas.outcomes import ANSWERS, RESULTS
from tests.docs.pages import ROOT
from worker.pages.examples import EXAMPLES


def test_every_message_has_an_example_and_nothing_else_has() -> None:
    assert EXAMPLES.keys() == CATALOG.keys()


@pytest.mark.parametrize("name", CATALOG)
def test_the_example_of_a_message_is_one(name: str) -> None:
    model = CATALOG[name].model
    assert issubclass(model, Closed)
    taken = model.from_object(EXAMPLES[name])
    assert taken.model_dump(exclude_unset=True, by_alias=True) == EXAMPLES[name]


def test_every_command_and_query_has_outcomes() -> None:
    assert RESULTS.keys() == BODIES.keys() - {("sys", "tick")}
    assert ANSWERS.keys() == QUERIES.keys()
    for outcome in (one for each in (*RESULTS.values(), *ANSWERS.values()) for one in each):
        if outcome.data.startswith("view."):
            assert outcome.data.partition(" ")[0] in CATALOG


NAMED = {name: value for name, value in vars(admission).items() if name.isupper()}
ELSEWHERE = {
    "body.outcome": {"completed", "failed", "cancelled"},
    "turn.state": {"completed", "recovery_required", "queue_timeout"},
    "outcome": {"idempotent", "adopted", "payload_attached"},
    "word": {"expired", "already_settled"},
    "done": {"claimed", "drained"},
    "before.outcome": set(),  # as the line below
    "tx.before.outcome": set(),
    "said['outcome']": set(),  # what the ledger remembers of a command, so it was said before
}
"""What an expression other than a literal can say."""

NOT_THE_CONTRACT = {"sampled"}
"""Said by the worker to itself."""


def said() -> Iterator[str]:
    for path in sorted((ROOT / "worker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Accepted":
                yield from words(node.args[0])


def words(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp():
            yield from words(node.body)
            yield from words(node.orelse)
        case ast.Name(id=name) if name in NAMED:
            yield NAMED[name]
        case _:
            yield from ELSEWHERE[ast.unparse(node)]


def test_what_the_planes_say_is_declared_and_nothing_else() -> None:
    declared = {one.word for each in (*RESULTS.values(), *ANSWERS.values()) for one in each}
    assert set(said()) - NOT_THE_CONTRACT == declared
