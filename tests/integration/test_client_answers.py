"""A call is answered by its own result and by nobody else's, and unknown stays unknown."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas import results, strict_json, subjects
from schemas.names import Names
from schemas.results import Accepted
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from tests.integration.bus_server import eventually
from tests.integration.test_ledger_stale_leader import Between
from tests.support.proxy import proxy_to
from tests.support.running import RunningWorker, running
from tests.support.server import Server
from tests.support.space import Space, speaker
from worker.bus.jetstream import JetStream
from worker.client import CallTimeout, Client, NobodyThere
from worker.inventory import confirm
from worker.spaces import topology_of

HOUR_MS = 3_600_000
PERMIT: JsonObject = {"valid_for_ms": 60_000, "cap": 10, "expires_at_ms": 2_000_000_000_000}


def in_an_hour() -> int:
    return time.time_ns() // 1_000_000 + HOUR_MS


async def say(
    js: JetStream, names: Names, by: Speaker, verb: str, told: tuple[str, str], data: JsonObject
) -> None:
    """Store a result as a worker did in another life of the stream."""
    command_id, result_id = told
    body = results.build(
        Accepted("allowed", data), command_id=command_id, result_id=result_id, at_ms=1
    )
    subject = subjects.result(names, by, "cap", verb, result_id)
    await js.publish(subject, strict_json.dumps(body), expect_last_subject_seq=0)


async def test_an_authorization_from_before_the_log_lost_its_tail_allows_nothing(
    space: Space,
) -> None:
    """Its sequence begins again, under the same command id, and no worker has judged it."""
    by, command_id = speaker("alice"), "a" * 22
    w = await space.connect()
    try:
        async with space.client(by) as client:
            js = JetStream(w)
            await client._listen()
            # Another result is heard of the epoch, which the client then knows.
            await say(js, space.names, by, "bump", ("b" * 22, "1-7"), {})
            await say(js, space.names, by, "authorize", (command_id, "1-1"), PERMIT)
            await client.conn.flush()
            allowed = await client.cap.authorize(
                "alice",
                amount=5,
                grant_expires_at_ms=2_000_000_000_000,
                command_id=command_id,
                timeout_ms=3_000,
            )
            assert not allowed
            assert (await js.stream_info(space.names.log_stream)).last_seq >= 1
    finally:
        await w.close()


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_mint_is_not_answered_with_what_stood_at_its_sequence_before(
    space: Space, restarted: bool
) -> None:
    async def anew() -> None:
        w = await space.connect()
        js = JetStream(w)
        config = dict((await js.stream_info(space.names.cmd_stream)).config)
        await js.stream_delete(space.names.cmd_stream)
        await js.stream_create(config)
        if restarted:
            # As an operator who knows of it does, or the worker would not get ready.
            survey = await topology_of(w, space.names, space.settings()).survey()
            assert confirm(space.data_dir, space.names, survey) == [space.names.cmd_stream]
        await w.close()

    async def mint(client: Client, token: str) -> None:
        outcome = await client.cp.mint("e", token, deadline_at_ms=in_an_hour(), timeout_ms=40_000)
        assert (outcome.word, outcome.checkpoint.token) == ("minted", token)

    by = speaker("alice")
    async with running(space.settings()), space.client(by) as client:
        for n in range(3):
            await mint(client, f"old-{n}")
        if not restarted:
            await anew()
            for n in range(3):
                await mint(client, f"new-{n}")
    if restarted:
        await anew()
        async with space.client(by) as client:
            waiting = asyncio.create_task(mint(client, "new-0"))
            await asyncio.sleep(0)
            async with running(space.settings()):
                await waiting


async def test_a_result_of_each_plane_that_was_not_heard_is_looked_up(
    space: Space, worker: RunningWorker
) -> None:
    """By a client that has never heard any, so that a worker has to say the epoch."""
    async with space.client() as client:
        await client._listen()
        assert client._results is not None
        await client._results.unsubscribe()
        minted = await client.cp.mint("e", "one", deadline_at_ms=in_an_hour())
        assert minted.word == "minted"
        assert (await client.cap.bump("alice")).generation == 1


async def test_after_a_lost_acknowledgement_nothing_says_that_nothing_was_stored(
    own_server: Callable[..., Server], own_space: Space
) -> None:
    """The command is stored; then nobody takes it any more, and the client may not conclude."""
    stream = own_space.names.cmd_stream
    w = await own_space.connect()
    js = JetStream(w)
    async with proxy_to(own_space.server.port) as proxy:
        client = replace(own_space, server=Between(own_space.server, proxy)).client()
        await client.open()
        await client._listen()
        proxy.from_server = lambda data: b"" if stream.encode() in data else data
        call = asyncio.create_task(
            client.cp.mint("e", "one", deadline_at_ms=in_an_hour(), timeout_ms=20_000)
        )

        async def is_stored() -> bool:
            return (await js.stream_info(stream)).last_seq > 0

        await eventually(is_stored)
        await js.stream_delete(stream)
        with pytest.raises(CallTimeout) as caught:
            await call
        assert caught.value.reason == "outcome-unknown"
        # Whoever asks only now is told so: nothing of this command was ever stored.
        with pytest.raises(NobodyThere):
            await client.cp.mint("e", "two", deadline_at_ms=in_an_hour())
        await client.close()
    await w.close()
