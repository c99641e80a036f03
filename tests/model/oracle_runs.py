"""Plays random commands to the real fold and to an oracle, and makes a failing run small."""

import copy
import json
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from schemas import headers, strict_json, subjects
from schemas.subjects import Speaker
from tests.model.log_oracle import REMEMBERED_MS, Command, Envelope, Json, Says, differs
from worker.ledger.plane import Plane, View
from worker.ledger.testing import NAMES, FoldDriver, Logged
from worker.ledger.tx import OutRow

PROPOSALS = 4
T0 = 1_700_000_000_000
Op = dict[str, Any]
"""A step: ``step_ms``, ``salt``; ``aim`` at an end, ``forget``, ``fold``, ``kill``, ``ruleset``."""
Seen = Counter[tuple[str, str, str]]


class Mismatch(AssertionError):
    """The fold and the oracle do not agree."""


class Story(Protocol):
    """What a plane adds to a run."""

    @property
    def oracle(self) -> Envelope:
        """Who judges."""
        ...

    def propose(self, at_ms: int, rng: random.Random) -> Command | None:
        """Something that could be said in the state that the oracle is in; ``None``: a tick."""
        ...

    def took(self, command: Command, said: Says) -> None:
        """A proposal was played."""
        ...

    def heard(self, command: Command, result: Json) -> None:
        """Look at a real result for what must never be, whatever an oracle says."""
        ...

    def check_said(self, seq: int, rows: Sequence[OutRow], wanted: Any) -> None:
        """Compare what a command said besides its result."""
        ...

    def wanted(self) -> Any:
        """What the command at hand should have said, kept until its batch is folded."""
        ...

    def check_state(self, view: Callable[..., View]) -> None:
        """Compare what queries show."""
        ...


class Run:
    """One log, folded by the real fold in batches and judged by an oracle command by command."""

    def __init__(self, folder: Path, plane: Plane, story: Story, ruleset: int) -> None:
        self.plane = plane
        self.story = story
        self.ruleset = ruleset
        self.folder = folder
        self.at_ms = T0
        self.switched = False
        self.driver = FoldDriver(folder / "ledger.db", [plane], ruleset=ruleset)
        self.first = self.driver.fold.state.watermark + 1
        self.waiting: list[tuple[Logged, Command | None, Says | None, Any]] = []
        self.seen: Seen = Counter()
        self.told: set[tuple[str, str | None]] = set()

    def play(self, ops: Sequence[Op]) -> None:
        """Play operations; the worker is killed and started again where one says so.

        Raises:
            Mismatch: At the first difference.
        """
        for number, op in enumerate(ops):
            try:
                self._play(op)
            except Mismatch as error:
                raise Mismatch(f"at operation {number}: {op}\n{error}") from error
        self.fold()

    def _play(self, op: Op) -> None:
        if op.get("fold") or self.switched or "ruleset" in op:
            self.fold()
            self.switched = "ruleset" in op
        if op.get("kill"):
            self.fold()
            self._kill()
        oracle = self.story.oracle
        at_ms = self._instant(op)
        seq = self.first + len(self.driver.log) + len(self.waiting)
        command = self._rarest(seq, at_ms, op)
        if command is None:
            oracle.tick(seq, at_ms)
            message = _logged(Command("sys", "tick", (), {}, "_worker", "a" * 26, at_ms), seq)
            said = None
        else:
            said = oracle.command(seq, command)
            message = _logged(command, seq)
            self.story.took(command, said)
            self.seen[command.verb, said.outcome, said.code or "ok"] += 1
        self.waiting.append((message, command, said, self.story.wanted()))

    def _instant(self, op: Op) -> int:
        """The instant of an operation: a step on, or next to one at which something ends."""
        oracle = self.story.oracle
        due = oracle.due() if "aim" in op else []
        if "forget" in op:
            due = [said_ms + REMEMBERED_MS for *_, said_ms in oracle.remembered.values()]
        if due:
            nearest = sorted(due)[:8]
            at = random.Random(op["salt"]).choice(nearest) + int(
                op["aim" if "aim" in op else "forget"]
            )
        else:
            at = self.at_ms + op["step_ms"]
        self.at_ms = max(self.at_ms, at)
        return at

    def _kill(self) -> None:
        """Go on with the files as a process leaves them that is killed now."""
        left = Path(tempfile.mkdtemp(dir=self.folder))
        for file in self.driver.path.parent.glob(f"{self.driver.path.name}*"):
            shutil.copy(file, left)
        self.driver.close()
        self.driver.path = left / self.driver.path.name
        self.driver.ruleset = self.story.oracle.ruleset
        self.driver.open()

    def _rarest(self, seq: int, at_ms: int, op: Op) -> Command | None:
        """Of some proposals the one whose answer was seen least, so that runs reach far."""
        if "ruleset" in op:
            version = {"version": op["ruleset"]}
            return Command("sys", "ruleset", (), version, "_worker", "a" * 26, at_ms)
        rng = random.Random(op["salt"])
        best, rarity = None, 1 << 30
        for _ in range(PROPOSALS):
            command = self.story.propose(at_ms, rng)
            if command is None:
                return None
            said = copy.deepcopy(self.story.oracle).command(seq, command)
            met = self.seen[command.verb, said.outcome, said.code or "ok"]
            met *= 1 if said.code is None else 6
            if met < rarity:
                best, rarity = command, met
        return best

    def fold(self) -> None:
        """Fold what waits, in one batch, and compare."""
        if not self.waiting:
            return
        before = len(self.driver.said)
        results = iter(self.driver.feed([message for message, *_ in self.waiting]))
        rows = self.driver.said[before:]
        for message, command, said, wanted in self.waiting:
            if said is not None:
                result = next(results)
                why = differs(said, result)
                if why:
                    raise Mismatch(f"{message.seq} {command}\n{why}")
                assert command is not None
                self._heard(command, result)
            mine = [row for row in rows if row.seq == message.seq]
            mine = [row for row in mine if ".fact.sys." not in row.subject]
            try:
                self.story.check_said(message.seq, mine, wanted)
            except AssertionError as error:
                raise Mismatch(f"{message.seq} {command} {said}\n{error}") from error
        self.waiting.clear()
        try:
            self.story.check_state(self.view)
        except AssertionError as error:
            raise Mismatch(f"after {message.seq} {command} {said}\n{error}") from error

    def _heard(self, command: Command, result: Json) -> None:
        """What is only remembered says nothing about now."""
        message = result.get("error", {}).get("message", "ours")
        if not message or re.search("(?i)input should|value error|pydantic|extra inputs", message):
            raise Mismatch(f"a library's words in {result}")
        name = (command.by, command.command_id)
        if name in self.told and not self.story.oracle.judged_anew(command):
            return
        if command.command_id is not None and result["status"] == "ok":
            self.told.add(name)
        self.story.heard(command, result)

    def view(self, by: str = "_op", uid: str = "a" * 26) -> View:
        """What a query sees now."""
        state = self.driver.fold.state
        return View(
            db=self.driver.db,
            names=NAMES,
            now_ms=self.story.oracle.now_ms,
            epoch=state.epoch,
            watermark=state.watermark,
            ruleset=state.ruleset,
            speaker=Speaker(by, uid),
            space_key=b"k" * 32,
        )

    def replayed(self, folder: Path) -> None:
        """Fold the whole log into an empty file, in one batch, and compare digests."""
        again = FoldDriver(folder / "again.db", [self.plane], ruleset=self.ruleset)
        try:
            again.feed(self.driver.log)
            assert again.digest().whole == self.driver.digest().whole
        finally:
            again.close()


