"""Which result belongs to which call."""

from schemas.results import Result
from worker.client.pending import Asked, Waiting, sequence_of

ASKED = Asked("cap", "authorize", "c" * 16)


def result(command_id: str, result_id: str, outcome: str = "done") -> Result:
    return Result(
        v=1, command_id=command_id, id=result_id, at_ms=0, status="ok", outcome=outcome, data={}
    )


async def test_a_result_that_comes_before_the_acknowledgement_is_kept() -> None:
    waiting = Waiting()
    call = waiting.add(ASKED)
    waiting.offer(ASKED, result("c" * 16, "7"))
    assert not call.outcome.done()
    call.stored(7)
    assert call.outcome.result().id == "7"


async def test_an_earlier_commands_result_is_not_taken_for_a_reused_id() -> None:
    waiting = Waiting()
    call = waiting.add(ASKED)
    waiting.offer(ASKED, result("c" * 16, "1-3", "earlier"))
    call.stored(9)
    assert not call.outcome.done()
    waiting.offer(ASKED, result("c" * 16, "1-9", "own"))
    assert call.outcome.result().outcome == "own"


async def test_after_a_lost_acknowledgement_the_command_id_decides() -> None:
    waiting = Waiting()
    call = waiting.add(ASKED)
    waiting.offer(ASKED, result("c" * 16, "3"))
    call.maybe_stored()
    assert call.outcome.result().id == "3"


async def test_every_call_with_the_same_id_is_answered() -> None:
    waiting = Waiting()
    first, second = waiting.add(ASKED), waiting.add(ASKED)
    first.stored(1)
    second.stored(2)
    waiting.offer(ASKED, result("c" * 16, "1"))
    waiting.offer(ASKED, result("c" * 16, "2"))
    assert (first.outcome.result().id, second.outcome.result().id) == ("1", "2")


async def test_a_call_that_has_ended_is_forgotten() -> None:
    waiting = Waiting()
    call = waiting.add(ASKED)
    waiting.remove(call)
    waiting.offer(ASKED, result("c" * 16, "1"))
    assert not call.outcome.done()
    assert list(waiting) == []


def test_the_sequence_is_read_from_either_form_of_id() -> None:
    assert (sequence_of("12"), sequence_of("3-12"), sequence_of("x"), sequence_of("")) == (
        12, 12, -1, -1,
    )  # fmt: skip


async def test_another_planes_result_of_the_same_id_and_sequence_is_no_answer() -> None:
    waiting = Waiting()
    call = waiting.add(ASKED)
    call.stored(7)
    waiting.offer(Asked("cp", "resume", "c" * 16), result("c" * 16, "1-7"))
    assert not call.outcome.done()


async def test_an_answer_to_an_earlier_call_is_none_to_a_verb_that_is_judged_anew() -> None:
    waiting = Waiting()
    call = waiting.add(ASKED, anew=True)
    call.maybe_stored()
    waiting.offer(ASKED, result("c" * 16, "1-3", "allowed before a stop"))
    assert not call.outcome.done()
    call.stored(9)
    waiting.offer(ASKED, result("c" * 16, "1-9", "stopped"))
    assert call.outcome.result().outcome == "stopped"
