"""The query ``cap.show``: a person's authority, grant, reservation and generation, read only."""

from schemas.commands.cap import ShowQuery
from schemas.results import Accepted, Verdict
from schemas.strict_json import JsonObject
from worker.caps import authority, records, settings
from worker.caps.authority import Judgement
from worker.caps.records import Corrupt
from worker.ledger.plane import View


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
