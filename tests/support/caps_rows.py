"""Rows of the tables of spec/caps.md that no vector tells, as stories."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.support.caps_steps import (
    ABSENT,
    HOUR_MS,
    K1,
    SECOND_MS,
    A,
    B,
    Damage,
    Show,
    Step,
    Steps,
    Story,
    active,
    authorize,
    bump,
    confirm,
    key,
    minting,
    reserve,
    revoke,
    stop,
)

ROWS: list[Story] = []


def row(*, brokered: bool = True) -> Callable[[Steps], Steps]:
    def add(steps: Steps) -> Steps:
        ROWS.append(Story(steps.__name__, steps, brokered=brokered))
        return steps

    return add


@row()
def paused_minting_refuses_reserve_only(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, x - 5 * SECOND_MS, 20)
    yield minting(False, data={"enabled": False, "permit_ms": 2_000})
    yield reserve(K1, x, 10, "minting-paused", code="failed-precondition", writes_nothing=True)
    yield reserve(B, x - 5 * SECOND_MS, 20, "minting-paused", code="failed-precondition")
    yield confirm(B, x - 5 * SECOND_MS)
    yield authorize(20, x - 5 * SECOND_MS)
    yield revoke(x - 5 * SECOND_MS)
    yield stop(data={"generation": 1})
    yield minting(True)
    yield reserve(K1, x - 60 * SECOND_MS, 10)


@row()
def reserve_is_idempotent_by_the_requested_second(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(A, x, 10)
    yield reserve(B, x + 137, 10, data={"expires_at_ms": x - SECOND_MS})
    yield reserve(
        B, x + 999, 10, "already_reserved", writes_nothing=True,
        data={"expires_at_ms": x - SECOND_MS, "latest_expires_at_ms": x + 137},
    )  # fmt: skip
    yield reserve(B, x - SECOND_MS, 10, "different-reservation", code="conflict")
    yield reserve(B, x + SECOND_MS, 10, "different-reservation", code="conflict")


@row()
def a_key_is_never_free_again(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(A, x, 10, "already_reserved", data={"state": "confirmed_active"})
    yield revoke(x)
    yield reserve(A, x, 10, "already_reserved", data={"state": "revoked"})
    yield reserve(B, x, 10, data={"expires_at_ms": x - SECOND_MS})


@row(brokered=False)
def an_expired_reservation_keeps_its_key_and_its_second(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(A, x, 10)
    yield reserve(A, x, 10, "already_reserved", data={"state": "reserved"}, at=600_000)
    yield reserve(
        A, x, 10, "already_reserved", at=600_001,
        data={"state": "expired", "ended_at_ms": t0 + 600_001},
    )  # fmt: skip
    yield confirm(A, x, "reservation-expired", code="expired", at=600_002)
    yield reserve(B, x, 10, data={"expires_at_ms": x - SECOND_MS}, at=600_003)


@row(brokered=False)
def the_ladder_ends_where_now_is(t0: int) -> Iterator[Step]:
    latest = t0 + 3 * SECOND_MS
    for rung in range(3):
        yield reserve(key(f"{rung:03d}"), latest, 10, at=500,
                      data={"expires_at_ms": latest - rung * SECOND_MS})  # fmt: skip
    yield reserve(key("late"), latest, 10, "no-free-second", code="resource-exhausted", at=500)


@row()
def the_ladder_finds_a_gap(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(key("000"), x, 10)
    yield reserve(key("001"), x - 2 * SECOND_MS, 10, data={"expires_at_ms": x - 2 * SECOND_MS})
    yield reserve(key("002"), x, 10, data={"expires_at_ms": x - SECOND_MS})
    yield reserve(key("003"), x, 10, data={"expires_at_ms": x - 3 * SECOND_MS})


@row()
def what_was_never_reserved_is_not_confirmed(t0: int) -> Iterator[Step]:
    yield confirm(K1, t0 + HOUR_MS, "unreserved", code="not-found", writes_nothing=True)


@row()
def a_mismatch_may_be_retried_while_reserved(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield confirm(K1, x + 1, "expiry-mismatch", code="conflict", writes_nothing=True)
    yield confirm(K1, x)


@row()
def confirming_again_is_judged_again(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield bump()
    yield confirm(K1, x, "stopped", code="cancelled")


@row()
def a_confirm_after_a_stop_that_ended_the_grant_answers_revoked(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield stop()
    yield confirm(K1, x, "revoked", code="failed-precondition", data={"state": "revoked"})


@row(brokered=False)
def a_mismatch_comes_before_the_window(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield confirm(K1, x + 1, "expiry-mismatch", code="conflict", at=600_001)
    yield confirm(K1, x, "reservation-expired", code="expired", at=600_001)
    yield confirm(K1, x, "reservation-expired", code="expired", at=600_002)


@row(brokered=False)
def a_lapsed_grant_is_told_before_its_window(t0: int) -> Iterator[Step]:
    yield reserve(K1, t0 + 5_000, 10)
    yield confirm(K1, t0 + 5_000, "grant-lapsed", code="expired", at=700_000)
    yield confirm(K1, t0 + 4_000, "expiry-mismatch", code="conflict", at=700_000)


@row(brokered=False)
def a_lapsed_active_grant_is_not_confirmed_again(t0: int) -> Iterator[Step]:
    yield reserve(K1, t0 + 5_000, 10)
    yield confirm(K1, t0 + 5_000, at=4_999)
    yield confirm(K1, t0 + 5_000, "grant-lapsed", code="expired", at=5_000)


@row(brokered=False)
def an_active_record_whose_pointer_is_elsewhere_answers_superseded(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, x, 20)
    yield confirm(B, x - SECOND_MS)
    yield Damage(f"UPDATE active_grants SET mint_key = '{A}'")
    yield confirm(B, x - SECOND_MS, "superseded", code="failed-precondition")


@row(brokered=False)
def revoke_works_after_expiry(t0: int) -> Iterator[Step]:
    yield reserve(K1, t0 + 5_000, 10)
    yield confirm(K1, t0 + 5_000)
    yield revoke(t0 + 5_001, "nothing-to-revoke", at=5_500)
    yield revoke(t0 + 5_000, at=5_500, data={"ended_at_ms": t0 + 5_500})


@row()
def after_a_revoke_what_is_in_flight_may_still_confirm(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, x, 20)
    yield revoke(x)
    yield authorize(5, x, "none-active", code="failed-precondition")
    yield confirm(B, x - SECOND_MS)
    yield authorize(20, x - SECOND_MS)


@row(brokered=False)
def a_permit_ends_with_the_grant_and_a_stop_says_when_it_is_quiet(t0: int) -> Iterator[Step]:
    x = t0 + 10_000
    yield reserve(K1, x, 10)
    yield confirm(K1, x)
    yield stop(user="user-2", data={"quiet_after_ms": t0}, at=0)
    yield authorize(1, x, at=7_000, data={"valid_for_ms": 2_000})
    yield authorize(1, x, at=9_500, data={"valid_for_ms": 500})
    yield authorize(11, x, "over-cap", code="failed-precondition", at=9_900)
    yield stop(at=9_900, data={"quiet_after_ms": x})
    yield stop(at=30_000, data={"quiet_after_ms": t0 + 30_000})


@row(brokered=False)
def a_shorter_permit_given_later_does_not_end_a_longer_one(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield authorize(1, x, at=100, data={"valid_for_ms": 2_000})
    yield replace(minting(True, at=200), body={"enabled": True, "permit_ms": 50})
    yield authorize(1, x, at=300, data={"valid_for_ms": 50})
    yield stop(at=400, data={"quiet_after_ms": t0 + 2_100})


@row()
def a_shorter_permit_is_a_setting(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield Show({"settings": {"enabled": True, "permit_ms": 2_000}})
    call = minting(True)
    shorter = {"enabled": True, "permit_ms": 1_500}
    yield replace(call, body=shorter, data=shorter)
    yield minting(True, data=shorter)
    yield authorize(1, x, data={"valid_for_ms": 1_500})
    for permit_ms, reason in ((0, "out-of-range"), (2_001, "out-of-range"), (True, "wrong-type")):
        body = {"enabled": True, "permit_ms": permit_ms}
        yield replace(call, body=body, wants=reason, code="bad-request", writes_nothing=True)


@row(brokered=False)
def a_grant_that_needs_a_newer_ruleset_is_refused(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield Damage("UPDATE reservations SET required_version = 99")
    yield authorize(5, x, "ruleset-too-new", code="unsupported-version")
    yield Show({"authority.authorizes": False, "authority.reason": "ruleset-too-new"})


@row()
def the_query_answers_as_authorize_would(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    authority = {"authorizes": True, "cap": 10, "expires_at_ms": x}
    yield Show({"authority": {"authorizes": False, "reason": "none-active"}, "generation": 0})
    yield from active(K1, x)
    yield Show({"authority": authority, "active.mint_key": K1, "reservation": ABSENT})
    yield Show({"authority": authority, "reservation": ABSENT}, mint_key=B)
    yield bump()
    yield Show({"authority": {**authority, "authorizes": False, "reason": "stopped"}})
    yield stop()
    yield Show({"authority": {"authorizes": False, "reason": "stopped"}, "active": ABSENT})


@row()
def bodies_are_checked_by_name(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    for cap, reason in (
        (0, "out-of-range"),
        (-1, "out-of-range"),
        (1_000_000_001, "out-of-range"),
        (True, "wrong-type"),
        (10.0, "wrong-type"),
        ("10", "wrong-type"),
    ):
        call = reserve(K1, x, 10, reason, code="bad-request", writes_nothing=True)
        yield replace(call, body={"latest_expires_at_ms": x, "cap": cap})
    yield reserve(K1, 253_402_300_800_000, 10, "out-of-range", code="bad-request")
    yield reserve(A, 253_402_300_799_999, 1, data={"wire_expires_at": "9999-12-31T23:59:59.001Z"})
    yield reserve(B, x, 1_000_000_000)
