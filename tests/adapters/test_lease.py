"""The lease that lets one process at a time run a thread, on a real worker."""

import asyncio
import contextlib
import importlib
import signal
import sys
import time
from pathlib import Path

import pytest

from schemas.roles import Role
from tests.adapters.people import ENDPOINT, minted
from tests.support.production import Production
from tests.support.running import RunningWorker, running
from tests.support.space import Space
from worker.adapters import LeaseLost, MissingExtra
from worker.adapters.clock import BrokerTime
from worker.adapters.lease import Leases
from worker.client import Client
from worker.identity import new_uid

LEASE_MS = 20_000
HOUR_MS = 3_600_000


def leases(client: Client, *, ahead_ms: int = 0, lease_ms: int = LEASE_MS) -> Leases:
    clock = BrokerTime(lambda: time.time_ns() // 1_000_000 + ahead_ms)
    return Leases(client, endpoint=ENDPOINT, lease_ms=lease_ms, clock=clock)


async def test_one_after_another_whoever_asks(space: Space, worker: RunningWorker) -> None:
    inside = 0
    overlaps = []

    async def work() -> None:
        nonlocal inside
        inside += 1
        overlaps.append(inside)
        await asyncio.sleep(0)
        inside -= 1

    async with space.client("one") as one, space.client("two") as two:
        for _ in range(4):
            await leases(one).alone("r", work)
        both = [leases(one), leases(two)]
        await asyncio.gather(*(both[n % 2].alone("r", work) for n in range(4)))
        assert (await one.cp.list(endpoint=ENDPOINT)).items == ()
    assert overlaps == [1] * 8
    assert len(await minted(space, "lease-")) == 8


@pytest.mark.long  # a server and a worker of its own for a few calls
async def test_who_may_only_mint_gives_it_back_too(tmp_path: Path) -> None:
    production = await asyncio.to_thread(Production, tmp_path / "production")
    try:
        async with production.client(Role.MINTER, new_uid()) as minter:
            mine = Leases(minter, endpoint="runs", lease_ms=LEASE_MS, clock=BrokerTime())

            async def work() -> None:
                """Nothing but having been there."""

            began = time.monotonic()
            for _ in range(3):
                await mine.alone("r", work)
            assert time.monotonic() - began < LEASE_MS / 1000
    finally:
        await asyncio.to_thread(production.stop)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
async def test_a_wrong_clock_gives_no_wrong_lease(
    space: Space, worker: RunningWorker, ahead_ms: int
) -> None:
    async with space.client("one") as one:

        async def right() -> None:
            """Wait until the lease ends when it should."""
            async with asyncio.timeout(30):
                while True:
                    now_ms = time.time_ns() // 1_000_000
                    for lease in (await one.cp.list(endpoint=ENDPOINT)).items:
                        if abs(lease.deadline_at_ms - now_ms - LEASE_MS) < LEASE_MS / 2:
                            return
                    await asyncio.sleep(0.02)

        await leases(one, ahead_ms=ahead_ms).alone("r", right)


async def test_work_is_cancelled_when_the_lease_cannot_be_kept(own_space: Space) -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        own_space.server.send(signal.SIGSTOP)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with running(own_space.settings()), own_space.client("one") as one:
        try:
            with pytest.raises(LeaseLost):
                await leases(one, lease_ms=2_000).alone("r", work)
        finally:
            with contextlib.suppress(ProcessLookupError):
                own_space.server.send(signal.SIGCONT)
        assert cancelled.is_set()


@pytest.mark.parametrize(
    ("adapter", "missing", "extra"),
    [
        ("worker.adapters.langgraph", ("langchain_core", "langgraph"), "langgraph"),
        ("worker.adapters.openai_agents", ("agents",), "openai-agents"),
    ],
)
def test_without_its_extra_an_adapter_names_it(
    adapter: str, missing: tuple[str, ...], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name == adapter or name.partition(".")[0] in missing:
            monkeypatch.delitem(sys.modules, name)
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tidegate\[{extra}\]'"):
        importlib.import_module(adapter)
