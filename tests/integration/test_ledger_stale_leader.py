"""A leader that was deposed answers reads from what it had: no reason to begin a new epoch."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from tests.support.ledger import a_log, folding, read_all
from tests.support.proxy import Proxy, proxy_to
from tests.support.server import Server
from tests.support.space import Space

ENDS = re.compile(rb'("last_seq":)(\d+)')


class Between(Server):
    """A server as it is seen through a proxy."""

    def __init__(self, server: Server, proxy: Proxy) -> None:
        self.__dict__.update(server.__dict__)
        self.port = proxy.port


def shorter(data: bytes) -> bytes:
    """What a leader would say that has missed the last messages, in as many bytes."""
    if b'"name":"LOG_' not in data:
        return data
    return ENDS.sub(lambda m: m[1] + str(int(m[2]) - 3).rjust(len(m[2]), " ").encode(), data)


async def test_the_only_replica_does_not_rebase_on_the_word_of_a_deposed_leader(
    space: Space, tmp_path: Path
) -> None:
    async with a_log(space) as log, proxy_to(space.server.port) as proxy:
        behind = replace(space, server=Between(space.server, proxy))
        async with folding(behind, tmp_path / "data") as one:
            before = await log.mixed(20)
            await one.said(before)
            proxy.from_server = shorter
            proxy.cut()
            await one.until(lambda: one.ledger.status()["halted"] == "log-regressed")
            # Longer than it waits between two looks at the log.
            await asyncio.sleep(2.5)
            assert one.ledger.status()["halted"] == "log-regressed", "in doubt nothing is folded"
            proxy.from_server = None
            last = await log.mixed(5)
            await one.said(last)
            assert one.ledger.status()["epoch"] == 1
        prefix = log.names.prefix
        rebases = await read_all(log.js, log.names.log_stream, f"{prefix}.cmd.*.*.sys.rebase")
        assert rebases == []
