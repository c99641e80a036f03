"""The adapter of the OpenAI Agents SDK: a real runner, a real worker, a scripted model."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunResult, ToolApprovalItem
from openai.types.responses import ResponseFunctionToolCall

from tests.adapters.agents_process import DoomedStore
from tests.adapters.agents_sdk import agent_of, run_untraced
from tests.adapters.doom import AFTER_MINT, BEFORE_MINT, BEFORE_RESUME, Died, Doom, DoomedClient
from tests.adapters.people import AGENT, ENDPOINT, LIMIT_S, Person, lines, minted, title, until
from tests.support.running import RunningWorker
from tests.support.space import Space, speaker
from worker.adapters import BadQuestion, NothingToRun, RunInDoubt, Settlement
from worker.adapters.openai_agents import Decision, Gate, Runs, decide, question_of

MINUTE_MS = 60_000
LEASE_MS = 20_000
"""Long, so that no load of the machine ends it; a test that waits for its end has a short one."""

SHORT_LEASE_MS = 3_000


class Ground:
    """A run's store and effects, and whoever runs it.

    Attributes:
        maria: The holder.
    """

    def __init__(self, space: Space, directory: Path, maria: Person) -> None:
        self.space = space
        self.effects = directory / "effects"
        self.store = directory / "runs"
        self.maria = maria

    @asynccontextmanager
    async def gate(
        self,
        *tables: str,
        doom: Doom | None = None,
        deadline_ms: int = MINUTE_MS,
        run_with: Runs = run_untraced,
        decision: Any = decide,
    ) -> AsyncIterator[Gate]:
        """One process's gate, with its own connection."""
        fate = doom or Doom(None)
        names = self.space.names
        options = self.space.server.client_options()
        async with DoomedClient(options, speaker(AGENT), names.space, names.root, fate) as client:
            yield Gate(
                agent_of(self.effects, list(tables)),
                client,
                endpoint=ENDPOINT,
                holder=self.maria.speaker,
                deadline_ms=deadline_ms,
                store=DoomedStore(self.store, fate),
                run_with=run_with,
                decision=decision,
                lease_ms=LEASE_MS,
            )
            if fate.dead:
                await client.let_its_leases_pass(ENDPOINT)

    async def child(self, tables: list[str], die: str | None) -> asyncio.subprocess.Process:
        """A real process that runs the run."""
        plan = {
            "url": self.space.server.url,
            "space": self.space.names.space,
            "root": self.space.names.root,
            "store": str(self.store),
            "effects": str(self.effects),
            "tables": tables,
            "holder": [self.maria.speaker.principal, self.maria.speaker.uid],
            "run": "r1",
            "deadline_ms": MINUTE_MS,
            "lease_ms": SHORT_LEASE_MS if die else LEASE_MS,
            "die": die,
            "start": str(self.effects.with_name("killed" if die else "racing")),
            "racers": 1 if die else 2,
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.adapters.agents_process", json.dumps(plan)),
            stdout=asyncio.subprocess.PIPE,
        )


@pytest.fixture
async def ground(space: Space, worker: RunningWorker, tmp_path: Path) -> AsyncIterator[Ground]:
    async with space.client("maria") as client:
        yield Ground(space, tmp_path, Person(client))


async def test_each_call_is_a_checkpoint_and_only_approve_approves(ground: Ground) -> None:
    async with ground.gate("a", "b") as gate:
        running = asyncio.create_task(gate.run("r1", input="Tidy up."))
        a, b = await ground.maria.asked(2)
        shown = [await ground.maria.shown(token) for token in (a, b)]
        assert [title(detail) for detail in shown] == ["May dba call drop?"] * 2
        prompts = {detail.checkpoint.token: detail.prompt or {} for detail in shown}
        drop_a = next(token for token, p in prompts.items() if '"table": "a"' in p["body"])
        drop_b = next(token for token in prompts if token != drop_a)

        await ground.maria.answer(drop_a, "approve")
        await until(lambda: lines(ground.effects) == ["a"])
        await ground.maria.answer(drop_b, "deny")
        progress = await running

    assert progress.ended
    assert progress.output == "a dropped; The person who was asked did not approve this call."
    assert isinstance(progress.result, RunResult)
    assert lines(ground.effects) == ["a"]
    assert len(await minted(ground.space, "oa-")) == 2

    async with ground.gate("a", "b") as gate:
        again = await gate.run("r1", input="Something else.")
    assert (again.output, again.result) == (progress.output, None)
    assert lines(ground.effects) == ["a"]


async def test_nobody_answers_and_the_call_is_rejected(ground: Ground) -> None:
    async with ground.gate("a", deadline_ms=300) as gate:
        progress = await gate.run("r1", input="Tidy up.")
    assert progress.output == "Nobody answered in time, so this call was not approved."
    assert not lines(ground.effects)


@pytest.mark.parametrize("answer", [None, "yes", True, {"approve": True}, "Approve", ["approve"]])
def test_no_other_answer_approves(answer: object) -> None:
    settlement = Settlement("e", "t", "resumed", answer, "maria", 2, 1)
    assert not decide(settlement).approve


async def test_a_decision_of_ones_own_tells_the_model_the_answer(ground: Ground) -> None:
    def spoken(settlement: Settlement) -> Decision:
        return Decision(approve=False, message=f"{settlement.answered_by}: {settlement.answer}")

    async with ground.gate("a", decision=spoken) as gate:
        running = asyncio.create_task(gate.run("r1", input="Tidy up."))
        (token,) = await ground.maria.asked()
        await ground.maria.answer(token, "deny")
        assert (await running).output == "maria: deny"


