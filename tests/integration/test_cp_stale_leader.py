"""A deposed leader tells of streams as they were: the plane stops, and goes on by itself."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.test_ledger_stale_leader import Between
from tests.support.cp import Desk, a_target, desk_in, serving, until
from tests.support.proxy import proxy_to
from tests.support.space import Space
from worker.bus.errors import Unavailable

ENDS = re.compile(rb'("last_seq":)(\d+)')


@pytest.fixture
async def desk(own_space: Space) -> AsyncIterator[Desk]:
    async with desk_in(own_space) as one:
        yield one


def shorter(data: bytes) -> bytes:
    """What a leader would say that has missed the last facts, in as many bytes."""
    if b'"name":"EPF_' not in data:
        return data
    return ENDS.sub(lambda m: m[1] + str(int(m[2]) - 1).rjust(len(m[2]), " ").encode(), data)


async def test_the_plane_goes_on_when_the_streams_are_told_whole_again(
    desk: Desk, own_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_to(own_space.server.port) as proxy:
        behind = replace(own_space, server=Between(own_space.server, proxy))
        async with serving(behind) as replica:
            guard = replica.plane._guard

            async def look() -> None:
                await guard.check(replica.plane._settler, replica.plane._forget)

            target = a_target()
            await desk.mint(target)
            await desk.resume(target)
            await look()

            async def cannot(*_: Any) -> None:
                raise Unavailable("no leader yet")

            with monkeypatch.context() as patched:
                patched.setattr(guard, "_reapply", cannot)
                proxy.from_server = shorter
                with pytest.raises(Unavailable):
                    await look()
                assert any("gone back" in reason for reason in replica.plane.not_ready())
                proxy.from_server = None
                await look()

            async def ready() -> bool:
                return replica.plane.not_ready() == []

            await until(ready, what="the plane is ready again")
            other = a_target()
            await desk.mint(other)
            assert (await desk.resume(other))["outcome"] == "resumed"
            await asyncio.gather(desk.agree(target), desk.agree(other))
