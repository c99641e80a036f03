"""The fold and an oracle side by side, under random work, lost owners and a clock that steps."""

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.admission_oracle import AFTER_INTENT, Oracle, Owner, Turn
from tests.support.adm import (
    CHILD_PROCESS,
    CONNECTOR_PROCESS,
    HOST,
    OPERATOR,
    T0,
    WORKER,
    Admission,
    fold_again,
)

UIDS = [letter * 26 for letter in "abc"]
OWNERS: list[Owner] = [(principal, uid) for principal in ("conn", "pool") for uid in UIDS]
AGENTS = ["x", "y", "z"]
MODELS = ["m1", "m2"]
VERBS = ["start", "intent", "active", "ambiguous", "complete", "abandon", "recover"]
STEPS_MS = st.sampled_from([0, 0, 1, 1, 2, 3, 5, 9, -3])
LEAPS_MS = st.sampled_from([20, 50, 51, 300, -100])
FORKS = {
    "admitted": ["abandon"],
    "starting": ["abandon", "recover"],
    "dispatch_intent": ["ambiguous", "ambiguous", "recover", "abandon", "intent"],
    "active": ["complete", "recover"],
    "dispatch_ambiguous": ["recover"],
    "recovery_required": ["recover"],
}
"""What a connector may do instead of going on."""

NEXT = {
    "admitted": "start",
    "starting": "intent",
    "dispatch_intent": "active",
    "active": "complete",
    "dispatch_ambiguous": "recover",
    "recovery_required": "recover",
}
RESOLUTIONS = st.sampled_from(
    ["confirmed_not_dispatched", "confirmed_completed", "acknowledged_unknown"]
)
SEEN = st.sampled_from(["alive", "gone", "gone", "unverifiable"])
TERMINAL = {"completed", "failed", "cancelled", "queue_timeout"}


