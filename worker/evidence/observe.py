"""One look at the processes behind turns: leases in, bodies of ``sys.evidence`` out.

The worker's reaper and ``tidegate witness`` share it (spec/admission.md, Recovery).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemas import tokens
from schemas.admission import Recoverable
from schemas.codes import BadInput
from schemas.commands.sys import Evidence, ProcessIdentity
from schemas.strict_json import JsonObject
from worker import logs
from worker.evidence import groups, verdicts
from worker.evidence.groups import GroupSight, Scans
from worker.evidence.verdicts import Observer, Sight

_FIELDS: Final = ("request_id", "state", "fence", "channel", "identity")
"""What of a row is evidence's business; the rest is for people and may change."""

log = logs.get()


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one turn.

    Attributes:
        evidence: To be put into the log.
        turn: The row it was made from.
        reasons: Which rule decided for connector, child and group; ``-`` if there is none.
        is_suspected: Whether the log holds its processes for unverifiable.
    """

    evidence: Evidence
    turn: Recoverable
    reasons: tuple[str, str, str]
    is_suspected: bool = False

    @property
    def is_well(self) -> bool:
        """Whether the connector is alive, and nothing of the rest is beyond proof."""
        seen = self.evidence
        return seen.connector_state == "alive" and "unverifiable" not in (
            seen.child_state,
            seen.group_state,
        )


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row that could not be judged.

    Attributes:
        request_id: Its turn, if that much could be read.
        reason: Stable kebab-case word.
        at_field: Where the row is damaged.
    """

    request_id: str | None
    reason: str
    at_field: str = ""


@dataclass(slots=True)
class Observation:
    """One pass.

    Attributes:
        seen: What can be said, in the order of the rows.
        quarantined: Rows that held up no other.
        skipped: Rows that this observer has nothing to say about, by reason: ``no-identity``,
            ``other-host``.
        scans: Scans of ``/proc`` it took.
    """

    seen: list[Seen] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    scans: int = 0

    @property
    def inspected(self) -> int:
        """Turns whose processes were looked at."""
        return len(self.seen)


def observe(rows: Iterable[JsonObject], observer: Observer, *, now_ms: int) -> Observation:
    """Look at every turn's processes.

    It reads ``/proc`` and may take tens of milliseconds on a large host: run it in a thread.

    Args:
        rows: Turns as the query ``adm.recoverable`` lists them, not yet checked.
        observer: Who looks.
        now_ms: For ``observed_at_ms``.

    Returns:
        Evidence for every turn whose connector lives on the observer's host. No row, however
        damaged, keeps another from being judged.
    """
    found = Observation()
    scans = Scans(observer.reader)
    sights: dict[ProcessIdentity, Sight] = {}
    for row in rows:
        try:
            turn = _parse(row)
            _observe_one(turn, observer, now_ms, scans, sights, found, _is_suspected(row))
        except BadInput as bad:
            found.quarantined.append(Quarantined(_request_id(row), bad.reason, bad.field))
        except Exception:
            # Whatever it is, it must not become the reason that other seats are never freed.
            log.exception("row_not_judged", request_id=_request_id(row))
            found.quarantined.append(Quarantined(_request_id(row), "internal"))
    found.scans = len(scans.made)
    return found


def _observe_one(
    turn: Recoverable,
    observer: Observer,
    now_ms: int,
    scans: Scans,
    sights: dict[ProcessIdentity, Sight],
    found: Observation,
    is_suspected: bool,
) -> None:
    if turn.identity is None:
        found.skipped["no-identity"] += 1
        return
    connector, child = turn.identity.connector, turn.identity.child
    if child is not None and child.host != observer.host:
        child = None  # its own host's observer cannot see the connector; neither proves the end
    if connector.host != observer.host:
        found.skipped["other-host"] += 1
        return

    def look(identity: ProcessIdentity) -> Sight:
        # Once per pass, so that all turns of one connector are told the same.
        if (sight := sights.get(identity)) is None:
            sight = sights[identity] = verdicts.judge(identity, observer)
        return sight

    connector_sight = look(connector)
    child_sight: Sight | None = None
    group = GroupSight("none", "-")
    if child is not None:
        child_sight = look(child)
        group = groups.judge(child, connector, child_sight, observer, scans)
    evidence = Evidence(
        v=1,
        request_id=turn.request_id,
        fence=turn.fence,
        host=observer.host,
        connector=connector,
        child=child,
        connector_state=connector_sight.state,
        child_state="none" if child_sight is None else child_sight.state,
        group_state=group.state,
        observed_at_ms=now_ms,
    )
    reasons = (connector_sight.reason, child_sight.reason if child_sight else "-", group.reason)
    found.seen.append(Seen(evidence, turn, reasons, is_suspected))


def _parse(row: JsonObject) -> Recoverable:
    if not isinstance(row, dict):
        raise BadInput("body", "not-an-object", "the row is not an object")
    return Recoverable.from_object({name: row[name] for name in _FIELDS if name in row})


def _is_suspected(row: JsonObject) -> bool:
    seat = row.get("seat")
    return isinstance(seat, dict) and seat.get("suspicion") == "identity_unverifiable"


def _request_id(row: object) -> str | None:
    value = row.get("request_id") if isinstance(row, dict) else None
    return value if isinstance(value, str) and tokens.is_name(value) else None
