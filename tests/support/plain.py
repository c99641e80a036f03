"""A client of Tidegate that knows only NATS: subjects and JSON, nothing of this code base.

It imports the standard library and nats-py. What it does is what a client in any language would do.
"""

import asyncio
import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg


def compact(value: Any) -> bytes:
    """JSON as ``JSON.stringify`` writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass
class Plain:
    """One principal in one life, in one space.

    Attributes:
        nc: Its connection.
        prefix: ``<root>.<space>``.
        who: ``<principal>.<uid>``.
        results: Every result heard, by command id.
    """

    nc: Client
    prefix: str
    who: str
    results: dict[str, list[Msg]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def connect(cls, url: str, prefix: str, principal: str, uid: str) -> "Plain":
        nc = await nats.connect(url)
        one = cls(nc, prefix, f"{principal}.{uid}")
        await nc.subscribe(f"{prefix}.res.{one.who}.>", cb=one._heard)
        await nc.flush()
        return one

    async def _heard(self, message: Msg) -> None:
        result = json.loads(message.data)
        self.results.setdefault(result["command_id"], []).append(message)
        self._news.set()

    async def send(
        self, verb: str, endpoint: str, token: str, body: bytes, command_id: str | None = None
    ) -> Msg:
        """Send one checkpoint command and wait for its one result."""
        command_id = command_id or secrets.token_urlsafe(16)
        subject = f"{self.prefix}.cmd.{self.who}.cp.{verb}.{endpoint.replace('.', '_')}.{token}"
        ack = await self.nc.request(
            subject, body, headers={"Tidegate-Command": command_id}, timeout=5
        )
        seq = json.loads(ack.data)["seq"]
        async with asyncio.timeout(10):
            while True:
                for message in self.results.get(command_id, ()):
                    if json.loads(message.data)["id"].endswith(f"-{seq}"):
                        return message
                self._news.clear()
                await self._news.wait()

    async def ask(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask one query of the checkpoint plane."""
        subject = f"{self.prefix}.qry.{self.who}.cp.{name}"
        reply = await self.nc.request(subject, compact(body), timeout=5)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer


@dataclass(frozen=True)
class Stored:
    """One message of a stream."""

    seq: int
    headers: dict[str, str]
    data: bytes


@dataclass
class Streams:
    """The streams themselves, as an owner or an operator in the workers' account sees them."""

    nc: Client

    @classmethod
    async def connect(cls, url: str, user: str, password: str) -> "Streams":
        return cls(await nats.connect(url, user=user, password=password))

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message of one subject, at the leader."""
        found = await self.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        if "error" in found:
            assert found["error"]["err_code"] == 10037, found
            return None
        message = found["message"]
        lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if line)
        return Stored(message["seq"], headers, base64.b64decode(message.get("data", "")))

    async def wait_last(self, stream: str, subject: str, limit_s: float = 10) -> Stored:
        """The last message of one subject, once there is one."""
        async with asyncio.timeout(limit_s):
            while True:
                found = await self.last(stream, subject)
                if found is not None:
                    return found
                await asyncio.sleep(0.02)

    async def put(self, subject: str, body: bytes, expected: int) -> int:
        """Compare-and-set one subject.

        Returns:
            Its new sequence.
        """
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        ack = json.loads((await self.nc.request(subject, body, headers=headers)).data)
        assert "error" not in ack, ack
        return int(ack["seq"])

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> int:
        """Publish into a stream.

        Returns:
            Its sequence; 0 if the broker itself refused it.
        """
        ack = json.loads((await self.nc.request(subject, body, headers=headers)).data)
        return 0 if "error" in ack else int(ack["seq"])

    async def handled(self, stream: str, durable: str, seq: int) -> None:
        """Wait until a durable is done with everything up to a sequence."""
        async with asyncio.timeout(10):
            while True:
                info = await self.ask(f"CONSUMER.INFO.{stream}.{durable}", {})
                if info["ack_floor"]["stream_seq"] >= seq:
                    return
                await asyncio.sleep(0.02)

    async def ask(self, name: str, query: dict[str, Any]) -> dict[str, Any]:
        reply = await self.nc.request(f"$JS.API.{name}", compact(query) if query else b"")
        answer: dict[str, Any] = json.loads(reply.data)
        return answer
