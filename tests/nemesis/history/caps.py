"""Caps against a small model: the log is played in its order, and each result has to fit.

The model knows of a person: the generation, each reservation, which one is active. What is allowed
must be allowed there too, and what is refused for want of authority must lack it.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.nemesis.history import answers
from tests.nemesis.history.past import Command, History, Violation

WINDOW_MS = 600_000
QUIET_SLACK_MS = 50
"""Two clocks of one machine are compared: the client's monotonic one and the broker's."""

WANTS_AUTHORITY = frozenset(
    {"none-active", "stopped", "grant-lapsed", "grant-mismatch", "over-cap"}
)


@dataclass
class _Reservation:
    second: int
    cap: int
    generation: int
    at_ms: int
    state: str = "reserved"


@dataclass
class _Person:
    generation: int = 0
    active: str | None = None
    known: dict[str, _Reservation] = field(default_factory=dict)

    def grant(self) -> _Reservation | None:
        return None if self.active is None else self.known[self.active]

    def end(self, state: str) -> int | None:
        """End the active grant; its second."""
        grant = self.grant()
        self.active = None
        if grant is None:
            return None
        grant.state = state
        return grant.second


def check(history: History) -> Iterator[Violation]:
    yield from _fits_the_model(history)
    yield from _stops_are_kept(history)


def _fits_the_model(history: History) -> Iterator[Violation]:
    people: dict[str, _Person] = defaultdict(_Person)
    now_ms = 0
    for command, first in history.first_of_intent(history.log):
        now_ms = max(now_ms, command.time_ms)
        if command.plane != "cap" or not command.key or command.result is None:
            continue
        if command is not first and command.verb != "authorize":
            continue
        judge = _JUDGES.get(command.verb)
        if judge is not None:
            yield from judge(people[command.key[0]], command, now_ms)


def _reserve(person: _Person, command: Command, now_ms: int) -> Iterator[Violation]:
    if command.outcome != "reserved":
        return
    data = command.data
    one = _Reservation(data["expires_at_ms"], data["cap"], data["generation"], now_ms)
    if one.second <= now_ms or one.second > command.body["latest_expires_at_ms"]:
        yield Violation("wrong-second", f"{command}: {one.second}")
    if one.second in {known.second for known in person.known.values()}:
        yield Violation("second-reused", f"{command}: {one.second}")
    if command.key[1] in person.known:
        yield Violation("key-reused", str(command))
    if one.generation != person.generation or one.cap != command.body["cap"]:
        yield Violation("wrong-reservation", f"{command}: {data}")
    person.known[command.key[1]] = one


def _confirm(person: _Person, command: Command, now_ms: int) -> Iterator[Violation]:
    if not command.ok:
        return
    one = person.known.get(command.key[1])
    if one is None:
        yield Violation("confirmed-unreserved", str(command))
        return
    if one.generation != person.generation:
        yield Violation("confirmed-after-stop", f"{command}: {one}, now {person.generation}")
    if command.outcome == "confirmed":
        fits = one.state == "reserved" and now_ms - one.at_ms <= WINDOW_MS
        if not fits or one.second <= now_ms or command.body["grant_expires_at_ms"] != one.second:
            yield Violation("wrong-confirm", f"{command}: {one}")
        person.end("superseded")
        one.state, person.active = "active", command.key[1]
    elif person.active != command.key[1]:
        yield Violation("wrong-confirm", f"{command}: another one is active")


def _authorize(person: _Person, command: Command, now_ms: int) -> Iterator[Violation]:
    grant, amount = person.grant(), command.body["amount"]
    why = ""
    if grant is None:
        why = "no cap is active"
    elif grant.generation != person.generation:
        why = "it was stopped"
    elif grant.second <= now_ms:
        why = "it has lapsed"
    elif grant.second != command.body["grant_expires_at_ms"]:
        why = "another one is active"
    elif amount > grant.cap:
        why = f"{amount} is over {grant.cap}"
    if command.outcome == "allowed":
        if why:
            verdict = "over-cap" if "over" in why else "allowed-without-cap"
            yield Violation(verdict, f"{command}: {why}")
    elif command.outcome in WANTS_AUTHORITY and not why:
        yield Violation("wrong-refusal", f"{command}: {command.outcome}")


def _revoke(person: _Person, command: Command, now_ms: int) -> Iterator[Violation]:
    grant = person.grant()
    named = grant is not None and grant.second == command.body["expires_at_ms"]
    if command.ok and (command.outcome == "revoked") != named:
        yield Violation("wrong-revoke", f"{command}: {command.outcome}")
    if command.outcome == "revoked":
        person.end("revoked")


def _stop(person: _Person, command: Command, now_ms: int) -> Iterator[Violation]:
    if not command.ok:
        return
    person.generation += 1
    ended = person.end("revoked") if command.verb == "stop" else None
    if command.data["generation"] != person.generation:
        yield Violation("wrong-generation", f"{command}: {command.data}, not {person.generation}")
    if command.verb == "stop" and command.data.get("expires_at_ms") != ended:
        yield Violation("wrong-stop", f"{command}: it ended {ended}, and said {command.data}")


_JUDGES = {
    "reserve": _reserve,
    "confirm": _confirm,
    "authorize": _authorize,
    "revoke": _revoke,
    "stop": _stop,
    "bump": _stop,
}


def _stops_are_kept(history: History) -> Iterator[Violation]:
    """What clients concluded: nothing is allowed after a Stop was answered, unless confirmed anew.

    A permit given before a Stop ends before the instant that the Stop named.
    """
    answered: dict[tuple[str, str], int] = {}
    for call in history.calls.values():
        if call.called.verb == "stop" and call.answered is not None and call.result is not None:
            answered.setdefault(call.intent, call.answered.at_ns)
    stops: dict[str, list[tuple[int | None, int, int]]] = defaultdict(list)
    for command, first in history.first_of_intent(history.log):
        if command is first and command.verb == "stop" and command.ok:
            quiet_ms = command.data["quiet_after_ms"]
            stops[command.key[0]].append((answered.get(command.intent), command.seq, quiet_ms))
    offset_ns = history.began.wall_ns - history.began.at_ns
    for permit in history.permits:
        judged = answers.judged_at(history, permit.call)
        if not permit.allowed or judged is None:
            continue
        began_ns = history.calls[permit.call].called.at_ns
        for answered_ns, seq, quiet_ms in stops[permit.user]:
            if judged.seq > seq:
                continue  # judged after that Stop, under a cap confirmed since: see the model
            if answered_ns is not None and answered_ns < began_ns:
                yield Violation("allowed-after-stop", f"call {permit.call}, stop at {seq}")
            ends_ms = (permit.ends_at_ns + offset_ns) // 1_000_000
            if ends_ms > quiet_ms + QUIET_SLACK_MS:
                yield Violation(
                    "permit-past-quiet", f"call {permit.call} ends {ends_ms}, quiet {quiet_ms}"
                )
