"""Random verbs, Stops, clock steps, ticks and restarts, against a small oracle.

The oracle knows the rules and nothing of tables: it keeps a list of plain records per person. The
real fold runs over a real file, in batches of random size, and is closed and opened in between.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from worker.caps.plane import PLANE
from worker.ledger.testing import FoldDriver, Logged

T0 = 1_800_000_000_000
FINAL = {"superseded", "revoked", "expired", "legacy"}

users = st.sampled_from(["ann", "bob"])
names = st.sampled_from([f"{letter}" * 16 for letter in "abcd"])
caps = st.sampled_from([1, 10])
amounts = st.sampled_from([1, 10, 11])
ahead = st.sampled_from([-1, 0, 1, 2, 3, 650, 900, 3_600])
odd_ms = st.sampled_from([0, 1, 500, 999])
steps_ms = st.sampled_from([-5_000, 0, 1, 400, 1_000, 2_500, 599_999, 600_000, 600_001, 660_000])


@dataclass
class Grant:
    """One reservation as the oracle sees it."""

    name: str
    asked: int
    second: int
    cap: int
    generation: int
    reserved_at: int
    state: str = "reserved"


@dataclass
class Person:
    """One person as the oracle sees them."""

    grants: list[Grant] = field(default_factory=list)
    generation: int = 0
    last: Grant | None = None
    quiet: int = 0

    def named(self, name: str) -> Grant | None:
        return next((grant for grant in self.grants if grant.name == name), None)

    def live(self) -> Grant | None:
        return next((grant for grant in self.grants if grant.state == "confirmed_active"), None)


class Oracle:
    """The rules of spec/caps.md over plain values."""

    def __init__(self) -> None:
        self.people = {"ann": Person(), "bob": Person()}
        self.minting = False
        self.now = 0

    def at(self, stamp: int) -> None:
        self.now = max(self.now, stamp)

    def tick(self) -> None:
        for person in self.people.values():
            for grant in person.grants:
                self.look(grant)

    def look(self, grant: Grant) -> None:
        if grant.state == "reserved" and self.now - grant.reserved_at > 600_000:
            grant.state = "expired"

    def reserve(self, user: str, name: str, latest: int, cap: int) -> tuple[str, int | None]:
        if not self.minting:
            return "minting-paused", None
        person, asked = self.people[user], latest // 1000 * 1000
        known = person.named(name)
        if known is not None:
            self.look(known)
            same = (known.cap, known.asked) == (cap, asked)
            return "already_reserved" if same else "different-reservation", known.second
        taken = {grant.second for grant in person.grants}
        rungs = (asked - 1000 * n for n in range(300))
        free = [second for second in rungs if second > self.now and second not in taken]
        if not free:
            return "no-free-second", None
        made = Grant(name, asked, max(free), cap, person.generation, self.now)
        person.grants.append(made)
        return "reserved", made.second

    def confirm(self, user: str, name: str, expiry: int) -> tuple[str, int | None]:
        person = self.people[user]
        grant = person.named(name)
        if grant is None:
            return "unreserved", None
        return self._confirm(person, grant, expiry), grant.second

    def _confirm(self, person: Person, grant: Grant, expiry: int) -> str:
        if grant.state in ("revoked", "superseded"):
            return grant.state
        if grant.generation < person.generation:
            return "stopped"
        if expiry != grant.second:
            return "expiry-mismatch"
        if expiry <= self.now:
            return "grant-lapsed"
        if grant.state == "confirmed_active":
            return "already_confirmed"
        self.look(grant)
        if grant.state == "expired":
            return "reservation-expired"
        if (before := person.live()) is not None:
            before.state = "superseded"
        grant.state = "confirmed_active"
        person.last = grant
        return "confirmed"

    def authorize(self, user: str, amount: int, expiry: int) -> tuple[str, int | None]:
        person = self.people[user]
        if person.last is None:
            return "none-active", None
        if person.last.generation < person.generation:
            return "stopped", None
        grant = person.live()
        if grant is None:
            return "none-active", None
        if grant.second <= self.now:
            return "grant-lapsed", None
        if grant.second != expiry:
            return "grant-mismatch", None
        if amount > grant.cap:
            return "over-cap", None
        valid_for = min(2_000, grant.second - self.now)
        person.quiet = max(person.quiet, self.now + valid_for)
        return "allowed", valid_for

    def revoke(self, user: str, expiry: int) -> tuple[str, int | None]:
        grant = self.people[user].live()
        if grant is None or grant.second != expiry:
            return "nothing-to-revoke", None
        grant.state = "revoked"
        return "revoked", grant.second

    def stop(self, user: str) -> tuple[str, int | None]:
        person = self.people[user]
        person.generation += 1
        if (grant := person.live()) is not None:
            grant.state = "revoked"
        return "stopped", max(self.now, person.quiet)

    def bump(self, user: str) -> tuple[str, int | None]:
        person = self.people[user]
        person.generation += 1
        return "bumped", person.generation


SHOWN = {
    "reserve": "expires_at_ms",
    "confirm": "expires_at_ms",
    "authorize": "valid_for_ms",
    "revoke": "expires_at_ms",
    "stop": "quiet_after_ms",
    "bump": "generation",
}
"""Which field of each verb's data the oracle foretells."""


