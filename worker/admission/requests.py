"""The queue's verbs: enqueue, cancel, admit."""

from typing import Final

from schemas import roles, strict_json, tokens
from schemas.admission import ADMITTED, CANCELLED, QUEUED, Block
from schemas.codes import BadInput, Code
from schemas.commands.adm import Admit, Cancel, Enqueue, Payload
from schemas.model import Closed
from schemas.results import Accepted, Refusal, Verdict
from worker.admission import heads, journal, limits, passing, seats, selection, turns
from worker.admission.moves import SOURCES
from worker.admission.turns import Turn
from worker.ledger.tx import Tx

_INSERT: Final = (
    "INSERT INTO adm_requests (request_id, state, generation, principal, uid, session_id, "
    "agent_id, fingerprint, provider, model, handing, priority, timeout_ms, enqueued_at_ms, "
    "deadline_at_ms, aged_at_ms, aged, node, releases, identity, payload_fingerprint, "
    "payload_key_version, payload_generation, payload_revision, trace) "
    "VALUES (?, 'queued', 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?, ?)"
)
_USED: Final = "SELECT 1 FROM adm_used WHERE request_id = ?"
_ADOPT: Final = "UPDATE adm_requests SET uid = ?, identity = ? WHERE request_id = ?"
_SEAL: Final = (
    "UPDATE adm_requests SET payload_key_version = ?, payload_generation = ?, "
    "payload_revision = ? WHERE request_id = ?"
)


def enqueue(tx: Tx, key: tuple[str, ...], body: Enqueue) -> Verdict:
    """Queue a turn; the same again is answered with what became of it."""
    request_id = request_key(key)
    turn = passing.current(tx, request_id)
    if turn is not None:
        return _enqueue_again(tx, turn, body)
    if tx.db.execute(_USED, (request_id,)).fetchone():
        return Refusal(
            Code.ALREADY_EXISTS, "request-id-used", "a turn of this id settled and was pruned"
        )
    highest = limits.max_priority(tx.db, tx.speaker.principal)
    if body.priority > highest:
        return Refusal(
            Code.PERMISSION_DENIED,
            "priority-too-high",
            f"the policy allows this principal priority {highest} at most",
            at_field="priority",
        )
    longest_ms = limits.queue_timeout_ms(tx.db)
    timeout_ms = min(body.timeout_ms or longest_ms, longest_ms)
    turn = _new_turn(tx, request_id, body, tx.now_ms + timeout_ms)
    _check_expiry(body.payload, turn.deadline_at_ms)
    _insert(tx, turn, turns.aged_at_ms(tx.now_ms, timeout_ms))
    return Accepted("queued", turn.outcome())


def cancel(tx: Tx, key: tuple[str, ...], body: Cancel) -> Verdict:
    """Take a queued turn back: its owner's principal may, and an operator."""
    turn = passing.current(tx, request_key(key))
    if turn is None:
        return turns.not_found()
    principal = tx.speaker.principal
    if principal != turn.principal and not principal.startswith(roles.OPERATOR_PREFIX):
        return _not_yours()
    if turn.state not in SOURCES["cancel"]:
        return turns.wrong_state(turn)
    turns.settle(tx, turn, "request_cancelled", CANCELLED)
    return Accepted("cancelled", turn.outcome())


def admit(tx: Tx, key: tuple[str, ...], body: Admit) -> Verdict:
    """Take a seat for a pull turn of the caller's principal: the choice, or the named one if it is.

    Ok ``none`` says what blocks.
    """
    if tx.before is not None:
        return _admit_again(tx, tx.before)
    wanted: Turn | None = None
    if key:
        wanted = passing.current(tx, request_key(key))
        if wanted is None:
            return turns.not_found()
        refused = _not_to_be_pulled(tx, wanted)
        if refused is not None:
            return refused
    held = limits.read(tx.db)
    tier = tx.speaker.principal
    choice, blocks = None, held.blocks(tx.now_ms)
    if not blocks:
        choice = selection.choose(tx, tier, held)
        held = limits.read(tx.db)
    if choice is not None and (wanted is None or wanted.request_id == choice.turn.request_id):
        selection.admit(tx, held, choice, tx.speaker)
        return Accepted("admitted", selection.grant(choice.turn))
    return Accepted("none", {"blocks": _why_none(tx, held, wanted, blocks)})


def request_key(key: tuple[str, ...]) -> str:
    """The request id behind a verb.

    Raises:
        BadInput: If the key is not exactly one request id.
    """
    if len(key) != 1 or not tokens.is_name(key[0]):
        raise BadInput(
            "subject", "bad-key", "the subject must end in a request id, [A-Za-z0-9_-]{1,64}"
        )
    return key[0]


def stored(part: Closed | None) -> str | None:
    """How a part of a body is stored: compact JSON, fields in the order of the contract."""
    return None if part is None else strict_json.dumps(part.to_object()).decode()


def _new_turn(tx: Tx, request_id: str, body: Enqueue, deadline_at_ms: int) -> Turn:
    payload = body.payload
    return Turn(
        request_id=request_id,
        state=QUEUED,
        generation=1,
        principal=tx.speaker.principal,
        uid=tx.speaker.uid,
        session_id=body.session_id,
        agent_id=body.agent_id,
        fingerprint=body.fingerprint,
        provider=body.provider,
        model=body.model,
        handing=body.grant,
        priority=body.priority,
        timeout_ms=body.timeout_ms,
        enqueued_at_ms=tx.now_ms,
        deadline_at_ms=deadline_at_ms,
        node=None,
        releases=0,
        identity=stored(body.identity),
        payload_fingerprint=None if payload is None else payload.content_fingerprint,
        payload_key_version=None if payload is None else payload.key_version,
        payload_generation=None if payload is None else 1,
        payload_revision=None if payload is None else payload.revision,
        trace=tx.trace,
    )