def ask(plane: Plane, view: View, name: str, **body: Any) -> Json:
    """The data of a query that is answered."""
    return plane.queries[name](view, strict_json.dumps({"v": 1, **body})).data


def assert_same(got: Json, wanted: Json, path: str = "") -> None:
    """Name every place where two objects differ."""
    found = _differences(got, wanted, path)
    if found:
        raise AssertionError("\n".join(found))


def _differences(got: Any, wanted: Any, path: str) -> list[str]:
    if isinstance(got, dict) and isinstance(wanted, dict):
        return [
            line
            for name in sorted({*got, *wanted})
            for line in _differences(got.get(name), wanted.get(name), f"{path}.{name}")
        ]
    return [] if got == wanted else [f"{path}: got {got!r}, should be {wanted!r}"]


def _logged(command: Command, seq: int) -> Logged:
    speaker = Speaker(command.by, command.uid)
    return Logged(
        subject=subjects.command(NAMES, speaker, command.plane, command.verb, *command.key),
        seq=seq,
        time_ms=command.at_ms,
        headers={} if command.command_id is None else {headers.COMMAND: command.command_id},
        data=json.dumps({"v": 1, **command.body}).encode(),
    )


def operations(seed: int, length: int, steps: Sequence[int], far: Sequence[int]) -> list[Op]:
    """What one run plays: small steps, now and then a far one or one next to an end."""
    rng = random.Random(seed)
    often = rng.choice((0.02, 0.1, 0.2))
    ops: list[Op] = []
    for _ in range(length):
        op: Op = {"step_ms": rng.choice(steps), "salt": rng.getrandbits(32)}
        if rng.random() < often:
            op["step_ms"] = rng.choice(far)
        if rng.random() < often / 2:
            op["aim"] = rng.choice((-1, 0, 1))
        elif rng.random() < 0.003:
            op["forget"] = rng.choice((-1, 0, 1))
        ops.append(op | {"fold": rng.random() < 0.6, "kill": rng.random() < 0.02})
    return ops


def activating(ops: list[Op], ruleset: int) -> list[Op]:
    """The same, with a ruleset that comes into force in the middle."""
    half = len(ops) // 2
    switch: Op = {"step_ms": 0, "salt": 0, "ruleset": ruleset}
    return [*ops[:half], switch, *ops[half:]]


def play(plane: Plane, story: Story, ops: Sequence[Op], ruleset: int) -> Seen:
    """Play operations into a file of their own, and its log into another one; what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), plane, story, ruleset)
        try:
            run.play(ops)
            run.replayed(Path(folder))
        finally:
            run.driver.close()
        return run.seen


def check(plane: Plane, story: Callable[[], Story], ops: Sequence[Op], ruleset: int) -> Seen:
    """Play operations; a difference is shown with the fewest of them that lead to one."""
    try:
        return play(plane, story(), ops, ruleset)
    except Mismatch:
        pass

    def fails(fewer: Sequence[Op]) -> bool:
        try:
            play(plane, story(), fewer, ruleset)
        except Mismatch:
            return True
        return False

    return play(plane, story(), smallest(ops, fails), ruleset)


def smallest(ops: Sequence[Op], fails: Callable[[Sequence[Op]], bool]) -> list[Op]:
    """Operations without which a failing run would not fail."""
    left = list(ops)
    size = max(1, len(left) // 2)
    while size:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if fewer and fails(fewer):
                left = fewer
            else:
                at += size
        size //= 2
    return left
