"""What the product can say is declared, all of it and nothing else, and explained for people."""

from typing import get_args

from schemas.admission import LossReason
from schemas.caps import WhyNot
from schemas.codes import RETRYABLE, Code
from schemas.reasons import REASONS, Retry, words
from tests.docs.said import collect


def test_every_reason_of_the_code_is_declared_with_its_codes_and_no_other() -> None:
    said = collect().errors
    declared = {(reason.word, code) for reason in REASONS.values() for code in reason.codes}
    missing = {f"{word} ({code}) of {said[word, code]}" for word, code in said.keys() - declared}
    assert not missing, "declare these in schemas/reasons"
    assert not declared - said.keys(), "nobody says these any more"


def test_every_word_for_an_end_is_declared_and_no_other() -> None:
    assert set(words.LOST) == set(get_args(LossReason))
    assert set(words.ENDED) == collect().endings
    assert set(words.CODES) == set(Code)
    assert set(get_args(WhyNot)) <= REASONS.keys()


def test_what_is_said_of_a_reason_is_whole() -> None:
    for reason in REASONS.values():
        assert reason.codes, reason.word
        assert reason.cause.endswith("."), reason.word
        assert reason.remedy.endswith("."), reason.word


def test_what_calls_itself_retryable_is_never_answered_with_a_new_command_id() -> None:
    for reason in REASONS.values():
        if RETRYABLE & set(reason.codes):
            assert reason.retry in (Retry.SAME, Retry.AGAIN), reason.word