class Caps(RuleBasedStateMachine):
    """Feeds both and compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.driver = FoldDriver(self.folder / "ledger.db", [PLANE])
        self.oracle = Oracle()
        self.clock = T0
        self.waiting: list[Logged] = []
        self.expected: list[tuple[str, str, int | None] | None] = []
        self.seen: dict[tuple[str, str], tuple[int, str]] = {}

    def say(self, verb: str, *key: str, by: str = "delia", **body: Any) -> None:
        made = self.driver.message(by, "cap", verb, *key, body=body, at_ms=self.clock)
        seq = made.seq + len(self.waiting)
        self.waiting.append(Logged(made.subject, seq, made.time_ms, made.headers, made.data))
        self.oracle.at(self.clock)

    def expect(self, verb: str, outcome: tuple[str, int | None]) -> None:
        self.expected.append((verb, *outcome))

    def latest(self, seconds: int, odd: int) -> int:
        return (self.oracle.now // 1000 + seconds) * 1000 + odd

    def second(self, user: str, name: str, off: int) -> int:
        grant = self.oracle.people[user].named(name)
        return (grant.second if grant is not None else self.latest(900, 0)) + off

    @initialize()
    def begin(self) -> None:
        self.minting(True)

    @rule(user=users, name=names, seconds=ahead, odd=odd_ms, cap=caps)
    def reserve(self, user: str, name: str, seconds: int, odd: int, cap: int) -> None:
        latest = self.latest(seconds, odd)
        self.say("reserve", user, name, latest_expires_at_ms=latest, cap=cap)
        self.expect("reserve", self.oracle.reserve(user, name, latest, cap))

    @rule(user=users, name=names, cap=caps)
    def reserve_again(self, user: str, name: str, cap: int) -> None:
        grant = self.oracle.people[user].named(name)
        latest = grant.asked + 7 if grant is not None else self.latest(900, 7)
        self.say("reserve", user, name, latest_expires_at_ms=latest, cap=cap)
        self.expect("reserve", self.oracle.reserve(user, name, latest, cap))

    @rule(user=users, name=names, off=st.sampled_from([0, 0, 0, 0, 1, 1000]))
    def confirm(self, user: str, name: str, off: int) -> None:
        expiry = self.second(user, name, off)
        self.say("confirm", user, name, grant_expires_at_ms=expiry)
        self.expect("confirm", self.oracle.confirm(user, name, expiry))

    @rule(user=users, name=names, amount=amounts)
    def authorize(self, user: str, name: str, amount: int) -> None:
        grant = self.oracle.people[user].live()
        expiry = grant.second if grant is not None else self.second(user, name, 0)
        self.say("authorize", user, amount=amount, grant_expires_at_ms=expiry)
        self.expect("authorize", self.oracle.authorize(user, amount, expiry))

    @rule(user=users, name=names, amount=amounts)
    def authorize_by_name(self, user: str, name: str, amount: int) -> None:
        expiry = self.second(user, name, 0)
        self.say("authorize", user, amount=amount, grant_expires_at_ms=expiry)
        self.expect("authorize", self.oracle.authorize(user, amount, expiry))

    @rule(user=users, name=names, off=st.sampled_from([0, 0, 1]))
    def revoke(self, user: str, name: str, off: int) -> None:
        expiry = self.second(user, name, off)
        self.say("revoke", user, expires_at_ms=expiry)
        self.expect("revoke", self.oracle.revoke(user, expiry))

    @rule(user=users)
    def stop(self, user: str) -> None:
        self.say("stop", user)
        self.expect("stop", self.oracle.stop(user))

    @rule(user=users)
    def bump(self, user: str) -> None:
        self.say("bump", user)
        self.expect("bump", self.oracle.bump(user))

    @rule(enabled=st.booleans())
    def minting(self, enabled: bool) -> None:
        self.say("minting", by="_op-otto", enabled=enabled)
        self.oracle.minting = enabled
        self.expected.append(None)

    @rule(step=steps_ms)
    def time_passes(self, step: int) -> None:
        self.clock = max(T0, self.clock + step)

    @rule()
    def tick(self) -> None:
        self.fold()
        self.driver.tick(at_ms=self.clock)
        self.oracle.at(self.clock)
        self.oracle.tick()

    @rule()
    def restart(self) -> None:
        self.fold()
        self.driver.reopen()

    @rule()
    def fold(self) -> None:
        """Fold what waits, as one batch."""
        if self.waiting:
            results = self.driver.feed(self.waiting)
            for result, expected in zip(results, self.expected, strict=True):
                if expected is not None:
                    verb, outcome, shown = expected
                    found = (result["outcome"], result["data"].get(SHOWN[verb]))
                    assert found == (outcome, shown), (verb, result)
        self.waiting, self.expected = [], []

    @invariant()
    def what_must_hold_holds(self) -> None:
        if self.waiting:
            return
        rows = self.driver.db.execute(
            "SELECT user, mint_key, expires_at_ms, state, generation, reserved_at_ms "
            "FROM reservations"
        ).fetchall()
        for user, person in self.oracle.people.items():
            found = {row[1]: (row[2], row[3], row[4]) for row in rows if row[0] == user}
            wanted = {g.name: (g.second, g.state, g.generation) for g in person.grants}
            assert found == wanted
            assert sum(state == "confirmed_active" for _, state, _ in found.values()) <= 1
            assert len({second for second, _, _ in found.values()}) == len(found)
        for user, name, second, state, *_ in rows:
            before = self.seen.get((user, name), (second, "reserved"))
            assert second == before[0]
            assert before[1] not in FINAL or state == before[1]
            self.seen[user, name] = (second, state)
        assert self.seen.keys() == {(row[0], row[1]) for row in rows}
        waits = [reserved_at for *_, state, _, reserved_at in rows if state == "reserved"]
        assert PLANE.due_at(self.driver.db) == (min(waits) + 600_001 if waits else None)

    def teardown(self) -> None:
        self.fold()
        replica = FoldDriver(self.folder / "replica.db", [PLANE])
        replica.feed(self.driver.log)
        assert replica.digest() == self.driver.digest()
        assert replica.fold.state.chain == self.driver.fold.state.chain
        replica.close()
        self.driver.close()
        shutil.rmtree(self.folder)


TestCaps = Caps.TestCase
TestCaps.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
