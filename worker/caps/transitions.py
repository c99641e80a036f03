"""The verbs, each in the order of its table: the first row that matches decides (spec/caps.md).

Every function works in the open transaction of one command and judges before it writes. What it
answers is a value; damage that it meets is a refusal ``internal``, never an absence.
"""

import functools
import sqlite3
from collections.abc import Callable
from typing import Any, Final, NoReturn

from schemas.caps import (
    ACTIVE,
    EXPIRED,
    LAPSED,
    LEGACY,
    MISMATCH,
    NONE_ACTIVE,
    OVER_CAP,
    RESERVED,
    REVOKED,
    STOPPED,
    SUPERSEDED,
    TOO_NEW,
)
from schemas.codes import Code
from schemas.commands.cap import (
    LAST_EXPIRY_MS,
    Authorize,
    Bump,
    Confirm,
    Minting,
    Reserve,
    Revoke,
    Stop,
)
from schemas.results import Accepted, Refusal, Verdict
from schemas.strict_json import JsonObject
from worker.caps import (
    authority,
    facts,
    generations,
    keys,
    ladder,
    permits,
    records,
    settings,
    windows,
)
from worker.caps.authority import Standing
from worker.caps.records import Corrupt, Record, floor_second
from worker.caps.settings import Settings
from worker.ledger import rulesets
from worker.ledger.tx import Tx

REQUIRED_VERSION: Final = 2
"""The ruleset that made these rules; a worker that supports less refuses the record."""

_POINT_FIRST = "INSERT INTO active_grants VALUES (?, ?) ON CONFLICT DO NOTHING"
_POINT_ON = "UPDATE active_grants SET mint_key = ? WHERE user = ? AND mint_key = ?"
_END_ACTIVE = """
UPDATE reservations INDEXED BY reservations_active
SET state = 'revoked', ended_at_ms = ?
WHERE user = ? AND state = 'confirmed_active' RETURNING expires_at_ms
"""

_NO_GRANT: Final = {
    NONE_ACTIVE: (Code.FAILED_PRECONDITION, "no grant is active"),
    STOPPED: (Code.CANCELLED, "a Stop or a bump came after this grant"),
    LAPSED: (Code.EXPIRED, "the active grant's expiry has passed"),
    MISMATCH: (Code.CONFLICT, "the active grant is another one than the one named"),
    OVER_CAP: (Code.FAILED_PRECONDITION, "the amount is above the cap"),
    TOO_NEW: (Code.UNSUPPORTED_VERSION, "the grant needs a newer ruleset than the one in force"),
}


def _fails_closed(
    transition: Callable[[Tx, tuple[str, ...], Any], Verdict],
) -> Callable[[Tx, tuple[str, ...], Any], Verdict]:
    @functools.wraps(transition)
    def handler(tx: Tx, key: tuple[str, ...], body: Any) -> Verdict:
        try:
            return transition(tx, key, body)
        except Corrupt as damage:
            return damage.refusal()

    return handler


@_fails_closed
def reserve(tx: Tx, key: tuple[str, ...], body: Reserve) -> Verdict:
    """Reserve the requested expiry second, or the nearest earlier free one."""
    user, mint_key = keys.user_and_key_of(key)
    if not settings.read(tx.db).enabled:
        return Refusal(
            Code.FAILED_PRECONDITION, "minting-paused", "no new caps are minted at present"
        )
    asked = floor_second(body.latest_expires_at_ms)
    known = records.find(tx.db, user, mint_key)
    if known is not None:
        known = windows.observe(tx, user, known)
        if known.state != LEGACY and (known.cap, known.asked_second_ms) == (body.cap, asked):
            return Accepted("already_reserved", known.shown(user))
        return Refusal(
            Code.CONFLICT,
            "different-reservation",
            "this key was reserved with another cap or another expiry",
            data=known.shown(user),
        )
    second = ladder.first_free(tx.db, user, asked, tx.now_ms)
    if second is None:
        return Refusal(
            Code.RESOURCE_EXHAUSTED,
            "no-free-second",
            "no second that is free and in the future is near enough to the requested expiry",
        )
    record = Record(
        mint_key=mint_key,
        expires_at_ms=second,
        latest_expires_at_ms=body.latest_expires_at_ms,
        cap=body.cap,
        required_version=REQUIRED_VERSION,
        generation=generations.begin(tx.db, user),
        reserved_at_ms=tx.now_ms,
        state=RESERVED,
        confirmed_at_ms=None,
        ended_at_ms=None,
        trace=tx.trace,
    )
    records.insert(tx.db, user, record)
    facts.of_grant(tx, "reserved", user, record)
    return Accepted("reserved", record.shown(user))


