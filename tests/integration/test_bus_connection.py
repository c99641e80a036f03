"""A connection on a real server: every way it can fail, and none it may hide."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.bus_server import connected, eventually, free_port, freeze, new_place
from tests.support.frames import Passing, frames_to
from tests.support.server import Server
from worker.bus import conf
from worker.bus.connection import Connection
from worker.bus.errors import (
    Denied,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unknown,
)
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions
from worker.bus.subscription import Msg

MakeServer = Callable[..., Server]


async def test_a_request_is_answered(server: Server) -> None:
    async with connected(server.worker_options()) as c:

        async def echo(msg: Msg) -> None:
            await c.publish(msg.reply, msg.data, headers={"X": msg.headers["X"]})

        await c.subscribe("echo.>", echo)
        answer = await c.request("echo.a", b"hi", headers={"X": "ü"})
        assert answer.data == b"hi"
        assert answer.headers == {"X": "ü"}
        assert c.connected
        assert c.server_version >= (2, 14, 3)
        assert c.max_payload == 1024 * 1024
        assert c.rtt_ms is not None


async def test_a_subject_that_nobody_serves_is_unavailable_at_once(server: Server) -> None:
    async with connected(server.worker_options()) as c:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            await c.request("nobody.here")
        assert not isinstance(caught.value, Unknown)
        assert time.monotonic() - started < 1


async def test_no_answer_in_time_is_unknown(server: Server) -> None:
    async with connected(server.worker_options()) as c:

        async def silent(msg: Msg) -> None:
            pass

        await c.subscribe("silent", silent)
        with pytest.raises(Unknown):
            await c.request("silent", timeout_ms=50)
        assert c.in_flight == 0


async def test_a_cancelled_request_leaves_the_connection_working(server: Server) -> None:
    async with connected(server.worker_options()) as c:

        async def late(msg: Msg) -> None:
            await asyncio.sleep(0.05)
            await c.publish(msg.reply, b"late")

        await c.subscribe("late", late)
        task = asyncio.create_task(c.request("late"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await c.request("late")).data == b"late"


async def test_a_callback_that_raises_goes_on_being_called(server: Server) -> None:
    async with connected(server.worker_options()) as c:
        seen: list[bytes] = []

        async def fussy(msg: Msg) -> None:
            seen.append(msg.data)
            if msg.data == b"bad":
                raise RuntimeError

        await c.subscribe("fussy", fussy)
        for body in (b"1", b"bad", b"2"):
            await c.publish("fussy", body)
        await eventually(lambda: len(seen) == 3)
        assert seen == [b"1", b"bad", b"2"]
        assert c.connected


async def test_unsubscribing_ends_the_messages(server: Server) -> None:
    async with connected(server.worker_options()) as c:
        seen: list[bytes] = []

        async def note(msg: Msg) -> None:
            seen.append(msg.data)

        subscription = await c.subscribe("once", note)
        await c.publish("once", b"1")
        await eventually(lambda: len(seen) == 1)
        await subscription.unsubscribe()
        await c.publish("once", b"2")
        await c.flush()
        with pytest.raises(Unavailable):
            await c.request("once")
        assert seen == [b"1"]


async def test_a_queue_group_shares_the_messages(server: Server) -> None:
    async with connected(server.worker_options()) as c:
        seen: list[int] = []

        def member(number: int) -> Callable[[Msg], asyncio.Future[None]]:
            async def take(msg: Msg) -> None:
                seen.append(number)

            return take  # type: ignore[return-value]  # an async def is an awaitable callback

        await c.subscribe("work", member(1), queue="q")
        await c.subscribe("work", member(2), queue="q")
        for _ in range(20):
            await c.publish("work", b"")
        await c.flush()
        await eventually(lambda: len(seen) == 20)


async def test_a_message_over_max_payload_is_refused_and_the_connection_stays(
    server: Server,
) -> None:
    async with connected(server.worker_options()) as c:
        with pytest.raises(TooLarge):
            await c.publish("a", b"x" * (c.max_payload + 1))
        with pytest.raises(TooLarge):
            await c.request("a", b"x" * c.max_payload, headers={"X": "1"})
        await c.flush()
        assert c.reconnects == 0


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0\r\n\r\n", "a\t"])
async def test_a_subject_cannot_smuggle_an_operation(server: Server, subject: str) -> None:
    async with connected(server.worker_options()) as c:
        with pytest.raises(ValueError, match="subject"):
            await c.publish(subject, b"")
        await c.flush()


async def test_wrong_credentials_are_told_from_a_broker_that_is_away(server: Server) -> None:
    with pytest.raises(Unauthenticated):
        await Connection.open(replace(server.worker_options(), password="wrong"), name="t")
    away = ConnectOptions((f"nats://127.0.0.1:{free_port()}",))
    with pytest.raises(Unavailable) as caught:
        await Connection.open(away, name="t")
    assert "cannot be reached" in caught.value.message


async def test_the_second_server_is_tried(server: Server) -> None:
    servers = (f"nats://127.0.0.1:{free_port()}", server.url)
    async with connected(server.worker_options(), servers=servers) as c:
        assert c.connected


async def test_a_server_that_accepts_and_says_nothing_is_given_up(server: Server) -> None:
    silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            await Connection.open(
                ConnectOptions((f"nats://127.0.0.1:{port}",), connect_timeout_ms=300), name="t"
            )
        assert time.monotonic() - started < 3
    finally:
        silent.close()


async def test_it_waits_for_a_broker_that_comes_later(own_server: MakeServer) -> None:
    server = own_server("main")
    server.port = free_port()
    c = await Connection.open(server.worker_options(), name="t", required=False)
    try:
        seen: list[bytes] = []

        async def note(msg: Msg) -> None:
            seen.append(msg.data)

        await c.subscribe("early", note)
        assert not c.connected
        with pytest.raises(Unavailable, match="not connected"):
            await c.request("a")
        await asyncio.to_thread(server.start)
        assert await c.wait_connected(10_000)
        await c.publish("early", b"1")
        await eventually(lambda: seen == [b"1"])
    finally:
        await c.close()


async def test_a_restart_of_the_broker_is_survived(own_server: MakeServer) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        hooked: list[object] = []

        async def hook(client: object) -> None:
            hooked.append(client)

        async def echo(msg: Msg) -> None:
            await c.publish(msg.reply, msg.data)

        await c.subscribe("echo", echo)
        await c.on_connect(hook)
        for round_ in range(1, 3):
            await asyncio.to_thread(server.stop)
            await eventually(lambda: not c.connected)
            with pytest.raises(Unavailable):
                await c.request("echo", b"1")
            await asyncio.to_thread(server.start)
            assert await c.wait_connected(10_000)
            assert (await c.request("echo", b"2")).data == b"2"
            assert c.reconnects == round_
        assert len(set(map(id, hooked))) == 3
        assert not c.closed.done()


async def test_what_begins_or_ends_while_a_connection_is_being_made_counts_on_it(
    server: Server,
) -> None:
    seen: list[bytes] = []

    async def note(msg: Msg) -> None:
        seen.append(msg.data)

    async with (
        frames_to(server.port) as link,
        connected(server.worker_options()) as other,
        connected(server.worker_options(), servers=(link.url,)) as c,
    ):
        ended = await c.subscribe("ended", note)

        def proof(passing: Passing) -> bool:
            """The ping that follows the subscriptions."""
            verbs = [before.frame.verb for before in link.passed[-2:]]
            return verbs == [b"SUB", b"PING"]

        held = link.rule("hold", proof)
        link.cut()
        await held.met.wait()
        await c.subscribe("begun", note)
        await ended.unsubscribe()
        held.release()
        assert await c.wait_connected(10_000)
        await c.flush()
        await other.publish("begun", b"1")
        await eventually(lambda: seen == [b"1"])
        with pytest.raises(Unavailable):
            await other.request("ended")


async def test_what_was_in_flight_when_the_broker_died_is_unknown(own_server: MakeServer) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:

        async def silent(msg: Msg) -> None:
            pass

        await c.subscribe("silent", silent)
        asked = [asyncio.create_task(c.request("silent", timeout_ms=60_000)) for _ in range(5)]
        await c.flush()
        await asyncio.to_thread(server.kill)
        for task in asked:
            with pytest.raises(Unknown):
                await task


async def test_nothing_is_sent_later_than_it_was_asked_for(own_server: MakeServer) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        place = await new_place(JetStream(c))
        await freeze(server.pid)
        big = b"x" * 1_000_000
        lost = [
            asyncio.create_task(place.js.publish(place.subject(n), big, timeout_ms=200))
            for n in range(10)
        ]
        for task in lost:
            with pytest.raises(Unknown):
                await task
        await asyncio.to_thread(server.kill)
        await eventually(lambda: not c.connected)
        for n in range(3):
            with pytest.raises(Unavailable):
                await place.js.publish(place.subject(n), b"")
        await asyncio.to_thread(server.start)
        assert await c.wait_connected(10_000)
        await c.flush()
        assert (await place.js.stream_info(place.stream)).messages == 0


async def test_a_broker_that_stopped_answering_is_left(own_server: MakeServer) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    options = replace(server.worker_options(), watchdog_interval_ms=100, connect_timeout_ms=500)
    async with connected(options) as c:
        await freeze(server.pid)
        try:
            await eventually(lambda: not c.connected)
            assert "ping" in c.last_error
        finally:
            server.send(signal.SIGCONT)
        assert await c.wait_connected(10_000)


async def test_a_refused_publish_is_denied_at_once(tmp_path: Path) -> None:
    users = [
        conf.User("worker", "w", "W"),
        conf.User("some", "s", "W", publish=("ok.>",), subscribe=("_INBOX.>", "ok.>")),
    ]
    server = Server(
        tmp_path, conf.render([], users, store_dir=tmp_path / "s", listen="127.0.0.1:-1")
    )
    await asyncio.to_thread(server.start)
    try:
        async with connected(ConnectOptions((server.url,), user="some", password="s")) as c:
            heard: list[Denied] = []
            c.on_denied("secret.b", heard.append)
            started = time.monotonic()
            with pytest.raises(Denied) as caught:
                await c.request("secret.A", timeout_ms=5_000)
            assert caught.value.subject == "secret.A"
            with pytest.raises(Denied):
                await JetStream(c).publish("secret.c", b"")
            with pytest.raises(Denied):
                await JetStream(c).stream_info("S")
            await c.publish("secret.b", b"")
            await eventually(lambda: len(heard) == 1)

            async def never(msg: Msg) -> None:
                raise AssertionError

            with pytest.raises(Denied):
                await c.subscribe("secret.>", never)
            assert time.monotonic() - started < 2
            assert c.denials == 5
            assert c.connected
            with pytest.raises(Unavailable):
                await c.request("ok.x")
    finally:
        server.kill()


async def test_a_right_taken_away_at_run_time_is_denied_at_once(tmp_path: Path) -> None:
    def text(*publish: str) -> str:
        users = [conf.User("some", "s", "W", publish=publish, subscribe=(">",))]
        return conf.render([], users, store_dir=tmp_path / "s", listen="127.0.0.1:-1")

    server = Server(tmp_path, text(">"))
    await asyncio.to_thread(server.start)
    try:
        async with connected(ConnectOptions((server.url,), user="some", password="s")) as c:
            place = await new_place(JetStream(c))
            await place.js.publish(place.subject(), b"")
            server.rewrite(text("$JS.>").replace("127.0.0.1:-1", f"127.0.0.1:{server.port}"))
            server.reload()

            async def denied() -> bool:
                try:
                    await place.js.publish(place.subject(), b"", timeout_ms=2_000)
                except Denied:
                    return True
                except Unavailable:
                    return False
                return False

            await eventually(denied)
    finally:
        server.kill()


async def test_a_user_that_may_not_listen_for_answers_is_refused_at_open(tmp_path: Path) -> None:
    users = [conf.User("some", "s", "W", publish=(">",), subscribe=("mine.>",))]
    server = Server(
        tmp_path, conf.render([], users, store_dir=tmp_path / "s", listen="127.0.0.1:-1")
    )
    await asyncio.to_thread(server.start)
    try:
        options = ConnectOptions((server.url,), user="some", password="s")
        with pytest.raises(Denied):
            await Connection.open(options, name="t")
        async with connected(options, inbox_prefix="mine.inbox") as c:
            assert (await c.request("$JS.API.INFO")).data
    finally:
        server.kill()


async def test_a_broker_that_refuses_us_for_too_long_closes_for_good(tmp_path: Path) -> None:
    def text(password: str) -> str:
        users = [conf.User("some", password, "W")]
        return conf.render([], users, store_dir=tmp_path / "s", listen="127.0.0.1:-1")

    server = Server(tmp_path, text("s"))
    await asyncio.to_thread(server.start)
    try:
        options = ConnectOptions((server.url,), user="some", password="s", refused_limit_ms=1_000)
        c = await Connection.open(options, name="t")
        await asyncio.to_thread(server.stop)
        server.rewrite(text("other"))
        await asyncio.to_thread(server.start)
        reason = await asyncio.wait_for(asyncio.shield(c.closed), 10)
        assert "refuses our credentials" in reason
        with pytest.raises(Unavailable):
            await c.request("a")
        await c.close()
    finally:
        server.kill()


async def test_closing_sends_what_is_queued_and_fails_what_waits(server: Server) -> None:
    async with connected(server.worker_options()) as other:
        seen: list[bytes] = []

        async def note(msg: Msg) -> None:
            seen.append(msg.data)

        await other.subscribe("bye", note)
        c = await Connection.open(server.worker_options(), name="t")
        waiting = asyncio.create_task(c.request("bye", b"q", timeout_ms=60_000))
        await asyncio.sleep(0)
        await c.publish("bye", b"last")
        started = time.monotonic()
        await c.close()
        assert time.monotonic() - started < 2
        with pytest.raises(Unknown):
            await waiting
        await eventually(lambda: seen == [b"q", b"last"])
        assert c.closed.result() == "closed"
        with pytest.raises(Unavailable):
            await c.publish("bye", b"")


async def test_closing_does_not_depend_on_a_broker_that_reads(own_server: MakeServer) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    c = await Connection.open(server.worker_options(), name="t")
    await freeze(server.pid)
    try:
        for _ in range(40):
            await c.publish("big", b"x" * 1_000_000)
        started = time.monotonic()
        await c.close(1_000)
        assert time.monotonic() - started < 4
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_broker_that_does_not_read_is_unavailable(own_server: MakeServer) -> None:
    server = await asyncio.to_thread(own_server("main").start)
    async with connected(server.worker_options()) as c:
        await freeze(server.pid)
        try:

            async def publish_for_ever() -> None:
                while True:
                    await c.publish("big", b"x" * 1_000_000)
                    await asyncio.sleep(0)

            with pytest.raises(Unavailable, match="does not read"):
                await publish_for_ever()
        finally:
            os.kill(server.pid, signal.SIGCONT)


async def test_closing_while_dialling_ends_at_once_whatever_the_moment() -> None:
    options = ConnectOptions((f"nats://127.0.0.1:{free_port()}",))

    async def one(turns: int) -> float:
        c = await Connection.open(options, name="t", required=False)
        for _ in range(turns):
            await asyncio.sleep(0)
        started = time.monotonic()
        await c.close()
        return time.monotonic() - started

    took = await asyncio.gather(*(one(turns) for turns in range(60)))
    assert max(took) < 3
