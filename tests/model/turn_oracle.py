"""Admission as its rules say, over dicts; written without a look at the transitions."""

from collections.abc import Iterable
from typing import Any

from tests.model.log_oracle import Command, Envelope, Json, Says

DAY_MS = 24 * 3600 * 1000
YEAR_MS = 365 * DAY_MS
DEFAULTS: Json = {
    "max_active_turns": 8,
    "max_concurrent_starts": 8,
    "min_start_interval_ms": 0,
    "queue_timeout_ms": 1_800_000,
    "capacity_cooldown_ms": 30_000,
    "start_timeout_ms": 60_000,
    "adoption_timeout_ms": 60_000,
    "silence_ms": 4_000,
    "max_retry_after_ms": DAY_MS,
    "max_priority": {},
}
STARTS = ("admitted", "starting", "dispatch_intent")
BEFORE_INTENT = ("admitted", "starting")
DEBT = ("dispatch_ambiguous", "recovery_required")
TERMINAL = ("completed", "failed", "cancelled", "queue_timeout")
RELEASES = 3
NEW_VALUES = ("max_retry_after_ms", "max_priority")
SAME = ("host", "boot_id", "pid", "start_ticks", "pid_ns")
IMMUTABLE = (
    "session_id", "agent_id", "fingerprint", "provider", "model", "grant", "priority",
    "timeout_ms",
)  # fmt: skip

Owner = tuple[str, str]


