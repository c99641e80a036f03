"""The guard: a broker whose store went back in time undoes no settlement."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from schemas.names import kv_stream
from schemas.subjects import Checkpoint
from tests.support.cp import MINUTE_MS, Desk, Json, Replica, a_target, desk_in, serving, until
from tests.support.process import command, space_environment
from tests.support.space import Space
from worker.bus.errors import Unavailable, Unknown
from worker.checkpoints import guard, lost


@pytest.fixture
async def desk(own_space: Space) -> AsyncIterator[Desk]:
    async with desk_in(own_space) as one:
        yield one


class Store:
    """The broker's files, to be kept and put back while it is stopped."""

    def __init__(self, desk: Desk, copy: Path) -> None:
        self._desk = desk
        self._server = desk.space.server
        self._live = self._server.directory / "store"
        self._copy = copy

    async def keep(self) -> None:
        await asyncio.to_thread(self._server.stop)
        shutil.copytree(self._live, self._copy)
        await asyncio.to_thread(self._server.start)

    async def put_back(self) -> None:
        await asyncio.to_thread(self._server.stop)
        # The commands' sequences begin again where the copy ends.
        self._desk.heard.clear()
        shutil.rmtree(self._live)
        shutil.copytree(self._copy, self._live)
        await asyncio.to_thread(self._server.start)


@pytest.fixture
def store(desk: Desk, tmp_path: Path) -> Store:
    return Store(desk, tmp_path / "copy")


async def again(work: Callable[[], Awaitable[Any]]) -> Any:
    """Do what fails while the connection is coming back."""

    async def tried() -> Any:
        try:
            return await work() or True
        except Unavailable:
            return None

    return await until(tried)


async def ready(replica: Replica, desk: Desk) -> None:
    async def is_ready() -> bool:
        return replica.plane.not_ready() == [] and desk.voice.connected and desk.conn.connected

    await until(is_ready, what="everything is connected and ready again")


async def mint_three(desk: Desk) -> list[Checkpoint]:
    targets = [a_target() for _ in range(3)]
    for target in targets:
        await desk.mint(target)
    return targets


async def settle_three(desk: Desk, targets: list[Checkpoint]) -> list[Json]:
    """Resume one, another after a heartbeat, let the third expire; their statuses."""
    plain, moved, expired = targets
    assert (await desk.resume(plain, {"answer": "yes"}))["outcome"] == "resumed"
    await desk.heartbeat(moved, 1, in_ms=5 * MINUTE_MS)
    assert (await desk.resume(moved))["outcome"] == "resumed"
    await desk.heartbeat(expired, 1, in_ms=100)
    return [await desk.agree(target) for target in targets]


async def stands(desk: Desk, targets: list[Checkpoint], statuses: list[Json]) -> None:
    """Require that each is settled as it was, and cannot be settled otherwise."""
    for target, status in zip(targets, statuses, strict=True):

        async def restored(at: Checkpoint = target, wanted: Json = status) -> bool:
            return await desk.status(at) == wanted and await desk.fact(at) is not None

        await until(restored, what=f"{target} is restored")
        told = await desk.resume(target)
        assert told["outcome"] in ("already-resumed", "expired")
        assert told["data"]["settled_at_ms"] == status["settledTs"]
        told = await desk.heartbeat(target, 1)
        assert told["status"] == "refused"
        assert await desk.status(target) == status
        await desk.settled(target)


async def test_a_store_replaced_by_an_older_copy_undoes_no_settlement(
    desk: Desk, own_space: Space, store: Store
) -> None:
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        await store.keep()
        await ready(replica, desk)
        statuses = await settle_three(desk, targets)
        await replica.plane._guard.flush()

        await store.put_back()
        await ready(replica, desk)
        await stands(desk, targets, statuses)
        # Once mended it is a stream like any other: no second alarm, and work goes on.
        fresh = a_target()
        await desk.mint(fresh)
        with structlog.testing.capture_logs() as lines:
            for _ in range(2):
                await replica.plane._guard.flush()
                await replica.plane._check_streams()
        assert [line["event"] for line in lines if "streams" in line["event"]] == []
        assert replica.plane.not_ready() == []
        assert (await desk.resume(fresh))["outcome"] == "resumed"
        assert (await desk.status_at(fresh)).headers["Tidegate-Cause"].startswith("alice/")


