"""Admission: the seat limit at every step, fences that only grow, and one dispatch per turn.

The journal's facts say what every turn did, in the log's order and without names; grants, lost
leases and results say which lease was whose.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.repeats import JUDGED_ANEW
from tests.nemesis.history.events import Json, Stored
from tests.nemesis.history.past import Command, History, Violation

SEATED = frozenset(
    {
        "admitted",
        "starting",
        "dispatch_intent",
        "dispatch_ambiguous",
        "active",
        "recovery_required",
    }
)
RELEASED = frozenset({"request_recovery_seat_released"})
FENCED = frozenset({"start", "intent", "active", "ambiguous", "complete", "abandon", "recover"})


@dataclass(frozen=True, order=True)
class _Lease:
    """A lease, in the order in which leases were given."""

    seq: int
    nth: int
    generation: int
    lease_id: str
    owner: str


def check(history: History) -> Iterator[Violation]:
    yield from _seats_at_every_step(history)
    leases = _leases(history)
    yield from _fences_grow(leases)
    yield from _only_the_current_fence_acts(history, leases)
    yield from _one_dispatch_each(history)


def _place(message: Stored) -> tuple[int, int]:
    """Sequence of the command that said a fact, and which of its facts it is."""
    _, seq, nth = message.subject.rpartition(".")[2].split("-")
    return int(seq), int(nth)


def _seats_at_every_step(history: History) -> Iterator[Violation]:
    limits = {
        command.seq: int(command.data["seat_limit"])
        for command, first in history.first_of_intent(history.log)
        if command is first and command.plane == "adm" and "seat_limit" in command.data
    }
    pending = sorted(limits.items())
    facts = sorted(
        (m for m, tail in history.facts("adm") if tail[0] == "journal"),
        key=lambda message: (message.body or {})["sequence"],
    )
    limit, held, states = 8, set[str](), dict[str, str]()
    for number, message in enumerate(facts, 1):
        row: Json = message.body or {}
        if row["sequence"] != number:
            yield Violation("journal-gap", f"{row['sequence']} instead of {number}")
            return
        seq, _ = _place(message)
        while pending and pending[0][0] <= seq:
            limit = pending.pop(0)[1]
        turn = row.get("request")
        if turn is None:
            continue
        if states.get(turn) != row.get("from"):
            what = f"row {number} {row['kind']} from {row.get('from')}, it was {states.get(turn)}"
            yield Violation("journal-broken", what)
        states[turn] = row["to"]
        if row["kind"] in RELEASED or row["to"] not in SEATED:
            held.discard(turn)
            continue
        held.add(turn)
        if row["kind"] == "request_admitted" and len(held) > limit:
            yield Violation("seats-exceeded", f"row {number}: {len(held)} held, {limit} allowed")


def _leases(history: History) -> dict[str, list[_Lease]]:
    found: dict[str, list[_Lease]] = defaultdict(list)

    def add(owner: str, grant: Json) -> None:
        _, seq, nth = grant["lease_id"].split("-")
        lease = _Lease(int(seq), int(nth), grant["generation"], grant["lease_id"], owner)
        if lease not in found[grant["request_id"]]:
            found[grant["request_id"]].append(lease)

    for message in history.stored["res"]:
        tail = history.tail(message, "grant")
        if tail is not None:
            add(f"{tail[0]}.{tail[1]}", message.body or {})
    for command in history.log:
        if command.outcome == "admitted":
            add(command.who, command.data)
    return {request: sorted(leases) for request, leases in found.items()}


def _fences_grow(leases: dict[str, list[_Lease]]) -> Iterator[Violation]:
    seen: dict[str, str] = {}
    for request, given in leases.items():
        generations = [lease.generation for lease in given]
        if generations != sorted(set(generations)):
            yield Violation("fence-not-grown", f"{request}: generations {generations}")
        for lease in given:
            if seen.setdefault(lease.lease_id, request) != request:
                yield Violation("fence-not-grown", f"lease {lease.lease_id} was given twice")


def _only_the_current_fence_acts(
    history: History, leases: dict[str, list[_Lease]]
) -> Iterator[Violation]:
    lost: dict[str, int] = {}
    for message, tail in history.facts("adm"):
        if tail[0] == "lease_lost":
            seq, _ = _place(message)
            lost[(message.body or {})["lease_id"]] = seq
    for command, first in history.first_of_intent(history.log):
        if command.plane != "adm" or command.verb not in FENCED or not command.ok:
            continue
        if command is not first and ("adm", command.verb) not in JUDGED_ANEW:
            continue  # what was recorded is said again, whatever became of the lease
        why = _why_no_fence(command, leases.get(command.key[0], []), lost)
        if why:
            yield Violation("old-fence-accepted", f"{command}: {why}")


def _why_no_fence(command: Command, given: list[_Lease], lost: dict[str, int]) -> str:
    shown = (command.body["lease_id"], command.body["generation"], command.who)
    current = [lease for lease in given if lease.seq <= command.seq]
    if not current:
        return "no lease had been given"
    last = current[-1]
    if shown != (last.lease_id, last.generation, last.owner):
        return f"it showed {shown}, the lease was {last}"
    if lost.get(last.lease_id, command.seq) < command.seq:
        return f"its lease was lost at {lost[last.lease_id]}"
    return ""


def _one_dispatch_each(history: History) -> Iterator[Violation]:
    rows: dict[str, int] = defaultdict(int)
    for message, tail in history.facts("adm"):
        if tail[:2] == ("journal", "request_dispatch_intent"):
            rows[(message.body or {}).get("request", "")] += 1
    for turn, count in rows.items():
        if count > 1:
            yield Violation("dispatched-twice", f"turn {turn[:12]} had {count} intents")
    intents = {
        (command.key[0], command.body["generation"], command.who)
        for command in history.log
        if command.verb == "intent" and command.ok
    }
    told = {
        (call.called.key[0], call.called.body["generation"], call.called.who): call.answered.at_ns
        for call in history.calls.values()
        if call.called.verb == "intent" and call.answered is not None
        if call.result is not None and call.result["status"] == "ok"
    }
    written: set[str] = set()
    for one in history.written:
        if one.request_id in written:
            yield Violation("dispatched-twice", f"{one.request_id} was written to its provider")
        written.add(one.request_id)
        key = (one.request_id, one.generation, one.who)
        if key not in intents or told.get(key, one.at_ns + 1) > one.at_ns:
            yield Violation("written-without-intent", f"{one.request_id} by {one.who}")
