"""Queries: whoever was answered about a command is never shown an older state afterwards.

A query is answered with everything that stood when it was asked, or with ``unavailable``.
"""

from collections.abc import Iterator
from typing import Final

from tests.nemesis.history.events import Asked, Json
from tests.nemesis.history.past import SETTLED, Call, History, Violation

OVER: Final = frozenset({"completed", "failed", "cancelled", "queue_timeout", "recovery_required"})


def check(history: History) -> Iterator[Violation]:
    told = [call for call in history.calls.values() if _ok(call)]
    for asked in history.asked:
        before = [call for call in told if _end(call) < asked.at_ns]
        match asked.plane, asked.name:
            case "adm", "request":
                why = _turn(asked, _about(before, "adm", asked.body.get("request_id")))
            case "cap", "show":
                why = _caps(asked, _about(before, "cap", asked.body.get("user")))
            case "cp", "show":
                key = (str(asked.body.get("endpoint")).replace(".", "_"), asked.body.get("token"))
                why = _checkpoint(asked, [c for c in before if c.called.key == key])
            case _:
                why = ""
        if why:
            yield Violation("stale-query", f"{asked.plane}.{asked.name} {asked.body}: {why}")


def _ok(call: Call) -> bool:
    return call.result is not None and call.result["status"] == "ok"


def _end(call: Call) -> int:
    assert call.answered is not None
    return call.answered.at_ns


def _about(calls: list[Call], plane: str, first: object) -> list[Call]:
    return [c for c in calls if c.called.plane == plane and c.called.key[:1] == (first,)]


def _data(call: Call) -> Json:
    assert call.result is not None
    data: Json = call.result["data"]
    return data


def _turn(asked: Asked, told: list[Call]) -> str:
    if asked.data is None:
        known = any(call.called.verb == "enqueue" for call in told)
        return "no such turn, which was queued" if known and asked.code == "not-found" else ""
    generation = max((int(_data(call).get("generation", 0)) for call in told), default=0)
    if asked.data["generation"] < generation:
        return f"generation {asked.data['generation']}, which was {generation}"
    over = any(call.called.verb in ("complete", "abandon") for call in told)
    if over and asked.data["state"] not in OVER:
        return f"it is {asked.data['state']}, and was over"
    return ""


def _caps(asked: Asked, told: list[Call]) -> str:
    generation = max((int(_data(call).get("generation", 0)) for call in told), default=0)
    if asked.data is not None and asked.data["generation"] < generation:
        return f"generation {asked.data['generation']}, which was {generation}"
    return ""


def _checkpoint(asked: Asked, told: list[Call]) -> str:
    if asked.data is None:
        return "no such checkpoint, which was minted" if told and asked.code == "not-found" else ""
    settled = [str(_data(call)["state"]) for call in told if _data(call).get("state") in SETTLED]
    state = asked.data["checkpoint"]["state"]
    return f"it is {state}, and was {settled[0]}" if settled and state != settled[0] else ""
