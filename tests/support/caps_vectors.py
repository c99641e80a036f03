"""The vectors of spec/caps.md, as stories; T0 is a whole second, X an hour later, minting is on."""

from collections.abc import Callable, Iterator

from tests.support.caps_steps import (
    ABSENT,
    HOUR_MS,
    K1,
    SECOND_MS,
    USER,
    A,
    B,
    Call,
    Damage,
    Show,
    Step,
    Steps,
    Story,
    Together,
    active,
    authorize,
    bump,
    confirm,
    key,
    legacy,
    reserve,
    revoke,
    stop,
    take_in,
)
from worker.caps.records import rfc3339

VECTORS: list[Story] = []
RESERVED_AND_ENDED = {"state": "revoked"}


def vector(number: int, *, brokered: bool = True) -> Callable[[Steps], Steps]:
    def add(steps: Steps) -> Steps:
        VECTORS.append(Story(steps.__name__, steps, number, brokered))
        return steps

    return add


@vector(1)
def reserved_authorizes_nothing(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    shown = {
        "state": "reserved",
        "expires_at_ms": x,
        "wire_expires_at": rfc3339(x + 1),
        "cap": 10,
        "required_version": 2,
        "generation": 0,
    }
    yield reserve(K1, x, 10, data=shown)
    yield authorize(5, x, "none-active", code="failed-precondition")


@vector(2)
def confirm_is_idempotent(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield confirm(K1, x, data={"state": "confirmed_active", "expires_at_ms": x})
    yield confirm(K1, x, "already_confirmed", data={"state": "confirmed_active"})


@vector(3)
def another_expiry_never_confirms_and_ends_nothing(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield confirm(K1, x + SECOND_MS, "expiry-mismatch", code="conflict")
    yield confirm(K1, x + 1, "expiry-mismatch", code="conflict")
    yield authorize(5, x)


@vector(4)
@vector(5)
def revoke_names_its_second_and_is_final(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield revoke(t0 + 1, "nothing-to-revoke")
    yield revoke(x, data={"expires_at_ms": x, "state": "revoked"})
    yield revoke(x, "nothing-to-revoke")
    yield confirm(K1, x, "revoked", code="failed-precondition", data=RESERVED_AND_ENDED)
    yield authorize(5, x, "none-active", code="failed-precondition")


@vector(6)
def another_cap_under_the_same_key_conflicts(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield reserve(K1, x, 99, "different-reservation", code="conflict", data={"cap": 10})


@vector(7, brokered=False)
def the_window_is_600_000_ms_and_not_one_more(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(A, x, 10, at=5)
    yield reserve(B, x, 10, at=5)
    yield confirm(A, x, at=600_005)
    yield confirm(
        B, x - SECOND_MS, "reservation-expired", code="expired", data={"state": "expired"},
        at=600_006,
    )  # fmt: skip


@vector(8)
def a_taken_second_is_passed_over(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(A, x, 10, data={"expires_at_ms": x})
    shown = {"expires_at_ms": x - SECOND_MS, "latest_expires_at_ms": x}
    yield reserve(B, x, 10, data=shown)


@vector(9)
def the_ladder_has_300_rungs(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    for rung in range(300):
        yield reserve(key(f"{rung:03d}"), x, 10, data={"expires_at_ms": x - rung * SECOND_MS})
    yield reserve(key("300"), x, 10, "no-free-second", code="resource-exhausted")


@vector(10, brokered=False)
def a_second_must_lie_in_the_future(t0: int) -> Iterator[Step]:
    yield reserve(K1, t0, 10, "no-free-second", code="resource-exhausted")
    yield reserve(K1, t0 + 500, 10, "no-free-second", code="resource-exhausted")
    yield reserve(K1, t0 + SECOND_MS, 10, data={"expires_at_ms": t0 + SECOND_MS})


@vector(11)
def the_grant_confirmed_last_supersedes(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, x, 20)
    yield confirm(B, x - SECOND_MS)
    yield Show({"active.mint_key": B, "active.cap": 20})
    yield Show({"reservation.state": "superseded", "active.mint_key": B}, mint_key=A)
    yield confirm(A, x, "superseded", code="failed-precondition", data={"state": "superseded"})
    yield revoke(x, "nothing-to-revoke")
    yield authorize(20, x - SECOND_MS)


@vector(12)
def a_revoked_grant_stays_revoked_when_another_is_confirmed(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, x, 20)
    yield revoke(x)
    yield confirm(B, x - SECOND_MS)
    yield Show({"active.mint_key": B, "reservation.state": "revoked"}, mint_key=A)


@vector(13)
def a_stop_counts_even_with_nothing_to_end(t0: int) -> Iterator[Step]:
    yield stop(data={"generation": 1, "expires_at_ms": ABSENT})
    yield Show({"generation": 1, "active": ABSENT, "authority.reason": "none-active"})


@vector(14)
def a_stop_ends_what_is_reserved(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield stop(data={"generation": 1})
    yield confirm(K1, x, "stopped", code="cancelled")
    yield confirm(K1, x + SECOND_MS, "stopped", code="cancelled")


@vector(14, brokered=False)
def a_stopped_reservation_says_so_after_its_window(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield stop()
    yield confirm(K1, x, "stopped", code="cancelled", at=600_001)
    yield confirm(K1, x + SECOND_MS, "stopped", code="cancelled", at=700_000)


@vector(15)
def after_a_stop_a_new_key_is_confirmed_under_the_new_generation(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(A, x, 10)
    yield stop()
    yield reserve(B, x - SECOND_MS, 10, data={"generation": 1})
    yield confirm(B, x - SECOND_MS, data={"generation": 1})
    yield authorize(10, x - SECOND_MS)


@vector(16)
def every_stop_counts_and_the_grant_ends_once(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield stop(data={"generation": 1, "expires_at_ms": x})
    yield stop(data={"generation": 2, "expires_at_ms": ABSENT})
    shown = {"active": ABSENT, "authority.authorizes": False, "generation": 2}
    yield Show({**shown, "reservation.state": "revoked"}, mint_key=K1)
    yield authorize(5, x, "stopped", code="cancelled")
    yield confirm(K1, x, "revoked", code="failed-precondition")


@vector(17)
def a_bump_stops_without_ending(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield bump(data={"generation": 1})
    yield authorize(5, x, "stopped", code="cancelled")
    yield revoke(x)


@vector(18)
def a_grant_that_lapsed_before_its_confirmation_changes_nothing(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, t0 + 5 * SECOND_MS, 20)
    yield confirm(
        B, t0 + 5 * SECOND_MS, "grant-lapsed", code="expired", at=5_001, data={"state": "reserved"}
    )
    yield authorize(10, x, at=5_001)


@vector(19, brokered=False)
def a_grant_lapses_at_its_expiry(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10, at=HOUR_MS - 10_000)
    yield confirm(K1, x, at=HOUR_MS - 10_000)
    yield authorize(10, x, at=HOUR_MS - 1, data={"valid_for_ms": 1})
    yield authorize(10, x, "grant-lapsed", code="expired", at=HOUR_MS)


@vector(20)
def a_cap_bounds_each_action(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield authorize(10, x, data={"valid_for_ms": 2_000, "cap": 10})
    yield authorize(10, x)
    yield authorize(11, x, "over-cap", code="failed-precondition")
    for amount in (0, -1):
        yield authorize(amount, x, "out-of-range", code="bad-request", writes_nothing=True)
    yield authorize(5, x - SECOND_MS, "grant-mismatch", code="conflict")


@vector(21)
def keys_and_seconds_are_each_persons_own(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10, data={"expires_at_ms": x})
    yield reserve(K1, x, 10, user="user-2", data={"expires_at_ms": x})


@vector(22)
def malformed_ids_are_refused_and_write_nothing(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    for user, name, reason in (
        ("user_1", K1, "bad-user"),
        ("u" * 101, K1, "bad-user"),
        ("é", K1, "bad-user"),
        (USER, "k" * 15, "bad-mint-key"),
        (USER, "k" * 101, "bad-mint-key"),
        (USER, "k" * 15 + "é", "bad-mint-key"),
    ):
        yield reserve(name, x, 10, reason, user=user, code="bad-request", writes_nothing=True)
    yield reserve("k" * 16, x, 10, user="u" * 100)
    for user in ("user_1", "u" * 101, "", "a b", "é", f"{USER}\n"):
        yield Show({}, user=user, wants="bad-token")
    for name in ("", "k" * 15, "k" * 101, "k" * 15 + " ", "k" * 15 + "é", "k" * 16 + "\n"):
        yield Show({}, mint_key=name, wants="bad-token")
    yield take_in(
        *(legacy(K1, x, user=user) for user in ("user_1", "u" * 101, "", "a b", "é", "user\n")),
        *(legacy(name, x) for name in ("", "k" * 15, "k" * 101, "a" * 16 + " ", "k" * 16 + "\n")),
        data={"imported": 0, "malformed": 11},
    )
    yield reserve(K1, x, 10, data={"expires_at_ms": x})


@vector(23)
def a_legacy_record_holds_its_floored_second(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield take_in(legacy(A, x + 137), data={"imported": 1})
    yield Show(
        {"reservation.state": "legacy", "reservation.expires_at_ms": x, "active": ABSENT},
        mint_key=A,
    )
    yield reserve(B, x, 10, data={"expires_at_ms": x - SECOND_MS})


@vector(24)
def a_legacy_key_is_never_reserved_or_confirmed(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield take_in(legacy(K1, x))
    yield reserve(K1, x, 10, "different-reservation", code="conflict", data={"state": "legacy"})
    yield confirm(K1, x, "legacy", code="failed-precondition")


@vector(25)
def a_pointer_moved_by_hand_authorizes_nothing(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(A, x)
    yield reserve(B, x, 20)
    yield confirm(B, x - SECOND_MS)
    yield Damage(f"UPDATE active_grants SET mint_key = '{A}'")
    yield authorize(5, x, "internal", code="internal")
    yield authorize(5, x - SECOND_MS, "internal", code="internal")
    yield Show({}, wants="internal")


@vector(25, brokered=False)
def a_cap_changed_by_hand_authorizes_nothing(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield Damage("UPDATE reservations SET cap = 1000000001")
    yield authorize(5, x, "internal", code="internal")
    yield Show({}, wants="internal")


@vector(26)
def a_stop_published_before_a_confirm_wins(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield reserve(K1, x, 10)
    yield Together((stop(), confirm(K1, x, "stopped", code="cancelled")))
    yield authorize(5, x, "none-active", code="failed-precondition")


@vector(27)
def an_authorization_is_judged_again_when_it_is_repeated(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    yield from active(K1, x)
    yield authorize(5, x, command_id="authorize-with-id-a")
    yield authorize(5, x, command_id="authorize-with-id-a")
    yield stop()
    yield authorize(5, x, "stopped", code="cancelled", command_id="authorize-with-id-a")


@vector(28)
def a_command_id_belongs_to_one_body_of_one_principal(t0: int) -> Iterator[Step]:
    x = t0 + HOUR_MS
    one = "one-intent-one-id"
    yield reserve(K1, x, 10, command_id=one)
    yield reserve(K1, x, 99, "command-id-reused", code="conflict", command_id=one,
                  writes_nothing=True)  # fmt: skip
    yield authorize(5, x, "none-active", code="failed-precondition", command_id="authorize-id-0001")
    yield authorize(6, x, "command-id-reused", code="conflict", command_id="authorize-id-0001")
    yield reserve(B, x, 10, by="dora", command_id=one, data={"expires_at_ms": x - SECOND_MS})
    yield Call(
        "reserve", (USER, K1), {"latest_expires_at_ms": x, "cap": 10}, "reserved", command_id=one,
        writes_nothing=True,
    )  # fmt: skip