async def test_a_store_replaced_while_the_worker_was_down_undoes_no_settlement(
    desk: Desk, own_space: Space, store: Store
) -> None:
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        await store.keep()
        await ready(replica, desk)
        statuses = await settle_three(desk, targets)
    await store.put_back()
    async with serving(own_space) as replica:
        await ready(replica, desk)
        await stands(desk, targets, statuses)


async def test_a_regression_is_seen_by_what_was_written_since_the_last_look(
    desk: Desk, own_space: Space, store: Store
) -> None:
    """The copy is newer than the last look at the streams, and still older than what was done."""
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        await store.keep()
        await ready(replica, desk)
        # More is looked at than the copy holds, less than what was written afterwards.
        statuses = await settle_three(desk, targets)
        await replica.plane._guard.flush()
        seen: list[tuple[str, ...]] = []
        forget = replica.plane._forget

        async def forgetting() -> None:
            seen.append(replica.plane._guard.regressed)
            await forget()

        replica.plane._forget = forgetting  # type: ignore[method-assign]  # watched, not changed
        await store.put_back()
        await ready(replica, desk)
        await stands(desk, targets, statuses)
        assert len(seen) == 1
        assert kv_stream(desk.names.records_bucket) in seen[0]


async def recreate(desk: Desk, stream: str) -> None:
    config = dict((await desk.js.stream_info(stream)).config)
    await desk.js.stream_delete(stream)
    await desk.js.stream_create(config)


async def test_settle_facts_of_a_recreated_stream_are_published_again(
    desk: Desk, own_space: Space
) -> None:
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        statuses = await settle_three(desk, targets)
        facts = [await desk.fact(target) for target in targets]
        await recreate(desk, desk.names.epf_stream)
        assert await desk.fact(targets[0]) is None
        await replica.plane._check_streams()
        assert [await desk.fact(target) for target in targets] == facts
        await stands(desk, targets, statuses)


async def test_a_recreated_stream_is_known_by_its_birth_however_full_it_is_again(
    desk: Desk, own_space: Space
) -> None:
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        await settle_three(desk, targets)
        facts = [await desk.fact(target) for target in targets]
        await recreate(desk, desk.names.epf_stream)
        for number in range(10):
            other = Checkpoint("other", f"t{number}")
            await desk.put_fact(other, {"v": 1, "token": other.token})
        await replica.plane._check_streams()
        assert [await desk.fact(target) for target in targets] == facts


async def test_a_token_that_settled_stays_settled_when_all_records_are_lost(
    desk: Desk, own_space: Space
) -> None:
    async with serving(own_space) as replica:
        target, deadline = a_target(), await desk.now_ms() + MINUTE_MS
        await desk.mint(target, deadline_at_ms=deadline)
        await desk.resume(target)
        status = await desk.agree(target)
        await recreate(desk, kv_stream(desk.names.records_bucket))
        await replica.plane._check_streams()
        await ready(replica, desk)
        told = await desk.ask("mint", target, {"deadline_at_ms": deadline})
        assert told["outcome"] == "status-regressed"
        assert await desk.status(target) == status
        assert (await desk.resume(target))["outcome"] == "already-resumed"
        other = a_target()
        await desk.mint(other)
        assert (await desk.resume(other))["outcome"] == "resumed"


