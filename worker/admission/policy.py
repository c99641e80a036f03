"""The durable policy: claimed, asserted, drained to; and cooldowns of models.

A claim after the first and a drain are the same thing: no admission while as many seats are held
as the new limit allows, debt counted; the journal has one event at the start and one at the end.
The values of a claim come into force at the end. A drain stands, whatever is claimed, until a claim
says ``resume`` or another drain comes (spec/admission.md, States).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from schemas import strict_json
from schemas.codes import BadInput, Code
from schemas.commands.adm import Cooldown, Drain, Policy, PolicyAssertion, PolicyValues
from schemas.results import Accepted, Refusal, Verdict
from worker.admission import heads, journal, limits
from worker.admission.limits import FIRST_FIELDS, LATER_FIELDS, POLICY_FIELDS, Limits
from worker.ledger import rulesets
from worker.ledger.tx import Tx

LONGEST_REST_MS: Final = 365 * 24 * 3600 * 1000
"""A cooldown ends within a year: whoever means longer means something else."""

_TAKE_EFFECT: Final = (
    "UPDATE adm_limits SET next_policy = NULL, epoch = ?, max_active_turns = ?, "
    "max_concurrent_starts = ?, min_start_interval_ms = ?, queue_timeout_ms = ?, "
    "capacity_cooldown_ms = ?, start_timeout_ms = ?, adoption_timeout_ms = ?, silence_ms = ?"
)
_TAKE_LATER_EFFECT: Final = "UPDATE adm_limits SET max_retry_after_ms = ?, max_priority = ?"
_LIMIT: Final = "UPDATE adm_limits SET seat_limit = ?, draining = ?, next_policy = NULL"
_LOWER: Final = "UPDATE adm_limits SET seat_limit = ?"
_DRAIN: Final = "UPDATE adm_limits SET seat_limit = ?, draining = 1, next_policy = ?"
_DRAINED: Final = "UPDATE adm_limits SET draining = 0, next_policy = NULL"
_STANDS: Final = "UPDATE adm_limits SET drained_to = ?"
_SHOWS: Final = """
UPDATE adm_limits SET drained_to = nullif(
    seat_limit, coalesce(json_extract(next_policy, '$.max_active_turns'), max_active_turns))
