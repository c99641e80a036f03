"""Errors are told apart by number, never by text."""

import pytest

from worker.bus import errors

TABLE = [
    (10071, errors.CasLost),
    (10164, errors.CasLost),
    (10037, errors.MessageAbsent),
    (10059, errors.StreamMissing),
    (10014, errors.ConsumerMissing),
    (10058, errors.NameTaken),
    (10008, errors.Unavailable),
    (10023, errors.Unavailable),
    (10039, errors.JetStreamMissing),
    (10076, errors.JetStreamMissing),
    (10203, errors.ScheduleRefused),
    (10212, errors.ScheduleRefused),
    (10223, errors.ScheduleRefused),
    *((number, errors.ScheduleRefused) for number in range(10186, 10193)),
    (10054, errors.TooLarge),
    (10201, errors.Rejected),
]


@pytest.mark.parametrize(("number", "kind"), TABLE)
def test_the_number_decides(number: int, kind: type[errors.BusError]) -> None:
    error = errors.from_api_error(
        {"code": 400, "err_code": number, "description": "stream not found"}, subject="a.b"
    )
    assert type(error) is kind
    assert error.subject == "a.b"
    assert str(number) in error.message


def test_an_unknown_number_that_means_not_now_is_unavailable() -> None:
    error = errors.from_api_error({"code": 503, "err_code": 19999, "description": "x"})
    assert type(error) is errors.Unavailable


def test_an_unknown_number_is_kept() -> None:
    error = errors.from_api_error({"code": 400, "err_code": 19999, "description": "x"})
    assert isinstance(error, errors.Rejected)
    assert error.err_code == 19999


def test_an_error_without_a_number_is_rejected() -> None:
    assert isinstance(errors.from_api_error({"description": "x"}), errors.Rejected)


def test_stream_missing_is_never_absence() -> None:
    assert not issubclass(errors.StreamMissing, errors.MessageAbsent)
    assert not issubclass(errors.MessageAbsent, errors.StreamMissing)


def test_unknown_is_a_kind_of_unavailable_but_not_the_reverse() -> None:
    assert issubclass(errors.Unknown, errors.Unavailable)
    assert errors.Unavailable().reason != errors.Unknown().reason
