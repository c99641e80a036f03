"""Queries of the cap plane, read only: one person's authority, and whose caps are in force."""

from typing import Final

from schemas.commands.cap import ListQuery, ShowQuery
from schemas.results import Accepted, Verdict
from schemas.strict_json import JsonObject
from worker.caps import authority, records, settings
from worker.caps.authority import Judgement
from worker.caps.records import Corrupt
from worker.ledger.plane import View

_SELECT: Final = (
    "SELECT r.user, g.generation, r.mint_key, r.expires_at_ms, r.latest_expires_at_ms, r.cap, "
    "r.required_version, r.generation, r.reserved_at_ms, r.state, r.confirmed_at_ms, "
    "r.ended_at_ms, r.trace "
    "FROM reservations r JOIN revoke_generations g ON g.user = r.user WHERE "
)
_ACTIVE: Final = _SELECT + "r.state = 'confirmed_active' AND r.user > ? ORDER BY r.user LIMIT ?"
_ENDED: Final = _SELECT + "r.ended_at_ms IS NOT NULL ORDER BY r.ended_at_ms DESC LIMIT ?"


def show(view: View, raw: bytes) -> Verdict:
    """Answer ``cap.show`` with a ``schemas.caps.CapDetail``.

    Damaged rows are a refusal ``internal``; they are never shown as absent.

    Raises:
        BadInput: If the body is malformed.
    """
    query = ShowQuery.from_bytes(raw)
    try:
        return Accepted("shown", _detail(view, query))
    except Corrupt as damage:
        return damage.refusal()


def listing(view: View, raw: bytes) -> Verdict:
    """Answer ``cap.list`` with a ``schemas.caps.CapsPage``.

    Raises:
        BadInput: If the body is malformed.
    """
    query = ListQuery.from_bytes(raw)
    if query.which == "active":
        rows = view.db.execute(_ACTIVE, (query.after_user or "", query.limit + 1)).fetchall()
    else:
        rows = view.db.execute(_ENDED, (query.limit,)).fetchall()
    listed, damaged = [], 0
    for user, now, *columns in rows[: query.limit]:
        try:
            record = records.proven(columns)
        except Corrupt:
            damaged += 1
            continue
        stopped = record.generation is not None and record.generation < now
        listed.append({"cap": record.shown(user), "stopped": stopped})
    page: JsonObject = {"caps": listed, "damaged": damaged}
    if len(rows) > query.limit:
        page["next_after_user"] = rows[query.limit - 1][0]
    return Accepted("listed", page)


def _detail(view: View, query: ShowQuery) -> JsonObject:
    judged = authority.judge(view.db, query.user, now_ms=view.now_ms, ruleset=view.ruleset)
    detail: JsonObject = {
        "user": query.user,
        "authority": _authority(judged),
        "generation": judged.generation,
    }
    if judged.grant is not None:
        detail["active"] = judged.grant.shown(query.user)
    if query.mint_key is not None:
        reservation = records.find(view.db, query.user, query.mint_key)
        if reservation is not None:
            detail["reservation"] = reservation.shown(query.user)
    detail["settings"] = settings.read(view.db).shown()
    return detail


def _authority(judged: Judgement) -> JsonObject:
    shown: JsonObject = {"authorizes": judged.reason is None}
    if judged.reason is not None:
        shown["reason"] = judged.reason
    if judged.grant is not None:
        shown["cap"] = judged.grant.cap
        shown["expires_at_ms"] = judged.grant.second_ms
    return shown
