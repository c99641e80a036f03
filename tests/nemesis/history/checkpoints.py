"""One settlement per token, the same wherever one looks; nothing early, late or forgotten."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.nemesis.history.events import Json, Stored
from tests.nemesis.history.past import SETTLED, Command, History, Violation

GRACE_MS = 5_000
"""How long after a deadline a settlement may take when everything is healed."""

Token = tuple[str, str]
"""Endpoint as on the wire, and token."""


@dataclass
class _Seen:
    """Everything about one token."""

    status: Stored | None = None
    settle_facts: list[Stored] = field(default_factory=list)
    public: list[tuple[str, Stored]] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    told: list[Json] = field(default_factory=list)
    armed: list[Stored] = field(default_factory=list)


def check(history: History) -> Iterator[Violation]:
    yield from _nothing_minted_is_forgotten(history)
    for token, seen in _by_token(history).items():
        for violation in _check_token(history, seen):
            yield Violation(violation.verdict, f"{'.'.join(token)}: {violation.what}")


def _nothing_minted_is_forgotten(history: History) -> Iterator[Violation]:
    """Once its mint was answered, nobody is told that a checkpoint does not exist."""
    minted: dict[Token, int] = {}
    for call in history.calls.values():
        result = call.result
        if call.called.verb == "mint" and result is not None and result["status"] == "ok":
            assert call.answered is not None
            token = (call.called.key[0], call.called.key[1])
            minted[token] = min(minted.get(token, call.answered.at_ns), call.answered.at_ns)
    for call in history.calls.values():
        error = (call.result or {}).get("error")
        if call.called.plane != "cp" or error is None or error["code"] != "not-found":
            continue
        known_since = minted.get((call.called.key[0], call.called.key[1]))
        if known_since is not None and known_since < call.called.at_ns:
            yield Violation("forgotten", f"call {call.called.call} was told {error['reason']}")


def _by_token(history: History) -> dict[Token, _Seen]:
    found: dict[Token, _Seen] = defaultdict(_Seen)
    for message in history.stored["records"]:
        parts = message.subject.split(".")
        if parts[-1] == "status":
            found[parts[-3], parts[-2]].status = message
    for message in history.stored["epf"]:
        parts = message.subject.split(".")
        found[parts[-3], parts[-1]].settle_facts.append(message)
    for message, (kind, *rest) in history.facts("cp"):
        if kind in SETTLED:
            found[rest[0], rest[1]].public.append((kind, message))
    for message in history.stored["timers"]:
        parts = message.subject.split(".")
        if parts[-1] == "armed":
            found[parts[-5], parts[-2]].armed.append(message)
    for command in history.cmd:
        if len(command.key) == 2:
            found[command.key[0], command.key[1]].commands.append(command)
    for call in history.calls.values():
        if call.called.plane == "cp" and call.result is not None:
            found[call.called.key[0], call.called.key[1]].told.append(call.result)
    return found


def _check_token(history: History, seen: _Seen) -> Iterator[Violation]:
    status = None if seen.status is None else seen.status.body
    if seen.status is None or status is None:
        minted = [c for c in seen.commands if c.verb == "mint" and c.ok]
        if minted or seen.settle_facts:
            yield Violation("lost-mint", "it was minted, and has no status")
        return
    state, deadline = status["state"], status["deadline"]
    if state not in SETTLED:
        now_ms = 0 if history.ended is None else history.ended.now_ms
        if deadline + GRACE_MS < now_ms:
            yield Violation("never-settled", f"due {now_ms - deadline} ms before the end")
        if seen.settle_facts or seen.public:
            yield Violation("settlement-differs", "it waits, and a fact says that it settled")
        return
    yield from _one_settlement(seen, status)
    yield from _in_time(seen, status, seen.status)
    yield from _agreed_by_results(seen, status)
    if seen.armed:
        yield Violation("timer-left", "it is settled, and its timer is still armed")


def _one_settlement(seen: _Seen, status: Json) -> Iterator[Violation]:
    if len(seen.settle_facts) != 1:
        verdict = "settled-twice" if seen.settle_facts else "fact-missing"
        yield Violation(verdict, f"{len(seen.settle_facts)} settle facts")
    for message in seen.settle_facts[:1]:
        fact = message.body or {}
        pairs = {
            "state": (fact.get("settle"), status["state"]),
            "generation": (fact.get("generation"), status["settledGeneration"]),
            "instant": (fact.get("ts"), status["settledTs"]),
            "holder": (fact.get("holder"), status.get("settledHolder")),
            "answer": (fact.get("answerId"), status.get("settledAnswerId")),
        }
        for name, (told, is_so) in pairs.items():
            if told != is_so:
                yield Violation("settlement-differs", f"{name}: fact {told}, status {is_so}")
    kinds = [kind for kind, _ in seen.public]
    if kinds != [status["state"]]:
        yield Violation("observers-differ", f"status {status['state']}, observers {kinds}")


def _in_time(seen: _Seen, status: Json, stored: Stored) -> Iterator[Violation]:
    deadline_ns = status["deadline"] * 1_000_000
    facts = seen.settle_facts[:1]
    if status["state"] == "expired":
        early = [message for message in (stored, *facts) if message.time_ns < deadline_ns]
        if early or status["settledTs"] < status["deadline"]:
            yield Violation("settled-early", f"deadline {status['deadline']}, {status}")
        return
    if status["settledTs"] >= status["deadline"]:
        yield Violation("late-resume", f"settled at {status['settledTs']}, due before")
    first: dict[tuple[str, str], int] = {}
    for command in seen.commands:
        first.setdefault(command.intent, command.message.time_ns)
    won = [c for c in seen.commands if c.verb == "resume" and c.ok and c.outcome == "resumed"]
    if won and all(first[command.intent] >= deadline_ns for command in won):
        yield Violation("late-resume", f"{won[0]} was stored at or after {status['deadline']}")
    holder = status["settledHolder"]
    speaker = f"{holder['id']}.{holder['lifecycleUid']}"
    asked = [c for c in seen.commands if c.verb == "resume" and c.who == speaker]
    if not any(first[command.intent] < deadline_ns for command in asked):
        yield Violation("late-resume", f"no resume of {speaker} was stored in time")
    if won and {c.who for c in won} != {speaker}:
        yield Violation("resumed-by-another", f"{won[0]}, holder {holder}")
    if len({command.intent for command in won}) > 1:
        yield Violation("resumed-twice", ", ".join(map(str, won)))


def _agreed_by_results(seen: _Seen, status: Json) -> Iterator[Violation]:
    extended: dict[int, tuple[str, str]] = {}
    for command in seen.commands:
        data = command.data
        if command.result is not None:
            yield from _agrees(command.result, status, str(command))
        extends = command.ok and command.outcome == "extended"
        if extends and extended.setdefault(data["generation"], command.intent) != command.intent:
            yield Violation("generation-twice", f"{command}")
    for result in seen.told:
        yield from _agrees(result, status, f"what was told of {result['id']}")


def _agrees(result: Json, status: Json, what: str) -> Iterator[Violation]:
    """A result that speaks of a settlement speaks of the one there is."""
    outcome, data = result["outcome"], result["data"]
    if result["status"] == "ok" and outcome in SETTLED and outcome != status["state"]:
        yield Violation("answer-contradicts", f"{what} said {outcome}")
    if data.get("state") in SETTLED:
        told = (data["state"], data["generation"], data.get("settled_at_ms"))
        wanted = (status["state"], status["settledGeneration"], status["settledTs"])
        if told != wanted:
            yield Violation("answer-contradicts", f"{what} said {told}, it is {wanted}")
