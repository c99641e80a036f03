"""The table of requests in flight."""

import asyncio

import pytest

from worker.bus.errors import Denied, Unavailable, Unknown
from worker.bus.requests import Requests


async def test_an_answer_finds_its_request() -> None:
    requests = Requests(asyncio.get_running_loop())
    first, one = requests.begin("a", 1_000)
    second, two = requests.begin("a", 1_000)
    requests.answer(second, b"", b"2")
    requests.answer(first, b"h", b"1")
    assert await one == (b"h", b"1")
    assert await two == (b"", b"2")
    assert len(requests) == 0


async def test_each_request_times_out_on_its_own_clock() -> None:
    requests = Requests(asyncio.get_running_loop())
    loop = asyncio.get_running_loop()
    started = loop.time()
    _, slow = requests.begin("slow", 300)
    _, fast = requests.begin("fast", 30)
    with pytest.raises(Unknown) as caught:
        await fast
    assert 0.025 < loop.time() - started < 0.2
    assert caught.value.subject == "fast"
    assert not slow.done()
    with pytest.raises(Unknown):
        await slow
    assert 0.29 < loop.time() - started < 0.8
    assert len(requests) == 0


async def test_a_late_answer_is_dropped() -> None:
    requests = Requests(asyncio.get_running_loop())
    token, future = requests.begin("a", 10)
    with pytest.raises(Unknown):
        await future
    requests.answer(token, b"", b"late")


async def test_a_cancelled_request_takes_no_answer() -> None:
    requests = Requests(asyncio.get_running_loop())
    token, future = requests.begin("a", 1_000)
    future.cancel()
    requests.answer(token, b"", b"x")
    assert len(requests) == 0


async def test_nobody_serving_is_unavailable_and_not_unknown() -> None:
    requests = Requests(asyncio.get_running_loop())
    token, future = requests.begin("a", 1_000)
    requests.answer(token, b"NATS/1.0 503\r\n\r\n", b"")
    with pytest.raises(Unavailable) as caught:
        await future
    assert not isinstance(caught.value, Unknown)


async def test_an_answer_that_only_looks_like_nobody_serving_is_an_answer() -> None:
    requests = Requests(asyncio.get_running_loop())
    token, future = requests.begin("a", 1_000)
    requests.answer(token, b"NATS/1.0 503\r\n\r\n", b"data")
    assert (await future)[1] == b"data"


async def test_a_lost_connection_makes_all_unknown() -> None:
    requests = Requests(asyncio.get_running_loop())
    futures = [requests.begin(f"s{n}", 1_000)[1] for n in range(3)]
    requests.fail_all("gone")
    for future in futures:
        with pytest.raises(Unknown, match="gone"):
            await future


async def test_a_denial_fails_only_its_subject() -> None:
    requests = Requests(asyncio.get_running_loop())
    _, mine = requests.begin("a", 1_000)
    _, other = requests.begin("b", 1_000)
    assert requests.fail_subject("a", Denied(subject="a")) == 1
    with pytest.raises(Denied):
        await mine
    assert not other.done()
    requests.fail_all("end")
    other.exception()


async def test_the_lanes_do_not_grow_with_answered_requests() -> None:
    requests = Requests(asyncio.get_running_loop())
    for _ in range(1_000):
        token, future = requests.begin("a", 60_000)
        requests.answer(token, b"", b"")
        await future
    assert sum(len(lane) for lane in requests._lanes.values()) <= 2
    requests.fail_all("end")
