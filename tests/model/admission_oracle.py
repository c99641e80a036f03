"""Admission a second time: plain lists, every decision by looking at everything.

Written from the spec alone and on purpose slow: no index, no counter, nothing kept that can be
recomputed. The model test compares it with the fold after every command.
"""

from dataclasses import dataclass, field
from typing import Any

SEATED = {
    "admitted",
    "starting",
    "dispatch_intent",
    "dispatch_ambiguous",
    "active",
    "recovery_required",
}
STARTS = {"admitted", "starting", "dispatch_intent"}
AFTER_INTENT = SEATED - {"admitted", "starting"}
DEBT = {"dispatch_ambiguous", "recovery_required"}

Owner = tuple[str, str]


@dataclass
class Turn:
    """One turn; ``seat`` is (admitted at,) while ``holder`` holds one."""

    id: str
    principal: str
    uid: str
    agent: str
    model: str
    pull: bool
    priority: int
    timeout_ms: int
    enqueued_ms: int
    deadline_ms: int
    sealed: bool | None = None
    state: str = "queued"
    generation: int = 1
    releases: int = 0
    seat: list[Any] | None = None
    channel: str = ""
    unverifiable: bool = False
    holder: Owner = ("", "")

    @property
    def owner(self) -> Owner:
        return (self.principal, self.uid)

    @property
    def tier(self) -> tuple[str, int]:
        return (self.principal if self.pull else "*", self.priority)

    def place(self) -> tuple[int, str]:
        return (self.enqueued_ms, self.id)