@_fails_closed
def confirm(tx: Tx, key: tuple[str, ...], body: Confirm) -> Verdict:
    """Make a reserved cap the one that authorises, in place of the one before."""
    user, mint_key = keys.user_and_key_of(key)
    record = records.find(tx.db, user, mint_key)
    if record is None:
        return Refusal(Code.NOT_FOUND, "unreserved", "nothing is reserved under this key")
    if record.state == REVOKED:
        return _not_confirmed(user, record, "revoked", "this cap was revoked")
    standing = authority.standing_of(tx.db, user)
    if record.state == SUPERSEDED or _is_elsewhere(standing, record):
        return _not_confirmed(user, record, "superseded", "a later cap was confirmed")
    if record.state == LEGACY:
        return _not_confirmed(user, record, "legacy", "a predecessor's record is never confirmed")
    if standing.is_stale(record):
        return _not_confirmed(
            user, record, "stopped", "a Stop or a bump came after this reservation", Code.CANCELLED
        )
    if body.grant_expires_at_ms != record.expires_at_ms:
        return _not_confirmed(
            user,
            record,
            "expiry-mismatch",
            "the grant's expiry is not the reserved second",
            Code.CONFLICT,
        )
    if body.grant_expires_at_ms <= tx.now_ms:
        return _not_confirmed(
            user, record, "grant-lapsed", "the grant's expiry has passed", Code.EXPIRED
        )
    if record.state == ACTIVE:
        standing.grant()
        return Accepted("already_confirmed", record.shown(user))
    record = windows.observe(tx, user, record)
    if record.state == EXPIRED:
        return _not_confirmed(
            user,
            record,
            "reservation-expired",
            "it was reserved longer than the window in which a cap is confirmed",
            Code.EXPIRED,
        )
    return Accepted("confirmed", _make_active(tx, user, standing, record).shown(user))


def authorize(tx: Tx, key: tuple[str, ...], body: Authorize) -> Verdict:
    """Judge one action at this command's place in the log, and give a permit for it."""
    user = keys.user_of(key)
    verdict = _authorize(tx, user, body)
    if isinstance(verdict, Refusal):
        facts.of_refusal(tx, user, verdict.reason, body.amount, body.grant_expires_at_ms)
    return verdict


def _authorize(tx: Tx, user: str, body: Authorize) -> Verdict:
    try:
        judged = authority.judge(
            tx.db,
            user,
            now_ms=tx.now_ms,
            ruleset=tx.ruleset,
            expires_at_ms=body.grant_expires_at_ms,
            amount=body.amount,
        )
        permit_ms = settings.read(tx.db).permit_ms
    except Corrupt as damage:
        return damage.refusal()
    if judged.reason is not None or judged.grant is None:
        reason = judged.reason or NONE_ACTIVE
        code, message = _NO_GRANT[reason]
        return Refusal(code, reason, message)
    grant = judged.grant
    valid_for_ms = min(permit_ms, grant.second_ms - tx.now_ms)
    permits.give(tx.db, user, tx.now_ms + valid_for_ms)
    return Accepted(
        "allowed",
        {"valid_for_ms": valid_for_ms, "cap": grant.cap, "expires_at_ms": grant.second_ms},
    )


@_fails_closed
def revoke(tx: Tx, key: tuple[str, ...], body: Revoke) -> Verdict:
    """End the active grant if it is the one named; the generation stays."""
    user = keys.user_of(key)
    grant = authority.standing_of(tx.db, user).grant()
    if grant is None or grant.state != ACTIVE or grant.expires_at_ms != body.expires_at_ms:
        return Accepted("nothing-to-revoke")
    ended = records.move(tx.db, user, grant, REVOKED, tx.now_ms)
    facts.of_grant(tx, "revoked", user, ended)
    return Accepted("revoked", ended.shown(user))