async def test_a_missing_stream_is_not_ready_and_never_absence(
    desk: Desk, own_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FLUSH_EVERY_S", 0.02)
    async with serving(own_space) as replica:
        target = a_target()
        await desk.mint(target)
        stream = kv_stream(desk.names.records_bucket)
        config = dict((await desk.js.stream_info(stream)).config)
        await desk.js.stream_delete(stream)
        seq = await desk.say("resume", target, {})

        async def noticed() -> bool:
            return any("missing" in reason for reason in replica.plane.not_ready())

        await until(noticed)
        assert desk.heard[seq] == []
        assert replica.task is not None
        assert not replica.task.done()
        await desk.js.stream_create(config)
        await replica.plane._check_streams()
        await ready(replica, desk)
        assert (await desk.result(seq))["outcome"] == "unknown-checkpoint"


async def test_nothing_is_served_until_the_journal_has_been_applied(
    desk: Desk, own_space: Space, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        await store.keep()
        await ready(replica, desk)
        statuses = await settle_three(desk, targets)
        await replica.plane._guard.flush()
        reapply, go_on = replica.plane._guard._reapply, asyncio.Event()

        async def held(*arguments: Any) -> None:
            await go_on.wait()
            await reapply(*arguments)

        monkeypatch.setattr(replica.plane._guard, "_reapply", held)
        await store.put_back()

        async def alarmed() -> bool:
            return bool(replica.plane._guard.regressed)

        await until(alarmed)
        reasons = replica.plane.not_ready()
        assert any("back in time" in reason for reason in reasons), reasons
        seq = int(await again(lambda: desk.say("resume", targets[0], {})))

        async def put_off() -> bool:
            info = await desk.js.consumer_info(desk.names.cmd_stream, desk.names.cp_durable)
            return info.redelivered > 0

        await until(put_off)
        assert desk.heard[seq] == []
        status = await desk.status(targets[0])
        assert status is not None
        assert status["state"] == "waiting", "the older copy, as nobody may touch it yet"
        go_on.set()
        await ready(replica, desk)
        assert (await desk.result(seq))["outcome"] == "already-resumed"
        await stands(desk, targets, statuses)


async def test_nothing_is_served_by_what_was_known_of_the_time_before_a_reconnect(
    desk: Desk, own_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that comes back may have another clock, and does not say its time at first."""
    async with serving(own_space) as replica:
        target = a_target()
        await desk.mint(target)
        clock = replica.plane._clock
        refresh, go_on, asked = clock.refresh, asyncio.Event(), 0

        async def unanswered() -> None:
            nonlocal asked
            if go_on.is_set():
                return await refresh()
            asked += 1
            raise Unknown("no answer")

        monkeypatch.setattr(clock, "refresh", unanswered)
        await asyncio.to_thread(own_space.server.stop)
        await asyncio.to_thread(own_space.server.start)
        seq = int(await again(lambda: desk.say("resume", target, {})))

        async def asked_again_and_again() -> bool:
            return asked > 3

        await until(asked_again_and_again)
        assert desk.heard[seq] == []
        assert "not looked at yet" in " ".join(replica.plane.not_ready())
        go_on.set()
        assert (await desk.result(seq))["outcome"] == "resumed"


async def test_nothing_is_served_between_a_reconnect_and_the_look_at_the_streams(
    desk: Desk, own_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(own_space) as replica:
        target = a_target()
        await desk.mint(target)
        look, go_on = replica.plane._guard._look, asyncio.Event()

        async def held(stream: str) -> Any:
            await go_on.wait()
            return await look(stream)

        monkeypatch.setattr(replica.plane._guard, "_look", held)
        await asyncio.to_thread(own_space.server.stop)
        await asyncio.to_thread(own_space.server.start)
        seq = int(await again(lambda: desk.say("resume", target, {})))

        async def put_off() -> bool:
            info = await desk.js.consumer_info(desk.names.cmd_stream, desk.names.cp_durable)
            return info.redelivered > 0

        await again(lambda: until(put_off))
        assert desk.heard[seq] == []
        go_on.set()
        assert (await desk.result(seq))["outcome"] == "resumed"
        await ready(replica, desk)
        await desk.agree(target)


async def test_a_look_or_a_mending_that_failed_is_done_again_by_itself(
    desk: Desk, own_space: Space, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FLUSH_EVERY_S", 0.02)
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        await store.keep()
        await ready(replica, desk)
        statuses = await settle_three(desk, targets)
        await replica.plane._guard.flush()
        failures = iter([Unavailable("not now"), Unavailable("not now")])
        reapply, look = replica.plane._guard._reapply, replica.plane._guard._look
        looks = iter([Unavailable("not now")])

        async def failing(*arguments: Any) -> None:
            if (failure := next(failures, None)) is not None:
                raise failure
            await reapply(*arguments)

        async def not_looking(stream: str) -> Any:
            if (failure := next(looks, None)) is not None:
                raise failure
            return await look(stream)

        monkeypatch.setattr(replica.plane._guard, "_reapply", failing)
        monkeypatch.setattr(replica.plane._guard, "_look", not_looking)
        await store.put_back()
        await ready(replica, desk)
        await stands(desk, targets, statuses)
        assert next(failures, None) is None


async def test_one_garbled_record_keeps_no_other_settlement_from_being_restored(
    desk: Desk, own_space: Space
) -> None:
    async with serving(own_space) as replica:
        targets = await mint_three(desk)
        statuses = await settle_three(desk, targets)
        garbled = a_target()
        await desk.mint(garbled)
        await desk.resume(garbled)
        await desk.agree(garbled)
        facts = [await desk.fact(target) for target in targets]
        await recreate(desk, desk.names.epf_stream)
        await desk.put(f"cp.review_eu.{garbled.token}.status", b"{")
        await replica.plane._check_streams()
        assert [await desk.fact(target) for target in targets] == facts
        assert replica.plane._guard.regressed == ()
        await stands(desk, targets, statuses)


@pytest.mark.parametrize("running", [True, False], ids=["running", "started-again"])
async def test_mints_and_extensions_that_an_older_store_lost_are_listed_and_brought_back(
    desk: Desk, own_space: Space, store: Store, running: bool
) -> None:
    replica = Replica(own_space)
    await replica.start()
    try:
        kept, moved, settled = a_target(), a_target(), a_target()
        for target in (kept, moved, settled):
            await desk.mint(target)
        await store.keep()
        await ready(replica, desk)
        minted, late = a_target(), a_target()
        await desk.mint(minted, in_ms=10 * MINUTE_MS)
        await desk.mint(late, in_ms=1_000)
        await desk.heartbeat(moved, 1, in_ms=5 * MINUTE_MS)
        await desk.heartbeat(moved, 2, in_ms=15 * MINUTE_MS)
        await desk.resume(settled)
        await replica.followed()
        if not running:
            await replica.stop()
        await store.put_back()
        if not running:
            replica = await Replica(own_space).start()
        await ready(replica, desk)
        directory = replica.settings.data_dir / own_space.names.space

        async def noted() -> bool:
            return len(lost.read(directory)) >= 2

        await until(noted, what="the losses are noted")
        by_token = {one.token: one for one in lost.read(directory)}
        assert {moved.token, minted.token} <= by_token.keys()
        assert by_token.keys() <= {moved.token, minted.token, late.token}
        assert by_token[minted.token].stands_at is None
        assert by_token[moved.token].stands_at == 1
        assert by_token[moved.token].generation == 3

        env = space_environment(own_space, data_dir=replica.settings.data_dir)
        done = await asyncio.to_thread(command, ["cp", "lost"], env)
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("  tide")]
        assert sorted(line[2] for line in lines if late.token not in line) == ["heartbeat", "mint"]
        again = {line[2]: line for line in lines if late.token not in line}
        holder = f"{desk.alice.principal}.{desk.alice.uid}"
        assert again["mint"][-2:] == ["--holder", holder]
        told = await desk.ask("mint", minted, {"deadline_at_ms": int(again["mint"][6])})
        assert told["outcome"] == "minted"
        told = await desk.ask(
            "heartbeat",
            moved,
            {
                "deadline_at_ms": int(again["heartbeat"][6]),
                "generation": int(again["heartbeat"][8]),
            },
        )
        assert told["outcome"] == "extended"
    finally:
        await replica.stop()
