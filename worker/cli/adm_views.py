"""How turns, seats and the policy look in a terminal."""

from collections.abc import Sequence

from schemas.admission import (
    EventsPage,
    PlaceView,
    PolicyView,
    QueueView,
    RecoverablePage,
    SeatView,
    TurnView,
)
from schemas.commands.sys import Owner
from schemas.results import Result
from schemas.strict_json import JsonObject
from worker.showing.columns import columns, table
from worker.showing.instants import show_duration, show_instant
from worker.showing.words import BLOCKS, FREES


def result_lines(result: Result, now_ms: int) -> list[str]:
    """A verb's result: its word, and what it shows."""
    data = result.data
    if "policy" in data:
        view = PolicyView.from_object(data)
        return policy_lines(view, outcome=result.outcome)
    if "fingerprint" in data:
        return turn_lines(TurnView.from_object(data), now_ms, outcome=result.outcome)
    rows = [("outcome", result.outcome)]
    for name, label in (
        ("request_id", "request"),
        ("state", "state"),
        ("generation", "generation"),
        ("lease_id", "lease"),
        ("agent_id", "agent"),
        ("provider", "provider"),
        ("model", "model"),
    ):
        if name in data:
            rows.append((label, str(data[name])))
    rows += _instants(data, now_ms)
    if "blocks" in data:
        rows.append(("blocked", blocks(data["blocks"])))
    return columns(rows)


def turn_lines(turn: TurnView, now_ms: int, *, outcome: str | None = None) -> list[str]:
    """One turn, below the word of the result that shows it."""
    rows = [] if outcome is None else [("outcome", outcome)]
    rows += [
        ("request", turn.request_id),
        ("state", turn.state),
        ("generation", str(turn.generation)),
        ("owner", _owner(turn.owner)),
        ("agent", turn.agent_id),
        ("provider", f"{turn.provider} {turn.model}"),
        ("enqueued", _ago(turn.enqueued_at_ms, now_ms)),
    ]
    if turn.priority:
        rows.append(("priority", str(turn.priority)))
    if turn.state == "queued":
        rows.append(("deadline", _ahead(turn.deadline_at_ms, now_ms)))
    if turn.lease is not None:
        rows.append(("lease", turn.lease.lease_id))
        rows.append(("admitted", _ago(turn.lease.admitted_at_ms, now_ms)))
        if turn.lease.start_deadline_at_ms is not None:
            rows.append(("may start", _ahead(turn.lease.start_deadline_at_ms, now_ms)))
    if turn.awaits_payload:
        rows.append(("waits for", BLOCKS["payload"]))
    if turn.settled_at_ms is not None:
        rows.append(("settled", _ago(turn.settled_at_ms, now_ms)))
    if turn.reason is not None:
        rows.append(("reason", turn.reason))
    if turn.failure is not None:
        detail = [turn.failure.category, turn.failure.code, turn.failure.reason]
        rows.append(("failure", ", ".join(part for part in detail if part)))
    return columns(rows)


def place_lines(place: PlaceView, now_ms: int) -> list[str]:
    """Where a turn stands."""
    rows = [("position", str(place.position))]
    if place.eligible_position is not None:
        rows.append(("eligible position", str(place.eligible_position)))
    if place.cooldown_until_ms is not None:
        rows.append(("model rests", _ahead(place.cooldown_until_ms, now_ms)))
    rows.append(("blocked", blocks(place.blocks) if place.blocks else "by nothing but its turn"))
    return columns(rows)


def queue_lines(view: QueueView, now_ms: int) -> list[str]:
    """The head of the queue."""
    lines = columns(
        [("queued", str(view.queued)), ("blocked", blocks(view.blocks) if view.blocks else "no")]
    )
    for rest in view.cooldowns:
        lines.append(f"{rest.provider} {rest.model} rests {_ahead(rest.until_ms, now_ms)}")
    if not view.turns:
        return lines
    head = ("#", "REQUEST", "AGENT", "MODEL", "PRIORITY", "WAITED", "BLOCKED")
    rows = [
        (
            str(turn.position),
            turn.request_id,
            turn.agent_id,
            f"{turn.provider} {turn.model}",
            str(turn.priority),
            show_duration(turn.waited_ms or 0),
            ", ".join(turn.blocks),
        )
        for turn in view.turns
    ]
    return [*lines, "", *table(head, rows)]