@_fails_closed
def stop(tx: Tx, key: tuple[str, ...], body: Stop) -> Verdict:
    """Raise the generation and end the active grant, in one transaction, always."""
    user = keys.user_of(key)
    mended = tx.ruleset >= rulesets.MENDED
    if mended:
        # The barrier first: nothing that only describes it may keep it from standing.
        generation = generations.advance(tx.db, user, always=True)
        quiet_after_ms = permits.quiet_after(tx.db, user, tx.now_ms)
    else:
        quiet_after_ms = max(tx.now_ms, permits.latest_end(tx.db, user))
        generation = generations.advance(tx.db, user, always=False)
    known = generations.has_reserved(tx.db, user) if mended else None
    expires_at_ms = _end_active(tx, user)
    facts.of_stop(tx, user, generation, quiet_after_ms, expires_at_ms)
    data: JsonObject = {"generation": generation, "quiet_after_ms": quiet_after_ms}
    if expires_at_ms is not None:
        data["expires_at_ms"] = expires_at_ms
    if known is not None:
        data["known"] = known
    return Accepted("stopped", data)


@_fails_closed
def bump(tx: Tx, key: tuple[str, ...], body: Bump) -> Verdict:
    """Raise the generation alone; what is active then authorises nothing."""
    user = keys.user_of(key)
    mended = tx.ruleset >= rulesets.MENDED
    generation = generations.advance(tx.db, user, always=mended)
    facts.of_bump(tx, user, generation)
    data: JsonObject = {"generation": generation}
    if mended:
        data["known"] = generations.has_reserved(tx.db, user)
    return Accepted("bumped", data)


@_fails_closed
def minting(tx: Tx, key: tuple[str, ...], body: Minting) -> Verdict:
    """Put settings in force; what is reserved already is not touched."""
    keys.none_of(key)
    now = Settings(body.enabled, body.permit_ms or settings.read(tx.db).permit_ms)
    settings.write(tx.db, now)
    return Accepted("minting_enabled" if now.enabled else "minting_paused", now.shown())


def _not_confirmed(
    user: str,
    record: Record,
    reason: str,
    message: str,
    code: Code = Code.FAILED_PRECONDITION,
) -> Refusal:
    return Refusal(code, reason, message, data=record.shown(user))


def _is_elsewhere(standing: Standing, record: Record) -> bool:
    """Whether a record is active by its state while the pointer names another one."""
    return record.state == ACTIVE and standing.pointer not in (None, record.mint_key)


def _make_active(tx: Tx, user: str, standing: Standing, record: Record) -> Record:
    """Confirm a reservation and move the pointer to it, from where it was read to be."""
    before = standing.grant()
    if before is not None and before.state == ACTIVE:
        superseded = records.move(tx.db, user, before, SUPERSEDED, tx.now_ms)
        facts.of_grant(tx, "superseded", user, superseded)
    confirmed = records.move(tx.db, user, record, ACTIVE, tx.now_ms)
    if standing.pointer is None:
        moved = tx.db.execute(_POINT_FIRST, (user, record.mint_key))
    else:
        moved = tx.db.execute(_POINT_ON, (record.mint_key, user, standing.pointer))
    if moved.rowcount != 1:
        _lost_pointer()
    facts.of_grant(tx, "confirmed", user, confirmed)
    return confirmed


def _lost_pointer() -> NoReturn:
    raise RuntimeError("the pointer moved inside one transaction")


def _end_active(tx: Tx, user: str) -> int | None:
    """End whatever is active, asking neither the pointer nor the rest of the row."""
    try:
        ended = tx.db.execute(_END_ACTIVE, (tx.now_ms, user)).fetchall()
    except sqlite3.IntegrityError:
        # The row is damaged beyond ending. Its generation is over, and whoever reads it says so.
        return None
    second = ended[0][0] if ended else None
    return second if second is not None and 0 <= second <= LAST_EXPIRY_MS else None
