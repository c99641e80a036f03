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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
            f"{_VECTORS}::test_vector",
            "tests/unit/test_caps_facts.py::test_a_stop_is_one_fact_and_names_what_it_ended",
        ),
        CAP,
    ),
    Guard(
        "stop-raises-the-generation",
        "a Stop names the next generation and does not keep it",
        (
            Edit(
                "worker/caps/transitions.py",
                "    generation = generations.advance(tx.db, user)\n"
                "    expires_at_ms = _end_active(tx, user)\n",
                "    generation = (generations.current(tx.db, user) or 0) + 1\n"
                "    expires_at_ms = _end_active(tx, user)\n",
            ),
        ),
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
        (f"{_VECTORS}::test_vector", f"{_VECTORS}::test_row"),
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