"""
_COOL: Final = (
    "INSERT INTO adm_cooldowns VALUES (?, ?, ?) ON CONFLICT (provider, model) "
    "DO UPDATE SET until_ms = max(until_ms, excluded.until_ms) RETURNING until_ms"
)
_REST: Final = (
    "INSERT INTO adm_cooldowns VALUES (?, ?, ?) ON CONFLICT (provider, model) "
    "DO UPDATE SET until_ms = excluded.until_ms"
)
_WAKE: Final = "DELETE FROM adm_cooldowns WHERE (provider, model) = (?, ?)"


def policy(tx: Tx, key: tuple[str, ...], body: Policy) -> Verdict:
    """Claim the policy, or assert it."""
    no_key(key)
    held = limits.read(tx.db)
    claims_values = any(getattr(body, name) is not None for name in POLICY_FIELDS)
    if body.assert_ is not None:
        if body.epoch is not None or claims_values or body.resume is not None:
            raise BadInput("assert", "not-together", "assert goes without a claim")
        return _assert(tx, held, body.assert_)
    if body.epoch is None:
        raise BadInput("epoch", "missing-field", "field epoch is required to claim a policy")
    verdict = _claim(tx, held, body.epoch, body)
    _show_drain(tx)
    return verdict


def drain(tx: Tx, key: tuple[str, ...], body: Drain) -> Verdict:
    """Bring the seats to a limit; a claim that waits for its drain comes with it, at this limit."""
    no_key(key)
    held = limits.read(tx.db)
    is_there = held.seat_limit == body.to
    if tx.before is not None and not is_there:
        return Refusal(
            Code.CONFLICT,
            "drain-superseded",
            "this drain was begun, and another drain or a policy has come since",
            data=held.view(tx.ruleset),
        )
    if tx.ruleset >= rulesets.MENDED:
        claimed = _waiting(tx, held).get("max_active_turns", held.max_active_turns)
        if tx.before is None:
            tx.db.execute(_STANDS, (None if body.to == claimed else body.to,))
        if is_there and held.draining and held.seats <= body.to:
            end_drain(tx, held)
            return Accepted("drained", _now(tx))
        is_there = is_there and (bool(held.draining) or held.seats <= body.to)
    if is_there:
        return Accepted("draining" if held.draining else "drained", _now(tx))
    verdict = _start_drain(tx, body.to, held.next_policy, done="drained")
    _show_drain(tx)
    return verdict


def cooldown(tx: Tx, key: tuple[str, ...], body: Cooldown) -> Verdict:
    """Let a model rest until an instant; shortens only if it says so."""
    no_key(key)
    if tx.ruleset >= rulesets.MENDED and body.not_before_ms > tx.now_ms + LONGEST_REST_MS:
        raise BadInput("not_before_ms", "out-of-range", "a model rests for a year at most")
    if body.replace:
        until_ms = _rest(tx, body.provider, body.model, body.not_before_ms)
    else:
        until_ms = cool(tx, body.provider, body.model, body.not_before_ms)
    shown = {"provider": body.provider, "model": body.model, "until_ms": until_ms}
    return Accepted("cooling" if until_ms > tx.now_ms else "not-cooling", shown)


def cool(tx: Tx, provider: str, model: str, until_ms: int) -> int:
    """Set a cooldown to the later of what it was and an instant; returns its end."""
    if until_ms <= tx.now_ms:
        row = tx.db.execute(
            "SELECT until_ms FROM adm_cooldowns WHERE (provider, model) = (?, ?)",
            (provider, model),
        ).fetchone()
        return int(row[0]) if row is not None else until_ms
    ((end_ms,),) = tx.db.execute(_COOL, (provider, model, until_ms)).fetchall()
    return int(end_ms)


def end_drain(tx: Tx, held: Limits) -> None:
    """Few enough seats are held: the limit is reached, and a claim that waited is in force."""
    claimed = None if held.next_policy is None else _waiting(tx, held)
    tx.db.execute(_DRAINED)
    journal.append(tx, "policy_drain_completed", None, None, None)
    if claimed is not None:
        _take_effect(tx, claimed["epoch"], claimed)


def no_key(key: tuple[str, ...]) -> None:
    """Refuse a key behind a verb that has none.

    Raises:
        BadInput: If there is one.
    """
    if key:
        raise BadInput("subject", "bad-key", "this verb takes no key")


def _assert(tx: Tx, held: Limits, believed: PolicyAssertion) -> Verdict:
    in_force = {"epoch": held.epoch, **held.policy(tx.ruleset)}
    if tx.ruleset >= rulesets.MENDED and not held.draining:
        # A drain that is through is what holds, whatever the claim said.
        in_force["max_active_turns"] = held.seat_limit
    given = believed.to_object()
    differing = [name for name, value in given.items() if in_force[name] != value]
    if not differing:
        return Accepted("match", held.view(tx.ruleset))
    return Refusal(
        Code.CONFLICT,
        "policy-differs",
        f"another policy is in force; {differing[0]} differs",
        data=held.view(tx.ruleset),
    )


def _claim(tx: Tx, held: Limits, epoch: int, body: Policy) -> Verdict:
    values = body.values.to_object()
    if tx.ruleset < rulesets.MENDED:
        values = {name: values[name] for name in FIRST_FIELDS}
    waiting = None if held.next_policy is None else _waiting(tx, held)
    if epoch == held.epoch and values == held.policy(tx.ruleset):
        return Accepted("idempotent", held.view(tx.ruleset))
    if waiting is not None:
        if waiting == {"epoch": epoch, **values}:
            return Accepted("draining", held.view(tx.ruleset))
        return Refusal(
            Code.CONFLICT,
            "claim-pending",
            "another claim waits for its drain to end",
            data=held.view(tx.ruleset),
        )
    if epoch != held.epoch + 1:
        return Refusal(
            Code.CONFLICT,
            "epoch-mismatch",
            f"the policy in force has epoch {held.epoch}; the next claim has {held.epoch + 1}",
            data=held.view(tx.ruleset),
        )
    limit, goes_on = _limit_of(tx, held, values["max_active_turns"], resume=bool(body.resume))
    if goes_on and (held.epoch == 0 or held.seats <= values["max_active_turns"]):
        tx.db.execute(_LOWER, (limit,))
        _take_effect(tx, epoch, values)
        return Accepted("claimed", _now(tx))
    if held.epoch == 0:
        more = tx.ruleset >= rulesets.MENDED and held.seats > limit
        tx.db.execute(_LIMIT, (limit, int(more)))
        if more:
            journal.append(tx, "policy_drain_started", None, None, None)
        elif held.draining:
            journal.append(tx, "policy_drain_completed", None, None, None)
        _take_effect(tx, epoch, values)
        return Accepted("claimed", _now(tx))
    claim = strict_json.dumps({"epoch": epoch, **values}).decode()
    return _start_drain(tx, limit, claim, done="claimed")


def _limit_of(tx: Tx, held: Limits, seats: int, *, resume: bool) -> tuple[int, bool]:
    """The limit that a claim of so many seats leads to, and whether a drain under way goes on."""
    if tx.ruleset < rulesets.MENDED:
        return seats, False
    if resume:
        tx.db.execute(_STANDS, (None,))
    if resume or held.drained_to is None:
        return seats, False
    limit = min(seats, held.drained_to)
    return limit, bool(held.draining) and held.seats > limit


def _start_drain(tx: Tx, to: int, claim: str | None, *, done: str) -> Verdict:
    tx.db.execute(_DRAIN, (to, claim))
    journal.append(tx, "policy_drain_started", None, None, None)
    held = limits.read(tx.db)
    if held.seats > to:
        return Accepted("draining", held.view(tx.ruleset))
    end_drain(tx, held)
    return Accepted(done, _now(tx))


def _take_effect(tx: Tx, epoch: int, values: Mapping[str, Any]) -> None:
    tx.db.execute(_TAKE_EFFECT, (epoch, *(values[name] for name in FIRST_FIELDS)))
    if tx.ruleset >= rulesets.MENDED:
        longest_ms, bounds = (values[name] for name in LATER_FIELDS)
        text = strict_json.dumps(dict(sorted(bounds.items()))).decode() if bounds else None
        tx.db.execute(_TAKE_LATER_EFFECT, (longest_ms, text))
    journal.append(tx, "policy_claimed", None, None, None)


def _show_drain(tx: Tx) -> None:
    """Before ``MENDED`` a drain stood only as long as the limit was not the policy's."""
    if tx.ruleset < rulesets.MENDED:
        tx.db.execute(_SHOWS)


def _rest(tx: Tx, provider: str, model: str, until_ms: int) -> int:
    """Let a model rest until an instant and no longer; returns it."""
    if until_ms > tx.now_ms:
        tx.db.execute(_REST, (provider, model, until_ms))
    elif tx.db.execute(_WAKE, (provider, model)).rowcount:
        heads.unpark(tx.db, heads.MODEL, heads.model_key(provider, model))
    return until_ms


def _waiting(tx: Tx, held: Limits) -> dict[str, Any]:
    """The claim that comes into force when the drain ends; what it could not name, by default."""
    claim: dict[str, Any] = json.loads(held.next_policy or "{}")
    if tx.ruleset < rulesets.MENDED:
        return claim
    values = PolicyValues().to_object()
    return {**{name: values[name] for name in LATER_FIELDS}, **claim}


def _now(tx: Tx) -> dict[str, Any]:
    return limits.read(tx.db).view(tx.ruleset)
