"""A worker for the examples, the one behind TIDEGATE_NATS_URL or one of their own; and a person."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.subjects import Speaker
from worker import broker, settings
from worker.client import Client, ClientError
from worker.identity import new_uid

READY_S = 60


@asynccontextmanager
async def clients(*principals: str) -> AsyncIterator[list[Client]]:
    """One open client for each principal, in a new life each; the worker is ready."""
    async with contextlib.AsyncExitStack() as stack:
        given = settings.load().settings
        if not given.servers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            await stack.enter_async_context(_worker(folder))
            given = given.model_copy(update={"data_dir": folder})
        opened = []
        for principal in principals:
            speaker = Speaker(principal, new_uid())
            options = broker.client_options(given)
            client = Client(options, speaker, given.spaces[0], root=given.root)
            opened.append(await stack.enter_async_context(client))
        yield opened


async def answer_as(person: Client, endpoint: str, answer: str) -> None:
    """What a person does in a program of their own, or with ``tidegate cp resume``."""
    while True:
        page = await person.cp.list(endpoint=endpoint, holder=person.speaker.principal)
        if page.items:
            break
        await asyncio.sleep(0.05)
    token = page.items[0].token
    shown = await person.cp.show(endpoint, token)
    print(f"Maria reads: {(shown.prompt or {})['title']} and answers: {answer}")
    # The digest sees to it that what was read is what is answered.
    await person.cp.resume(endpoint, token, answer=answer, prompt_digest=shown.prompt_digest)


@asynccontextmanager
async def _worker(folder: Path) -> AsyncIterator[None]:
    """``tidegate run`` with a broker of its own, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "worker.cli.main", "run", "--log-level", "error"),
        env={**os.environ, "TIDEGATE_DATA_DIR": str(folder)},
    )
    try:
        async with asyncio.timeout(READY_S):
            while not await _ready(folder):
                if process.returncode is not None:
                    raise SystemExit("the worker did not start")
                await asyncio.sleep(0.1)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(folder: Path) -> bool:
    given = settings.load({"data_dir": folder}).settings
    try:
        options = broker.client_options(given)
        speaker = Speaker("_op-example", new_uid())
        async with Client(options, speaker, given.spaces[0], root=given.root) as client:
            return bool((await client.status(timeout_ms=1_000))["ready"])
    except ClientError:
        return False