def seat_table(seats: Sequence[SeatView], now_ms: int) -> list[str]:
    """Seats that are held."""
    if not seats:
        return ["no seat is held"]
    head = ("REQUEST", "STATE", "AGENT", "OWNER", "HELD", "SUSPECT", "FREED BY")
    rows = [
        (
            seat.request_id,
            seat.state,
            seat.agent_id,
            _owner(seat.owner),
            show_duration(max(0, now_ms - seat.admitted_at_ms)),
            seat.suspicion or "-",
            frees(seat.frees),
        )
        for seat in seats
    ]
    return table(head, rows)


def recoverable_lines(page: RecoverablePage, now_ms: int) -> list[str]:
    """What could be settled, one paragraph each."""
    lines: list[str] = []
    for turn in page.turns:
        seat = turn.seat
        rows = [("request", turn.request_id), ("state", turn.state)]
        if turn.identity is not None:
            connector = turn.identity.connector
            rows.append(("connector", f"process {connector.pid} on {connector.host}"))
            if turn.identity.child is not None:
                rows.append(("child", f"process {turn.identity.child.pid}"))
        if seat is not None:
            rows.append(("owner", _owner(seat.owner)))
            rows.append(("held", _ago(seat.admitted_at_ms, now_ms)))
            if seat.debt_since_ms is not None:
                rows.append(("debt", _ago(seat.debt_since_ms, now_ms)))
            if seat.suspect_since_ms is not None:
                since = _ago(seat.suspect_since_ms, now_ms)
                rows.append(("suspect", f"{since}: {seat.suspicion}"))
            rows.append(("freed by", frees(seat.frees)))
        lines += [*([""] if lines else []), *columns(rows)]
    lines += [f"quarantined, cannot be read: {name}" for name in page.quarantined]
    return lines or ["nothing waits for evidence or an operator"]


def policy_lines(view: PolicyView, *, outcome: str | None = None) -> list[str]:
    """The policy in force, below the word of the result that shows it."""
    rows = [] if outcome is None else [("outcome", outcome)]
    rows += [
        ("epoch", str(view.epoch) if view.epoch else "0 (defaults, not claimed)"),
        ("seats", _seats(view)),
        ("starting", str(view.starts)),
        ("queued", str(view.queued)),
    ]
    rows += [
        (name.removesuffix("_ms").replace("_", " "), _value(name, value))
        for name, value in view.policy.to_object().items()
    ]
    if view.next_epoch is not None:
        rows.append(("next epoch", f"{view.next_epoch}, when the drain ends"))
    return columns(rows)


def event_lines(page: EventsPage) -> list[str]:
    """A page of the journal, in what fits a terminal: --json has the rest."""
    if not page.events:
        return ["nothing is in the journal here"]
    head = ("SEQ", "AT", "REQUEST", "KIND", "STATE")
    rows = [
        (
            str(event.sequence),
            f"{show_instant(event.at_ms)[:-5]}Z",
            (event.request or "")[:8],
            event.kind,
            event.to or "",
        )
        for event in page.events
    ]
    return table(head, rows)


def blocks(words: Sequence[str]) -> str:
    """What blocks, for a person."""
    return "; ".join(BLOCKS.get(word, word) for word in words)


def frees(words: Sequence[str]) -> str:
    """What would free a seat, for a person."""
    return "; ".join(FREES.get(word, word) for word in words)


def _instants(data: JsonObject, now_ms: int) -> list[tuple[str, str]]:
    shown = (
        ("deadline_at_ms", "deadline"),
        ("start_deadline_at_ms", "may start"),
        ("until_ms", "rests"),
    )
    return [(label, _ahead(data[name], now_ms)) for name, label in shown if name in data]


def _seats(view: PolicyView) -> str:
    """How many are held of how many that may be, and whose number that is."""
    policys, limit = view.policy.max_active_turns, view.seat_limit
    held = f"{view.seats} held of {limit}"
    if limit != policys:
        held += f" by a drain; the policy says {policys}"
    elif view.drained_to is not None:
        held += f"; a drain to {view.drained_to} stands"
    return f"{held}; draining" if view.draining else held


def _value(name: str, value: int | dict[str, int]) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{who} {bound}" for who, bound in value.items()) or "no bound"
    return show_duration(value) if name.endswith("_ms") else str(value)


def _owner(owner: Owner) -> str:
    return f"{owner.principal}.{owner.uid}"


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{show_instant(at_ms)} ({show_duration(max(0, now_ms - at_ms))} ago)"


def _ahead(at_ms: int, now_ms: int) -> str:
    left_ms = at_ms - now_ms
    when = f"in {show_duration(left_ms)}" if left_ms > 0 else "past"
    return f"until {show_instant(at_ms)} ({when})"
