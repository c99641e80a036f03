"""The guards of caps."""

from typing import Final

from tests.nemesis.removals.guard import Edit, Guard

CAP: Final = "tests/unit/test_caps_facts.py::test_a_reservation_and_its_confirmation_are_facts"
_VECTORS: Final = "tests/unit/test_caps_vectors.py"

GUARDS: Final[tuple[Guard, ...]] = (
    Guard(
        "stop-check",
        "an authorization does not ask whether a Stop or a bump came after the grant",
        (
            Edit(
                "worker/caps/authority.py",
                "    if standing.is_stale(grant):\n        return STOPPED\n",
                "",
            ),
        ),
        (f"{_VECTORS}::test_vector[17-a_bump_stops_without_ending]",),
        CAP,
    ),
    Guard(
        "stop-ends",
        "a Stop leaves the active grant active",
        (
            Edit(
                "worker/caps/transitions.py",
                "    expires_at_ms = _end_active(tx, user)\n",
                "    expires_at_ms = None\n",
            ),
        ),
        (
            "tests/unit/test_caps_facts.py::test_a_stop_is_one_fact_and_names_what_it_ended",
            f"{_VECTORS}::test_vector[16-every_stop_counts_and_the_grant_ends_once]",
        ),
        CAP,
    ),
    Guard(
        "stop-raises-the-generation",
        "a Stop names the next generation and does not keep it",
        (
            Edit(
                "worker/caps/transitions.py",
                "        generation = generations.advance(tx.db, user, always=True)\n"
                "        quiet_after_ms",
                "        generation = (generations.current(tx.db, user) or 0) + 1\n"
                "        quiet_after_ms",
            ),
        ),
        (f"{_VECTORS}::test_vector[14-a_stop_ends_what_is_reserved]",),
        CAP,
    ),
    Guard(
        "confirm-after-stop",
        "what was reserved before a Stop is confirmed after it",
        (
            Edit(
                "worker/caps/transitions.py",
                "    if standing.is_stale(record):\n        return _not_confirmed(\n",
                "    if False:\n        return _not_confirmed(\n",
            ),
        ),
        (
            f"{_VECTORS}::test_vector[14-a_stop_ends_what_is_reserved]",
            f"{_VECTORS}::test_vector[26-a_stop_published_before_a_confirm_wins]",
        ),
        CAP,
    ),
    Guard(
        "confirm-expiry",
        "a grant of another second than the reserved one is confirmed",
        (
            Edit(
                "worker/caps/transitions.py",
                "    if body.grant_expires_at_ms != record.expires_at_ms:\n",
                "    if False:\n",
            ),
        ),
        (f"{_VECTORS}::test_vector[3-another_expiry_never_confirms_and_ends_nothing]",),
        CAP,
    ),
    Guard(
        "confirm-window",
        "a reservation older than its window is confirmed",
        (
            Edit(
                "worker/caps/transitions.py",
                "    record = windows.observe(tx, user, record)\n    if record.state == EXPIRED:\n",
                "    if record.state == EXPIRED:\n",
            ),
        ),
        (f"{_VECTORS}::test_vector[7-the_window_is_600_000_ms_and_not_one_more]",),
        CAP,
    ),
    Guard(
        "confirm-superseded",
        "an older cap is confirmed again after a later one",
        (
            Edit(
                "worker/caps/transitions.py",
                "    if record.state == SUPERSEDED or _is_elsewhere(standing, record):\n",
                "    if False:\n",
            ),
        ),
        (f"{_VECTORS}::test_row[an_active_record_whose_pointer_is_elsewhere_answers_superseded]",),
        CAP,
    ),
    Guard(
        "grant-lapsed",
        "a grant whose expiry has passed authorises",
        (
            Edit(
                "worker/caps/authority.py",
                "    if grant.second_ms <= now_ms:\n        return LAPSED\n",
                "",
            ),
        ),
        (f"{_VECTORS}::test_vector[19-a_grant_lapses_at_its_expiry]",),
        CAP,
    ),
    Guard(
        "grant-mismatch",
        "a grant authorises for another one's second",
        (
            Edit(
                "worker/caps/authority.py",
                "    if expires_at_ms is not None and expires_at_ms != grant.second_ms:\n"
                "        return MISMATCH\n",
                "",
            ),
        ),
        (f"{_VECTORS}::test_vector[20-a_cap_bounds_each_action]",),
        CAP,
    ),
    Guard(
        "over-cap",
        "an amount above the cap is authorised",
        (
            Edit(
                "worker/caps/authority.py",
                "    if amount is not None and not 0 < amount <= grant.cap:\n"
                "        return OVER_CAP\n",
                "",
            ),
        ),
        (f"{_VECTORS}::test_vector[20-a_cap_bounds_each_action]",),
        CAP,
    ),
    Guard(
        "one-grant-per-second",
        "the ladder hands out a second that is taken",
        (
            Edit(
                "worker/caps/ladder.py",
                "        if taken != candidate:\n            break\n"
                "        candidate -= ONE_SECOND_MS\n",
                "        if taken != candidate:\n            break\n",
            ),
            Edit(
                "worker/caps/schema.sql",
                "    UNIQUE (user, expires_at_ms)",
                "    CHECK (1)",
            ),
        ),
        (
            f"{_VECTORS}::test_vector[8-a_taken_second_is_passed_over]",
            f"{_VECTORS}::test_row[the_ladder_finds_a_gap]",
        ),
        CAP,
    ),
    Guard(
        "second-in-the-future",
        "a second that has passed is reserved",
        (
            Edit(
                "worker/caps/ladder.py",
                "    return candidate if candidate >= lowest and candidate > now_ms else None\n",
                "    return candidate if candidate >= lowest else None\n",
            ),
        ),
        (
            f"{_VECTORS}::test_vector[10-a_second_must_lie_in_the_future]",
            f"{_VECTORS}::test_row[the_ladder_ends_where_now_is]",
        ),
        CAP,
    ),
    Guard(
        "doubt-refuses",
        "a damaged generation counter is read as it stands",
        (
            Edit(
                "worker/caps/generations.py",
                "    if generation < 0 or complement != -1 - generation:\n"
                '        raise Corrupt("revoke_generations: a damaged counter")\n',
                "",
            ),
        ),
        (
            "tests/unit/test_caps_damage.py::test_damage_is_refused_as_internal_and_never_taken_for_nothing",
        ),
        CAP,
    ),
    Guard(
        "quiet-after",
        "a Stop does not say until when permits given before it hold",
        (
            Edit(
                "worker/caps/transitions.py",
                "    permits.give(tx.db, user, tx.now_ms + valid_for_ms)\n",
                "",
            ),
        ),
        (f"{_VECTORS}::test_row[a_permit_ends_with_the_grant_and_a_stop_says_when_it_is_quiet]",),
        CAP,
    ),
    Guard(
        "permit-from-before-it-left",
        "a client counts a permit from when it heard of it",
        (
            Edit(
                "worker/client/caps.py",
                "        ends_at_s = began + Permit.from_object(result.data).valid_for_ms / 1000\n",
                "        began = self._monotonic()\n"
                "        ends_at_s = began + Permit.from_object(result.data)"
                ".valid_for_ms / 1000\n",
            ),
        ),
        ("tests/integration/test_caps_cli.py::test_a_permit_counts_from_before_its_command_left",),
        CAP,
    ),
)
