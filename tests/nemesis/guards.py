"""Removes one guard of the product after the other, and sees that a test notices each time.

``python -m tests.nemesis.guards [--only NAME]… [--json] [--list]`` copies the tree to a temporary
folder and works there alone. First every case runs on the unbroken build and must pass. Then, for
each guard, its edit is made, its cases and an ordinary one run, and the edit is taken back. A guard
is *caught* if a case fails by an assertion of its own while the ordinary one still passes: a build
that no longer starts has lost more than a guard, and proves nothing. Exit code 1 if any guard
survives, an edit no longer fits, or the unbroken build fails.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.nemesis import verdicts, zygote
from tests.nemesis.removals import GUARDS, Edit, Guard

ROOT: Final = Path(__file__).resolve().parents[2]
NOT_COPIED: Final = (".git", "__pycache__", ".venv", "*.egg-info", ".mypy_cache", ".ruff_cache")
NOT_COPIED_EITHER: Final = (".pytest_cache", ".hypothesis", "node_modules")
CASE_S: Final = 120
"""Longest one case may take."""

CONTROL_S: Final = 3_600
SPACES: Final = "150"
"""Spaces of a run's server: fewer than the whole suite needs, so that it starts at once."""

CAUGHT, SURVIVED, BROKEN, MISFIT = "caught", "survived", "broken", "misfit"


@dataclass(frozen=True)
class Outcome:
    """What became of one guard's removal.

    Attributes:
        guard: Which.
        verdict: ``caught``; ``survived``; ``broken`` if the build no longer works at all;
            ``misfit`` if the edit does not fit the source.
        red: Cases that failed by an assertion of their own.
        why: What the first of them said, or what else went wrong.
        seconds: How long it took.
    """

    guard: Guard
    verdict: str
    red: tuple[str, ...]
    why: str
    seconds: float

    def to_object(self) -> dict[str, Any]:
        return {
            "guard": self.guard.name,
            "removed": self.guard.removed,
            "files": sorted({edit.path for edit in self.guard.edits}),
            "verdict": self.verdict,
            "red": list(self.red),
            "why": self.why,
            "seconds": round(self.seconds, 1),
        }


class Misfit(Exception):
    """An edit's fragment is not in its file exactly once."""


class Tree:
    """A private copy of the tree.

    Args:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._zygote: subprocess.Popen[str] | None = None
        shutil.copytree(
            ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED, *NOT_COPIED_EITHER)
        )

    def run(self, cases: Sequence[str], limit_s: float) -> Mapping[str, tuple[str, str]]:
        """Run cases; how each ended and why, by node."""
        with tempfile.TemporaryDirectory(prefix="tidegate-guards-") as scratch:
            found, log = Path(scratch) / "verdicts", Path(scratch) / "log"
            found.touch()
            arguments = [
                *("-q", "-p", "no:cacheprovider", "-p", "tests.nemesis.verdicts"),
                *("--verdicts", str(found), "--basetemp", str(Path(scratch) / "tmp")),
                *("--timeout", str(CASE_S), "-m", "not bench", *cases),
            ]
            if not self._run({"arguments": arguments, "log": str(log)}, limit_s):
                return {"": (verdicts.BROKE, f"not done after {limit_s:g} s")}
            ended = [json.loads(line) for line in found.read_text().splitlines()]
            if not ended:
                return {"": (verdicts.BROKE, log.read_text(errors="replace")[-600:])}
            return _worst(ended)

    def close(self) -> None:
        """Start no more runs."""
        serving, self._zygote = self._zygote, None
        if serving is not None:
            serving.communicate()

    def _run(self, order: Mapping[str, Any], limit_s: float) -> bool:
        """Have pytest run; whether it ended in time."""
        if self._zygote is None:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "tests.nemesis.zygote"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        orders, answers = self._zygote.stdin, self._zygote.stdout
        if orders is None or answers is None:
            raise RuntimeError("the zygote has no pipes")
        orders.write(json.dumps(order) + "\n")
        pid = int(answers.readline())
        try:
            in_time = bool(select.select([answers], [], [], limit_s)[0])
        finally:
            _end(pid)
        answers.readline()
        return in_time

    def loads(self) -> str:
        """See that what runs is this copy; where else it came from, or empty."""
        code = "import worker, schemas, tests; print(worker.__path__[0], schemas.__path__[0])"
        found = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        here = f"{self.folder}/worker {self.folder}/schemas"
        return "" if found.stdout.strip() == here else found.stdout + found.stderr

    def write(self, path: str, text: str) -> None:
        """Replace a file, and forget what was compiled or imported of it."""
        if path.startswith(zygote.NOT_FORKED_OVER):
            self.close()
        file = self.folder / path
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def _environment(self) -> dict[str, str]:
        # The copy comes before any installed one, in the processes that tests start, too.
        return {**os.environ, "PYTHONPATH": str(self.folder), "TEST_SPACES": SPACES}


def edited(edits: Iterable[Edit], root: Path = ROOT) -> dict[str, str]:
    """The texts of the files that edits change, by path.

    Raises:
        Misfit: Naming the fragment that is not found exactly once.
    """
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.path) or (root / edit.path).read_text()
        count = text.count(edit.old)
        if count != 1:
            raise Misfit(f"{edit.path} holds this {count} times, not once:\n{edit.old}")
        texts[edit.path] = text.replace(edit.old, edit.new)
    return texts


def try_out(tree: Tree, guard: Guard) -> Outcome:
    """Remove one guard, run its cases, and put it back."""
    began = time.monotonic()

    try:
        texts = edited(guard.edits, tree.folder)
    except Misfit as misfit:
        return Outcome(guard, MISFIT, (), str(misfit), time.monotonic() - began)
    before = {path: (tree.folder / path).read_text() for path in texts}
    try:
        for path, text in texts.items():
            tree.write(path, text)
        limit_s = CASE_S * (len(guard.cases) + 1)
        ended = tree.run([*guard.cases, guard.ordinary], limit_s)
    finally:
        for path, text in before.items():
            tree.write(path, text)
    verdict, red, why = judged(guard, ended)
    return Outcome(guard, verdict, red, why, time.monotonic() - began)


def judged(guard: Guard, ended: Mapping[str, tuple[str, str]]) -> tuple[str, tuple[str, ...], str]:
    """What the cases' ends say about a removal: verdict, cases that went red, and why."""
    broken = [why for how, why in ended.values() if how == verdicts.BROKE]
    ordinary = [how for node, (how, _) in ended.items() if of_case(node, guard.ordinary)]
    red = tuple(
        node
        for node, (how, _) in ended.items()
        if how == verdicts.ASSERTED and not of_case(node, guard.ordinary)
    )
    if broken:
        return BROKEN, red, broken[0]
    if not ordinary or any(how != verdicts.PASSED for how in ordinary):
        return BROKEN, red, f"the ordinary case did not pass: {dict(ended)}"
    if red:
        return CAUGHT, red, ended[red[0]][1]
    raised = [f"{node}: {why}" for node, (how, why) in ended.items() if how == verdicts.RAISED]
    return SURVIVED, (), "; ".join(raised)


