"""A ledger on a real broker: one result per command, ticks, trouble that is told, and recovery."""

import asyncio
import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from schemas import headers, subjects
from schemas.results import Accepted, Verdict
from schemas.subjects import Speaker
from tests.ledgers import HOLDS, WINDOW_MS
from tests.support.ledger import (
    BODIES,
    UID,
    a_log,
    facts,
    folding,
    prove_clean,
    read_all,
    results,
    until,
)
from tests.support.space import Space
from worker.bus.headers import Headers
from worker.bus.subscription import Msg
from worker.errors import StartRefused
from worker.ledger.errors import FileLocked
from worker.ledger.plane import View
from worker.ledger.runner import AHEAD_MS


async def test_commands_of_all_kinds_get_one_result_each(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log, folding(space) as one:
        last = await log.mixed(60)
        await one.said(last)
        found = await results(log)
        assert set(found) == {f"1-{seq}" for seq in log.sent}
        for seq, (_, command_id) in log.sent.items():
            assert found[f"1-{seq}"]["command_id"] == command_id
        assert one.ledger.not_ready() == []
        await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_a_log_written_before_the_start_is_folded_and_said(
    space: Space, tmp_path: Path
) -> None:
    async with a_log(space) as log:
        last = await log.mixed(300)
        async with folding(space) as one:
            await one.said(last)
            await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_it_goes_on_where_it_stopped(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log:
        for _ in range(3):
            async with folding(space) as one:
                await one.said(await log.mixed(40))
            await log.mixed(15)
        async with folding(space) as one:
            await one.said(max(log.sent))
            await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_what_is_stored_as_anything_at_all_gets_one_refused_result(space: Space) -> None:
    prefix = space.names.prefix
    bodies = [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * 600_000,
        b'{"v":1,"v":1}',
        b'{"v":NaN}',
    ]
    names = ["é", "a*b", "x" * 300, "with-newline\n"]
    async with a_log(space) as log, folding(space) as one:
        sent = []
        for body in bodies:
            subject = f"{prefix}.cmd.alice.{UID}.cap.stop.u1"
            sent.append((await log.js.publish(subject, body)).seq)
        for principal in ("é", "x" * 65, "a!b"):
            ack = await log.js.publish(f"{prefix}.cmd.{principal}.{UID}.cap.stop.u1", b"{}")
            sent.append(ack.seq)
        for name in names:
            given = {"Tidegate-Command": name.strip() or "x"}
            subject = f"{prefix}.cmd.alice.{UID}.cap.stop.u1"
            sent.append((await log.js.publish(subject, b'{"v":1}', headers=given)).seq)
        hostile = {"Status": "503", "Description": "No Responders"}
        subject = f"{prefix}.cmd.alice.{UID}.cap.stop.u1"
        sent.append((await log.js.publish(subject, b'{"v":1}', headers=hostile)).seq)
        (last,) = await log.publish(log.command("reserve", "u2"))
        await one.said(last)
        found = await results(log)
        assert set(found) == {f"1-{seq}" for seq in [*sent, last]}
        statuses = [found[f"1-{seq}"]["status"] for seq in sent]
        assert statuses == ["refused"] * (len(sent) - 1) + ["ok"]
        invalid = await read_all(log.js, space.names.res_stream, f"{prefix}.res._.invalid.*")
        assert len(invalid) == 3


async def test_time_alone_is_put_into_the_log_when_something_is_due(space: Space) -> None:
    async with a_log(space) as log, folding(space) as one:
        began = time.monotonic()
        await log.publish(log.command("reserve", "u1"), log.command("reserve", "u2"))
        await one.until(lambda: one.ledger.status()["due_at_ms"] is None and one.watermark > 3, 20)
        assert time.monotonic() - began >= WINDOW_MS / 1000 - 0.1
        assert [s.split(".")[-2] for s in await facts(log) if ".lapsed." in s] == ["u1", "u2"]
        messages = await read_all(log.js, log.names.log_stream, f"{log.names.prefix}.>")
        ticks = [message for message in messages if message.subject.endswith(".sys.tick")]
        assert 1 <= len(ticks) <= 4, "a tick per due instant, and little more"
        assert len(await results(log)) == 2


async def test_a_query_waits_for_the_result_it_must_include(space: Space) -> None:
    async with a_log(space) as log, folding(space) as one:
        (seq,) = await log.publish(log.command("reserve", "u1"))
        assert await one.ledger.wait_for(f"1-{seq}") is None
        assert one.watermark >= seq
        late = asyncio.create_task(one.ledger.wait_for(f"1-{seq + 1}"))
        await asyncio.sleep(0)
        assert not late.done()
        await log.publish(log.command("reserve", "u1"))
        assert await late is None


async def test_a_query_is_answered_with_all_that_the_log_held_when_it_came(space: Space) -> None:
    def changes(view: View, _: bytes) -> Verdict:
        (count,) = view.db.execute("SELECT count(*) FROM holds").fetchone()
        return Accepted("counted", {"count": count, "watermark": view.watermark})

    async with a_log(space) as log, folding(space) as one:
        for number in range(30):
            (seq,) = await log.publish(log.command("reserve", f"u{number}"))
            # Nobody waited for the fold.
            answer = await one.ledger.read(changes, Speaker("alice", UID), b'{"v":1}')
            assert isinstance(answer, Accepted)
            assert answer.data["watermark"] >= seq
            assert answer.data["count"] == number + 1


async def test_a_second_worker_on_one_data_directory_is_refused(space: Space) -> None:
    async with folding(space):
        with pytest.raises(FileLocked):
            async with folding(space):
                raise AssertionError("it started")


async def test_a_command_from_the_future_is_waited_for(space: Space) -> None:
    """The broker's clock is an hour ahead of this worker's: an operator has to look."""
    behind_ms = 3_600_000

    def wall_ms() -> int:
        return time.time_ns() // 1_000_000 - behind_ms

    async with a_log(space) as log, folding(space, wall_ms=wall_ms) as one:
        (seq,) = await log.publish(log.command("reserve", "u1"))
        await one.until(lambda: one.ledger.status()["halted"] == "clock-behind")
        assert "clock-behind" in one.ledger.not_ready()[0]
        assert one.watermark == 0
        behind_ms = AHEAD_MS // 2
        await one.said(seq)
        assert one.ledger.not_ready() == []


async def test_live_callers_are_told_at_once_and_nothing_of_it_is_stored(space: Space) -> None:
    ahead = 3_600_000

    def wall_ms() -> int:
        return time.time_ns() // 1_000_000 - ahead

    told: list[tuple[str, dict[str, object], Headers]] = []
    async with a_log(space) as log, folding(space, wall_ms=wall_ms) as one:

        async def receive(msg: Msg) -> None:
            told.append((msg.subject, json.loads(msg.data), msg.headers))

        await log.js.connection.subscribe(f"{space.names.prefix}.{subjects.HEARD}.res.>", receive)
        (first,) = await log.publish(log.command("reserve", "u1"))
        await one.until(lambda: one.ledger.status()["halted"] == "clock-behind")
        began = time.monotonic()
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        command = log.command("authorize", "u1")
        given = {**(command.headers or {}), headers.TRACEPARENT: trace}
        (seq,) = await log.publish(replace(command, headers=given))
        await until(lambda: any(s.endswith(f"1-{seq}") for s, _, _ in told))
        assert time.monotonic() - began < 2
        (subject, body, carried) = next(t for t in told if t[0].endswith(f"1-{seq}"))
        assert carried.single(headers.TRACEPARENT) == trace
        assert (
            subject
            == f"{space.names.prefix}.{subjects.HEARD}.res.alice.{UID}.cap.authorize.1-{seq}"
        )
        error = body["error"]
        assert isinstance(error, dict)
        assert (error["code"], error["retryable"]) == ("unavailable", True)
        assert body["command_id"] == log.sent[seq][1]
        assert await results(log) == {}
        ahead = 0
        await one.said(seq)
        assert set(await results(log)) == {f"1-{first}", f"1-{seq}"}


async def test_an_unknown_ruleset_stops_the_fold_until_a_version_that_knows_it(
    space: Space,
) -> None:
    worker = Speaker("_worker", "w" * 26)
    async with a_log(space) as log:
        async with folding(space) as one:
            await log.publish(log.command("reserve", "u1"), log.command("confirm", "u1"))
            activate = subjects.command(space.names, worker, "sys", "ruleset")
            await log.js.publish(activate, b'{"v":1,"version":4}')
            (seq,) = await log.publish(log.command("authorize", "u1"))
            await one.until(lambda: one.ledger.status()["halted"] == "unknown-ruleset")
            assert one.watermark == seq - 2
            assert "unknown-ruleset" in one.ledger.not_ready()[0]
            assert f"1-{seq}" not in await results(log)
        async with folding(space, rulesets=frozenset({2, 3, 4})) as newer:
            await newer.said(seq)
            found = await results(log)
            assert found[f"1-{seq}"]["outcome"] == "allowed"
            assert newer.ledger.status()["ruleset"] == 4


async def test_a_vanished_reader_is_made_anew(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log, folding(space) as one:
        for round_ in range(3):
            await one.said(await log.mixed(20))
            names = await log.js.api(f"CONSUMER.NAMES.{space.names.log_stream}", None)
            for name in names["consumers"]:
                await log.js.consumer_delete(space.names.log_stream, name)
            assert names["consumers"], f"round {round_}"
        await one.said(await log.mixed(20), limit_s=30)
        await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_broker_restarts_and_freezes_are_survived(own_space: Space, tmp_path: Path) -> None:
    server = own_space.server
    async with a_log(own_space) as log, folding(own_space) as one:
        await one.said(await log.mixed(30))
        await asyncio.to_thread(server.stop)
        await one.until(lambda: one.ledger.not_ready() != [])
        await asyncio.to_thread(server.start)
        assert await log.js.connection.wait_connected(20_000)
        await one.said(await log.mixed(30), limit_s=30)
        server.send(signal.SIGSTOP)
        await one.until(lambda: one.ledger.not_ready() != [])
        server.send(signal.SIGCONT)
        assert await log.js.connection.wait_connected(20_000)
        await one.said(await log.mixed(30), limit_s=30)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert await log.js.connection.wait_connected(20_000)
        await one.said(await log.mixed(30), limit_s=30)
        await one.until(lambda: one.ledger.not_ready() == [])
        await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_a_missing_log_is_never_taken_for_an_empty_one(own_space: Space) -> None:
    async with a_log(own_space) as log, folding(own_space) as one:
        await one.said(await log.mixed(10))
        before = await one.digest()
        await log.js.stream_delete(own_space.names.log_stream)
        await one.until(lambda: one.ledger.not_ready() != [])
        assert await one.digest() == before


async def test_a_stop_in_the_middle_loses_and_repeats_nothing(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log:
        publishing = asyncio.create_task(log.mixed(600))
        for pause_s in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4):
            async with folding(space):
                await asyncio.sleep(pause_s)
        last = await publishing
        async with folding(space) as one:
            await one.said(last)
            await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_cancelled_callers_leave_no_half_transaction(space: Space, tmp_path: Path) -> None:
    async with a_log(space) as log, folding(space) as one:
        reads = [asyncio.create_task(one.digest()) for _ in range(50)]
        writes = asyncio.create_task(log.mixed(100))
        for task in reads[::2]:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await one.said(await writes)
        await prove_clean(log, await one.digest(), tmp_path / "clean.db")


async def test_results_older_than_the_stream_keeps_are_not_said_again(space: Space) -> None:
    """A rebuild must not speak about history: here, results whose time has passed."""
    async with a_log(space) as log:
        config = dict((await log.js.stream_info(space.names.res_stream)).config)
        await log.js.stream_update(config | {"max_age": 1_000_000_000, "duplicate_window": 10**9})
        async with folding(space) as one:
            last = await log.mixed(10)
            await one.said(last)
        await asyncio.sleep(2.1)
        space.data_dir.joinpath(space.names.space, "ledger.db").unlink()
        async with folding(space) as one:
            await one.until(lambda: one.watermark >= last)
            assert one.ledger.status()["published"] == 0
            (seq,) = await log.publish(log.command("stop", "u1"))
            await one.said(seq)
        assert set(await results(log)) == {f"1-{seq}"}


async def test_a_damaged_file_is_refused_at_start(space: Space) -> None:
    path = space.data_dir / space.names.space / "ledger.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else" * 500)
    with pytest.raises(StartRefused):
        async with folding(space):
            raise AssertionError("it started")


async def test_a_defect_stops_the_fold_and_says_nothing(space: Space) -> None:
    async with a_log(space) as log, folding(space) as one:
        command = log.command("reserve", "u1")
        broken = json.loads(command.data) | {"cap": 13}
        (first,) = await log.publish(log.command("reserve", "u0"))
        await one.said(first)
        await log.js.publish(command.subject, json.dumps(broken).encode())
        await one.until(lambda: one.ledger.status()["halted"] == "fold-failed")
        assert one.watermark == first
        assert set(await results(log)) == {f"1-{first}"}


def test_the_bodies_used_here_are_those_of_the_small_plane() -> None:
    assert set(BODIES) <= set(HOLDS.handlers)