class Machine(RuleBasedStateMachine):
    """Sends the same random commands to the fold and to the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.adm: Admission | None = None
        self.dispatched: dict[str, list[int]] = defaultdict(list)
        self.cleared: dict[str, int] = defaultdict(int)
        self.at = T0
        self.count = 0

    def teardown(self) -> None:
        if self.adm is not None:
            self.every_turn_ends_or_is_a_visible_debt()
            digest = self.adm.driver.digest().whole
            assert fold_again(self.adm.driver, Path(self.folder.name)) == digest
            self.adm.close()
        self.folder.cleanup()

    @initialize(
        seats=st.integers(1, 4),
        starts=st.integers(1, 4),
        interval=st.sampled_from([0, 0, 7]),
        queue_timeout=st.sampled_from([60, 1_000]),
    )
    def begin(self, seats: int, starts: int, interval: int, queue_timeout: int) -> None:
        policy = {
            "max_active_turns": seats,
            "max_concurrent_starts": starts,
            "min_start_interval_ms": interval,
            "queue_timeout_ms": queue_timeout,
            "capacity_cooldown_ms": 30,
            "start_timeout_ms": 50,
            "adoption_timeout_ms": 80,
            "silence_ms": 20,
        }
        self.adm = Admission(Path(self.folder.name), **policy)
        self.oracle = Oracle(policy, now=T0)

    @property
    def turns(self) -> list[Turn]:
        return list(self.oracle.turns.values())

    def send(self, verb: str, *key: str, by: Owner | None, **body: Any) -> dict[str, Any]:
        """Fold a command at the stepped clock; a connector's command is a beat of its owner."""
        assert self.adm is not None
        plane = "sys" if verb in ("liveness", "evidence") else "adm"
        self.oracle.pass_time(self.at)
        if by is not None:
            self.oracle.heard(by, self.oracle.now)
        principal, uid = by or (WORKER if plane == "sys" else OPERATOR, UIDS[0])
        self.granted_before = len(self.adm.grants())
        self.adm.now_ms = self.oracle.now
        return self.adm.driver.send(principal, plane, verb, *key, body=body, at_ms=self.at, uid=uid)

    def settle(self) -> None:
        """What follows every command, and that both sides agree about it."""
        assert self.adm is not None
        granted = self.oracle.push()
        assert self.adm.grants()[self.granted_before :] == granted

    def pick(self, data: st.DataObject) -> Turn:
        return data.draw(st.sampled_from(self.turns))

    @rule(ms=STEPS_MS)
    def step_clock(self, ms: int) -> None:
        self.at += ms

    @rule(ms=LEAPS_MS)
    def leap_clock(self, ms: int) -> None:
        self.at += ms

    @precondition(lambda self: any(turn.seat for turn in self.turns))
    @rule(data=st.data(), steps=st.integers(1, 4), http=st.booleans(), ms=STEPS_MS)
    def work(self, data: st.DataObject, steps: int, http: bool, ms: int) -> None:
        """A connector goes on with one turn, as connectors mostly do."""
        held = [turn for turn in self.turns if turn.seat]
        turn = data.draw(st.sampled_from(held))
        for _ in range(steps):
            if turn.seat is None:
                return
            self.at += max(0, ms)
            self.take_step(turn, NEXT[turn.state], "completed", http=http)

    @rule(
        owner=st.sampled_from(OWNERS),
        agent=st.sampled_from(AGENTS),
        model=st.sampled_from(MODELS),
        pull=st.sampled_from([False, False, True]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        timeout=st.sampled_from([5, 40, 200, 900]),
        sealed=st.booleans(),
    )
    def enqueue(
        self,
        owner: Owner,
        agent: str,
        model: str,
        pull: bool,
        priority: int,
        timeout: int,
        sealed: bool,
    ) -> None:
        self.enqueue_new(owner, agent, model, pull, priority, timeout, sealed)

    def enqueue_new(
        self,
        owner: Owner,
        agent: str,
        model: str,
        pull: bool,
        priority: int,
        timeout: int,
        sealed: bool,
    ) -> None:
        # Ids go up and down, so that plain order is not the order of the ids.
        self.count += 1
        request = f"r{self.count % 3}-{self.count:03d}"
        turn = Turn(
            request, *owner, agent, model, pull, priority, timeout, 0, 0, True if sealed else None
        )
        self.enqueue_turn(turn, owner, "queued")

    @rule(
        owner=st.sampled_from(OWNERS),
        agents=st.lists(st.sampled_from(AGENTS), min_size=2, max_size=6),
        model=st.sampled_from(MODELS),
        timeout=st.sampled_from([200, 900]),
    )
    def flood(self, owner: Owner, agents: list[str], model: str, timeout: int) -> None:
        for agent in agents:
            self.enqueue_new(owner, agent, model, False, 0, timeout, False)

    @precondition(lambda self: self.oracle.turns)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def enqueue_again(self, data: st.DataObject, owner: Owner) -> None:
        known = self.pick(data)
        again = Turn(
            known.id,
            *owner,
            known.agent,
            known.model,
            known.pull,
            known.priority,
            known.timeout_ms,
            0,
            0,
            known.sealed,
        )
        self.enqueue_turn(again, owner, None)

    def enqueue_turn(self, turn: Turn, owner: Owner, expected: str | None) -> None:
        body: dict[str, Any] = {
            "session_id": "s",
            "agent_id": turn.agent,
            "fingerprint": "f",
            "provider": "acme",
            "model": turn.model,
            "grant": "pull" if turn.pull else "push",
            "priority": turn.priority,
            "timeout_ms": turn.timeout_ms,
            "identity": CONNECTOR_PROCESS,
        }
        if turn.sealed is not None:
            body["payload"] = {
                "key_version": 1,
                "content_fingerprint": "f" * 64,
                "expires_at_ms": T0 + 10_000_000,
                "revision": self.count + 1,
            }
        result = self.send("enqueue", turn.id, by=owner, **body)
        turn.enqueued_ms = self.oracle.now
        waits = min(turn.timeout_ms, self.oracle.policy["queue_timeout_ms"])
        turn.deadline_ms = self.oracle.now + waits
        outcome = self.oracle.enqueue(turn)
        assert result["outcome"] == outcome == (expected or outcome)
        self.settle()

    @precondition(lambda self: self.oracle.turns)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        turn = self.pick(data)
        result = self.send("cancel", turn.id, by=turn.owner)
        assert result["outcome"] == self.oracle.cancel(turn)
        self.settle()

    @rule(owner=st.sampled_from(OWNERS))
    def admit(self, owner: Owner) -> None:
        result = self.send("admit", by=owner)
        got = self.oracle.admit(owner)
        assert result["data"].get("request_id") == got
        self.settle()

    @precondition(lambda self: any(turn.seat for turn in self.turns))
    @rule(
        data=st.data(),
        verb=st.sampled_from(VERBS),
        outcome=st.sampled_from(["completed", "failed", "cancelled"]),
        http=st.booleans(),
        capacity=st.booleans(),
    )
    def step(
        self, data: st.DataObject, verb: str, outcome: str, http: bool, capacity: bool
    ) -> None:
        held = [turn for turn in self.turns if turn.seat]
        turn = data.draw(st.sampled_from(held))
        if data.draw(st.booleans()):
            verb = data.draw(st.sampled_from(FORKS[turn.state]))
        if verb == "abandon" and outcome == "completed":
            outcome = "failed"
        self.take_step(turn, verb, outcome, http=http, capacity=capacity)

    def take_step(
        self, turn: Turn, verb: str, outcome: str, *, http: bool, capacity: bool = False
    ) -> None:
        assert self.adm is not None
        fence: dict[str, Any] = self.adm.fence(turn.id)
        body: dict[str, Any] = {}
        channel = ""
        if verb == "intent":
            again = turn.state == "dispatch_intent"
            channel = turn.channel if again else ("http" if http else "pty")
            body = intent_of(channel)
        if verb in ("complete", "abandon"):
            body = {"outcome": outcome}
        capacity = capacity and verb == "complete" and outcome == "failed"
        if capacity:
            body["failure"] = {"category": "provider_capacity"}
        result = self.send(verb, turn.id, by=turn.holder, **fence, **body)
        if turn.seat is None or turn.generation != fence["generation"]:
            assert result["outcome"] == "fenced"
        else:
            before = turn.state
            assert result["outcome"] == self.oracle.step(turn, verb, outcome)
            if verb == "intent" and before == "starting":
                turn.channel = channel
                self.dispatched[turn.id].append(turn.generation)
            if capacity and before == "active":
                self.oracle.cool(turn.model, self.oracle.now + 30)
        self.settle()

    @precondition(lambda self: any(t.seat and t.state in AFTER_INTENT for t in self.turns))
    @rule(data=st.data(), resolution=RESOLUTIONS, gone=st.booleans())
    def doubt(self, data: st.DataObject, resolution: str, gone: bool) -> None:
        """A dispatched turn's connector is lost, and somebody decides."""
        held = [turn for turn in self.turns if turn.seat and turn.state in AFTER_INTENT]
        turn = data.draw(st.sampled_from(held))
        self.look_at(turn, "gone", "gone", "empty" if gone else "alive")
        self.decide(turn, resolution)

    @precondition(lambda self: any(turn.seat for turn in self.turns))
    @rule(data=st.data(), verb=st.sampled_from(VERBS), owner=st.sampled_from(OWNERS))
    def step_with_a_stale_fence(self, data: st.DataObject, verb: str, owner: Owner) -> None:
        assert self.adm is not None
        held = [turn for turn in self.turns if turn.seat]
        turn = data.draw(st.sampled_from(held))
        fence = self.adm.fence(turn.id)
        if owner == turn.holder:
            fence["generation"] += 1
        body: dict[str, Any] = intent_of("pty") if verb == "intent" else {}
        if verb in ("complete", "abandon"):
            body = {"outcome": "failed"}
        assert self.send(verb, turn.id, by=owner, **fence, **body)["outcome"] == "fenced"
        self.settle()

    @precondition(lambda self: self.oracle.turns)
    @rule(
        data=st.data(),
        resolution=RESOLUTIONS,
    )
    def resolve(self, data: st.DataObject, resolution: str) -> None:
        self.decide(self.pick(data), resolution)

    def decide(self, turn: Turn, resolution: str) -> None:
        result = self.send("resolve", turn.id, by=None, resolution=resolution, evidence="e")
        outcome = self.oracle.resolve(turn, resolution)
        assert result["outcome"] == outcome
        if outcome == "requeued":
            self.cleared[turn.id] = turn.generation - 1
        self.settle()

    @rule(model=st.sampled_from(MODELS), ms=st.sampled_from([-5, 1, 20, 200]))
    def cooldown(self, model: str, ms: int) -> None:
        until = self.at + ms
        self.send("cooldown", by=None, provider="acme", model=model, not_before_ms=until)
        self.oracle.cool(model, until)
        self.settle()

    @rule(to=st.sampled_from([4, 3, 2, 1, 0]))
    def drain(self, to: int) -> None:
        result = self.send("drain", by=None, to=to)
        assert result["outcome"] == self.oracle.drain(to)
        self.settle()

    @rule(
        owner=st.sampled_from(OWNERS),
        state=st.sampled_from(["silent", "alive"]),
        ago=st.sampled_from([0, 20, 21, 500]),
    )
    def liveness(self, owner: Owner, state: str, ago: int) -> None:
        seen = max(self.at, self.oracle.now) - ago
        principal, uid = owner
        body = {"owner": {"principal": principal, "uid": uid}, "state": state, "seen_at_ms": seen}
        result = self.send("liveness", by=None, **body)
        assert result["outcome"] == self.oracle.liveness(owner, state, seen)
        self.settle()

    @precondition(lambda self: self.oracle.turns)
    @rule(
        data=st.data(),
        connector=SEEN,
        child=SEEN,
        group=st.sampled_from(["empty", "empty", "alive", "none", "unverifiable"]),
    )
    def evidence(self, data: st.DataObject, connector: str, child: str, group: str) -> None:
        self.look_at(self.pick(data), connector, child, group)

    def look_at(self, turn: Turn, connector: str, child: str, group: str) -> None:
        assert self.adm is not None
        if turn.state != "queued" and turn.seat is None:
            return
        body: dict[str, Any] = {
            "request_id": turn.id,
            "host": HOST,
            "connector": CONNECTOR_PROCESS,
            "connector_state": connector,
            "group_state": group,
            "observed_at_ms": 0,
        }
        named = turn.state in AFTER_INTENT and turn.channel == "pty"
        if named:
            body |= {"child": CHILD_PROCESS, "child_state": child}
        state, generation = turn.state, turn.generation
        view = self.adm.turn(turn.id)
        if turn.seat:
            lease = view["lease"]
            body["fence"] = {
                "lease_id": lease["lease_id"],
                "request_id": turn.id,
                "generation": generation,
                "owner": lease["owner"],
            }
        known = not turn.seat or self.knows_process(turn)
        result = self.send("evidence", by=None, **body)
        if (turn.state, turn.generation) != (state, generation):
            assert result["outcome"] == "fenced"
        elif not known:
            assert result["outcome"] == "no-identity"
        else:
            assert result["status"] == "ok"
            self.oracle.evidence(turn, connector, child if named else "none", group)
        self.settle()

    def knows_process(self, turn: Turn) -> bool:
        """Whether a lease names its connector: not if it was pulled by another life."""
        assert self.adm is not None
        row = self.adm.driver.db.execute(
            "SELECT connector FROM adm_leases WHERE request_id = ?", (turn.id,)
        ).fetchone()
        return row[0] is not None

    @rule()
    def tick(self) -> None:
        assert self.adm is not None
        self.oracle.pass_time(self.at)
        self.granted_before = len(self.adm.grants())
        self.adm.driver.tick(at_ms=self.at)
        self.adm.now_ms = self.oracle.now
        self.settle()

    @invariant()
    def both_sides_agree(self) -> None:
        if self.adm is None:
            return
        for turn in self.turns:
            view = self.adm.turn(turn.id)
            assert (view["state"], view["generation"]) == (turn.state, turn.generation), turn
            assert ("lease" in view) == (turn.seat is not None), turn
            assert view["owner"]["uid"] == turn.uid
        policy = self.adm.policy()
        assert policy["seats"] == self.oracle.seats()
        assert policy["starts"] == self.oracle.starts()
        assert policy["seat_limit"] == self.oracle.limit
        assert policy["draining"] == self.oracle.draining
        waiting = sum(turn.state == "queued" for turn in self.turns)
        assert policy["queued"] == waiting

    @invariant()
    def no_turn_is_dispatched_twice(self) -> None:
        for request, generations in self.dispatched.items():
            assert len(set(generations)) == len(generations)
            # Every dispatch but the last was declared void by an operator.
            assert all(generation <= self.cleared[request] for generation in generations[:-1])

    def every_turn_ends_or_is_a_visible_debt(self) -> None:
        """Without owners, time brings every turn to its end, or to a seat that shows as held."""
        assert self.adm is not None
        for _ in range(12):
            self.at += 2_000
            self.tick()
        held = {lease["request_id"]: lease for lease in self.adm.answer("leases")["leases"]}
        for turn in self.turns:
            if turn.id in held:
                assert turn.state in AFTER_INTENT
                assert held[turn.id]["frees"]
            else:
                assert turn.state in TERMINAL | {"recovery_required"}
        assert self.adm.driver.fold.due_at() is None


def intent_of(channel: str) -> dict[str, Any]:
    identity: dict[str, Any] = {"connector": CONNECTOR_PROCESS}
    if channel != "http":
        identity["child"] = CHILD_PROCESS
    return {"channel": channel, "identity": identity}


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_fold_does_what_the_oracle_does() -> None:
    run(examples=60, steps=50)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_the_fold_does_what_the_oracle_does_for_long() -> None:
    run(examples=2_000, steps=80)
