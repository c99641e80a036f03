"""Random commands to the real fold of admission and to an oracle written from the rules alone."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.model.log_oracle import Command, Json, Says
from tests.model.oracle_runs import (
    Seen,
    activating,
    ask,
    assert_same,
    check,
    operations,
)
from tests.model.turn_oracle import DAY_MS, DEFAULTS, Owner, TurnOracle
from worker.admission.plane import PLANE
from worker.ledger import keyed
from worker.ledger.plane import View
from worker.ledger.tx import Kind, OutRow

OWNERS: tuple[Owner, ...] = (
    ("conn", "a" * 26),
    ("conn", "b" * 26),
    ("conn", "c" * 26),
    ("other", "d" * 26),
)
OPERATOR: Owner = ("_op", "e" * 26)
WORKER: Owner = ("_worker", "f" * 26)
WITNESSES: tuple[Owner, ...] = (("_witness-host-1", "g" * 26), ("_witness-host-2", "h" * 26))
REQUESTS = tuple(f"r{number:02d}" for number in range(48))
LENGTH = 200
SEEDS = range(10)
REACHED = {
    "abandon": "cancelled command-id-reused failed fenced wrong-state",
    "active": "active command-id-reused fenced wrong-state",
    "admit": "admitted no-such-request none not-pull not-yours wrong-state",
    "ambiguous": "command-id-reused dispatch_ambiguous fenced wrong-state",
    "cancel": "cancelled no-such-request not-yours wrong-state",
    "complete": "command-id-reused completed failed fenced needs-failure wrong-state",
    "cooldown": "cooling not-cooling out-of-range",
    "drain": "drain-superseded drained",
    "enqueue": (
        "adopted command-id-reused different-request expires-too-early idempotent queued "
        "payload_attached priority-too-high request-id-taken"
    ),
    "evidence": (
        "fenced marked no-identity no-such-request other-host "
        "other-process released retained suspected wrong-role"
    ),
    "intent": "command-id-reused different-intent dispatch_intent fenced wrong-state",
    "liveness": "alive cleared fresh retained suspected unknown wrong-role",
    "policy": "claimed draining idempotent epoch-mismatch match policy-differs wrong-role",
    "recover": "fenced recovery_required wrong-state",
    "resolve": "completed no-such-request recovery_required requeued wrong-state",
    "start": "command-id-reused fenced starting wrong-state",
}
"""What the runs must see, so that they stay deep."""

VERBS = {
    "enqueue": 14, "cancel": 2, "admit": 5, "start": 7, "intent": 7, "active": 5, "ambiguous": 3,
    "complete": 5, "abandon": 2, "recover": 3, "resolve": 3, "cooldown": 1, "policy": 2,
    "drain": 1, "liveness": 3, "evidence": 6, "tick": 2, "repeat": 6,
}  # fmt: skip
SUITS = {
    "start": ("admitted",),
    "intent": ("starting",),
    "active": ("dispatch_intent",),
    "ambiguous": ("dispatch_intent",),
    "complete": ("active",),
    "abandon": ("admitted", "starting", "dispatch_intent"),
    "recover": ("starting", "dispatch_intent", "dispatch_ambiguous", "active"),
}
FENCED = tuple(SUITS)


class Turns:
    """The story of admission: what could be said, and what must be seen after it."""

    def __init__(self, ruleset: int) -> None:
        self.oracle = TurnOracle(ruleset)
        self.sent: list[Command] = []
        self.licensed: dict[str, str] = {}
        self.vouched: set[str] = set()
        self.ceiling = DEFAULTS["max_active_turns"]

    # -- what could be said -------------------------------------------------------------------

    def propose(self, at_ms: int, rng: random.Random) -> Command | None:
        verb = rng.choices(list(VERBS), list(VERBS.values()))[0]
        if verb == "tick":
            return None
        if verb == "repeat":
            return self._repeat(at_ms, rng)
        now = max(self.oracle.now_ms, at_ms)
        known = sorted(self.oracle.turns)
        fresh = verb == "enqueue" or not known or rng.random() < 0.05
        request = rng.choice(REQUESTS if fresh else known)
        if verb == "enqueue" and known and rng.random() < 0.4:
            request = rng.choice(known[-8:])
        caller = rng.choice(OWNERS)
        key: tuple[str, ...] = (request,)
        body: Json
        plane = "adm"
        if verb in FENCED:
            held = [turn for turn in self.oracle.turns.values() if turn["lease"] is not None]
            if held and rng.random() < 0.95:
                fit = [turn for turn in held if turn["state"] in SUITS[verb]]
                turn = rng.choice(fit if fit and rng.random() < 0.8 else held)
                caller, request = turn["lease"]["owner"], turn["id"]
            key = (request,)
            if rng.random() < 0.04:
                caller = rng.choice(OWNERS)
            body = self._fence(request, rng) | self._fenced_body(verb, rng)
        else:
            made = getattr(self, f"_propose_{verb}")(request, caller, now, rng)
            plane, caller, key, body = made
        command_id = None if rng.random() < 0.3 else f"command-{rng.getrandbits(48):012x}"
        return Command(plane, verb, key, body, *caller, at_ms, command_id)

    def took(self, command: Command, said: Says) -> None:
        self.sent.append(command)

    def _repeat(self, at_ms: int, rng: random.Random) -> Command | None:
        known = [one for one in self.sent if one.command_id is not None]
        if not known:
            return None
        one = rng.choice(known[-20:])
        body, by, uid = dict(one.body), one.by, one.uid
        if rng.random() < 0.4:
            body = dict(reversed(body.items()))
        elif rng.random() < 0.25:
            by, uid = rng.choice(OWNERS)
        return Command(one.plane, one.verb, one.key, body, by, uid, at_ms, one.command_id)

    def _fence(self, request: str, rng: random.Random) -> Json:
        turn = self.oracle.turns.get(request)
        fence: Json = {"lease_id": "1-1-1", "generation": 1}
        if turn is not None and turn["lease"] is not None:
            fence = {"lease_id": turn["lease"]["id"], "generation": turn["generation"]}
        if rng.random() < 0.04:
            fence["generation"] += 1
        elif rng.random() < 0.04:
            fence["lease_id"] = "1-1-9"
        return fence

    def _fenced_body(self, verb: str, rng: random.Random) -> Json:
        if verb == "intent":
            channel = rng.choice(("stdin", "pty", "http", "other"))
            identity: Json = {"connector": _process(10)}
            if channel != "http":
                identity["child"] = rng.choice((_process(20), _process(20), _process(21, pgrp=10)))
            return {"identity": identity, "channel": channel}
        if verb == "complete":
            outcome = rng.choice(("completed", "failed", "failed", "cancelled"))
            body: Json = {"outcome": outcome}
            if outcome == "failed" or rng.random() < 0.05:
                category = rng.choice(("provider_capacity", "provider_capacity", "quota"))
                body["failure"] = {"category": category, "http_status": 529}
                if rng.random() < 0.5:
                    body["retry_after_ms"] = rng.choice((0, 1, 29_999, 45_000, 45_001, DAY_MS + 1))
            return body
        if verb == "abandon":
            return {"outcome": rng.choice(("failed", "cancelled"))}
        return {}

    def _propose_enqueue(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        number = int(request[1:])
        if rng.random() < 0.7:
            caller = OWNERS[number % 4] if number % 4 else rng.choice(OWNERS[:3])
        body: Json = {
            "session_id": f"session-{number}",
            "agent_id": f"agent-{number % 3}",
            "fingerprint": f"print-{number}",
            "provider": "acme",
            "model": f"m{number % 2}",
        }
        if number % 3 == 2:
            body["grant"] = "pull"
        if number % 5 == 1:
            body["priority"] = rng.choice((5, 5, 5, 50))
        if number % 4 != 3:
            body["identity"] = _process(10)
        if number % 6 == 4:
            body["timeout_ms"] = 20_000
        if number % 4 == 1:
            expires = now + rng.choice((1_800_000, 1_800_000, 1_800_000, 1_000))
            body["payload"] = {
                "key_version": 1,
                "content_fingerprint": f"{number % 16:x}" * 64,
                "expires_at_ms": expires,
                "revision": 1 + now % 1_000,
            }
        if rng.random() < 0.05:
            body["fingerprint"] = "another"
        return "adm", caller, (request,), body

    def _propose_cancel(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        return "adm", rng.choice((caller, OPERATOR)), (request,), {}

    def _propose_admit(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        return "adm", caller, (() if rng.random() < 0.4 else (request,)), {}

    def _propose_resolve(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        held = [turn["id"] for turn in self.oracle.turns.values() if turn["lease"] is not None]
        if held and rng.random() < 0.9:
            request = rng.choice(held)
        resolution = rng.choice(
            ("confirmed_not_dispatched", "confirmed_completed", "acknowledged_unknown")
        )
        return "adm", OPERATOR, (request,), {"resolution": resolution, "evidence": "seen"}

    def _propose_cooldown(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        year = 365 * DAY_MS
        until = now + rng.choice((-1, 0, 1, 30_000, 30_000, 60_000, DAY_MS, year, year + 1))
        body: Json = {"provider": "acme", "model": "m1", "not_before_ms": until}
        if rng.random() < 0.5:
            body["replace"] = rng.random() < 0.9
        return "adm", OPERATOR, (), body

    def _propose_policy(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        if rng.random() < 0.3:
            name = rng.choice(("epoch", *DEFAULTS))
            if rng.random() < 0.5:
                name = "max_active_turns"
            mine: Any = self.oracle.epoch if name == "epoch" else self.oracle.policy[name]
            if name == "max_active_turns" and rng.random() < 0.6:
                mine = self.oracle.limit
            asserted: Any
            if name == "max_priority":
                asserted = rng.choice((mine, {}, {"*": 5}))
            else:
                asserted = max(1, mine + rng.choice((0, 0, 1)))
            return "adm", OPERATOR, (), {"assert": {name: asserted}}
        body: Json = {
            "epoch": max(1, self.oracle.epoch + rng.choice((1, 1, 1, 0, 2))),
            "max_active_turns": rng.choice((1, 2, 3, 4)),
            "max_concurrent_starts": rng.choice((1, 2, 3)),
        }
        if rng.random() < 0.5:
            body["min_start_interval_ms"] = 2_000
        if rng.random() < 0.5:
            body["queue_timeout_ms"] = 100_000
        if rng.random() < 0.5:
            body["max_retry_after_ms"] = 45_000
        if rng.random() < 0.5:
            body["max_priority"] = rng.choice(({"*": 5}, {"other": -1}, {"conn": 5, "*": 0}))
        if rng.random() < 0.6:
            body["resume"] = rng.random() < 0.8
        return "adm", OPERATOR, (), body

    def _propose_drain(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        low = self.oracle.limit < 3
        return "adm", OPERATOR, (), {"to": rng.choice((3, 4, 5, 8) if low else (0, 1, 2, 3, 4))}

    def _propose_liveness(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        state = rng.choice(("silent", "silent", "alive"))
        seen = now - rng.choice((3_999, 4_000, 4_001, 4_001, 9_000))
        owner = {"principal": caller[0], "uid": caller[1]}
        return "sys", WORKER, (), {"owner": owner, "state": state, "seen_at_ms": seen}

    def _propose_evidence(self, request: str, caller: Owner, now: int, rng: random.Random) -> Any:
        held = [turn["id"] for turn in self.oracle.turns.values() if turn["lease"] is not None]
        if held and rng.random() < 0.8:
            request = rng.choice(held)
        turn = self.oracle.turns.get(request)
        lease = None if turn is None else turn["lease"]
        seen = ("gone", "gone", "gone", "alive", "unverifiable")
        body: Json = {
            "request_id": request,
            "host": "host-1",
            "connector": _process(10),
            "connector_state": rng.choice(seen),
            "observed_at_ms": now,
        }
        intent = None if lease is None else lease["intent"]
        if intent is not None and "child" in intent["identity"]:
            body["child"] = intent["identity"]["child"]
            body["child_state"] = rng.choice(seen)
            body["group_state"] = rng.choice(("empty", "empty", "empty", "alive", "unverifiable"))
        if turn is not None and lease is not None:
            body["fence"] = {
                "lease_id": lease["id"],
                "request_id": request,
                "generation": turn["generation"] + (rng.random() < 0.05),
                "owner": {"principal": lease["owner"][0], "uid": lease["owner"][1]},
            }
        if rng.random() < 0.05:
            body["connector"] = _process(10, start_ticks=5)
        return "sys", rng.choice((WORKER, WORKER, *WITNESSES)), (), body

    # -- what must be seen --------------------------------------------------------------------

    def heard(self, command: Command, result: Json) -> None:
        """Of a turn one lease may write, and none any more that an operator vouched for."""
        self.ceiling = max(self.ceiling, result["data"].get("seat_limit", 0))
        if command.verb not in ("intent", "resolve") or result["status"] != "ok":
            return
        request = command.key[0]
        if result["outcome"] == "requeued" and request in self.licensed:
            self.vouched.add(self.licensed.pop(request))
        if command.verb == "intent":
            lease = command.body["lease_id"]
            assert lease not in self.vouched, f"{request} is dispatched by a lease that is over"
            assert self.licensed.setdefault(request, lease) == lease, f"{request} twice"

    def wanted(self) -> Any:
        oracle = self.oracle
        return {
            "grants": oracle.grants,
            "lost": sorted(oracle.lost),
            "deleted": sorted(oracle.deleted),
            "moves": _paths(oracle.moves),
        }

    def check_said(self, seq: int, rows: Sequence[OutRow], wanted: Any) -> None:
        said: Json = {"grants": [], "lost": [], "deleted": [], "moves": []}
        facts = []
        for row in rows:
            parts = row.subject.split(".")
            body = json.loads(row.body or b"{}")
            if row.kind is Kind.GRANT:
                said["grants"].append(((parts[3], parts[4]), parts[5], int(parts[6])))
            elif row.kind is Kind.MESSAGE:
                told = (body["request_id"], body["generation"], body["reason"], body["state"])
                said["lost"].append(((parts[3], parts[4]), *told))
            elif row.kind is Kind.DELETE:
                key = row.subject.removeprefix("$KV.tidegate_payloads_test.")
                said["deleted"].append((key, row.expect))
            elif row.kind is Kind.FACT:
                assert parts[4] == "lease_lost"
                facts.append((body["request_id"], body["generation"]))
            elif parts[5].startswith(("request_", "queued_")):
                said["moves"].append((body[keyed.NAME], body.get("from"), body.get("to")))
        assert sorted(facts) == sorted(one[1:3] for one in said["lost"])
        said["lost"].sort()
        said["deleted"].sort()
        said["moves"] = _paths(said["moves"])
        assert_same(said, wanted)

    def check_state(self, view: Callable[..., View]) -> None:
        oracle = self.oracle
        policy = ask(PLANE, view(), "policy")
        assert_same(policy, _without_none(oracle.policy_shown()))
        for turn in oracle.turns.values():
            shown = ask(PLANE, view(), "request", request_id=turn["id"])
            shown.pop("reason", None)
            assert_same(shown, _without_none(oracle.shown(turn)), turn["id"])
        leases = ask(PLANE, view(), "leases", limit=1000)["leases"]
        self._check_leases(leases)
        assert len(leases) == policy["seats"] <= self.ceiling, "more seats than were ever allowed"
        if oracle.mended:
            assert policy["draining"] == (policy["seats"] > policy["seat_limit"])
        self.ceiling = max(policy["seats"], policy["seat_limit"])

    def _check_leases(self, leases: list[Json]) -> None:
        held = {turn["id"]: turn for turn in self.oracle.turns.values() if turn["lease"]}
        assert [lease["request_id"] for lease in leases] == sorted(held)
        for shown in leases:
            lease = held[shown["request_id"]]["lease"]
            assert shown.get("debt_since_ms") == lease["debt_since"], shown
            silent = lease["owner"] in self.oracle.silent
            suspect = lease["suspicion"] or ("heartbeat_expired" if silent else None)
            assert shown.get("suspicion") == suspect, shown


def _paths(moves: Sequence[tuple[str, str | None, str]]) -> dict[str, list[str | None]]:
    """The states that one command leads each turn through.

    How the journal names a step between two others is not a rule.
    """
    paths: dict[str, list[str | None]] = {}
    for name, before, after in moves:
        path = paths.setdefault(name, [before])
        assert path[-1] == before, f"{name} leaves {before}, and was {path[-1]}"
        if path[-1] != after:
            path.append(after)
    for path in paths.values():
        path[1:-1] = [state for state in path[1:-1] if state != "recovery_required"]
    return {name: path for name, path in sorted(paths.items()) if len(path) > 1}


def _without_none(shown: Json) -> Json:
    return {name: value for name, value in shown.items() if value is not None}


def _process(pid: int, *, pgrp: int | None = None, **other: Any) -> Json:
    return {
        "host": "host-1",
        "boot_id": "boot-1",
        "pid": pid,
        "start_ticks": 1_000 + pid,
        "pid_ns": 4_026_531_836,
        "ppid": 1,
        "pgrp": pid if pgrp is None else pgrp,
        "session": pid,
        **other,
    }


STEPS = (0, 0, 1, 1_999, 2_000, 500)
FAR = (29_999, 30_000, 59_999, 60_000, 1, 900_001, -500, 1_800_000)


def seen_in(seeds: Iterable[int], length: int, ruleset: int, later: int | None = None) -> Seen:
    """Play seeds, half of each under a later ruleset if one is given; what was seen in all."""
    seen: Seen = Counter()
    for seed in seeds:
        ops = operations(seed, length, STEPS, FAR)
        if later is not None:
            ops = activating(ops, later)
        seen += check(PLANE, partial(Turns, ruleset), ops, ruleset)
    return seen


def test_fold_and_oracle_agree() -> None:
    seen = seen_in(SEEDS, LENGTH, 3)
    print("\n".join(f"{count:6} {what}" for what, count in sorted(seen.items())))
    reached = {(verb, outcome) for verb, outcome, _ in seen}
    wanted = {(verb, word) for verb, words in REACHED.items() for word in words.split()}
    assert sorted(wanted - reached) == []


def test_fold_and_oracle_agree_under_the_first_ruleset() -> None:
    seen_in(range(100, 102), LENGTH, 2)


def test_fold_and_oracle_agree_where_a_log_activates_a_later_ruleset() -> None:
    seen_in(range(200, 202), LENGTH, 2, later=3)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_fold_and_oracle_agree_for_long(part: int) -> None:
    seeds = range(1_000 + 20 * part, 1_020 + 20 * part)
    seen_in(seeds[:12], 600, 3)
    seen_in(seeds[12:16], 600, 2)
    seen_in(seeds[16:], 600, 2, later=3)