@dataclass
class Oracle:
    """The whole plane."""

    policy: dict[str, int]
    turns: dict[str, Turn] = field(default_factory=dict)
    now: int = 0
    limit: int = 0
    draining: bool = False
    by_age: set[tuple[str, int]] = field(default_factory=set)
    paced: list[int] = field(default_factory=list)
    cooldowns: dict[str, int] = field(default_factory=dict)
    seen: dict[Owner, int] = field(default_factory=dict)
    silent: set[Owner] = field(default_factory=set)
    dead: dict[Owner, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limit = self.policy["max_active_turns"]

    def seats(self) -> int:
        return sum(turn.seat is not None for turn in self.turns.values())

    def starts(self) -> int:
        return sum(turn.seat is not None and turn.state in STARTS for turn in self.turns.values())

    def has_room(self) -> bool:
        live = [turn.seat[0] for turn in self.turns.values() if turn.seat is not None]
        last = max(self.paced + live, default=None)
        return (
            self.seats() < self.limit
            and self.starts() < self.policy["max_concurrent_starts"]
            and (last is None or self.now - last >= self.policy["min_start_interval_ms"])
        )

    def pass_time(self, at: int) -> None:
        self.now = now = max(self.now, at)
        timeout = self.policy["start_timeout_ms"]
        late = [
            turn
            for turn in self.turns.values()
            if turn.state in ("admitted", "starting")
            and turn.seat
            and turn.seat[0] + timeout <= now
        ]
        for turn in sorted(late, key=lambda turn: (turn.seat or [0])[0]):
            self.release(turn)
        for owner, due in list(self.dead.items()):
            if due is not None and due <= now:
                for turn in self.turns.values():
                    if turn.state == "queued" and turn.owner == owner:
                        turn.state = "cancelled"
                self.dead[owner] = None
        for turn in self.turns.values():
            if turn.state == "queued" and turn.deadline_ms <= now:
                turn.state = "queue_timeout"
        self.cooldowns = {model: end for model, end in self.cooldowns.items() if end > now}

    def heard(self, owner: Owner, at: int) -> None:
        self.seen[owner] = max(self.seen.get(owner, 0), at)
        self.silent.discard(owner)
        self.dead.pop(owner, None)

    def choice(self, turns: list[Turn]) -> tuple[Turn, bool] | None:
        eligible = [
            turn
            for turn in turns
            if turn.state == "queued"
            and turn.sealed is not False
            and self.cooldowns.get(turn.model, 0) <= self.now
            and turn.owner not in self.silent
            and turn.owner not in self.dead
        ]
        if not eligible:
            return None
        highest = max(turn.priority for turn in eligible)
        level = sorted((t for t in eligible if t.priority == highest), key=Turn.place)
        aged = [t for t in level if 2 * (self.now - t.enqueued_ms) > t.deadline_ms - t.enqueued_ms]
        if aged and level[0].tier not in self.by_age:
            return aged[0], True
        busy = {turn.agent for turn in self.turns.values() if turn.seat is not None}
        idle = [turn for turn in level if turn.agent not in busy]
        return (idle or level)[0], False

    def give(self, turn: Turn, by_age: bool, uid: str) -> None:
        turn.state, turn.seat, turn.holder = "admitted", [self.now], (turn.principal, uid)
        turn.unverifiable = False
        self.by_age.discard(turn.tier)
        if by_age:
            self.by_age.add(turn.tier)

    def push(self) -> list[str]:
        """After each command: end of a drain, then every push turn there is room for."""
        granted = []
        if self.draining and self.seats() <= self.limit:
            self.draining = False
        while self.has_room():
            chosen = self.choice([turn for turn in self.turns.values() if not turn.pull])
            if chosen is None:
                break
            self.give(*chosen, chosen[0].uid)
            granted.append(chosen[0].id)
        return granted

    def free(self, turn: Turn) -> None:
        assert turn.seat is not None
        if turn.state != "admitted":
            self.paced = [max([*self.paced, turn.seat[0]])]
        turn.seat = None

    def end(self, turn: Turn, state: str) -> None:
        if turn.seat is not None:
            self.free(turn)
        turn.state = state

    def requeue(self, turn: Turn, deadline_ms: int) -> None:
        self.free(turn)
        turn.state, turn.generation, turn.deadline_ms = "queued", turn.generation + 1, deadline_ms
        if deadline_ms <= self.now:
            turn.state = "queue_timeout"

    def release(self, turn: Turn) -> None:
        turn.releases += 1
        if turn.releases >= 3:
            self.end(turn, "failed")
        else:
            self.requeue(turn, turn.deadline_ms)
            self.await_adoption(turn)

    def await_adoption(self, turn: Turn) -> None:
        if self.dead.get(turn.owner, 0) is None:
            self.dead[turn.owner] = self.now + self.policy["adoption_timeout_ms"]

    def bury(self, owner: Owner) -> None:
        self.dead.setdefault(owner, self.now + self.policy["adoption_timeout_ms"])
        for turn in sorted(self.turns.values(), key=lambda turn: turn.id):
            if turn.holder == owner and turn.state in ("admitted", "starting"):
                self.release(turn)

    def owe(self, turn: Turn) -> None:
        turn.state = "recovery_required"
        self.unseal(turn)

    def unseal(self, turn: Turn) -> None:
        if turn.sealed:
            turn.sealed = False

    def enqueue(self, new: Turn) -> str:
        known = self.turns.get(new.id)
        if known is None:
            self.turns[new.id] = new
            return "queued"
        if known.principal != new.principal:
            return "request-id-taken"
        outcome = "idempotent"
        if known.state == "queued" and known.uid != new.uid:
            known.uid = new.uid
            outcome = "adopted"
        if known.state == "queued" and known.sealed is False:
            known.sealed = True
            outcome = "payload_attached"
        return outcome

    def cancel(self, turn: Turn) -> str:
        if turn.state != "queued":
            return "wrong-state"
        turn.state = "cancelled"
        return "cancelled"

    def admit(self, owner: Owner) -> str | None:
        pulled = [t for t in self.turns.values() if t.pull and t.principal == owner[0]]
        chosen = self.choice(pulled) if self.has_room() else None
        if chosen is None:
            return None
        self.give(*chosen, owner[1])
        return chosen[0].id

    def step(self, turn: Turn, verb: str, outcome: str) -> str:
        """A verb under the right fence, on a turn that holds a seat."""
        state = turn.state
        match verb:
            case "start" if state == "admitted":
                turn.state = "starting"
            case "intent" if state == "starting":
                turn.state = "dispatch_intent"
            case "intent" if state == "dispatch_intent":
                return "idempotent"
            case "active" if state == "dispatch_intent":
                turn.state = "active"
                self.unseal(turn)
            case "ambiguous" if state == "dispatch_intent":
                turn.state = "dispatch_ambiguous"
                self.unseal(turn)
            case "complete" if state == "active":
                self.end(turn, outcome)
                return outcome
            case "abandon" if state in STARTS:
                self.end(turn, outcome)
                return outcome
            case "recover" if state in AFTER_INTENT | {"starting"}:
                self.owe(turn)
            case _:
                return "wrong-state"
        return turn.state

    def cool(self, model: str, until_ms: int) -> None:
        if until_ms > self.now:
            self.cooldowns[model] = max(self.cooldowns.get(model, 0), until_ms)

    def resolve(self, turn: Turn, resolution: str) -> str:
        if turn.seat is None:
            return "wrong-state"
        suspect = turn.holder in self.silent or turn.holder in self.dead or turn.unverifiable
        if turn.state not in DEBT and (turn.state in ("admitted", "starting") or not suspect):
            return "wrong-state"
        self.owe(turn)
        match resolution:
            case "confirmed_completed":
                self.end(turn, "completed")
                return "completed"
            case "acknowledged_unknown":
                self.free(turn)
                return "recovery_required"
            case _:
                wait = min(turn.timeout_ms, self.policy["queue_timeout_ms"])
                self.requeue(turn, self.now + wait)
                self.await_adoption(turn)
                return "requeued"

    def liveness(self, owner: Owner, state: str, seen_ms: int) -> str:
        if owner not in self.seen:
            return "unknown"
        if state == "alive":
            held = owner in self.silent or owner in self.dead
            self.heard(owner, min(seen_ms, self.now))
            return "cleared" if held else "alive"
        if self.now - max(self.seen[owner], seen_ms) <= self.policy["silence_ms"]:
            return "fresh"
        if owner in self.silent:
            return "retained"
        self.silent.add(owner)
        return "suspected"

    def evidence(self, turn: Turn, connector: str, child: str, group: str) -> None:
        if turn.state == "queued":
            if connector == "gone":
                self.bury(turn.owner)
            return
        unsure = "unverifiable" in (child, group) and turn.state in AFTER_INTENT
        if connector == "unverifiable":
            turn.unverifiable = True
        elif connector == "alive":
            turn.unverifiable = unsure
        elif turn.state in ("admitted", "starting"):
            self.bury(turn.holder)
        else:
            self.bury(turn.holder)
            self.owe(turn)
            if turn.channel == "http" or (child, group) == ("gone", "empty"):
                self.free(turn)
            elif "unverifiable" in (child, group):
                turn.unverifiable = True

    def drain(self, to: int) -> str:
        if self.limit == to and (self.draining or self.seats() <= to):
            return "draining" if self.draining else "drained"
        self.limit, self.draining = to, True
        if self.seats() <= to:
            self.draining = False
        return "draining" if self.draining else "drained"