class TurnOracle(Envelope):
    """The admission plane.

    Attributes:
        turns: Request id to turn; a turn's ``lease`` is ``None`` without a seat.
        silent: Owners that are suspect, since when.
        dead: Owners that are proven dead, and until when their queued turns wait for another life.
        grants: Seats that the command at hand pushed: owner, request id, generation.
        lost: Leases that it took: owner, request id, generation, reason, state.
        deleted: Payloads that it destroyed: key, revision.
        moves: How turns moved: request id, state before, state after.
    """

    ANEW = frozenset(
        {("adm", verb) for verb in ("admit", "start", "intent", "active", "policy", "drain")}
    )

    def __init__(self, ruleset: int) -> None:
        super().__init__(ruleset)
        self.policy = dict(DEFAULTS)
        self.epoch = 0
        self.limit = DEFAULTS["max_active_turns"]
        self.draining = False
        self.drained_to: int | None = None
        self.claimed: tuple[int, Json] | None = None
        self.turns: dict[str, Json] = {}
        self.silent: dict[Owner, int] = {}
        self.dead: dict[Owner, int] = {}
        self.heard: dict[Owner, int] = {}
        self.cooling: dict[tuple[str, str], int] = {}
        self.slots: list[tuple[int, str]] = []
        self.by_age: dict[object, bool] = {}
        self.seq = self.leases_made = 0
        self.begin(0)

    def begin(self, seq: int) -> None:
        self.seq = seq
        self.grants: list[tuple[Owner, str, int]] = []
        self.lost: list[tuple[Owner, str, int, str, str]] = []
        self.deleted: list[tuple[str, int]] = []
        self.moves: list[tuple[str, str | None, str]] = []
        self.policy_moves: list[str] = []

    def activated(self) -> None:
        if self.claimed is None and self.limit != self.policy["max_active_turns"]:
            self.drained_to = self.limit

    def judge(self, command: Command, again: Says | None) -> Says:
        bad = self._bad(command)
        if bad is not None:
            return bad
        self.time_passes(admit=False)
        caller = (command.by, command.uid)
        if command.plane == "adm" and not command.by.startswith("_"):
            self._hear(caller)
        handler = getattr(self, f"_{command.verb}")
        if command.verb in ("start", "intent", "active", "admit", "drain"):
            said: Says = handler(caller, command.key, command.body, again)
        else:
            said = handler(caller, command.key, command.body)
        self.time_passes()
        return said

    def time_passes(self, *, admit: bool = True) -> None:
        """Queue deadlines, start timeouts, owners that nobody adopted from."""
        now = self.now_ms
        for turn in self._in_order():
            if turn["state"] in BEFORE_INTENT and turn["lease"]["start_deadline"] <= now:
                self._give_back(turn, "start-timeout")
        for turn in self._in_order():
            adopt_by = self.dead.get(turn["owner"], now + 1)
            if turn["state"] == "queued" and min(adopt_by, turn["deadline"]) <= now:
                self._move(turn, "cancelled" if adopt_by <= now else "queue_timeout")
        if admit:
            self.admit_all()

    # -- choosing -----------------------------------------------------------------------------

    def seats(self) -> int:
        """Seats that are held, debt included."""
        return sum(turn["lease"] is not None for turn in self.turns.values())

    def starts(self) -> int:
        """Leases between admission and active."""
        return sum(
            turn["lease"] is not None and turn["state"] in STARTS for turn in self.turns.values()
        )

    def capacity_blocks(self) -> list[str]:
        """What keeps everyone from a seat."""
        blocks = []
        if self.seats() >= self.limit:
            drained = self.draining or self.limit < self.policy["max_active_turns"]
            blocks.append("drain" if drained else "seats")
        if self.starts() >= self.policy["max_concurrent_starts"]:
            blocks.append("starts")
        last = max((at for at, _ in self.slots), default=None)
        if last is not None and self.now_ms - last < self.policy["min_start_interval_ms"]:
            blocks.append("pacing")
        return blocks

    def skipped(self, turn: Json) -> list[str]:
        """Why a queued turn is passed over, capacity aside."""
        why = []
        if self.cooling.get((turn["provider"], turn["model"]), 0) > self.now_ms:
            why.append("cooldown")
        if turn["owner"] in self.silent or turn["owner"] in self.dead:
            why.append("silence")
        if turn["awaits"]:
            why.append("payload")
        return why

    def choice(self, pool: Iterable[Json]) -> tuple[Json, bool] | None:
        """Who is next among queued turns, and whether by age."""
        fit = [turn for turn in pool if turn["state"] == "queued" and not self.skipped(turn)]
        if not fit:
            return None
        top = max(turn["priority"] for turn in fit)
        tier = sorted((t for t in fit if t["priority"] == top), key=_plain_order)
        aged = [t for t in tier if 2 * (self.now_ms - t["enqueued"]) > t["timeout"]]
        if aged and not self.by_age.get(self._tier(top), False):
            return aged[0], True
        busy = {turn["agent_id"] for turn in self.turns.values() if turn["lease"] is not None}
        idle = [turn for turn in tier if turn["agent_id"] not in busy]
        return (idle or tier)[0], False

    def due(self) -> list[int]:
        """Instants at which time alone decides something, or blocks no longer."""
        dues = [*self.cooling.values(), *self.dead.values()]
        for turn in self.turns.values():
            if turn["state"] == "queued":
                dues += [turn["deadline"], turn["enqueued"] + turn["timeout"] // 2]
            if turn["state"] in BEFORE_INTENT:
                dues.append(turn["lease"]["start_deadline"])
        dues += [at + self.policy["min_start_interval_ms"] for at, _ in self.slots[-1:]]
        return [due for due in dues if due >= self.now_ms]

    def admit_all(self) -> None:
        """End a drain that is done, and give every free seat to a push turn."""
        self._settle_drain()
        while not self.capacity_blocks():
            chosen = self.choice(t for t in self.turns.values() if t["grant"] == "push")
            if chosen is None:
                return
            turn, by_age = chosen
            self._seat(turn, turn["owner"], by_age)
            self.grants.append((turn["owner"], turn["id"], turn["generation"]))

    def _tier(self, priority: int) -> object:
        return priority if self.mended else None

    def _seat(self, turn: Json, owner: Owner, by_age: bool) -> None:
        self.by_age[self._tier(turn["priority"])] = by_age
        self.leases_made += 1
        lease_id = f"1-{self.seq}-{self.leases_made}"
        turn["lease"] = {
            "id": lease_id,
            "owner": owner,
            "by_owner": owner == turn["owner"],
            "admitted": self.now_ms,
            "start_deadline": self.now_ms + self.policy["start_timeout_ms"],
            "intent": None,
            "debt_since": None,
            "suspicion": None,
            "suspect_since": None,
        }
        self.slots.append((self.now_ms, lease_id))
        self._move(turn, "admitted")

    # -- verbs of an owner --------------------------------------------------------------------

    def _bad(self, command: Command) -> Says | None:
        body = command.body
        if command.verb == "enqueue":
            known = self.turns.get(command.key[0])
            if not 1 <= body.get("timeout_ms", 1) <= 1_800_000:
                return Says("out-of-range", "bad-request")
            if not -100 <= body.get("priority", 0) <= 100:
                return Says("out-of-range", "bad-request")
            payload = body.get("payload")
            fits = body.get("priority", 0) <= self._highest(command.by)
            if known is None and payload is not None and fits:
                deadline = self.now_ms + self._timeout(body)
                if payload["expires_at_ms"] < deadline:
                    return Says("expires-too-early", "bad-request")
            if known is not None and payload is not None and self._attaches_late(known, command):
                return Says("expires-too-early", "bad-request")
        if command.verb == "cooldown" and self.mended:
            if body["not_before_ms"] > self.now_ms + YEAR_MS:
                return Says("out-of-range", "bad-request")
        elif not self.mended and {"replace", "resume", *NEW_VALUES} & {*body}:
            return Says("unknown-field", "bad-request")
        if body.get("assert", {}).get("queue_timeout_ms", 1) > 1_800_000:
            return Says("out-of-range", "bad-request")
        if command.verb == "complete" and "failure" in body and body["outcome"] != "failed":
            return Says("needs-failure", "bad-request")
        return None

    def _attaches_late(self, turn: Json, command: Command) -> bool:
        """Whether an enqueue would attach a prompt that goes before the turn's waiting ends."""
        payload = command.body["payload"]
        waits = turn["state"] == "queued" and turn["awaits"] and turn["deadline"] > self.now_ms
        same = turn["principal"] == command.by and turn["print"] == payload["content_fingerprint"]
        adopted = self.dead.get(turn["owner"], self.now_ms + 1) <= self.now_ms
        given = {"grant": "push", "priority": 0, **command.body}
        same = same and all(turn[name] == given.get(name) for name in IMMUTABLE)
        return waits and same and not adopted and payload["expires_at_ms"] < turn["deadline"]

    def _timeout(self, body: Any) -> int:
        longest: int = self.policy["queue_timeout_ms"]
        return min(longest, body.get("timeout_ms") or longest)

    def _enqueue(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self.turns.get(key[0])
        given = {name: body.get(name) for name in IMMUTABLE}
        given["grant"] = given["grant"] or "push"
        given["priority"] = given["priority"] or 0
        payload = body.get("payload")
        if turn is None:
            if given["priority"] > self._highest(caller[0]):
                return Says("priority-too-high", "permission-denied")
            turn = self.turns[key[0]] = {
                **given,
                "id": key[0],
                "owner": caller,
                "principal": caller[0],
                "state": None,
                "generation": 1,
                "enqueued": self.now_ms,
                "deadline": self.now_ms + self._timeout(body),
                "payload": payload,
                "key_version": None if payload is None else payload["key_version"],
                "payload_key": f"{caller[0]}.{key[0]}",
                "print": None if payload is None else payload["content_fingerprint"],
                "awaits": False,
                "identity": body.get("identity"),
                "timeout": self._timeout(body),
                "lease": None,
                "releases": 0,
                "settled": None,
                "reason": None,
                "failure": None,
            }
            self._move(turn, "queued")
            return Says("queued", data=self.short(turn) | {"deadline_at_ms": turn["deadline"]})
        if turn["principal"] != caller[0]:
            return Says("request-id-taken", "conflict")
        fingerprint = None if payload is None else payload["content_fingerprint"]
        if any(turn[name] != given[name] for name in IMMUTABLE) or turn["print"] != fingerprint:
            return Says("different-request", "conflict")
        if turn["state"] != "queued":
            return Says("idempotent", data=self.shown(turn))
        outcome = "idempotent"
        if turn["owner"] != caller:
            turn["owner"] = caller
            turn["identity"] = body.get("identity")
            self.moves.append((turn["id"], "queued", "queued"))
            outcome = "adopted"
        if turn["awaits"] and payload is not None:
            turn["payload"], turn["awaits"] = payload, False
            turn["key_version"] = payload["key_version"]
            turn["payload_key"] = f"{turn['principal']}.{turn['id']}.{turn['generation']}"
            outcome = "payload_attached"
        return Says(outcome, data=self.shown(turn))

    def _highest(self, principal: str) -> int:
        bounds: dict[str, int] = self.policy["max_priority"]
        highest: int = bounds.get(principal, bounds.get("*", 100))
        return highest

    def _cancel(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self.turns.get(key[0])
        if turn is None:
            return Says("no-such-request", "not-found")
        if turn["principal"] != caller[0] and not caller[0].startswith("_op"):
            return Says("not-yours", "permission-denied")
        if turn["state"] != "queued":
            return self._wrong_state(turn)
        self._move(turn, "cancelled")
        return Says("cancelled", data=self.short(turn))

    def _admit(self, caller: Owner, key: Any, body: Any, again: Says | None) -> Says:
        mine = [
            turn
            for turn in self.turns.values()
            if turn["grant"] == "pull" and turn["principal"] == caller[0]
        ]
        self._settle_drain()
        if again is not None:
            return self._admit_again(again)
        blocks = self.capacity_blocks()
        if key:
            turn = self.turns.get(key[0])
            if turn is None:
                return Says("no-such-request", "not-found")
            if turn["principal"] != caller[0]:
                return Says("not-yours", "permission-denied")
            if turn["grant"] != "pull":
                return Says("not-pull", "failed-precondition")
            if turn["state"] == "admitted" and turn["lease"]["owner"] == caller:
                return Says("idempotent", data=self.grant(turn))
            if turn["state"] != "queued":
                return self._wrong_state(turn)
            blocks += self.skipped(turn)
        chosen = self.choice(mine)
        if not key and not blocks and chosen is None:
            waiting = [turn for turn in mine if turn["state"] == "queued"]
            if not self.mended:
                waiting += [
                    turn
                    for turn in self.turns.values()
                    if turn["awaits"] and turn["principal"] == caller[0]
                ]
            whys = [["payload"] if turn["awaits"] else self.skipped(turn) for turn in waiting]
            blocks = sorted({why for one in whys for why in one}) or ["empty"]
        if not blocks and key and chosen is not None and chosen[0]["id"] != key[0]:
            blocks = ["order"]
        if blocks or chosen is None:
            return Says("none", data={"blocks": blocks})
        self._seat(chosen[0], caller, chosen[1])
        if not self.mended:
            chosen[0]["owner"] = caller
        return Says("admitted", data=self.grant(chosen[0]))

    def _admit_again(self, again: Says) -> Says:
        """The seat that was handed out, while it stands untouched; never a second one."""
        if again.outcome == "none":
            return again
        turn = self.turns[again.data["request_id"]]
        if turn["lease"] is None or turn["lease"]["id"] != again.data["lease_id"]:
            return Says("fenced", "fenced")
        if turn["state"] != "admitted":
            return self._wrong_state(turn)
        return Says(again.outcome, data=self.grant(turn))

    def _start(self, caller: Owner, key: Any, body: Any, again: Says | None) -> Says:
        return self._step(caller, key, body, ("admitted",), "starting", again)

    def _active(self, caller: Owner, key: Any, body: Any, again: Says | None) -> Says:
        return self._step(caller, key, body, ("dispatch_intent",), "active", again)

    def _ambiguous(self, caller: Owner, key: Any, body: Any) -> Says:
        return self._step(caller, key, body, ("dispatch_intent",), "dispatch_ambiguous", None)

    def _intent(self, caller: Owner, key: Any, body: Any, again: Says | None) -> Says:
        turn = self._held(caller, key, body)
        if turn is None:
            return Says("fenced", "fenced")
        intent = {"identity": body["identity"], "channel": body["channel"]}
        if turn["state"] == "dispatch_intent":
            if turn["lease"]["intent"] == intent:
                outcome = "idempotent" if again is None else again.outcome
                return Says(outcome, data=self.short(turn))
            return Says("different-intent", "conflict")
        if turn["state"] != "starting":
            return self._wrong_state(turn)
        turn["lease"]["intent"] = intent
        self._move(turn, "dispatch_intent")
        return Says("dispatch_intent", data=self.short(turn))

    def _complete(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self._held(caller, key, body)
        if turn is None:
            return Says("fenced", "fenced")
        if turn["state"] != "active":
            return self._wrong_state(turn)
        failure = body.get("failure")
        if failure is not None and failure["category"] == "provider_capacity":
            wanted = max(
                self.policy["capacity_cooldown_ms"], self._wish(body.get("retry_after_ms", 0))
            )
            name = (turn["provider"], turn["model"])
            self.cooling[name] = max(self.cooling.get(name, 0), self.now_ms + wanted)
        turn["failure"] = failure
        self._move(turn, body["outcome"])
        return Says(body["outcome"], data=self.short(turn))

    def _wish(self, retry_after_ms: int) -> int:
        longest: int = self.policy["max_retry_after_ms"]
        return min(retry_after_ms, longest) if self.mended else retry_after_ms

    def _abandon(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self._held(caller, key, body)
        if turn is None:
            return Says("fenced", "fenced")
        if turn["state"] not in STARTS:
            return self._wrong_state(turn)
        self._slot_back(turn)
        self._move(turn, body["outcome"])
        return Says(body["outcome"], data=self.short(turn))

    def _recover(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self._held(caller, key, body)
        if turn is None:
            return Says("fenced", "fenced")
        if turn["state"] == "recovery_required":
            return Says("recovery_required", data=self.short(turn))
        if turn["state"] == "admitted":
            return self._wrong_state(turn)
        self._move(turn, "recovery_required")
        return Says("recovery_required", data=self.short(turn))

    def _step(
        self, caller: Owner, key: Any, body: Any, origin: Any, to: str, again: Says | None
    ) -> Says:
        turn = self._held(caller, key, body)
        if turn is None:
            return Says("fenced", "fenced")
        if again is not None and again.code is None and turn["state"] == to:
            return Says(to, data=self.short(turn))
        if turn["state"] not in origin:
            return self._wrong_state(turn)
        self._move(turn, to)
        return Says(to, data=self.short(turn))

    # -- verbs of an operator -----------------------------------------------------------------

    def _resolve(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self.turns.get(key[0])
        if turn is None:
            return Says("no-such-request", "not-found")
        lease = turn["lease"]
        after_intent = ("dispatch_intent", "active")
        debt = lease is not None and turn["state"] in DEBT
        if not debt and not (
            lease is not None and turn["state"] in after_intent and self.suspect(turn)
        ):
            return self._wrong_state(turn)
        if turn["state"] != "recovery_required":
            self._move(turn, "recovery_required")
        resolution = body["resolution"]
        owner, generation = lease["owner"], turn["generation"]
        if resolution == "confirmed_not_dispatched":
            turn["deadline"] = self.now_ms + self._timeout(turn)
            self._requeue(turn)
            outcome = "requeued" if turn["state"] == "queued" else turn["state"]
        elif resolution == "confirmed_completed":
            self._move(turn, "completed")
            outcome = "completed"
        else:
            self._seat_freed(turn)
            outcome = "recovery_required"
        self.lost.append(
            (owner, turn["id"], generation, resolution.replace("_", "-"), turn["state"])
        )
        return Says(outcome, data=self.short(turn))

    def _cooldown(self, caller: Owner, key: Any, body: Any) -> Says:
        name = (body["provider"], body["model"])
        until = body["not_before_ms"]
        if not body.get("replace"):
            resting = self.cooling.get(name, 0)
            until = max(until, resting if resting > self.now_ms else 0)
        self.cooling[name] = until
        outcome = "cooling" if until > self.now_ms else "not-cooling"
        return Says(outcome, data={"provider": name[0], "model": name[1], "until_ms": until})

    def _policy(self, caller: Owner, key: Any, body: Any) -> Says:
        body = dict(body)
        if "assert" in body:
            if not self.mended and {*NEW_VALUES} & {*body["assert"]}:
                return Says("unknown-field", "bad-request")
            for name, value in body["assert"].items():
                mine = self.epoch if name == "epoch" else self.policy[name]
                if name == "max_active_turns" and self.mended and not self.draining:
                    mine = self.limit
                if mine != value:
                    return Says("policy-differs", "conflict", self.policy_shown())
            return Says("match", data=self.policy_shown())
        epoch = body.pop("epoch")
        resume = body.pop("resume", False)
        values = DEFAULTS | body
        if self.claimed is not None:
            if self.claimed == (epoch, values):
                return Says("draining", data=self.policy_shown())
            return Says("claim-pending", "conflict", self.policy_shown())
        if epoch == self.epoch and values == self.policy:
            return Says("idempotent", data=self.policy_shown())
        if epoch != self.epoch + 1:
            return Says("epoch-mismatch", "conflict", self.policy_shown())
        if resume:
            self.drained_to = None
        seats = values["max_active_turns"]
        self.limit = seats if self.drained_to is None else min(seats, self.drained_to)
        goes_on = self.drained_to is not None and self.draining and self.seats() > self.limit
        if self.epoch == 0 or (goes_on and self.seats() <= seats):
            self.epoch, self.policy = epoch, values
            self.draining = goes_on or (self.mended and self.seats() > self.limit)
            return Says("claimed", data=self.policy_shown())
        self.claimed = (epoch, values)
        self.draining = True
        self._settle_drain()
        return Says("draining" if self.claimed else "claimed", data=self.policy_shown())

    def _drain(self, caller: Owner, key: Any, body: Any, again: Says | None) -> Says:
        if again is not None:
            if self.limit != body["to"]:
                return Says("drain-superseded", "conflict", self.policy_shown())
            return self._drained()
        same = self.draining and self.limit == body["to"]
        self.limit, self.draining = body["to"], True
        if self.mended:
            newest = self.policy if self.claimed is None else self.claimed[1]
            own = newest["max_active_turns"] == body["to"]
            self.drained_to = None if own else body["to"]
        return self._drained(look=self.mended or not same)

    def _drained(self, *, look: bool = True) -> Says:
        if look:
            self._settle_drain()
        return Says("draining" if self.draining else "drained", data=self.policy_shown())

    def _settle_drain(self) -> None:
        if self.draining and self.seats() <= self.limit:
            self.draining = False
            if self.claimed is not None:
                self.epoch, self.policy = self.claimed
                self.claimed = None

    # -- what the worker and witnesses say ----------------------------------------------------

    def suspect(self, turn: Json) -> bool:
        """Whether a lease's owner is not trusted to be alive."""
        return bool(turn["lease"]["suspicion"]) or turn["lease"]["owner"] in self.silent

    def _hear(self, owner: Owner) -> None:
        self.heard[owner] = self.now_ms
        self.silent.pop(owner, None)
        self.dead.pop(owner, None)

    def _liveness(self, caller: Owner, key: Any, body: Any) -> Says:
        owner = (body["owner"]["principal"], body["owner"]["uid"])
        if owner not in self.heard:
            return Says("unknown")
        since = self.silent.get(owner)
        if body["state"] == "alive":
            outcome = "cleared" if owner in self.silent or owner in self.dead else "alive"
            self.silent.pop(owner, None)
            self.dead.pop(owner, None)
            self.heard[owner] = max(self.heard[owner], body["seen_at_ms"])
            return Says(outcome)
        seen = max(body["seen_at_ms"], self.heard[owner])
        if self.now_ms - seen <= self.policy["silence_ms"]:
            return Says("fresh")
        self.silent.setdefault(owner, self.now_ms)
        outcome = "suspected" if since is None else "retained"
        return Says(outcome, data={"suspect_since_ms": self.silent[owner]})

    def _evidence(self, caller: Owner, key: Any, body: Any) -> Says:
        turn = self.turns.get(body["request_id"])
        host = body["connector"]["host"]
        if turn is None:
            return Says("no-such-request", "not-found")
        fence, lease = body.get("fence"), turn["lease"]
        wanted = None
        if lease is not None:
            wanted = {
                "lease_id": lease["id"],
                "request_id": turn["id"],
                "generation": turn["generation"],
                "owner": {"principal": lease["owner"][0], "uid": lease["owner"][1]},
            }
        if fence != wanted or (lease is None and turn["state"] != "queued"):
            return Says("fenced", "fenced")
        connector, child, channel = turn["identity"], None, None
        if lease is not None and lease["intent"] is not None:
            identity = lease["intent"]["identity"]
            connector, child = identity["connector"], identity.get("child")
            channel = lease["intent"]["channel"]
        elif lease is not None and not lease["by_owner"]:
            connector = None
        if connector is None:
            return Says("no-identity", "failed-precondition")
        foreign = caller[0].startswith("_witness") and caller[0] != f"_witness-{body['host']}"
        if foreign or host != body["host"] or connector["host"] != host:
            return Says("other-host", "permission-denied")
        if not _same(connector, body["connector"]) or not _same(child, body.get("child")):
            return Says("other-process", "conflict")
        return self._seen(turn, connector, child, channel, body)

    def _seen(
        self, turn: Json, connector: Json, child: Json | None, channel: str | None, body: Json
    ) -> Says:
        lease = turn["lease"]
        states = [body["connector_state"]]
        if child is not None:
            states.append(body.get("child_state", "none"))
            own_group = child.get("pgrp", 0) and child["pgrp"] != connector.get("pgrp", 0)
            states.append(body.get("group_state", "none") if own_group else "none")
        after_intent = lease is not None and turn["state"] not in BEFORE_INTENT
        if not after_intent:
            states = states[:1]
        if not self.mended and states[0] == "alive":
            states = states[:1]
        unknown = ("unverifiable",) if states[0] == "alive" else ("unverifiable", "none")
        unsure = any(state in unknown for state in states)
        newly = False
        if states[0] == "gone":
            unsure = False
            told = (body["connector_state"], body.get("child_state"), body.get("group_state"))
            newly = after_intent and "unverifiable" in told and lease["suspicion"] is None
            if newly:
                lease["suspicion"] = "identity_unverifiable"
                lease["suspect_since"] = self.now_ms
        if unsure and lease is not None:
            if lease["suspicion"] is not None:
                return Says("retained", data=self.short(turn))
            lease["suspicion"] = "identity_unverifiable"
            lease["suspect_since"] = self.now_ms
            return Says("suspected", data=self.short(turn))
        if states[0] == "alive" and lease is not None:
            lease["suspicion"] = lease["suspect_since"] = None
        if states[0] != "gone":
            return Says("retained", data=self.short(turn))
        owner = turn["owner"] if lease is None else lease["owner"]
        if not after_intent:
            return self._owner_dead(turn, owner)
        self._owner_dead(turn, owner)
        if states[1:] not in ([], ["gone", "empty"]) or (child is None and channel != "http"):
            if turn["state"] == "recovery_required":
                return Says("suspected" if newly else "retained", data=self.short(turn))
            self._to_debt(turn, "recovery")
            return Says("marked", data=self.short(turn))
        self.lost.append(
            (lease["owner"], turn["id"], turn["generation"], "seat-released", "recovery_required")
        )
        self._seat_freed(turn)
        return Says("released", data=self.short(turn))

    def _owner_dead(self, turn: Json, owner: Owner) -> Says:
        leased = turn["lease"] is not None
        if owner in self.dead:
            return Says("retained", data=self.short(turn))
        self.dead[owner] = self.now_ms + self.policy["adoption_timeout_ms"]
        for one in self._in_order():
            if one["state"] in BEFORE_INTENT and one["lease"]["owner"] == owner:
                self._give_back(one, "owner-dead")
        return Says("released" if leased else "marked", data=self.short(turn))

    # -- parts --------------------------------------------------------------------------------

    def short(self, turn: Json) -> Json:
        """A turn in a result."""
        return {
            "request_id": turn["id"],
            "state": turn["state"],
            "generation": turn["generation"],
        }

    def shown(self, turn: Json) -> Json:
        """A turn as a query shows it; ``None`` is what must not be there."""
        lease = turn["lease"]
        held = None
        if lease is not None:
            held = {
                "lease_id": lease["id"],
                "generation": turn["generation"],
                "owner": {"principal": lease["owner"][0], "uid": lease["owner"][1]},
                "admitted_at_ms": lease["admitted"],
            }
            if turn["state"] in BEFORE_INTENT:
                held["start_deadline_at_ms"] = lease["start_deadline"]
        owner = turn["owner"] if lease is None or self.mended else lease["owner"]
        return self.short(turn) | {
            "owner": {"principal": owner[0], "uid": owner[1]},
            **{name: turn[name] for name in IMMUTABLE if name != "timeout_ms"},
            "enqueued_at_ms": turn["enqueued"],
            "deadline_at_ms": turn["deadline"],
            "lease": held,
            "awaits_payload": True if turn["awaits"] else None,
            "settled_at_ms": turn["settled"],
            "failure": turn["failure"],
            "payload_key_version": turn["key_version"],
        }

    def grant(self, turn: Json) -> Json:
        """A seat as its owner hears of it."""
        return {
            "request_id": turn["id"],
            "generation": turn["generation"],
            "lease_id": turn["lease"]["id"],
            "session_id": turn["session_id"],
            "agent_id": turn["agent_id"],
            "provider": turn["provider"],
            "model": turn["model"],
            "start_deadline_at_ms": turn["lease"]["start_deadline"],
            "payload": turn["payload"] is not None,
        }

    def policy_shown(self) -> Json:
        """The policy and what is held."""
        return {
            "epoch": self.epoch,
            "policy": self._values(self.policy),
            "seat_limit": self.limit,
            "draining": self.draining,
            "drained_to": self.drained_to,
            "seats": self.seats(),
            "starts": self.starts(),
            "queued": sum(turn["state"] == "queued" for turn in self.turns.values()),
            "next_epoch": None if self.claimed is None else self.claimed[0],
            "next_policy": None if self.claimed is None else self._values(self.claimed[1]),
        }

    def _values(self, policy: Json) -> Json:
        known = self.mended
        return {name: value for name, value in policy.items() if known or name not in NEW_VALUES}

    def _in_order(self) -> list[Json]:
        return sorted(self.turns.values(), key=_plain_order)

    def _wrong_state(self, turn: Json) -> Says:
        return Says("wrong-state", "failed-precondition", self.short(turn))

    def _held(self, caller: Owner, key: Any, body: Any) -> Json | None:
        turn = self.turns.get(key[0])
        if turn is None or turn["lease"] is None or turn["lease"]["owner"] != caller:
            return None
        same = (turn["lease"]["id"], turn["generation"]) == (body["lease_id"], body["generation"])
        return turn if same else None

    def _move(self, turn: Json, to: str, reason: str | None = None) -> None:
        self.moves.append((turn["id"], turn["state"], to))
        turn["state"] = to
        if to in TERMINAL:
            turn["lease"], turn["settled"], turn["awaits"] = None, self.now_ms, False
        if to in DEBT and turn["lease"] is not None:
            turn["lease"]["debt_since"] = turn["lease"]["debt_since"] or self.now_ms
        if reason is not None:
            turn["reason"] = reason
        if to in (*TERMINAL, *DEBT, "active"):
            self._destroy(turn)

    def _destroy(self, turn: Json) -> None:
        if turn["payload"] is not None:
            self.deleted.append((turn["payload_key"], turn["payload"]["revision"]))
            turn["payload"] = None

    def _to_debt(self, turn: Json, reason: str) -> None:
        owner = turn["lease"]["owner"]
        self._move(turn, "recovery_required")
        self.lost.append((owner, turn["id"], turn["generation"], reason, "recovery_required"))

    def _slot_back(self, turn: Json) -> None:
        if turn["state"] == "admitted":
            self.slots = [slot for slot in self.slots if slot[1] != turn["lease"]["id"]]

    def _seat_freed(self, turn: Json) -> None:
        turn["lease"], turn["settled"] = None, self.now_ms
        self._move(turn, "recovery_required")

    def _give_back(self, turn: Json, reason: str) -> None:
        owner, generation = turn["lease"]["owner"], turn["generation"]
        turn["releases"] += 1
        self._slot_back(turn)
        if turn["releases"] >= RELEASES:
            self._move(turn, "failed", reason="start-timeout")
        else:
            self._requeue(turn)
        self.lost.append((owner, turn["id"], generation, reason, turn["state"]))

    def _requeue(self, turn: Json) -> None:
        turn["lease"] = None
        turn["generation"] += 1
        self._move(turn, "queued")
        if turn["deadline"] <= self.now_ms:
            self._move(turn, "queue_timeout")
        else:
            turn["awaits"] = turn["print"] is not None and turn["payload"] is None


def _plain_order(turn: Json) -> tuple[int, str]:
    return turn["enqueued"], turn["id"]


def _same(mine: Json | None, seen: Json | None) -> bool:
    if mine is None or seen is None:
        return mine is seen
    return all(mine[name] == seen[name] for name in SAME)
