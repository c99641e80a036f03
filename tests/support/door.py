"""One space with a worker beside it, and a socket into it that says what no client would."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from schemas.names import Names
from tests.support.plain import Streams
from tests.support.process import WorkerProcess
from tests.support.server import WORKER_PASSWORD
from tests.support.space import Space
from tests.support.wire import RawSocket

UID = "a1" * 13
LIMIT_S = 20.0


@dataclass
class Door:
    """One space with a worker beside it, and a socket into the clients' account."""

    names: Names
    socket: RawSocket
    streams: Streams
    worker: WorkerProcess

    def subject(
        self, *tail: bytes, principal: bytes = b"alice", uid: bytes = UID.encode()
    ) -> bytes:
        head = (self.names.prefix.encode(), b"cmd", principal, uid)
        return b".".join((*head, *tail))

    async def say(
        self, subject: bytes, body: bytes, headers: list[bytes] | None = None
    ) -> tuple[str, int]:
        """Publish; the stream that took it and the sequence."""
        ack = await self.socket.publish(subject, body, headers)
        assert "seq" in ack, (subject, ack)
        return str(ack["stream"]), int(str(ack["seq"]))

    async def subjects(self, stream: str) -> dict[str, int]:
        info = await self.streams.ask(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
        return dict(info["state"].get("subjects") or {})

    async def results(self, stream: str, seqs: set[int]) -> dict[int, list[str]]:
        """Subjects of the results of these commands, once each has one."""
        ledger = stream == self.names.log_stream
        # The epoch of a ledger is a small number, that of a stream of commands an instant.
        pattern = re.compile(r"\.(\d{1,6})-(\d+)$" if ledger else r"\.(\d{7,})-(\d+)$")
        until = time.monotonic() + LIMIT_S
        while True:
            found: dict[int, list[str]] = {}
            for subject in await self.subjects(self.names.res_stream):
                end = pattern.search(subject)
                if end and int(end[2]) in seqs and ".res." in subject:
                    found.setdefault(int(end[2]), []).append(subject)
            if found.keys() >= seqs:
                return found
            missing = sorted(seqs - found.keys())
            assert time.monotonic() < until, (
                f"no results for {missing}: {self.worker.log()[-2000:]}"
            )
            await asyncio.sleep(0.05)

    async def read(self, subject: str) -> dict[str, Any]:
        found = await self.streams.last(self.names.res_stream, subject)
        assert found is not None
        result: dict[str, Any] = json.loads(found.data)
        return result

    async def refused(self, said: Mapping[tuple[str, int], tuple[str, str, str]]) -> None:
        """Each command has exactly one result, refused, naming this field for this reason."""
        for stream in (self.names.cmd_stream, self.names.log_stream):
            of_stream = {seq: wanted for (where, seq), wanted in said.items() if where == stream}
            results = await self.results(stream, set(of_stream))
            for seq, (what, field, reason) in of_stream.items():
                assert len(results[seq]) == 1, what
                result = await self.read(results[seq][0])
                assert result["status"] == "refused", (what, result)
                error = result["error"]
                assert (error["field"], error["reason"]) == (field, reason), (what, error)
                assert result["outcome"] == reason
                assert error["retryable"] is False
                assert len(error["message"]) < 300
                assert error["message"].isprintable()

    async def written(self) -> Counter[str]:
        """Every subject of the space that is not a command, a result or the worker's own notes."""
        names = self.names
        found: Counter[str] = Counter()
        for stream in (
            names.ept_stream,
            names.epf_stream,
            names.ept_req_stream,
            names.res_stream,
            f"KV_{names.records_bucket}",
            f"KV_{names.payloads_bucket}",
        ):
            for subject, count in (await self.subjects(stream)).items():
                if f"{names.prefix}.res." not in subject:
                    found[subject] += count
        return found

    async def serves(self, token: str) -> None:
        """A good command behind the bad ones is served, by both ways of holding state."""
        deadline = time.time_ns() // 1_000_000 + 600_000
        body = b'{"v":1,"deadline_at_ms":%d}' % deadline
        stream, seq = await self.say(self.subject(b"cp", b"mint", b"runs", token.encode()), body)
        (subject,) = (await self.results(stream, {seq}))[seq]
        assert (await self.read(subject))["outcome"] == "minted"
        stream, seq = await self.say(self.subject(b"cap", b"stop", b"user-1"), b'{"v":1}')
        (subject,) = (await self.results(stream, {seq}))[seq]
        assert (await self.read(subject))["outcome"] == "stopped"
        assert self.worker.readiness() == []


@asynccontextmanager
async def open_door(space: Space, start: Callable[[], WorkerProcess]) -> AsyncIterator[Door]:
    """Start a worker process on a space; hold a raw socket and an admin's view until the end."""
    worker = await asyncio.to_thread(lambda: start().wait_ready())
    async with RawSocket.held(space.server.port) as socket:
        streams = await Streams.connect(space.server.url, "worker", WORKER_PASSWORD)
        try:
            yield Door(space.names, socket, streams, worker)
        finally:
            await streams.nc.close()
