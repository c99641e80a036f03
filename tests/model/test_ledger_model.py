"""The fold against a small oracle: random commands, repeats, clocks, batches, crashes, restarts."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.ledgers import HOLDS, WINDOW_MS
from tests.support.ledger import KEY
from worker.ledger.errors import FoldFailed
from worker.ledger.memory import REMEMBERED_MS
from worker.ledger.testing import FoldDriver, Logged

T0 = 1_700_000_000_000
FAR_MS = 4_000_000_000_000
USERS = st.sampled_from([f"u{n}" for n in range(4)])
IDS = st.sampled_from([f"intent-{n:010d}" for n in range(12)])
WHO = st.sampled_from(["alice", "bob"])


@dataclasses.dataclass
class Hold:
    """The oracle's row."""

    state: str
    cap: int
    changes: int
    lapses_at_ms: int | None


class Oracle:
    """What the ledger should do, said plainly."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.holds: dict[str, Hold] = {}
        self.memory: dict[tuple[str, str], tuple[int, tuple[Any, ...], tuple[str, Any] | None]] = {}

    def command(
        self, who: str, command_id: str, verb: str, user: str, cap: int, at_ms: int
    ) -> tuple[str, Any]:
        """Outcome and ``changes`` of one command."""
        self.now_ms = max(self.now_ms, at_ms)
        what = (verb, user, cap)
        known = self.memory.get((who, command_id))
        if known is not None and known[0] <= self.now_ms - REMEMBERED_MS:
            del self.memory[who, command_id]
            known = None
        if known is not None and known[1] != what:
            return "command-id-reused", None
        if known is not None and known[2] is not None:
            return known[2]
        answer = self.judge(verb, user, cap)
        if known is None and answer[0] != "bad-key":
            kept = None if verb == "authorize" else answer
            self.memory[who, command_id] = (self.now_ms, what, kept)
        return answer

    def judge(self, verb: str, user: str, cap: int) -> tuple[str, Any]:
        hold = self.holds.get(user)
        match verb:
            case "reserve" if cap == 14:
                return "bad-key", None
            case "reserve":
                changes = 1 if hold is None else hold.changes + 1
                self.holds[user] = Hold("reserved", cap, changes, self.now_ms + WINDOW_MS)
                return "reserved", changes
            case "confirm":
                if hold is None or hold.state != "reserved":
                    return "unreserved", None
                self.holds[user] = Hold("confirmed", hold.cap, hold.changes + 1, None)
                return "confirmed", hold.changes + 1
            case "authorize":
                if hold is None or hold.state != "confirmed":
                    return "none-active", None
                return "allowed", hold.changes
        self.holds.pop(user, None)
        return "stopped", None

    def tick(self, at_ms: int) -> None:
        self.now_ms = max(self.now_ms, at_ms)
        for hold in self.holds.values():
            if hold.lapses_at_ms is not None and hold.lapses_at_ms <= self.now_ms:
                hold.state, hold.lapses_at_ms = "lapsed", None
                hold.changes += 1

    def due_at(self) -> int | None:
        waiting = [h.lapses_at_ms for h in self.holds.values() if h.lapses_at_ms is not None]
        return min(waiting, default=None)


class LedgerMachine(RuleBasedStateMachine):
    """Drives the real fold over a real file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.driver = FoldDriver(Path(self.folder.name) / "ledger.db", [HOLDS])
        self.oracle = Oracle()
        self.clock_ms = T0
        self.waiting: list[tuple[Logged, tuple[str, Any] | None]] = []

    @initialize(step_ms=st.integers(0, 10**6))
    def begin(self, step_ms: int) -> None:
        self.clock_ms += step_ms

    @rule(step_ms=st.one_of(st.integers(-60_000, 60_000), st.integers(0, 2 * REMEMBERED_MS)))
    def step_clock(self, step_ms: int) -> None:
        self.clock_ms = max(1, self.clock_ms + step_ms)

    @rule(
        who=WHO,
        command_id=IDS,
        verb=st.sampled_from(["reserve", "confirm", "authorize", "stop"]),
        user=USERS,
        cap=st.sampled_from([10, 11, 14]),
    )
    def send(self, who: str, command_id: str, verb: str, user: str, cap: int) -> None:
        bodies: dict[str, dict[str, Any]] = {
            "reserve": {"latest_expires_at_ms": FAR_MS, "cap": cap},
            "confirm": {"grant_expires_at_ms": FAR_MS},
            "authorize": {"amount": cap, "grant_expires_at_ms": FAR_MS},
            "stop": {},
        }
        key = (user, KEY) if verb in ("reserve", "confirm") else (user,)
        asked = cap if verb in ("reserve", "authorize") else 0
        message = self.driver.message(
            who,
            "cap",
            verb,
            *key,
            body=bodies[verb],
            at_ms=self.clock_ms,
            command_id=command_id,
        )
        expected = self.oracle.command(who, command_id, verb, user, asked, self.clock_ms)
        self.wait(message, expected)

    @rule()
    def tick(self) -> None:
        self.wait(self.driver.message("_worker", "sys", "tick", at_ms=self.clock_ms), None)
        self.oracle.tick(self.clock_ms)

    @rule()
    def fold(self) -> None:
        """Fold whatever waits, as one batch."""
        if not self.waiting:
            return
        results = self.driver.feed([message for message, _ in self.waiting])
        expected = [answer for _, answer in self.waiting if answer is not None]
        found = [(one["outcome"], one["data"].get("changes")) for one in results]
        assert found == expected
        self.waiting.clear()

    @precondition(lambda self: self.waiting)
    @rule(reopen=st.booleans())
    def crash_in_the_batch(self, reopen: bool) -> None:
        """A defect at the end of the batch: nothing of it happened, also after a restart."""
        broken = self.driver.message(
            "alice",
            "cap",
            "reserve",
            "u0",
            KEY,
            body={"latest_expires_at_ms": FAR_MS, "cap": 13},
            at_ms=self.clock_ms,
        )
        last = self.waiting[-1][0].seq
        before = self.driver.digest()
        try:
            batch = [message for message, _ in self.waiting]
            self.driver.fold.apply_batch([*batch, dataclasses.replace(broken, seq=last + 1)])
        except FoldFailed:
            assert self.driver.digest() == before
        else:
            raise AssertionError("a defect was survived")
        if reopen:
            self.driver.reopen()
            assert self.driver.digest() == before

    @rule()
    def restart(self) -> None:
        self.driver.reopen()

    def wait(self, message: Logged, expected: tuple[str, Any] | None) -> None:
        after = self.waiting[-1][0].seq if self.waiting else message.seq - 1
        self.waiting.append((dataclasses.replace(message, seq=after + 1), expected))

    @invariant()
    def state_is_the_oracles(self) -> None:
        if self.waiting:
            return
        rows = self.driver.db.execute("SELECT * FROM holds").fetchall()
        assert {row[0]: Hold(*row[1:]) for row in rows} == self.oracle.holds
        assert self.driver.fold.due_at() == self.oracle.due_at()
        assert self.driver.fold.state.now_ms == self.oracle.now_ms

    def teardown(self) -> None:
        self.fold()
        replay = FoldDriver(Path(self.folder.name) / "replay.db", [HOLDS])
        for message in self.driver.log:
            replay.feed([message])
        assert replay.digest() == self.driver.digest()
        replay.close()
        self.driver.close()
        self.folder.cleanup()


LedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, print_blob=True
)
TestLedger = LedgerMachine.TestCase