def of_case(node: str, case: str) -> bool:
    """Whether a node is a case, or one of its parameters."""
    return node == case or node.startswith(f"{case}[")


def control(tree: Tree, guards: Sequence[Guard]) -> tuple[str, ...]:
    """Run every case on the unbroken build; what failed."""
    cases = sorted({case for guard in guards for case in (*guard.cases, guard.ordinary)})
    ended = tree.run(cases, CONTROL_S)
    failed = [f"{node}: {how}: {why}" for node, (how, why) in ended.items() if how != "passed"]
    missing = [case for case in cases if not any(of_case(node, case) for node in ended)]
    return (*failed, *(f"{case}: did not run" for case in missing))


def chosen(names: Sequence[str]) -> list[Guard]:
    """The guards of these names; all of them for none.

    Raises:
        SystemExit: There is none of a name.
    """
    known = {guard.name: guard for guard in GUARDS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no such guard: {', '.join(unknown)}")
    return [known[name] for name in names] if names else list(GUARDS)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The outcomes as a table in Markdown."""
    lines = [
        "| guard | removed | in | caught by | s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in outcomes:
        files = ", ".join(sorted({f"`{edit.path}`" for edit in one.guard.edits}))
        by = f"`{one.red[0].rpartition('::')[2]}`" if one.verdict == CAUGHT else one.verdict
        lines.append(
            f"| {one.guard.name} | {one.guard.removed} | {files} | {by} | {one.seconds:.0f} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis.guards", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--list", action="store_true", help="print the guards' names")
    given = parser.parse_args(arguments)
    guards = chosen(given.only)
    if given.list:
        for guard in guards:
            print(f"{guard.name:<28} {guard.removed}")
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-guards-") as folder,
        contextlib.closing(Tree(Path(folder) / "tree")) as tree,
    ):
        return _run(tree, guards, as_json=given.json)


def _run(tree: Tree, guards: Sequence[Guard], *, as_json: bool) -> int:
    elsewhere = tree.loads()
    if elsewhere:
        print(f"the tests would not run on the copy but on {elsewhere}", file=sys.stderr)
        return 1
    _say(f"running the cases of {len(guards)} guards on the unbroken build")
    began = time.monotonic()
    failed = control(tree, guards)
    outcomes: list[Outcome] = []
    if failed:
        _say("the unbroken build fails:\n" + "\n".join(failed))
    else:
        _say(f"it passes, after {time.monotonic() - began:.0f} s")
        for guard in guards:
            outcomes.append(try_out(tree, guard))
            _say(f"{guard.name}: {outcomes[-1].verdict}, {outcomes[-1].seconds:.0f} s")
    wrong = [one for one in outcomes if one.verdict != CAUGHT]
    if as_json:
        document = {
            "v": 1,
            "ok": not failed and not wrong,
            "control": list(failed),
            "guards": [one.to_object() for one in outcomes],
        }
        print(json.dumps(document))
    else:
        print("\n".join(table(outcomes)))
        for one in wrong:
            print(f"\n{one.guard.name}: {one.verdict}\n{one.why}")
    return 1 if failed or wrong else 0


def _worst(ended: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, str]]:
    """One end per node: a teardown that fails after all does not hide what the test said."""
    found: dict[str, tuple[str, str]] = {}
    for one in ended:
        if found.get(one["node"], (verdicts.PASSED,))[0] == verdicts.PASSED:
            found[one["node"]] = (one["ended"], one["why"])
    return found


def _end(pid: int) -> None:
    """End whatever is left of a run's session, brokers and workers included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
