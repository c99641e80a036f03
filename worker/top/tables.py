"""What a look shows, as rows of words: the same for the screen and for plain text."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.admission import ACTIVE, DEBT, STARTS, PolicyView, SeatView
from schemas.caps import REVOKED, ListedCap
from worker.showing.instants import show_duration
from worker.showing.text import visible
from worker.showing.words import BLOCKS, FREES
from worker.top.look import Look, Rates

Tone = Literal["", "dim", "good", "warn", "bad"]
SOON_MS: Final = 60_000
EVERYONE: Final = ("seats", "starts", "pacing", "drain")
"""Blocks that hold everybody up alike."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row; ``tone`` is how its first cell is shown."""

    cells: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and a table.

    Attributes:
        name: In capitals.
        summary: What stands beside it.
        columns: Headers; those that end in ``>`` are aligned to the right, ``*`` may be cut first;
            the others in words are cut where that is not enough, the widest first.
        rows: The rows, the most important first.
        more: Whether there are more than the look holds.
        empty: What is said instead of no rows; nothing if they could not be seen.
    """

    name: str
    summary: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    more: bool = False
    empty: str = ""


def sections(look: Look, now_ms: int) -> list[Section]:
    """Everything there is to show, in reading order."""
    return [
        checkpoints(look, now_ms),
        seats(look, now_ms),
        active_caps(look, now_ms),
        ended_caps(look, now_ms),
    ]


def checkpoints(look: Look, now_ms: int) -> Section:
    """Waiting checkpoints with their countdown."""
    rows = []
    for one in look.waiting:
        left_ms = one.view.deadline_at_ms - now_ms
        tone: Tone = "bad" if left_ms < 0 else "warn" if left_ms < SOON_MS else ""
        holder = visible(one.view.holder.id) if one.view.holder else "-"
        title = visible(one.title) or "-"
        cells = (countdown(left_ms), one.view.endpoint, one.view.token, holder, title)
        rows.append(Row(cells, tone))
    count = f"{len(look.waiting)}{'+' if look.more_waiting else ''} waiting"
    return Section(
        "CHECKPOINTS",
        _summary(look, "checkpoints", count),
        ("DUE>", "ENDPOINT", "TOKEN", "HOLDER", "TITLE*"),
        tuple(rows),
        look.more_waiting,
        _unless_unseen(look, "checkpoints", "no run waits"),
    )


@dataclass(slots=True)
class _Share:
    """What one agent holds and wants of one provider."""

    starting: int = 0
    active: int = 0
    debt: int = 0
    queued: int = 0
    longest_ms: int = 0
    blocks: set[str] = field(default_factory=set)


def seats(look: Look, now_ms: int) -> Section:
    """Seats and queue by provider and agent, with what keeps turns waiting."""
    shares: defaultdict[tuple[str, str], _Share] = defaultdict(_Share)
    for seat in look.seats:
        share = shares[seat.provider, seat.agent_id]
        share.starting += seat.state in STARTS
        share.active += seat.state == ACTIVE
        share.debt += seat.state in DEBT
    for turn in look.queue.turns if look.queue is not None else ():
        share = shares[turn.provider, turn.agent_id]
        share.queued += 1
        share.longest_ms = max(share.longest_ms, turn.waited_ms or 0)
        share.blocks |= set(turn.blocks)
    rows = [
        Row(
            (
                visible(provider),
                visible(agent),
                *map(_count, (share.starting, share.active, share.debt, share.queued)),
                short(share.longest_ms) if share.queued else "-",
                ", ".join(sorted(share.blocks)) or ("order" if share.queued else "-"),
            ),
            "bad" if share.debt else "warn" if share.queued else "",
        )
        for (provider, agent), share in sorted(
            shares.items(), key=lambda item: (-item[1].debt, -(item[1].longest_ms // 1000), item[0])
        )
    ]
    policy = look.policy
    summary = _summary(look, "policy", "" if policy is None else _seat_summary(policy, look))
    return Section(
        "SEATS",
        summary,
        ("PROVIDER", "AGENT", "START>", "ACTIVE>", "DEBT>", "QUEUED>", "LONGEST>", "BLOCKED BY*"),
        tuple(rows),
        look.more_seats,
        _unless_unseen(look, "policy", "no seat is held and no turn waits"),
    )


def turns(look: Look, now_ms: int) -> Section:
    """Turns one by one: those that hold a seat, then those that wait for one."""
    rows = [
        Row(
            (
                seat.request_id,
                seat.state,
                visible(seat.agent_id),
                visible(f"{seat.provider} {seat.model}"),
                short(now_ms - seat.admitted_at_ms),
                _why_held(seat),
            ),
            "bad" if seat.state in DEBT else "warn" if seat.suspect_since_ms is not None else "",
        )
        for seat in look.seats
    ]
    for turn in look.queue.turns if look.queue is not None else ():
        blocked = ", ".join(BLOCKS.get(block, block) for block in turn.blocks)
        cells = (
            turn.request_id,
            "queued",
            visible(turn.agent_id),
            visible(f"{turn.provider} {turn.model}"),
            short(turn.waited_ms or 0),
            blocked or BLOCKS["order"],
        )
        rows.append(Row(cells, "dim"))
    return Section(
        "TURNS",
        seats(look, now_ms).summary,
        ("REQUEST", "STATE", "AGENT", "MODEL", "SINCE>", "NOTE*"),
        tuple(rows),
        look.more_seats,
        _unless_unseen(look, "policy", "no seat is held and no turn waits"),
    )


def _why_held(seat: SeatView) -> str:
    if seat.state in DEBT:
        return "freed by " + "; ".join(FREES.get(one, one) for one in seat.frees)
    return f"suspect: {seat.suspicion}" if seat.suspect_since_ms is not None else ""


def _seat_summary(policy: PolicyView, look: Look) -> str:
    parts = [f"{policy.seats} of {policy.seat_limit} held", f"{policy.queued} queued"]
    everyone = [block for block in (look.queue.blocks if look.queue else ()) if block in EVERYONE]
    if everyone and policy.queued:
        parts.append(", ".join(BLOCKS[block] for block in everyone))
    return " · ".join(parts)


def active_caps(look: Look, now_ms: int) -> Section:
    """Caps in force."""
    rows = [
        Row(
            (
                one.cap.user,
                str(one.cap.cap),
                countdown(one.cap.expires_at_ms - now_ms),
                "authorises nothing: bumped" if one.stopped else "",
            ),
            "warn" if one.stopped or one.cap.expires_at_ms < now_ms else "",
        )
        for one in look.active_caps or ()
    ]
    count = f"{len(rows)}{'+' if look.more_caps else ''} active"
    return Section(
        "CAPS",
        _summary(look, "caps", count),
        ("PERSON", "CAP>", "EXPIRES>", "NOTE*"),
        tuple(rows),
        look.more_caps,
        _unless_unseen(look, "caps", "nobody has a cap in force"),
    )


def ended_caps(look: Look, now_ms: int) -> Section:
    """Caps that ended, the latest first."""
    rows = tuple(
        Row(
            (
                one.cap.user,
                str(one.cap.cap),
                f"{short(now_ms - (one.cap.ended_at_ms or now_ms))} ago",
                _end(one),
            ),
            "bad" if _end(one) == "stopped" else "dim",
        )
        for one in look.ended_caps
    )
    return Section(
        "ENDED CAPS",
        _summary(look, "ended caps", ""),
        ("PERSON", "CAP>", "ENDED>", "HOW*"),
        rows,
        empty=_unless_unseen(look, "ended caps", "none has ended yet"),
    )


def _summary(look: Look, what: str, seen: str) -> str:
    """What stands beside a heading; why nothing was seen is not said again under each."""
    why = look.unseen.get(what)
    if why is None:
        return seen
    return "not seen" if why == look.unseen.get("status") else why


def _unless_unseen(look: Look, what: str, sentence: str) -> str:
    return "" if what in look.unseen else sentence


def _end(one: ListedCap) -> str:
    if one.cap.state == REVOKED:
        return "stopped" if one.stopped else "revoked"
    return "expired unconfirmed" if one.cap.confirmed_at_ms is None else one.cap.state


def headline(look: Look) -> tuple[str, Tone, str]:
    """Space, readiness and who serves it: what is said, its tone, and the rest of the line."""
    status = look.status
    if status is None:
        return "no answer", "bad", ""
    worker, broker = status["worker"], status["broker"]
    round_trip = broker.get("rtt_ms")
    rest = [
        f"worker {str(worker['id'])[:6]} {worker['version']}",
        f"nats-server {broker['version']}",
        *([] if round_trip is None else [f"rtt {_round_trip(round_trip)}"]),
    ]
    ready = bool(status.get("ready"))
    return ("ready" if ready else "not ready", "good" if ready else "bad", " · ".join(rest))


def _round_trip(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 1 else "<1 ms"


def pulse(look: Look) -> str:
    """Lag and rates, in one line."""
    ledger, rates = look.ledger, look.rates
    parts = []
    if ledger:
        parts.append(f"lag {ledger.get('lag', '?')}")
        parts.append(f"outbox {ledger.get('unpublished', '?')}")
    parts += _rates(rates)
    clock = ((look.status or {}).get("planes") or {}).get("checkpoints") or {}
    if "clock_uncertainty_ms" in clock:
        parts.append(f"clock ±{clock['clock_uncertainty_ms']} ms")
    if jumps := clock.get("clock_jumps"):
        parts.append(f"jumped {jumps}x, last by {clock['clock_last_jump_ms']} ms")
    if ledger:
        snapshot = ledger.get("snapshot")
        since = ledger["watermark"] - (snapshot["watermark"] if snapshot else 0)
        parts.append(f"snapshot {since} behind" if snapshot else "no snapshot yet")
    return " · ".join(parts)


def _rates(rates: Rates) -> list[str]:
    known = (
        ("cp", rates.checkpoint_commands),
        ("fold", rates.folded),
        ("out", rates.published),
    )
    return [f"{name} {_rate(rate)}/s" for name, rate in known if rate is not None]


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}" if 0 < per_s < 10 else f"{per_s:.0f}"


def countdown(left_ms: int) -> str:
    """How long is left, or how long ago it was."""
    return short(left_ms) if left_ms >= 0 else f"{short(-left_ms)} ago"


def short(ms: int) -> str:
    """A duration without fractions of a second."""
    return show_duration(max(0, ms) // 1000 * 1000) if ms >= 1000 else "0s"


def _count(number: int) -> str:
    return str(number) if number else "-"
