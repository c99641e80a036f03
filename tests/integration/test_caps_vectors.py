"""The vectors and rows of spec/caps.md through a real broker, where no millisecond decides."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from schemas import headers, strict_json, subjects
from schemas.codes import BadInput
from schemas.results import Result
from tests.support.caps_rows import ROWS
from tests.support.caps_steps import (
    DELEGATE,
    SECOND_MS,
    Call,
    Damage,
    Show,
    Step,
    Story,
    Together,
    check,
    minting,
)
from tests.support.caps_vectors import VECTORS
from tests.support.running import RunningWorker, running
from tests.support.space import Space
from worker.bus.jetstream import parse_ack
from worker.client import Client, Failed, Refused, new_command_id
from worker.spaces import LEDGER_FILE, space_dir

STORIES = [
    pytest.param(one, id=f"{one.number or 'row'}-{one.name}")
    for one in (*VECTORS, *ROWS)
    if one.brokered
]


class Player:
    """Plays steps through a broker, as its principals and against a worker of its own."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.t0 = time.time_ns() // 1_000_000 // SECOND_MS * SECOND_MS
        self._clients: dict[str, Client] = {}
        self._stack = AsyncExitStack()
        self._worker: AsyncExitStack | None = None
        self._last = ""

    async def start(self) -> None:
        self._worker = AsyncExitStack()
        await self._worker.enter_async_context(running(self.space.settings()))

    async def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.aclose()

    async def close(self) -> None:
        await self._stack.aclose()
        await self.stop()

    async def client(self, principal: str) -> Client:
        if principal not in self._clients:
            client = self.space.client(principal)
            self._clients[principal] = await self._stack.enter_async_context(client)
        return self._clients[principal]

    async def play(self, step: Step) -> None:
        match step:
            case Call():
                self.check(step, await self.send(step))
            case Together():
                await self.together(step)
            case Show():
                await self.ask(step)
            case Damage():
                await self.damage(step.sql)

    async def send(self, call: Call) -> Result:
        await self.until(call.at)
        client = await self.client(call.by)
        result = await client.send(
            "cap", call.verb, call.key, call.body, command_id=call.command_id
        )
        self._last = result.id
        return result

    def check(self, call: Call, result: Result) -> None:
        code = result.error.code if result.error is not None else None
        assert (result.outcome, code) == (call.wants, call.code), result
        check(call.verb, result.data, call.data)

    async def together(self, step: Together) -> None:
        """Store all commands while no worker runs, then ask for what became of each."""
        await self.stop()
        ids = [call.command_id or new_command_id() for call in step.calls]
        for call, command_id in zip(step.calls, ids, strict=True):
            client = await self.client(call.by)
            subject = subjects.command(client.names, client.speaker, "cap", call.verb, *call.key)
            reply = await client.conn.request(
                subject,
                strict_json.dumps({"v": 1, **call.body}),
                headers={headers.COMMAND: command_id},
            )
            assert parse_ack(reply.data, subject).seq > 0
        await self.start()
        for call, command_id in zip(step.calls, ids, strict=True):
            client = await self.client(call.by)
            result = await client.send("cap", call.verb, call.key, call.body, command_id=command_id)
            self.check(call, result)

    async def ask(self, step: Show) -> None:
        client = await self.client(DELEGATE)
        body: dict[str, Any] = {"user": step.user}
        if step.mint_key is not None:
            body["mint_key"] = step.mint_key
        if self._last:
            body["after"] = self._last
        outcome, data = await answer(client, body)
        assert outcome == step.wants
        check("show", data, step.data)

    async def damage(self, sql: str) -> None:
        await self.stop()
        folder = space_dir(self.space.data_dir, self.space.names.space)
        db = sqlite3.connect(folder / LEDGER_FILE)
        assert db.execute(sql).rowcount == 1
        db.commit()
        db.close()
        await self.start()

    async def until(self, at: int) -> None:
        """Wait until the broker's clock, which is this machine's, has passed an instant."""
        ahead_ms = self.t0 + at - time.time_ns() // 1_000_000
        if ahead_ms >= 0 and at:
            await asyncio.sleep((ahead_ms + 5) / 1000)


async def answer(client: Client, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    try:
        found = await client.query("cap", "show", body)
    except BadInput as bad:
        # Whose cap it is stands in the subject, so the client refuses what cannot stand there.
        return bad.reason if bad.field == "user" else bad.field, {}
    except (Refused, Failed) as refused:
        return refused.reason, refused.result.data
    return found.outcome, found.data


@pytest.fixture
async def player(space: Space) -> AsyncIterator[Player]:
    one = Player(space)
    await one.start()
    yield one
    await one.close()


@pytest.mark.parametrize("story", STORIES)
async def test_story(story: Story, player: Player) -> None:
    await player.play(minting(True))
    for step in story.steps(player.t0):
        await player.play(step)


async def test_every_replica_and_every_replay_lets_the_earlier_stop_win(player: Player) -> None:
    """Vector 26, with a second worker that folds the same log from its start."""
    await player.play(minting(True))
    (story,) = (one for one in VECTORS if one.number == 26)
    for step in story.steps(player.t0):
        await player.play(step)
    chains = await _chains(player)
    assert len(set(chains)) == 1


async def _chains(player: Player) -> Sequence[str]:
    """The chain of the first worker, and of a new one that starts with an empty file."""
    space = player.space
    other = space.settings(data_dir=space.data_dir.parent / "other")
    client = await player.client(DELEGATE)
    chains = [(await _ledger(client))["chain"]]
    await player.stop()
    async with running(other) as second:
        assert isinstance(second, RunningWorker)
        chains.append((await _ledger(client))["chain"])
    return chains


async def _ledger(client: Client) -> dict[str, Any]:
    status = await client.query("sys", "status", {})
    (found,) = (one for one in _dicts(status.data) if "chain" in one)
    return found


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for one in value for found in _dicts(one)]
    if isinstance(value, dict):
        return [value, *(found for one in value.values() for found in _dicts(one))]
    return []