@pytest.mark.parametrize("die", [BEFORE_MINT, AFTER_MINT])
async def test_a_death_around_the_mint_mints_once(ground: Ground, die: str) -> None:
    async with ground.gate("a", doom=Doom(die)) as gate:
        with pytest.raises(Died):
            await gate.run("r1", input="Tidy up.")
    async with ground.gate("a") as gate:
        running = asyncio.create_task(gate.run("r1"))
        (token,) = await ground.maria.asked()
        assert not lines(ground.effects)
        await ground.maria.answer(token, "approve")
        assert (await running).output == "a dropped"
    assert lines(ground.effects) == ["a"]
    assert len(await minted(ground.space, "oa-")) == 1


async def test_a_settlement_while_nobody_ran_and_a_death_before_the_resume(ground: Ground) -> None:
    async with ground.gate("a") as gate:
        (checkpoint,) = (await gate.run("r1", input="Tidy up.", wait_ms=0)).waiting
    await ground.maria.answer(checkpoint.token, "approve")
    async with ground.gate("a", doom=Doom(BEFORE_RESUME)) as gate:
        with pytest.raises(Died):
            await gate.run("r1")
    assert not lines(ground.effects)
    async with ground.gate("a") as gate:
        assert (await gate.run("r1")).output == "a dropped"
    assert lines(ground.effects) == ["a"]


async def test_a_run_that_was_cut_off_is_refused_until_it_is_told_to_run_again(
    ground: Ground,
) -> None:
    async def cut_off(agent: Agent[Any], start: Any, context: Any) -> RunResult:
        await run_untraced(agent, start, context)
        raise ConnectionError("the answer was lost")

    async with ground.gate("a") as gate:
        (checkpoint,) = (await gate.run("r1", input="Tidy up.", wait_ms=0)).waiting
    await ground.maria.answer(checkpoint.token, "approve")
    async with ground.gate("a", run_with=cut_off) as gate:
        with pytest.raises(ConnectionError):
            await gate.run("r1")
    async with ground.gate("a") as gate:
        for _ in range(2):
            with pytest.raises(RunInDoubt):
                await gate.run("r1")
        assert lines(ground.effects) == ["a"]
        assert (await gate.run("r1", on_doubt="rerun")).output == "a dropped"
    assert lines(ground.effects) == ["a", "a"]


async def test_a_context_that_is_a_mapping_is_kept_and_another_is_taken_from_the_call(
    ground: Ground,
) -> None:
    seen: list[Any] = []

    async def looking(agent: Agent[Any], start: Any, context: Any) -> RunResult:
        result = await run_untraced(agent, start, context)
        seen.append(result.context_wrapper.context)
        return result

    secret = object()
    for run, first, second in (("r1", {"user": 7}, None), ("r2", secret, secret)):
        async with ground.gate("a", run_with=looking) as gate:
            paused = await gate.run(run, input="Tidy up.", context=first, wait_ms=0)
            await ground.maria.answer(paused.waiting[0].token, "deny")
        async with ground.gate("a", run_with=looking) as gate:
            await gate.run(run, context=second)
    assert seen == [{"user": 7}, {"user": 7}, secret, secret]


async def test_a_killed_process_and_two_gates_that_race_to_go_on_have_one_effect(
    ground: Ground,
) -> None:
    await _kill(ground, BEFORE_RESUME)
    async with ground.gate("a") as one, ground.gate("a") as other:
        ends = await asyncio.gather(one.run("r1"), other.run("r1"))
    assert [end.output for end in ends] == ["a dropped"] * 2
    assert lines(ground.effects) == ["a"]


@pytest.mark.long
@pytest.mark.parametrize("die", [BEFORE_MINT, AFTER_MINT, BEFORE_RESUME])
async def test_killed_at_each_step_and_raced_for(ground: Ground, die: str) -> None:
    await _kill_and_race(ground, die)


async def _kill(ground: Ground, die: str) -> None:
    first = await ground.child(["a"], die)
    if die == BEFORE_RESUME:
        (token,) = await ground.maria.asked()
        await ground.maria.answer(token, "approve")
    async with asyncio.timeout(LIMIT_S):
        await first.communicate()
    assert first.returncode == -9


async def _kill_and_race(ground: Ground, die: str) -> None:
    await _kill(ground, die)
    racers = [await ground.child(["a"], None) for _ in range(2)]
    if die != BEFORE_RESUME:
        (token,) = await ground.maria.asked()
        await ground.maria.answer(token, "approve")
    async with asyncio.timeout(LIMIT_S):
        said = [await racer.communicate() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert [json.loads(out) for out, _ in said] == ["a dropped"] * 2
    assert lines(ground.effects) == ["a"]
    assert len(await minted(ground.space, "oa-")) == 1


async def test_what_cannot_be_asked_is_refused_by_field(ground: Ground) -> None:
    def call(name: str, arguments: str) -> ToolApprovalItem:
        raw = ResponseFunctionToolCall(
            type="function_call", call_id="c1", name=name, arguments=arguments
        )
        return ToolApprovalItem(agent_of(ground.effects, []), raw)

    for field, item in {
        "arguments": call("drop", json.dumps({"table": "x" * 40_000})),
        "tool": call("d" * 600, "{}"),
    }.items():
        with pytest.raises(BadQuestion) as refused:
            question_of(item)
        assert refused.value.field == field
        assert "xxx" not in str(refused.value)
    assert "NaN" in (question_of(call("drop", '{"n": NaN}')).prompt.body or "")
    one, other = '{"to": "acme", "of": {"a": 1, "b": 2}}', '{"of":{"b":2,"a":1},"to":"acme"}'
    assert question_of(call("pay", one)) == question_of(call("pay", other))
    assert question_of(call("pay", one)) != question_of(call("pay", other.replace("2", "3")))
    async with ground.gate("a") as gate:
        with pytest.raises(NothingToRun):
            await gate.run("r9", wait_ms=0)
