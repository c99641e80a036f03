"""The guards' edits still fit the source, and the cases that must notice exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.nemesis import guards, verdicts
from tests.nemesis.guards import BROKEN, CAUGHT, ROOT, SURVIVED, Misfit
from tests.nemesis.removals import GUARDS, Edit, Guard

ONE = Guard("one", "nothing", (), ("f.py::test_it",), "f.py::test_ordinary")
ORDINARY = {"f.py::test_ordinary": ("passed", "")}


@pytest.mark.parametrize("guard", GUARDS, ids=[guard.name for guard in GUARDS])
def test_every_fragment_is_found_once_and_its_removal_is_a_program(guard: Guard) -> None:
    for path, text in guards.edited(guard.edits).items():
        before = (ROOT / path).read_text()
        if path.endswith(".py"):
            assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before)), path
        else:
            assert text != before
    for case in (*guard.cases, guard.ordinary):
        file, _, name = case.partition("[")[0].partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), case


def test_names_differ_and_every_guard_says_what_goes() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)
    for guard in GUARDS:
        assert guard.edits, guard.name
        assert guard.cases, guard.name
        assert guard.ordinary not in guard.cases, guard.name
        assert "|" not in guard.removed


def test_a_fragment_that_is_not_there_once_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\ny = 2\n")
    for old, count in (("x = 1\n", 2), ("z = 3\n", 0)):
        with pytest.raises(Misfit, match=f"a.py holds this {count} times") as misfit:
            guards.edited([Edit("a.py", old, "")], tmp_path)
        assert old in str(misfit.value)
    both = (Edit("a.py", "y = 2\n", "y = 3\n"), Edit("a.py", "y = 3\n", "y = 4\n"))
    assert guards.edited(both, tmp_path) == {"a.py": "x = 1\nx = 1\ny = 4\n"}


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        ({"f.py::test_it": ("asserted", "no")}, CAUGHT),
        ({"f.py::test_it[a]": ("passed", ""), "f.py::test_it[b]": ("asserted", "no")}, CAUGHT),
        ({"f.py::test_it": ("passed", "")}, SURVIVED),
        ({"f.py::test_it": ("raised", "KeyError")}, SURVIVED),
        ({"f.py": ("broke", "ImportError")}, BROKEN),
        ({"f.py::test_it": ("broke", "setup: it does not start")}, BROKEN),
    ],
)
def test_only_an_assertion_catches(ended: dict[str, tuple[str, str]], verdict: str) -> None:
    assert guards.judged(ONE, ended | ORDINARY)[0] == verdict


def test_a_build_that_does_nothing_any_more_is_not_caught() -> None:
    red = {"f.py::test_it": ("asserted", "no")}
    for ordinary in ("asserted", "raised", "skipped"):
        ended = red | {"f.py::test_ordinary": (ordinary, "no")}
        assert guards.judged(ONE, ended)[0] == BROKEN, ordinary
    assert guards.judged(ONE, red)[0] == BROKEN


def test_an_exception_out_of_the_product_is_no_assertion() -> None:
    def of(error: BaseException) -> BaseException:
        try:
            raise error
        except BaseException as raised:
            return raised

    assert verdicts.is_assertion(of(AssertionError("no")))
    assert verdicts.is_assertion(of(ExceptionGroup("g", [AssertionError("no")])))
    assert not verdicts.is_assertion(of(KeyError("error")))
    assert not verdicts.is_assertion(of(ExceptionGroup("g", [AssertionError(), KeyError()])))
    with pytest.raises(pytest.fail.Exception) as failed:
        pytest.fail("Timeout >120.0s")
    assert not verdicts.is_assertion(failed.value)
    code = compile("raise AssertionError('ours')", "/x/worker/fold.py", "exec")
    with pytest.raises(AssertionError) as ours:
        exec(code, {})  # as if the product had asserted
    assert not verdicts.is_assertion(ours.value)
