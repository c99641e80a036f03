"""Doing to an arena what a schedule says, undoing it, and writing both down."""

import asyncio
import contextlib
import itertools
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from schemas.names import kv_stream
from tests.nemesis.arena.arena import Arena
from tests.nemesis.arena.damage import damage
from tests.nemesis.arena.disks import Disk, Slowness
from tests.nemesis.arena.workers import FullPipe, broken_pipe
from tests.nemesis.schedule import Planned
from tests.support import odd_bytes
from tests.support.stranger import Stranger
from worker.bus.errors import BusError
from worker.spaces import LEDGER_FILE, space_dir

ATTACHED_S = 0.3
"""After so long strace has been refused, if it is."""

CUT_S = 0.5
SAID_EVERY_S = 0.1
STRANGE: Final = (
    *("cmd.*.*.cp.resume.*.*", "cmd.*.*.cp.*.*.*", "cmd.*.*.adm.enqueue.*", "cmd.*.*.adm.*"),
    *("cmd.*.*.cap.bump.*", "cmd.*.*.cap.*.*.*", "cmd.*.*.sys.*", "qry.*.*.cp.*", "hb.*.*"),
)
"""Where strangers speak; whoever they mean is nobody of the traffic."""

Undo = Callable[[], Awaitable[None]]


class Skipped(Exception):
    """A fault that cannot be had here; the message says why."""


async def nothing() -> None:
    """What has to be undone of a fault that happens once."""


