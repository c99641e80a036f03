"""Silence, by the instants: who is deaf suspects nobody."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.subjects import Speaker
from worker.evidence.liveness import FORGET_MS, RETRY_MS, Change, Watch

ALICE = Speaker("alice", "a" * 26)
BOB = Speaker("bob", "b" * 26)
START = 10_000


def hearing(*, until: int, step: int = 500, start: int = START) -> Watch:
    """A watch whose own beats come back from ``start`` to ``until``, and that looks all along."""
    watch = Watch(start)
    hear(watch, start, until, step=step)
    return watch


def hear(watch: Watch, start: int, until: int, *, step: int = 500) -> None:
    for now in range(start, until + 1, step):
        watch.own_beat(now)
        watch.look(now)


def settle(watch: Watch, now: int) -> list[Change]:
    """Look and report everything."""
    changes = watch.look(now)
    for change in changes:
        watch.reported(change)
    return changes


def silent_at(watch: Watch, now: int, owner: Speaker = ALICE) -> bool:
    return any(c.owner == owner and c.state == "silent" for c in watch.look(now))


@pytest.mark.parametrize(("silence", "silent"), [(3_999, False), (4_000, False), (4_001, True)])
def test_four_seconds_are_fresh_and_a_millisecond_more_is_silence(
    silence: int, silent: bool
) -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    hear(watch, START + 500, START + 3_500)
    watch.own_beat(START + silence)
    assert silent_at(watch, START + silence) is silent


def test_silence_is_counted_up_to_the_last_own_beat_that_came_back() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    hear(watch, START + 500, START + 4_000)
    assert not silent_at(watch, START + 4_900)
    watch.own_beat(START + 4_500)
    assert silent_at(watch, START + 5_000)


def test_an_observer_that_never_heard_itself_suspects_nobody() -> None:
    watch = Watch(START)
    watch.beat(ALICE, START)
    assert not any(silent_at(watch, now) for now in range(START, START + 60_000, 500))


def test_before_the_first_own_beat_nothing_is_counted() -> None:
    watch = Watch(START)
    watch.beat(ALICE, START)
    for now in range(START, START + 3_000, 500):
        watch.look(now)
    hear(watch, START + 3_000, START + 7_000)
    assert not silent_at(watch, START + 7_000)
    watch.own_beat(START + 7_001)
    assert silent_at(watch, START + 7_001)


def test_own_beats_too_far_apart_prove_nothing_between_them() -> None:
    watch = hearing(until=START + 1_000)
    watch.beat(ALICE, START)
    watch.own_beat(START + 3_001)  # 2,001 ms after the last
    for now in range(START + 1_250, START + 7_001, 250):
        watch.look(now)
    hear(watch, START + 3_501, START + 7_001)
    assert not silent_at(watch, START + 7_001)
    watch.own_beat(START + 7_002)
    assert silent_at(watch, START + 7_002)


@pytest.mark.parametrize(("gap", "silent"), [(1_000, True), (1_001, False)])
def test_a_stalled_observer_begins_anew(gap: int, silent: bool) -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    hear(watch, START + 500, START + 3_000)
    watch.own_beat(START + 3_500)
    watch.look(START + 3_000 + gap)
    watch.own_beat(START + 4_100)
    assert silent_at(watch, START + 4_300) is silent
    if not silent:
        hear(watch, START + 4_600, START + 8_100)
        assert not silent_at(watch, START + 8_100)
        watch.own_beat(START + 8_601)
        assert silent_at(watch, START + 8_601)


def test_after_a_reconnect_own_beats_sent_before_it_count_no_more() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    hear(watch, START + 500, START + 3_500)
    watch.disturbed(START + 3_900)
    since = [watch.hearing_since_ms]
    for sent in (START + 3_800, START + 4_100):
        watch.own_beat(sent)
        since.append(watch.hearing_since_ms)
    assert since == [None, None, START + 4_100]
    assert not silent_at(watch, START + 4_400)
    assert watch.disturbances == 1


def test_silence_that_was_found_before_a_reconnect_stays_to_be_reported() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    settle(watch, START)
    hear(watch, START + 500, START + 4_500)
    watch.disturbed(START + 4_600)
    assert watch.look(START + 4_700) == [Change(ALICE, "silent", START)]


def test_the_next_beat_makes_alive() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    settle(watch, START)
    hear(watch, START + 500, START + 4_500)
    assert settle(watch, START + 4_500) == [Change(ALICE, "silent", START)]
    assert settle(watch, START + 4_750) == []
    watch.beat(ALICE, START + 4_800)
    assert settle(watch, START + 4_800) == [Change(ALICE, "alive", START + 4_800)]
    assert settle(watch, START + 5_000) == []


def test_an_owner_is_watched_from_its_first_beat_and_announced_with_it() -> None:
    watch = hearing(until=START + 60_000)
    assert len(watch) == 0
    watch.beat(BOB, START + 60_000)
    assert settle(watch, START + 60_100) == [Change(BOB, "alive", START + 60_000)]


def test_one_owners_beat_says_nothing_about_another() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    watch.beat(BOB, START)
    for now in range(START + 500, START + 4_501, 500):
        watch.beat(BOB, now)
        watch.own_beat(now)
        watch.look(now)
    assert silent_at(watch, START + 4_501)
    assert not silent_at(watch, START + 4_501, BOB)


def test_a_report_that_failed_is_offered_again_after_a_while() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    (change,) = watch.look(START)
    watch.not_reported(change, START)
    assert watch.look(START + RETRY_MS - 1) == []
    assert watch.look(START + RETRY_MS) == [change]


def test_a_report_of_silence_that_may_have_landed_is_corrected_by_the_next_beat() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    settle(watch, START)
    hear(watch, START + 500, START + 4_500)
    (silent,) = watch.look(START + 4_500)
    watch.beat(ALICE, START + 4_600)
    watch.not_reported(silent, START + 4_700)
    assert watch.look(START + 4_700 + RETRY_MS) == [Change(ALICE, "alive", START + 4_600)]


def test_a_beat_while_silence_is_being_reported_is_reported_too() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    settle(watch, START)
    hear(watch, START + 500, START + 4_500)
    (silent,) = watch.look(START + 4_500)
    watch.beat(ALICE, START + 4_600)
    watch.reported(silent)
    assert watch.look(START + 4_700) == [Change(ALICE, "alive", START + 4_600)]


def test_who_is_silent_for_long_is_forgotten_and_known_again_with_a_beat() -> None:
    watch = hearing(until=START)
    watch.beat(ALICE, START)
    settle(watch, START)
    for now in range(START + 500, START + FORGET_MS + 1_001, 500):
        watch.own_beat(now)
        settle(watch, now)
    assert len(watch) == 0
    watch.beat(ALICE, START + FORGET_MS + 2_000)
    (change,) = watch.look(START + FORGET_MS + 2_000)
    assert change.state == "alive"


def test_the_policys_silence_is_the_one_that_counts() -> None:
    watch = hearing(until=START)
    watch.silence_ms = 500
    watch.beat(ALICE, START)
    watch.own_beat(START + 500)
    assert not silent_at(watch, START + 500)
    watch.own_beat(START + 501)
    assert silent_at(watch, START + 501)


steps = st.lists(
    st.tuples(
        st.sampled_from(["own"] * 24 + ["look"] * 4 + ["beat", "reconnect", "stall"]),
        st.integers(min_value=1, max_value=1_000),
    ),
    min_size=20,
    max_size=120,
)


@given(steps=steps)
def test_whoever_is_called_silent_was_not_heard_in_four_proven_seconds(
    steps: list[tuple[str, int]],
) -> None:
    """Against an oracle that keeps every event and looks for the proof itself."""
    watch = Watch(0)
    watch.beat(ALICE, 0)
    now = heard = looked = 0
    owns: list[int] = []
    breaks: list[int] = [0]
    for kind, passed in steps:
        now += passed if kind != "stall" else passed + 1_000
        if kind == "own":
            owns.append(now)
            watch.own_beat(now)
        elif kind == "beat":
            heard = now
            watch.beat(ALICE, now)
        elif kind == "reconnect":
            breaks.append(now)
            watch.disturbed(now)
        if kind in ("look", "stall") or passed % 3 == 0:
            if now - looked > 1_000:
                breaks.append(now)
            looked = now
            for change in watch.look(now):
                if change.state == "silent":
                    counted = [sent for sent in owns if sent >= max(breaks)]
                    first = counted[0]
                    for before, after in itertools.pairwise(counted):
                        if after - before > 2_000:
                            first = after
                    assert counted[-1] - max(heard, first) > 4_000
                    watch.reported(change)
