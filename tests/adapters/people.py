"""The holder of a test, and what it can see."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.subjects import Speaker
from schemas.views import CheckpointDetail
from tests.support.space import Space
from worker.client import Client
from worker.client.checkpoints import Page

ENDPOINT = "runs.agents"
AGENT = "agent"
LIMIT_S = 90
"""Longest a condition is waited for: it bounds a broken run, no test depends on it."""


class Person:
    """Somebody who is asked.

    Attributes:
        client: How it speaks.
        speaker: Who it is.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.speaker: Speaker = client.speaker

    async def asked(self, count: int = 1) -> list[str]:
        """The tokens of what waits for this person, once there are so many, by title."""
        page: Page | None = None
        async with asyncio.timeout(LIMIT_S):
            while page is None or len(page.items) < count:
                page = await self.client.cp.list(
                    endpoint=ENDPOINT, holder=self.speaker.principal, limit=1000
                )
                await asyncio.sleep(0.02)
        details = [await self.shown(item.token) for item in page.items]
        return [d.checkpoint.token for d in sorted(details, key=title)]

    async def shown(self, token: str) -> CheckpointDetail:
        return await self.client.cp.show(ENDPOINT, token)

    async def answer(self, token: str, answer: Any) -> None:
        await self.client.cp.resume(ENDPOINT, token, answer=answer)


def title(detail: CheckpointDetail) -> str:
    assert detail.prompt is not None
    return str(detail.prompt["title"])


async def minted(space: Space, prefix: str) -> list[str]:
    """Tokens of every checkpoint ever minted, with a prefix."""
    conn = await space.connect("test-looks")
    try:
        bucket = space.names.records_bucket
        request = json.dumps({"subjects_filter": f"$KV.{bucket}.cp.>"}).encode()
        reply = await conn.request(f"$JS.API.STREAM.INFO.KV_{bucket}", request, timeout_ms=5_000)
    finally:
        await conn.close()
    subjects = json.loads(reply.data)["state"].get("subjects") or {}
    tokens = [name.split(".")[-2] for name in subjects if name.endswith(".spec")]
    return sorted(token for token in tokens if token.startswith(prefix))


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()) if path.exists() else []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what changes is a file
            await asyncio.sleep(0.02)
