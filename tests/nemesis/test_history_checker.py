"""The checker against histories made by hand: good ones pass, each bad one gets its verdict."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nemesis.history import checker, events
from tests.nemesis.history.events import Json
from tests.nemesis.making import AGENT, OPERATOR, PERSON, RUNNER, START_MS, UID, Paper
from tests.nemesis.schedule import KINDS, plan

SECOND = START_MS + 3_600_000
OTHER = f"other.{UID}"


def good(paper: Paper) -> None:
    """A little of everything, all in order."""
    deadline = paper.mint("a", 1_000)
    paper.settle("a", "resumed", deadline, paper.resume("a", deadline))
    deadline = paper.mint("b", 100)
    unanswered = paper.call(RUNNER, "cp", "resume", "runs.b", {})
    paper.tick(200)
    late = paper.store(unanswered)
    view: Json = {"state": "expired", "generation": 1, "settled_at_ms": paper.now_ms}
    paper.settle("b", "expired", deadline, paper.now_ms)
    paper.result(unanswered, late, "expired", "refused", **view)
    paper.answer(unanswered, None, stored=True)

    paper.confirmed("k1", SECOND)
    paper.authorize(SECOND, 10)
    paper.authorize(SECOND, 11, "over-cap")
    paper.stop(1, ended=SECOND)
    paper.authorize(SECOND, 1, "none-active")
    paper.confirmed("k2", SECOND + 1_000, generation=1)
    paper.authorize(SECOND + 1_000, 3)

    paper.seats(1)
    fence = paper.admitted("r1")
    for verb in ("start", "intent", "active", "complete"):
        paper.act(verb, "r1", fence)
        if verb == "intent":
            paper.written("r1")
    paper.admitted("r2")
    paper.replica("w0", 9, "same")
    paper.replica("w1", 9, "same")
    paper.replica("w2", 8, "of another moment")


# Answers.


def no_result(paper: Paper) -> None:
    paper.store(paper.call(PERSON, "cap", "stop", "ann", {}))


def no_result_of_a_checkpoint_command(paper: Paper) -> None:
    paper.store(paper.call(RUNNER, "cp", "resume", "runs.x", {}))


def two_results(paper: Paper) -> None:
    number = paper.call(RUNNER, "cp", "resume", "runs.x", {})
    seq = paper.store(number)
    paper.answer(number, paper.result(number, seq, "not-found", "refused"))
    paper.result(number, seq, "not-found", "refused")


def told_otherwise(paper: Paper) -> None:
    number = paper.call(PERSON, "cap", "bump", "ann", {})
    seq = paper.store(number)
    said = paper.result(number, seq, "bumped", generation=1)
    paper.answer(number, {**said, "data": {"generation": 2}})


def told_of_a_checkpoint_otherwise(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    number = paper.call(RUNNER, "cp", "resume", "runs.a", {})
    at_ms = paper.now_ms
    view: Json = {"state": "resumed", "generation": 1, "settled_at_ms": at_ms}
    said = paper.result(number, paper.store(number), "resumed", **view)
    paper.answer(number, {**said, "data": {**view, "settled_at_ms": at_ms + 1}})
    paper.settle("a", "resumed", deadline, at_ms)


def told_before_more_had_happened(paper: Paper) -> None:
    """Another answer for one sequence: the first result was heard and never stored."""
    number = paper.call(RUNNER, "cp", "mint", "runs.a", {"deadline_at_ms": paper.now_ms + 10})
    deadline, seq = paper.now_ms + 10, paper.store(number)
    view: Json = {"state": "waiting", "generation": 1}
    said = paper.result(number, seq, "minted", **view)
    paper.events.pop()
    paper.answer(number, said)
    paper.tick(50)
    paper.settle("a", "expired", deadline, paper.now_ms)
    now: Json = {"state": "expired", "generation": 1, "settled_at_ms": paper.now_ms}
    paper.result(number, seq, "already_minted", **now)


def accepted_and_lost(paper: Paper) -> None:
    paper.answer(paper.call(PERSON, "cap", "stop", "ann", {}), None, stored=True)


def an_old_answer(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    first = paper.call(
        AGENT, "cap", "authorize", "ann", {"amount": 1, "grant_expires_at_ms": SECOND}
    )
    said = paper.result(first, paper.store(first), "allowed")
    paper.stop(1, ended=SECOND)
    again = paper.call(
        AGENT,
        "cap",
        "authorize",
        "ann",
        {"amount": 1, "grant_expires_at_ms": SECOND},
        f"command-{first:08d}",
    )
    paper.answer(again, said)
    paper.permit(again, True)


def out_of_order(paper: Paper) -> None:
    early = paper.call(PERSON, "cap", "bump", "ben", {})
    early_seq = paper.store(early)
    paper.answer(early, None)
    paper.do(PERSON, "cap", "bump", "ann", {}, "bumped", generation=1)
    said = paper.result(early, early_seq, "bumped", generation=1)
    # A new call is told what an older command led to.
    paper.answer(paper.call(PERSON, "cap", "bump", "ben", {}), said)


def a_repeat_that_differs(paper: Paper) -> None:
    paper.do(PERSON, "cap", "bump", "ann", {}, "bumped", "ok", "the-same-command", generation=1)
    paper.do(PERSON, "cap", "bump", "ann", {}, "bumped", "ok", "the-same-command", generation=2)


def heard_otherwise(paper: Paper) -> None:
    paper.settle("a", "resumed", deadline := paper.mint("a", 1_000), paper.resume("a", deadline))
    paper.events.append(
        events.Heard(
            at_ns=paper.ns,
            subject="tidegate.main.fact.cp.resumed.runs.a.1",
            body={"v": 1, "generation": 2},
        )
    )


def heard_and_never_stored(paper: Paper) -> None:
    subject = "tidegate.main.fact.cp.expired.runs.a.1"
    paper.events.append(events.Heard(at_ns=paper.ns, subject=subject, body={"v": 1}))


# Checkpoints.


def settled_twice(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    paper.settle("a", "resumed", deadline, paper.resume("a", deadline))
    paper.stored("epf", "tidegate.main.epf.runs.cp.a", {"settle": "expired"})


def no_settle_fact(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    paper.settle("a", "resumed", deadline, paper.resume("a", deadline))
    paper.events = [
        event
        for event in paper.events
        if not (isinstance(event, events.Stored) and event.kind == "epf")
    ]


def the_fact_differs(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    at_ms = paper.resume("a", deadline)
    paper.settle("a", "resumed", deadline, at_ms, settle="expired")


def observers_were_told_both(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    paper.settle("a", "resumed", deadline, paper.resume("a", deadline))
    paper.observe("a", "expired")


def a_result_contradicts(paper: Paper) -> None:
    deadline = paper.mint("a", 10)
    paper.resume("a", deadline)
    paper.tick(50)
    paper.settle("a", "expired", deadline, paper.now_ms)


def resumed_after_its_deadline(paper: Paper) -> None:
    deadline = paper.mint("a", 10)
    paper.tick(50)
    paper.resume("a", deadline)
    paper.settle("a", "resumed", deadline, deadline - 1)


def resumed_by_nobody_in_time(paper: Paper) -> None:
    """Its settlement looks timely, and no resume was stored before the deadline."""
    deadline = paper.mint("a", 10)
    paper.tick(50)
    number = paper.call(RUNNER, "cp", "resume", "runs.a", {})
    paper.store(number)
    paper.answer(number, None)
    paper.settle("a", "resumed", deadline, deadline - 1)


def a_late_repeat_of_a_timely_resume(paper: Paper) -> None:
    """In order: the same command again, after the deadline, is told what became of it."""
    deadline = paper.mint("a", 100)
    at_ms = paper.resume("a", deadline, "the-same-command")
    paper.settle("a", "resumed", deadline, at_ms)
    paper.tick(200)
    number = paper.call(RUNNER, "cp", "resume", "runs.a", {}, "the-same-command")
    seq = paper.store(number)
    view: Json = {"state": "resumed", "generation": 1, "settled_at_ms": at_ms}
    paper.answer(number, paper.result(number, seq, "resumed", **view))


def resumed_by_a_stranger(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    view: Json = {"state": "resumed", "generation": 1, "settled_at_ms": paper.now_ms}
    paper.do(OTHER, "cp", "resume", "runs.a", {}, "resumed", **view)
    paper.settle("a", "resumed", deadline, view["settled_at_ms"])


def two_resumes_won(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    at_ms = paper.resume("a", deadline)
    view: Json = {"state": "resumed", "generation": 1, "settled_at_ms": at_ms}
    paper.do(RUNNER, "cp", "resume", "runs.a", {}, "resumed", **view)
    paper.settle("a", "resumed", deadline, at_ms)


def expired_early(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    paper.settle("a", "expired", deadline, deadline)


def a_timer_that_never_fired(paper: Paper) -> None:
    status = {"state": "waiting", "deadlineGeneration": 1, "deadline": paper.mint("a", 10)}
    paper.stored("records", "$KV.tidegate_records_main.cp.runs.a.status", status)


def a_mint_that_is_gone(paper: Paper) -> None:
    paper.mint("a", 1_000)


def a_checkpoint_that_is_unknown(paper: Paper) -> None:
    paper.mint("a", 1_000)
    paper.do(RUNNER, "cp", "resume", "runs.a", {}, "not-found", "refused")


def a_generation_given_twice(paper: Paper) -> None:
    deadline = paper.mint("a", 10)
    for _ in range(2):
        view: Json = {"state": "waiting", "generation": 2}
        paper.do(RUNNER, "cp", "heartbeat", "runs.a", {}, "extended", **view)
    paper.tick(50)
    paper.settle("a", "expired", deadline, paper.now_ms)


# Caps.


def allowed_after_a_stop(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    paper.stop(1, ended=SECOND)
    paper.authorize(SECOND, 1)


def allowed_after_a_bump(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    paper.do(PERSON, "cap", "bump", "ann", {}, "bumped", generation=1)
    paper.authorize(SECOND, 1)


def allowed_after_a_revoke(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    paper.do(PERSON, "cap", "revoke", "ann", {"expires_at_ms": SECOND}, "revoked")
    paper.authorize(SECOND, 1)


def allowed_under_a_superseded_cap(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    paper.confirmed("k2", SECOND + 1_000)
    paper.authorize(SECOND, 1)


def allowed_over_the_cap(paper: Paper) -> None:
    paper.confirmed("k1", SECOND, cap=10)
    paper.authorize(SECOND, 11)


def refused_for_nothing(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    paper.authorize(SECOND, 1, "none-active")


def confirmed_after_a_stop(paper: Paper) -> None:
    view: Json = {"expires_at_ms": SECOND, "cap": 10, "generation": 0}
    body: Json = {"latest_expires_at_ms": SECOND, "cap": 10}
    paper.do(AGENT, "cap", "reserve", "ann.k1", body, "reserved", **view)
    paper.stop(1)
    confirm: Json = {"grant_expires_at_ms": SECOND}
    paper.do(AGENT, "cap", "confirm", "ann.k1", confirm, "confirmed", **view)


def a_second_given_twice(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    paper.confirmed("k2", SECOND)


def a_permit_that_outlives_the_stop(paper: Paper) -> None:
    paper.confirmed("k1", SECOND)
    number = paper.call(
        AGENT, "cap", "authorize", "ann", {"amount": 1, "grant_expires_at_ms": SECOND}
    )
    paper.answer(number, paper.result(number, paper.store(number), "allowed"))
    paper.permit(number, True, for_ms=9_000)
    paper.stop(1, ended=SECOND)


def a_stop_that_raised_nothing(paper: Paper) -> None:
    paper.stop(1)
    paper.stop(1)


# Admission.


def too_many_seats(paper: Paper) -> None:
    paper.seats(1)
    paper.admitted("r1")
    paper.admitted("r2")


def a_fence_that_did_not_grow(paper: Paper) -> None:
    paper.admitted("r1", 2)
    subject = f"tidegate.main.grant.{OTHER}.r1.2"
    body: Json = {"v": 1, "request_id": "r1", "lease_id": "1-9-9", "generation": 2}
    paper.stored("res", subject, body)


def an_old_fence_acts(paper: Paper) -> None:
    old = paper.admitted("r1")
    seq = paper.do(AGENT, "adm", "cancel", "r9", {}, "wrong-state", "refused")
    paper.journal(seq, "r1", "requeued", "admitted", "queued")
    paper.admitted("r1", 2)
    paper.act("start", "r1", old)


def an_intent_answered_from_memory(paper: Paper) -> None:
    """The second life has the turn, and the first is told its old ok again."""
    old = paper.admitted("r1")
    paper.do(AGENT, "adm", "intent", "r1", old, "dispatch_intent", "ok", "the-same-command")
    paper.admitted("r1", 2, who=OTHER)
    paper.do(AGENT, "adm", "intent", "r1", old, "dispatch_intent", "ok", "the-same-command")


def a_lost_lease_acts(paper: Paper) -> None:
    fence = paper.admitted("r1")
    seq = paper.do(AGENT, "adm", "cancel", "r9", {}, "wrong-state", "refused")
    subject = f"tidegate.main.fact.adm.lease_lost.r1.1.1-{seq}-1"
    paper.stored("res", subject, {"v": 1, "request_id": "r1", **fence})
    paper.act("start", "r1", fence)


def an_old_ok_is_repeated(paper: Paper) -> None:
    fence = paper.admitted("r1")
    seq = paper.do(AGENT, "adm", "start", "r1", fence, "starting", "ok", "the-first-start-of-all")
    paper.journal(seq, "r1", "starting", "admitted", "starting")
    seq = paper.do(AGENT, "adm", "cancel", "r9", {}, "wrong-state", "refused")
    subject = f"tidegate.main.fact.adm.lease_lost.r1.1.1-{seq}-1"
    paper.stored("res", subject, {"v": 1, "request_id": "r1", **fence})
    paper.do(AGENT, "adm", "start", "r1", fence, "starting", "ok", "the-first-start-of-all")


def somebody_elses_fence(paper: Paper) -> None:
    paper.act("start", "r1", paper.admitted("r1"), who=OTHER)


def dispatched_twice(paper: Paper) -> None:
    fence = paper.admitted("r1")
    paper.act("start", "r1", fence)
    paper.act("intent", "r1", fence)
    paper.written("r1")
    paper.written("r1")


def two_intents(paper: Paper) -> None:
    fence = paper.admitted("r1")
    paper.act("start", "r1", fence)
    paper.act("intent", "r1", fence)
    paper.act("intent", "r1", fence)


def written_before_its_intent(paper: Paper) -> None:
    fence = paper.admitted("r1")
    paper.act("start", "r1", fence)
    paper.written("r1")
    paper.act("intent", "r1", fence)


def a_row_of_the_journal_is_missing(paper: Paper) -> None:
    paper.admitted("r1")
    next(paper._journal)
    paper.admitted("r2")


def replicas_that_differ(paper: Paper) -> None:
    paper.replica("w0", 9, "one")
    paper.replica("w1", 9, "another")


def a_query_that_knows_what_was_told(paper: Paper) -> None:
    paper.asked("adm", "request", {"request_id": "r1"}, None, "not-found")
    paper.seats(1)
    paper.admitted("r1")
    paper.asked("adm", "request", {"request_id": "r1"}, {"state": "admitted", "generation": 1})
    paper.stop(1)
    paper.asked("cap", "show", {"user": "ann"}, {"generation": 1})


def a_turn_that_was_not_known_any_more(paper: Paper) -> None:
    paper.admitted("r1")
    paper.asked("adm", "request", {"request_id": "r1"}, None, "not-found")


def a_generation_of_a_turn_before(paper: Paper) -> None:
    paper.do(OPERATOR, "adm", "resolve", "r1", {}, "requeued", generation=2)
    paper.asked("adm", "request", {"request_id": "r1"}, {"state": "active", "generation": 1})


def a_turn_that_was_over(paper: Paper) -> None:
    fence = paper.admitted("r1")
    for verb in ("start", "intent", "active", "complete"):
        paper.act(verb, "r1", fence)
    paper.asked("adm", "request", {"request_id": "r1"}, {"state": "active", "generation": 1})


def a_generation_before_a_stop(paper: Paper) -> None:
    paper.stop(1)
    paper.asked("cap", "show", {"user": "ann"}, {"generation": 0})


def a_checkpoint_that_waited_again(paper: Paper) -> None:
    deadline = paper.mint("a", 1_000)
    paper.settle("a", "resumed", deadline, paper.resume("a", deadline))
    body: Json = {"endpoint": "runs", "token": "a"}
    paper.asked("cp", "show", body, {"checkpoint": {"state": "waiting"}})


BAD: list[tuple[Callable[[Paper], None], str]] = [
    (no_result, "no-result"),
    (no_result_of_a_checkpoint_command, "no-result"),
    (two_results, "two-results"),
    (told_otherwise, "answer-differs"),
    (told_of_a_checkpoint_otherwise, "answer-differs"),
    (told_of_a_checkpoint_otherwise, "answer-contradicts"),
    (told_before_more_had_happened, "answer-differs"),
    (accepted_and_lost, "lost-command"),
    (an_old_answer, "allowed-after-stop"),
    (an_old_answer, "out-of-order"),
    (out_of_order, "out-of-order"),
    (a_repeat_that_differs, "repeat-differs"),
    (heard_otherwise, "heard-otherwise"),
    (heard_and_never_stored, "heard-but-not-stored"),
    (settled_twice, "settled-twice"),
    (no_settle_fact, "fact-missing"),
    (the_fact_differs, "settlement-differs"),
    (observers_were_told_both, "observers-differ"),
    (a_result_contradicts, "answer-contradicts"),
    (resumed_after_its_deadline, "late-resume"),
    (resumed_by_nobody_in_time, "late-resume"),
    (resumed_by_a_stranger, "resumed-by-another"),
    (two_resumes_won, "resumed-twice"),
    (expired_early, "settled-early"),
    (a_timer_that_never_fired, "never-settled"),
    (a_mint_that_is_gone, "lost-mint"),
    (a_checkpoint_that_is_unknown, "forgotten"),
    (a_generation_given_twice, "generation-twice"),
    (allowed_after_a_stop, "allowed-without-cap"),
    (allowed_after_a_bump, "allowed-without-cap"),
    (allowed_after_a_revoke, "allowed-without-cap"),
    (allowed_under_a_superseded_cap, "allowed-without-cap"),
    (allowed_over_the_cap, "over-cap"),
    (refused_for_nothing, "wrong-refusal"),
    (confirmed_after_a_stop, "confirmed-after-stop"),
    (a_second_given_twice, "second-reused"),
    (a_permit_that_outlives_the_stop, "permit-past-quiet"),
    (a_stop_that_raised_nothing, "wrong-generation"),
    (too_many_seats, "seats-exceeded"),
    (a_fence_that_did_not_grow, "fence-not-grown"),
    (an_old_fence_acts, "old-fence-accepted"),
    (an_intent_answered_from_memory, "old-fence-accepted"),
    (a_lost_lease_acts, "old-fence-accepted"),
    (an_old_ok_is_repeated, "old-fence-accepted"),
    (somebody_elses_fence, "old-fence-accepted"),
    (dispatched_twice, "dispatched-twice"),
    (two_intents, "dispatched-twice"),
    (written_before_its_intent, "written-without-intent"),
    (a_row_of_the_journal_is_missing, "journal-gap"),
    (replicas_that_differ, "replicas-differ"),
    (a_turn_that_was_not_known_any_more, "stale-query"),
    (a_generation_of_a_turn_before, "stale-query"),
    (a_turn_that_was_over, "stale-query"),
    (a_generation_before_a_stop, "stale-query"),
    (a_checkpoint_that_waited_again, "stale-query"),
]


def verdicts(make: Callable[[Paper], None]) -> set[str]:
    paper = Paper()
    make(paper)
    return {violation.verdict for violation in checker.check(paper.end())}


@pytest.mark.parametrize(
    "make", [good, a_late_repeat_of_a_timely_resume, a_query_that_knows_what_was_told]
)
def test_what_is_in_order_passes(make: Callable[[Paper], None]) -> None:
    assert verdicts(make) == set()


@pytest.mark.parametrize(("make", "verdict"), BAD)
def test_what_is_wrong_gets_its_verdict(make: Callable[[Paper], None], verdict: str) -> None:
    assert verdict in verdicts(make)


def test_a_history_that_broke_off_is_no_proof() -> None:
    paper = Paper()
    good(paper)
    (violation,) = checker.check(paper.events)
    assert violation.verdict == "broke-off"


def test_a_file_is_judged_as_what_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    paper = Paper()
    good(paper)
    events.write(kept, paper.end())
    assert list(events.read(kept)) == paper.end()[:-1] + list(events.read(kept))[-1:]
    paper = Paper()
    settled_twice(paper)
    events.write(bad, paper.end())
    assert checker.main([str(kept)]) == 0
    assert checker.main([str(kept), str(bad)]) == 1
    assert "settled-twice: runs.a" in capsys.readouterr().out


def test_a_schedule_is_its_seeds() -> None:
    assert plan(7, 65, 3) == plan(7, 65, 3)
    assert plan(7, 65, 3) != plan(8, 65, 3)
    drawn = {one.fault for seed in range(60) for one in plan(seed, 65, 3)}
    assert drawn == set(KINDS), "every kind of fault is drawn"
    for one in plan(7, 65, 3):
        assert one.at_s + one.for_s < 65