class Nemesis:
    """Injects planned faults.

    Args:
        arena: What is hit.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._running: list[asyncio.Task[None]] = []

    async def run(self, planned: tuple[Planned, ...], seconds: float) -> None:
        """Inject everything at its time; returns when the time is over and all is undone."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for one in planned:
            await asyncio.sleep(max(0.0, began + one.at_s - loop.time()))
            self._running.append(asyncio.create_task(self._one(one), name=str(one)))
        await asyncio.sleep(max(0.0, began + seconds - loop.time()))
        await asyncio.gather(*self._running)

    async def _one(self, one: Planned) -> None:
        record = self._arena.recorder.injected
        try:
            undo = await self._begin(one)
        except Skipped as skipped:
            record(one.fault, one.target, "skipped", str(skipped))
            return
        record(one.fault, one.target, "begin", one.detail)
        try:
            await asyncio.sleep(one.for_s)
        finally:
            await undo()
            record(one.fault, one.target, "end")

    async def _begin(self, one: Planned) -> Undo:
        name, _, what = one.fault.partition("-")
        match name, what:
            case ("kill" | "freeze" | "step" | "fail" | "fill" | "slow" | "pause" | "damage", _):
                begin: Callable[[Planned], Awaitable[Undo]] = getattr(
                    self, f"_{one.fault.replace('-', '_')}"
                )
                return await begin(one)
            case ("cut", "link"):
                return await self._links([one.target], "cut", "both")
            case ("muddle", _):
                return await self._links(self._arena.links_of("client"), name, seed=one.detail)
            case ("lag", _):
                return await self._links(self._arena.links_of(one.target), name)
            case ("revoke", _):
                return await self._revoke(one)
            case ("speak", _):
                return await self._speak(one)
            case ("cut" | "stall" | "swallow", _):
                who = "client" if what == "clients" else one.target
                return await self._links(self._arena.links_of(who), name, one.detail)
            case ("isolate", _):
                routes = self._arena.brokers.routes_of(_number(one.target))
                return await self._links(routes, one.detail, "both")
            case ("split", _):
                _, a, b = one.target.split("-")
                routes = self._arena.brokers.routes_between(int(a), int(b))
                return await self._links(routes, one.detail, "both")
            case ("delete", "durable"):
                return await self._delete_durable(one)
            case ("delete", "readers"):
                return await self._delete_readers(one)
        raise AssertionError(one)

    async def _links(
        self, names: list[str], mode: Any, way: Any = "both", *, seed: str = ""
    ) -> Undo:
        links = self._arena.links
        await links.turn(names, mode, way or "both", seed=seed)
        return lambda: links.turn(names, "open")

    async def _pause_machine(self, one: Planned) -> Undo:
        """A worker and a broker stand still together, and whatever falls due meanwhile waits."""
        _, worker, broker = one.target.split("-")
        slot = self._arena.slot(f"w{worker}")
        server = self._arena.brokers.servers[int(broker)]
        slot.send(signal.SIGSTOP)
        server.send(signal.SIGSTOP)

        async def undo() -> None:
            server.send(signal.SIGCONT)
            slot.send(signal.SIGCONT)

        return undo

    async def _revoke(self, one: Planned) -> Undo:
        brokers = self._arena.brokers
        await brokers.permit(brokers.rights_without(one.detail))
        return lambda: brokers.permit({})

    async def _speak(self, one: Planned) -> Undo:
        """Somebody says bytes on commands, queries and beats, until it is undone."""
        speaking = asyncio.create_task(self._say(one.detail))

        async def undo() -> None:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

        return undo

    async def _say(self, seed: str) -> None:
        rng = random.Random(seed)
        grants = {"": [f"{self._arena.names.prefix}.{tail}" for tail in STRANGE]}
        servers = self._arena.brokers.servers
        messages = odd_bytes.drawn(rng, grants)
        if len(servers) > 1:
            # Brokers hang up on each other over a subject with a carriage return in it.
            messages = (said for said in messages if b"\r" not in said.subject + said.reply)
        while True:
            server = rng.choice(servers)
            async with Stranger(server.port, "", "") as stranger:
                with contextlib.suppress(TimeoutError):
                    await stranger.say(itertools.islice(messages, 20))
            await asyncio.sleep(SAID_EVERY_S)

    async def _kill_worker(self, one: Planned) -> Undo:
        slot = self._arena.slot(one.target)
        await slot.kill()

        async def undo() -> None:
            slot.wanted = True

        return undo

    async def _freeze_worker(self, one: Planned) -> Undo:
        slot = self._arena.slot(one.target)
        slot.send(signal.SIGSTOP)

        async def undo() -> None:
            slot.send(signal.SIGCONT)

        return undo

    async def _step_clock(self, one: Planned) -> Undo:
        slot = self._arena.slot(one.target)
        slot.skew(int(one.detail))

        async def undo() -> None:
            slot.skew(0)

        return undo

    async def _fail_log(self, one: Planned) -> Undo:
        """The log goes where it cannot: for a process that is started for it."""
        slot = self._arena.slot(one.target)
        stack = AsyncExitStack()
        if one.detail == "full":
            pipe = FullPipe()
            stack.callback(pipe.close)
            sink = pipe.sink
        else:
            sink = broken_pipe()
        await slot.kill()
        slot.log_into(sink)
        slot.wanted = True

        async def undo() -> None:
            await slot.kill()
            slot.log_into(None)
            slot.wanted = True
            await stack.aclose()

        return undo

    async def _fill_ledger_disk(self, one: Planned) -> Undo:
        return await _fill(self._arena.slot(one.target).disk)

    async def _damage_ledger(self, one: Planned) -> Undo:
        """A stopped worker's ledger is changed by hand; then somebody takes that file away.

        Both workers are started again then, as an operator does who knows which file is right.
        """
        arena, slot = self._arena, self._arena.slot(one.target)
        await slot.kill()
        folder = space_dir(slot.disk.path, arena.names.space)
        done = await asyncio.to_thread(damage, folder / LEDGER_FILE, one.detail)
        slot.wanted = True
        if not done:
            raise Skipped("the ledger holds nothing yet")
        arena.recorder.injected(one.fault, one.target, "note", done)

        async def undo() -> None:
            for other in arena.slots:
                await other.kill()
            for path in folder.glob(f"{LEDGER_FILE}*"):
                path.unlink()
            for other in arena.slots:
                other.wanted = True

        return undo

    async def _fill_and_cut_worker(self, one: Planned) -> Undo:
        """Its connection is lost while its disk is full, and comes back before there is room."""
        slot = self._arena.slot(one.target)
        empty = await _fill(slot.disk)
        links = self._arena.links_of(slot.name)
        await self._arena.links.turn(links, "cut")
        await asyncio.sleep(CUT_S)
        await self._arena.links.turn(links, "open")
        return empty

    async def _slow_ledger_disk(self, one: Planned) -> Undo:
        pid = self._arena.slot(one.target).pid
        if pid is None:
            raise Skipped("the worker is not running")
        return await _slow(pid, int(one.detail))

    async def _kill_broker(self, one: Planned) -> Undo:
        server = self._arena.brokers.servers[_number(one.target)]
        await asyncio.to_thread(server.kill)

        async def undo() -> None:
            await asyncio.to_thread(server.start)

        return undo

    async def _freeze_broker(self, one: Planned) -> Undo:
        server = self._arena.brokers.servers[_number(one.target)]
        server.send(signal.SIGSTOP)

        async def undo() -> None:
            server.send(signal.SIGCONT)

        return undo

    async def _fill_broker_disk(self, one: Planned) -> Undo:
        """A broker that met a full disk turns JetStream off, so it is started again afterwards."""
        number = _number(one.target)
        empty = await _fill(self._arena.brokers.disks[number])
        server = self._arena.brokers.servers[number]

        async def undo() -> None:
            await empty()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

        return undo

    async def _slow_broker_disk(self, one: Planned) -> Undo:
        server = self._arena.brokers.servers[_number(one.target)]
        return await _slow(server.pid, int(one.detail))

    async def _step_down(self, one: Planned) -> Undo:
        names = self._arena.names
        stream = (
            kv_stream(names.records_bucket)
            if one.target == "records"
            else (f"{one.target}_{names.space}")
        )
        await self._api(f"STREAM.LEADER.STEPDOWN.{stream}")
        return nothing

    async def _delete_durable(self, one: Planned) -> Undo:
        names = self._arena.names
        stream = {
            "cp": names.cmd_stream,
            "timers": names.ept_req_stream,
            "fires": names.ept_stream,
        }[one.target]
        await self._api(f"CONSUMER.DELETE.{stream}.{one.target}_{names.space}")
        return nothing

    async def _delete_readers(self, one: Planned) -> Undo:
        """Take away every reader that the workers have on the log and on the records."""
        names = self._arena.names
        for stream in (names.log_stream, kv_stream(names.records_bucket)):
            for consumer in (await self._api(f"CONSUMER.NAMES.{stream}"))["consumers"] or ():
                await self._api(f"CONSUMER.DELETE.{stream}.{consumer}")
        return nothing

    async def _api(self, name: str) -> dict[str, Any]:
        try:
            return await self._arena.js.api(name, None, 2_000)
        except BusError as error:
            raise Skipped(f"the broker could not: {error.message}") from error


async def _fill(disk: Disk) -> Undo:
    if disk.why_not:
        raise Skipped(f"no disk of its own: {disk.why_not}")
    await asyncio.to_thread(disk.fill)

    async def undo() -> None:
        await asyncio.to_thread(disk.empty)

    return undo


async def _slow(pid: int, delay_ms: int) -> Undo:
    why_not = await asyncio.to_thread(Slowness.why_not)
    if why_not:
        raise Skipped(why_not)
    slowness = Slowness()
    await asyncio.to_thread(slowness.begin, pid, delay_ms)
    await asyncio.sleep(ATTACHED_S)
    if not slowness.attached:
        raise Skipped("strace could not attach")

    async def undo() -> None:
        await asyncio.to_thread(slowness.end)

    return undo


def _number(target: str) -> int:
    return int(target.rpartition("-")[2])
