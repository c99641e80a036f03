"""What may be asked of admission; nothing here writes (spec/admission.md, Queries)."""

import json
from typing import Final

from schemas.admission import ACTIVE, BEFORE_INTENT, DEBT, DISPATCH_INTENT, QUEUED
from schemas.codes import BadInput, Code
from schemas.commands.adm import (
    EventsQuery,
    IntentIdentity,
    LeasesQuery,
    PayloadQuery,
    PolicyQuery,
    QueueQuery,
    RecoverableQuery,
    RequestQuery,
)
from schemas.commands.sys import witness_of
from schemas.results import Accepted, Refusal, Verdict
from schemas.roles import WITNESS_PREFIX
from schemas.strict_json import JsonObject
from worker.admission import journal, limits, owners, places, recovery, turns
from worker.admission.turns import FENCED, Turn
from worker.ledger import keyed
from worker.ledger.plane import View

_LEASED: Final = turns.SELECT + " WHERE l.request_id > ? ORDER BY l.request_id LIMIT ?"
_COOLDOWNS: Final = (
    "SELECT provider, model, until_ms FROM adm_cooldowns WHERE until_ms > ? "
    "ORDER BY until_ms, provider, model LIMIT 1000"
)
_QUEUED_OF: Final = """
SELECT line.head_id FROM adm_heads owner
JOIN adm_heads line ON line.parent = owner.node
JOIN adm_requests r ON r.request_id = line.head_id
WHERE owner.level = 3 AND owner.key = ? AND r.identity IS NOT NULL LIMIT 1
"""
_PAYLOAD_STATES: Final = BEFORE_INTENT | {DISPATCH_INTENT}


def request(view: View, raw: bytes) -> Verdict:
    """``adm.request``: one turn, as ``TurnView``."""
    body = RequestQuery.from_bytes(raw)
    turn = turns.find(view.db, body.request_id)
    return turns.not_found() if turn is None else Accepted("found", turn.view())


def queue(view: View, raw: bytes) -> Verdict:
    """``adm.queue``: one turn's place as ``PlaceView``, or the queue's head as ``QueueView``."""
    body = QueueQuery.from_bytes(raw)
    held = limits.read(view.db)
    if body.request_id is not None:
        turn = turns.find(view.db, body.request_id)
        if turn is None:
            return turns.not_found()
        return Accepted("found", places.place(view.db, held, turn, view.now_ms))
    cooldowns = view.db.execute(_COOLDOWNS, (view.now_ms,)).fetchall()
    shown: JsonObject = {
        "queued": held.queued,
        "blocks": held.blocks(view.now_ms) if held.queued else ["empty"],
        "cooldowns": [
            {"provider": provider, "model": model, "until_ms": until_ms}
            for provider, model, until_ms in cooldowns
        ],
        "turns": places.listing(view.db, held, view.now_ms, body.limit),
    }
    return Accepted("listed", shown)


def leases(view: View, raw: bytes) -> Verdict:
    """``adm.leases``: every seat that is held, as ``LeasesPage``."""
    body = LeasesQuery.from_bytes(raw)
    held, following = _leased(view, body.after_request_id, body.limit)
    page: JsonObject = {"leases": [_seat(view, turn) for turn in held]}
    if following is not None:
        page["next_after_request_id"] = following
    return Accepted("listed", page)


def recoverable(view: View, raw: bytes) -> Verdict:
    """``adm.recoverable``: what an observer should look at, as ``RecoverablePage``.

    Every lease whose connector is known, and one queued turn of every silent owner: its proven end
    settles all of that owner's. A row that cannot be read is named and holds up no other. A witness
    is told of its own host only.
    """
    body = RecoverableQuery.from_bytes(raw)
    asker = view.speaker.principal
    if asker.startswith(WITNESS_PREFIX) and (body.host is None or witness_of(body.host) != asker):
        return Refusal(
            Code.PERMISSION_DENIED, "other-host", "a witness asks about its own host only"
        )
    held, following = _leased(view, body.after_request_id, body.limit)
    if following is None:
        held += _queued_of_silent(view)
    found: list[JsonObject] = []
    quarantined: list[str] = []
    for turn in held:
        try:
            shown = _recoverable(view, turn, body.host)
        except (ValueError, BadInput):
            quarantined.append(turn.request_id)
        else:
            if shown is not None:
                found.append(shown)
    page: JsonObject = {"turns": found, "quarantined": quarantined}
    if following is not None:
        page["next_after_request_id"] = following
    return Accepted("listed", page)


def policy(view: View, raw: bytes) -> Verdict:
    """``adm.policy``: the policy in force and what is counted against it, as ``PolicyView``."""
    PolicyQuery.from_bytes(raw)
    return Accepted("found", limits.read(view.db).view(view.ruleset))


