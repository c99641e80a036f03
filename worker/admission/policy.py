"""The durable policy: claimed, asserted, drained to; and cooldowns of models.

A claim after the first and a drain are the same thing: no admission while as many seats are held
as the new limit allows, debt counted; the journal has one event at the start and one at the end.
The values of a claim come into force at the end (spec/admission.md, States).
"""

import json
from typing import Final

from schemas import strict_json
from schemas.codes import BadInput, Code
from schemas.commands.adm import Cooldown, Drain, Policy, PolicyAssertion
from schemas.results import Accepted, Refusal, Verdict
from worker.admission import journal, limits
from worker.admission.limits import POLICY_FIELDS, Limits
from worker.ledger.tx import Tx

_TAKE_EFFECT: Final = (
    "UPDATE adm_limits SET next_policy = NULL, epoch = ?, max_active_turns = ?, "
    "max_concurrent_starts = ?, min_start_interval_ms = ?, queue_timeout_ms = ?, "
    "capacity_cooldown_ms = ?, start_timeout_ms = ?, adoption_timeout_ms = ?, silence_ms = ?"
)
_LIMIT: Final = "UPDATE adm_limits SET seat_limit = ?, draining = 0, next_policy = NULL"
_DRAIN: Final = "UPDATE adm_limits SET seat_limit = ?, draining = 1, next_policy = ?"
_DRAINED: Final = "UPDATE adm_limits SET draining = 0, next_policy = NULL"
_COOL: Final = (
    "INSERT INTO adm_cooldowns VALUES (?, ?, ?) ON CONFLICT (provider, model) "
    "DO UPDATE SET until_ms = max(until_ms, excluded.until_ms) RETURNING until_ms"
)


def policy(tx: Tx, key: tuple[str, ...], body: Policy) -> Verdict:
    """Claim the policy, or assert it."""
    no_key(key)
    held = limits.read(tx.db)
    claims_values = any(getattr(body, name) is not None for name in POLICY_FIELDS)
    if body.assert_ is not None:
        if body.epoch is not None or claims_values:
            raise BadInput("assert", "not-together", "assert goes without a claim")
        return _assert(held, body.assert_)
    if body.epoch is None:
        raise BadInput("epoch", "missing-field", "field epoch is required to claim a policy")
    return _claim(tx, held, body.epoch, body)


def drain(tx: Tx, key: tuple[str, ...], body: Drain) -> Verdict:
    """Bring the seats to a limit; a claim that waits for its drain comes with it, at this limit."""
    no_key(key)
    held = limits.read(tx.db)
    if held.draining and held.seat_limit == body.to:
        return Accepted("draining", held.view())
    if not held.draining and held.seat_limit == body.to:
        return Accepted("drained", held.view())
    return _start_drain(tx, body.to, held.next_policy, done="drained")


def cooldown(tx: Tx, key: tuple[str, ...], body: Cooldown) -> Verdict:
    """Let a model rest until an instant; never shortens."""
    no_key(key)
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
    claimed = None if held.next_policy is None else json.loads(held.next_policy)
    tx.db.execute(_DRAINED)
    journal.append(tx, "policy_drain_completed", None, None, None)
    if claimed is not None:
        _take_effect(tx, claimed["epoch"], [claimed[name] for name in POLICY_FIELDS])


def no_key(key: tuple[str, ...]) -> None:
    """Refuse a key behind a verb that has none.

    Raises:
        BadInput: If there is one.
    """
    if key:
        raise BadInput("subject", "bad-key", "this verb takes no key")


def _assert(held: Limits, believed: PolicyAssertion) -> Verdict:
    in_force = {"epoch": held.epoch, **held.policy()}
    differing = [name for name, value in believed.to_object().items() if in_force[name] != value]
    if not differing:
        return Accepted("match", held.view())
    return Refusal(
        Code.CONFLICT,
        "policy-differs",
        f"another policy is in force; {differing[0]} differs",
        data=held.view(),
    )


def _claim(tx: Tx, held: Limits, epoch: int, body: Policy) -> Verdict:
    values = body.values.to_object()
    waiting = None if held.next_policy is None else json.loads(held.next_policy)
    if epoch == held.epoch and values == held.policy():
        return Accepted("idempotent", held.view())
    if waiting is not None:
        if waiting == {"epoch": epoch, **values}:
            return Accepted("draining", held.view())
        return Refusal(
            Code.CONFLICT,
            "claim-pending",
            "another claim waits for its drain to end",
            data=held.view(),
        )
    if epoch != held.epoch + 1:
        return Refusal(
            Code.CONFLICT,
            "epoch-mismatch",
            f"the policy in force has epoch {held.epoch}; the next claim has {held.epoch + 1}",
            data=held.view(),
        )
    if held.epoch == 0:
        tx.db.execute(_LIMIT, (values["max_active_turns"],))
        if held.draining:
            journal.append(tx, "policy_drain_completed", None, None, None)
        _take_effect(tx, epoch, list(values.values()))
        return Accepted("claimed", limits.read(tx.db).view())
    claim = strict_json.dumps({"epoch": epoch, **values}).decode()
    return _start_drain(tx, values["max_active_turns"], claim, done="claimed")


def _start_drain(tx: Tx, to: int, claim: str | None, *, done: str) -> Verdict:
    tx.db.execute(_DRAIN, (to, claim))
    journal.append(tx, "policy_drain_started", None, None, None)
    held = limits.read(tx.db)
    if held.seats > to:
        return Accepted("draining", held.view())
    end_drain(tx, held)
    return Accepted(done, limits.read(tx.db).view())


def _take_effect(tx: Tx, epoch: int, values: list[int]) -> None:
    tx.db.execute(_TAKE_EFFECT, (epoch, *values))
    journal.append(tx, "policy_claimed", None, None, None)
