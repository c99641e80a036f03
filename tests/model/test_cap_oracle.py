"""Random commands to the real fold of caps and to an oracle written from the rules alone."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.model.cap_oracle import CapOracle
from tests.model.log_oracle import Command, Json, Says
from tests.model.oracle_runs import (
    T0,
    Seen,
    activating,
    ask,
    assert_same,
    check,
    operations,
)
from worker.caps.plane import PLANE
from worker.ledger.plane import View
from worker.ledger.tx import Kind, OutRow

USERS = ("ann", "bob")
KEYS = tuple(f"mint-key-000000-{n}" for n in range(6))
SPEAKERS = (("dee", "a" * 26), ("dee", "b" * 26), ("eve", "c" * 26))
OPERATOR = ("_op", "d" * 26)
SEEDS = range(12)
LENGTH = 150
REACHED = {
    "authorize": (
        "allowed command-id-reused grant-lapsed grant-mismatch none-active out-of-range "
        "over-cap stopped"
    ),
    "bump": "bumped",
    "confirm": (
        "already_confirmed command-id-reused confirmed expiry-mismatch grant-lapsed "
        "legacy reservation-expired revoked stopped superseded unreserved"
    ),
    "import": (
        "already-imported already_taken_in chunk-out-of-order imported "
        "out-of-range taken_in wrong-role"
    ),
    "minting": "minting_enabled minting_paused wrong-role",
    "reserve": (
        "already_reserved command-id-reused different-reservation minting-paused "
        "no-free-second out-of-range reserved"
    ),
    "revoke": "nothing-to-revoke revoked",
    "stop": "stopped",
}
"""What the runs must see, so that they stay deep."""


class Caps:
    """The story of caps: what operations say, and what must be seen after them."""

    def __init__(self, ruleset: int) -> None:
        self.oracle = CapOracle(ruleset)
        self.sent: list[Command] = []
        self.named: dict[tuple[str, int], str] = {}
        self.open: dict[str, set[str]] = {}
        self.in_force: dict[str, str] = {}

    def propose(self, at_ms: int, rng: random.Random) -> Command | None:
        verb = rng.choices(list(VERBS), list(VERBS.values()))[0]
        if verb == "tick":
            return None
        if verb == "repeat":
            return self._repeat(at_ms, rng)
        user, key = rng.choice(USERS), rng.choice(KEYS)
        mine = [known for owner, known in self.oracle.caps if owner == user]
        if verb == "confirm" and mine and rng.random() < 0.9:
            key = rng.choice(mine)
        by, uid = rng.choice(SPEAKERS)
        if (verb in ("minting", "import") and rng.random() < 0.95) or (
            verb in ("stop", "bump", "revoke") and rng.random() < 0.2
        ):
            by, uid = OPERATOR
        now = max(self.oracle.now_ms, at_ms)
        parts: dict[str, tuple[str, ...]] = {"minting": (), "import": ()}
        parts |= {"reserve": (user, key), "confirm": (user, key)}
        command_id = None if rng.random() < 0.3 else f"command-{rng.getrandbits(48):012x}"
        body = self._body(verb, user, key, now, rng)
        return Command("cap", verb, parts.get(verb, (user,)), body, by, uid, at_ms, command_id)

    def took(self, command: Command, said: Says) -> None:
        self.sent.append(command)

    def _repeat(self, at_ms: int, rng: random.Random) -> Command | None:
        known = [one for one in self.sent if one.command_id is not None]
        if not known:
            return None
        one = rng.choice(known[-12:])
        body, by, uid = dict(one.body), one.by, one.uid
        change = rng.random()
        if change < 0.3:
            body = dict(reversed(body.items()))
        elif change < 0.4 and "cap" in body:
            body["cap"] += 1
        elif change < 0.7:
            by, uid = rng.choice(SPEAKERS)
        return Command(one.plane, one.verb, one.key, body, by, uid, at_ms, one.command_id)

    def _body(self, verb: str, user: str, key: str, now: int, rng: random.Random) -> Any:
        cap = self.oracle.caps.get((user, key))
        active = self.oracle.active(user)
        second = (active or cap or {"second": T0 + 3_600_000})["second"]
        if verb == "minting":
            more = {"permit_ms": rng.choice((1, 700, 2_000))} if rng.random() < 0.4 else {}
            return {"enabled": rng.random() < 0.85, **more}
        if verb == "reserve":
            near = now // 1_000 * 1_000
            wanted = rng.choice(
                (T0 + 3_600_000, T0 + 3_600_137, near + 1_000, near + 3_137, near + 700_000, now)
            )
            if cap is not None and rng.random() < 0.5:
                wanted = cap["asked"] // 1_000 * 1_000 + rng.choice((0, 137))
            return {
                "latest_expires_at_ms": wanted,
                "cap": rng.choice((10, 10, 10, 99, 1_000_000_000, 1_000_000_001, 0)),
            }
        if verb == "confirm":
            named = cap["second"] if cap is not None else second
            return {"grant_expires_at_ms": named + rng.choice((0, 0, 0, 0, 0, 1, 1_000))}
        if verb == "authorize":
            limit = active["cap"] if active is not None else 10
            return {
                "amount": rng.choice((1, limit, limit, limit + 1, 0)),
                "grant_expires_at_ms": second + rng.choice((0, 0, 0, 0, 1, -1_000)),
            }
        if verb == "revoke":
            return {"expires_at_ms": second + rng.choice((0, 0, 0, 1))}
        if verb == "import":
            return self._import(rng)
        return {}

    def _import(self, rng: random.Random) -> Any:
        going = self.oracle.imported
        chunk = 1 if going is None else going["chunks"] + 1
        chunk = max(1, chunk + rng.choice((0, 0, 0, 0, -1, 1)))
        records = [
            {
                "userId": rng.choice(USERS),
                "mintKey": rng.choice((*KEYS, None, "mint-key-legacy-1")),
                "expiresAt": T0 + 3_600_000 + rng.choice((0, 137, -1_000)),
                "perSwapCapUsd": rng.choice((5, 10, -3)),
                "reservedAt": T0 - 5,
            }
            for _ in range(rng.randrange(3))
        ]
        return {
            "import_id": rng.choice(("import-1", "import-1", "import-1", "import-2")),
            "chunk": chunk,
            "of": 3,
            "records": records,
        }

    def heard(self, command: Command, result: Json) -> None:
        """A second names one grant for ever; nothing from before a Stop confirms or allows."""
        if result["status"] != "ok" or not command.key:
            return
        user, data = command.key[0], result["data"]
        key = command.key[-1]
        match result["outcome"]:
            case "reserved":
                assert (user, data["expires_at_ms"]) not in self.named
                self.named[user, data["expires_at_ms"]] = key
                self.open.setdefault(user, set()).add(key)
            case "confirmed":
                assert key in self.open[user]
                assert self.named[user, data["expires_at_ms"]] == key
                self.in_force[user] = key
            case "allowed":
                assert self.named[user, data["expires_at_ms"]] == self.in_force[user]
                assert command.body["amount"] <= data["cap"]
                assert result["at_ms"] + data["valid_for_ms"] <= data["expires_at_ms"]
            case "stopped" | "bumped":
                self.open[user] = set()
                self.in_force.pop(user, None)
            case "revoked":
                self.in_force.pop(user, None)

    def wanted(self) -> Any:
        return sorted(json.dumps(fact, sort_keys=True) for fact in self.oracle.facts)

    def check_said(self, seq: int, rows: Sequence[OutRow], wanted: Any) -> None:
        facts = []
        for row in rows:
            assert row.kind is Kind.FACT, row
            _, _, _, plane, kind, user, _ = row.subject.split(".")
            body = json.loads(row.body)
            assert plane == "cap"
            assert body.pop("v") == 1
            body.pop("at_ms")
            facts.append(json.dumps((kind, user, body), sort_keys=True))
        assert sorted(facts) == wanted, f"facts {facts}, should be {wanted}"

    def check_state(self, view: Callable[..., View]) -> None:
        for user in USERS:
            keys = [key for owner, key in self.oracle.caps if owner == user]
            states = []
            for key in (None, *keys):
                asked = {"user": user} if key is None else {"user": user, "mint_key": key}
                shown = ask(PLANE, view("dee"), "show", **asked)
                assert_same(shown, self._shown(user, key))
                if key is not None:
                    states.append(shown["reservation"]["state"])
            assert states.count("confirmed_active") <= 1, f"{user} has two grants in force"
        listed = ask(PLANE, view(), "list", which="active")
        active = [user for user in USERS if self.oracle.active(user) is not None]
        assert [(one["cap"]["user"]) for one in listed["caps"]] == active
        assert listed["damaged"] == 0

    def _shown(self, user: str, key: str | None) -> Any:
        oracle = self.oracle
        why = oracle.why_not(user, oracle.now_ms)
        cap = oracle.active(user)
        authority: Json = {"authorizes": why is None}
        if why is not None:
            authority["reason"] = why
        if cap is not None:
            authority |= {"cap": cap["cap"], "expires_at_ms": cap["second"]}
        shown: Json = {
            "user": user,
            "authority": authority,
            "generation": oracle.generation.get(user, 0),
            "settings": {"enabled": oracle.enabled, "permit_ms": oracle.permit_ms},
        }
        if cap is not None:
            shown["active"] = oracle.record(user, oracle.pointer[user])
        if key is not None:
            shown["reservation"] = oracle.record(user, key)
        return shown


VERBS = {
    "reserve": 6, "confirm": 8, "authorize": 7, "revoke": 2, "stop": 2, "bump": 1,
    "minting": 1, "import": 2, "tick": 2, "repeat": 3,
}  # fmt: skip


STEPS = (0, 1, 250, 999, 1_000)
FAR = (599_999, 600_000, 600_001, 3_600_000, -500)


def seen_in(seeds: Iterable[int], length: int, ruleset: int, later: int | None = None) -> Seen:
    """Play seeds, half of each under a later ruleset if one is given; what was seen in all."""
    seen: Seen = Counter()
    for seed in seeds:
        ops = operations(seed, length, STEPS, FAR)
        if later is not None:
            ops = activating(ops, later)
        seen += check(PLANE, partial(Caps, ruleset), ops, ruleset)
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