def events(view: View, raw: bytes) -> Verdict:
    """``adm.events``: a page of the journal, as ``EventsPage``; one damaged row fails it."""
    body = EventsQuery.from_bytes(raw)
    if view.space_key is None:
        return Refusal(Code.UNAVAILABLE, "no-space-key", "the space's key cannot be read now")
    try:
        entries = journal.page(view.db, body.after, body.limit + 1)
    except journal.Tampered as damage:
        return Refusal(Code.INTERNAL, "journal-damaged", str(damage))
    shown = []
    for entry in entries[: body.limit]:
        event: JsonObject = {
            "sequence": entry.sequence,
            "kind": entry.kind,
            "from": entry.source,
            "to": entry.target,
            "at_ms": entry.at_ms,
        }
        if entry.request_id is not None:
            event["request"] = keyed.hmac_of(view.space_key, entry.request_id)
        shown.append({name: value for name, value in event.items() if value is not None})
    page: JsonObject = {"events": shown}
    if len(entries) > body.limit:
        page["next_after"] = shown[-1]["sequence"]
    return Accepted("listed", page)


def payload_place(view: View, raw: bytes) -> Verdict:
    """Where the sealed prompt of ``adm.payload`` lies, as ``PayloadPlace``.

    For the lease's owner, under its fence, and only before active. Whoever answers the query reads
    exactly that revision from the bucket and lets this place itself not leave.
    """
    body = PayloadQuery.from_bytes(raw)
    turn = turns.find(view.db, body.request_id)
    if turn is None or turns.fenced(turn, body.lease_id, body.generation, view.speaker):
        return FENCED
    if turn.state not in _PAYLOAD_STATES:
        return turns.wrong_state(turn)
    if turn.payload_revision is None:
        return Refusal(Code.NOT_FOUND, "no-payload", "the turn was enqueued without a prompt")
    return Accepted(
        "found",
        {
            "key": turn.payload_key,
            "revision": turn.payload_revision,
            "key_version": turn.payload_key_version,
            "content_fingerprint": turn.payload_fingerprint,
        },
    )


def _leased(view: View, after: str | None, limit: int) -> tuple[list[Turn], str | None]:
    rows = view.db.execute(_LEASED, (after or "", limit + 1)).fetchall()
    held = [Turn(*row) for row in rows[:limit]]
    return held, held[-1].request_id if len(rows) > limit else None


def _queued_of_silent(view: View) -> list[Turn]:
    found = []
    for key in owners.silent_and_queued(view.db):
        row = view.db.execute(_QUEUED_OF, (key,)).fetchone()
        turn = None if row is None else turns.find(view.db, row[0])
        if turn is not None:
            found.append(turn)
    return found


def _recoverable(view: View, turn: Turn, host: str | None) -> JsonObject | None:
    connector = turn.identity if turn.state == QUEUED else turn.connector
    shown: JsonObject = {"request_id": turn.request_id, "state": turn.state}
    if connector is not None:
        identity: JsonObject = {"connector": json.loads(connector)}
        if turn.state != QUEUED and turn.child is not None:
            identity["child"] = json.loads(turn.child)
        shown["identity"] = IntentIdentity.from_object(identity).to_object()
    if host is not None and (connector is None or identity["connector"]["host"] != host):
        return None
    if turn.state != QUEUED:
        shown["fence"] = {
            "lease_id": turn.lease_id,
            "request_id": turn.request_id,
            "generation": turn.generation,
            "owner": {"principal": turn.owner_principal, "uid": turn.owner_uid},
        }
        if turn.channel is not None:
            shown["channel"] = turn.channel
        shown["seat"] = _seat(view, turn)
    return shown


def _seat(view: View, turn: Turn) -> JsonObject:
    suspect = recovery.suspicion(view.db, turn)
    optional: JsonObject = {
        "start_deadline_at_ms": turn.start_deadline_at_ms,
        "debt_since_ms": turn.debt_at_ms,
        "suspect_since_ms": None if suspect is None else suspect[0],
        "suspicion": None if suspect is None else suspect[1],
    }
    return {
        "request_id": turn.request_id,
        "state": turn.state,
        "lease_id": turn.lease_id,
        "generation": turn.generation,
        "owner": {"principal": turn.owner_principal, "uid": turn.owner_uid},
        "agent_id": turn.agent_id,
        "provider": turn.provider,
        "model": turn.model,
        "admitted_at_ms": turn.admitted_at_ms,
        **{name: value for name, value in optional.items() if value is not None},
        "frees": _frees(turn),
    }


def _frees(turn: Turn) -> list[str]:
    """What would free a seat: its owner, time, proof of what is gone, or an operator."""
    if turn.state in BEFORE_INTENT:
        return ["owner", "start-timeout"] + (["connector-gone"] if turn.connector else [])
    proof = ["connector-gone"]
    if turn.channel != "http":
        if turn.child is None or not recovery.has_own_group(turn):
            proof = []
        else:
            proof += ["child-gone", "group-empty"]
    if turn.state in (DISPATCH_INTENT, ACTIVE):
        return ["owner", *proof]
    return [*proof, "operator"] if turn.state in DEBT else proof