def _insert(tx: Tx, turn: Turn, aged_at_ms: int) -> None:
    turn.node = heads.enter(tx.db, turn.place(), turn.request_id, turn.enqueued_at_ms)
    tx.db.execute(
        _INSERT,
        (
            turn.request_id,
            turn.principal,
            turn.uid,
            turn.session_id,
            turn.agent_id,
            turn.fingerprint,
            turn.provider,
            turn.model,
            turn.handing,
            turn.priority,
            turn.timeout_ms,
            turn.enqueued_at_ms,
            turn.deadline_at_ms,
            aged_at_ms,
            turn.node,
            turn.identity,
            turn.payload_fingerprint,
            turn.payload_key_version,
            turn.payload_generation,
            turn.payload_revision,
            turn.trace,
        ),
    )
    journal.append(tx, "request_enqueued", None, QUEUED, turn.origin)
    seats.count_queued(tx, 1)


def _enqueue_again(tx: Tx, turn: Turn, body: Enqueue) -> Verdict:
    if tx.speaker.principal != turn.principal:
        return Refusal(Code.CONFLICT, "request-id-taken", "another principal uses this request id")
    differing = _differing(turn, body)
    if differing is not None:
        return Refusal(
            Code.CONFLICT,
            "different-request",
            f"this request id was enqueued with another {differing}",
            data=turn.outcome(),
        )
    outcome = "idempotent"
    if turn.state == QUEUED and tx.speaker.uid != turn.uid:
        _adopt(tx, turn, body)
        outcome = "adopted"
    if turn.awaits_payload and body.payload is not None:
        _check_expiry(body.payload, turn.deadline_at_ms)
        _seal_again(tx, turn, body.payload)
        outcome = "payload_attached"
    return Accepted(outcome, turn.view())


def _differing(turn: Turn, body: Enqueue) -> str | None:
    """The first immutable field that differs; whom it belongs to and where it runs may change."""
    fields = (
        ("session_id", turn.session_id, body.session_id),
        ("agent_id", turn.agent_id, body.agent_id),
        ("fingerprint", turn.fingerprint, body.fingerprint),
        ("provider", turn.provider, body.provider),
        ("model", turn.model, body.model),
        ("grant", turn.handing, body.grant),
        ("priority", turn.priority, body.priority),
        ("timeout_ms", turn.timeout_ms, body.timeout_ms),
        (
            "payload.content_fingerprint",
            turn.payload_fingerprint,
            body.payload and body.payload.content_fingerprint,
        ),
    )
    return next((name for name, ours, theirs in fields if ours != theirs), None)


def _adopt(tx: Tx, turn: Turn, body: Enqueue) -> None:
    """Bind a queued turn to the new life of its principal that asked for it."""
    turns.move(tx, turn, "request_adopted", QUEUED)
    turn.uid, turn.identity = tx.speaker.uid, stored(body.identity)
    tx.db.execute(_ADOPT, (turn.uid, turn.identity, turn.request_id))
    if turn.node is not None:
        turns.step_out(tx, turn)
        turns.stand_in_line(tx, turn)


def _seal_again(tx: Tx, turn: Turn, payload: Payload) -> None:
    turn.payload_key_version, turn.payload_generation = payload.key_version, turn.generation
    turn.payload_revision = payload.revision
    tx.db.execute(_SEAL, (payload.key_version, turn.generation, payload.revision, turn.request_id))
    turns.stand_in_line(tx, turn)


def _check_expiry(payload: Payload | None, deadline_at_ms: int) -> None:
    if payload is not None and payload.expires_at_ms < deadline_at_ms:
        raise BadInput(
            "payload.expires_at_ms",
            "expires-too-early",
            "the sealed prompt must last until the queue deadline",
        )


def _admit_again(tx: Tx, before: Accepted) -> Verdict:
    """The seat that this very command was given, while it stands untouched; never another one."""
    if before.outcome == "none":
        return before
    given = before.data
    turn = passing.current(tx, given["request_id"])
    if turn is None or turns.fenced(turn, given["lease_id"], given["generation"], tx.speaker):
        return turns.FENCED
    if turn.state != ADMITTED:
        return turns.wrong_state(turn)
    return Accepted(before.outcome, selection.grant(turn))


def _not_to_be_pulled(tx: Tx, turn: Turn) -> Verdict | None:
    if turn.principal != tx.speaker.principal:
        return _not_yours()
    if turn.handing != "pull":
        return Refusal(
            Code.FAILED_PRECONDITION, "not-pull", "this turn is pushed to its owner, not pulled"
        )
    if turn.state == ADMITTED and turn.owner_uid == tx.speaker.uid:
        return Accepted("idempotent", selection.grant(turn))
    return None if turn.state == QUEUED else turns.wrong_state(turn)


def _why_none(tx: Tx, held: limits.Limits, wanted: Turn | None, blocks: list[Block]) -> list[Block]:
    if wanted is not None:
        return selection.blocks_of(tx.db, held, wanted, tx.now_ms) or ["order"]
    return blocks or selection.blocks_of_tier(tx.db, tx.speaker.principal, tx.ruleset)


def _not_yours() -> Refusal:
    return Refusal(Code.PERMISSION_DENIED, "not-yours", "the turn belongs to another principal")
