"""Checkpoints against a small oracle: random operations on the real plane over the real broker.

The oracle knows each checkpoint's state and what each command may answer in it. Where the answer
depends on whether a deadline has passed, the oracle allows what the broker's timestamps allow: a
command sequenced at or after the deadline is late, one answered before the deadline is in time, and
in between either outcome is right as long as everything that can be seen agrees with it.
"""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from schemas.subjects import Checkpoint, Speaker
from tests.support.cp import MINUTE_MS, Desk, Json, QuickSpace, Replica, a_target, new_id
from tests.support.space import Space

T = TypeVar("T")
SHORT_MS = (40, 120, 250)
LONG_MS = (MINUTE_MS, 10 * MINUTE_MS)
SLACK_MS = 3
"""The plane's bounds of now lie around the broker's by this much at most, as far apart as they are
between two processes of one machine."""

PROMPT = {"v": 1, "title": "which?", "choices": ["yes", "no"]}


@dataclass(frozen=True)
class Known:
    """What the oracle knows of one checkpoint.

    Attributes:
        minted: The mint's body, its holder included.
        minter: ``<principal>/<command id>`` of the mint.
        generation: In force.
        deadline: In force.
        cause: Of the last write to the status, if the oracle saw it.
        settled: ``resumed`` or ``expired`` once known.
        resumer: Command id of the resume that won.
        armed: Whether a timer must stand while it waits.
    """

    minted: Json
    generation: int
    deadline: int
    cause: str
    settled: str = ""
    armed: bool = True


class World:
    """The real thing, shared by all examples: a space, a desk and a replica."""

    def __init__(self, space: Space) -> None:
        self.loop = asyncio.new_event_loop()
        self._space = space
        self.wheel = True

    def run(self, work: Awaitable[T]) -> T:
        async def within() -> T:
            async with asyncio.timeout(60):
                return await work

        return self.loop.run_until_complete(within())

    def open(self) -> None:
        self.run(self._space.set_up())
        self.desk: Desk = self.run(self._new_desk())
        self.replica = self._new_replica()
        self.run(self.replica.start())

    async def _new_desk(self) -> Desk:
        return await Desk(self._space).open()

    def _new_replica(self) -> Replica:
        return Replica(self._space, wheel=self.wheel)

    def restart(self) -> None:
        """Another life of the same worker, its wheel on and off in turn."""
        self.run(self.replica.stop())
        self.wheel = not self.wheel
        self.replica = self._new_replica()
        self.run(self.replica.start())

    def close(self) -> None:
        self.run(self.replica.stop())
        self.run(self.desk.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


@dataclass(frozen=True)
class Said:
    """A command that was answered.

    Attributes:
        at_ms: The broker's timestamp of the command.
        done_ms: The broker's now once its result was there.
        told: The result.
    """

    at_ms: int
    done_ms: int
    told: Json

    @property
    def word(self) -> str:
        return str(self.told["outcome"])


class Checkpoints(RuleBasedStateMachine):
    """One example: a few checkpoints of its own."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.desk = self.world.desk
        self.targets = [a_target() for _ in range(3)]
        self.known: dict[Checkpoint, Known] = {}
        self.said: list[tuple[str, Checkpoint, Json, Speaker, str]] = []

    # What every rule does.

    def say(
        self, verb: str, target: Checkpoint, body: Json, by: Speaker, command_id: str = ""
    ) -> Said:
        given = command_id or new_id()
        self.said.append((verb, target, body, by, given))

        async def work() -> Said:
            seq = await self.desk.say(verb, target, body, by=by, command_id=given)
            told = await self.desk.result(seq)
            command = await self.desk.js.message(self.desk.names.cmd_stream, seq)
            assert command is not None
            await self.desk.answered_once(seq)
            return Said(command.time_ms, await self.desk.now_ms(), told)

        return self.world.run(work())

    def now_ms(self) -> int:
        return self.world.run(self.desk.now_ms())

    def look(self, target: Checkpoint) -> None:
        """Learn of an expiry that time alone has brought, and require that it was not early."""
        known = self.known.get(target)
        if known is None or known.settled:
            return
        status = self.world.run(self.desk.status(target))
        assert status is not None
        assert (status["deadlineGeneration"], status["deadline"]) == (
            known.generation,
            known.deadline,
        ), (status, known)
        if status["state"] != "waiting":
            assert status["state"] == "expired", status
            assert status["settledTs"] >= known.deadline
            self.known[target] = replace(known, settled="expired")

    def settle(self, target: Checkpoint, word: str) -> None:
        self.known[target] = replace(self.known[target], settled=word)

    def allowed_to_be_due(self, known: Known, said: Said, *, due: bool) -> None:
        """Require that the broker's timestamps allow what was decided."""
        if due:
            assert said.done_ms + SLACK_MS >= known.deadline, "it was called due too early"
        else:
            assert said.at_ms < known.deadline, "it was late and called in time"

    def holder(self, target: Checkpoint) -> Speaker:
        held = self.known[target].minted.get("holder")
        if held is None:
            return self.desk.alice
        return Speaker(held["id"], held["lifecycleUid"])

    # Rules.

    @rule(
        number=st.integers(0, 2),
        in_ms=st.sampled_from(SHORT_MS + LONG_MS),
        prompt=st.booleans(),
        for_bob=st.booleans(),
    )
    def mint(self, number: int, in_ms: int, prompt: bool, for_bob: bool) -> None:
        target = self.targets[number]
        body: Json = {"deadline_at_ms": self.now_ms() + in_ms}
        if prompt:
            body["prompt"] = PROMPT
        if for_bob:
            bob = self.desk.bob
            body["holder"] = {"id": bob.principal, "lifecycleUid": bob.uid}
        command_id = new_id()
        said = self.say("mint", target, body, self.desk.alice, command_id)
        if target in self.known:
            self.look(target)
            assert said.word == "different-checkpoint", said.told
            return
        if said.word == "deadline-not-future":
            assert said.done_ms + SLACK_MS >= body["deadline_at_ms"]
            return
        assert said.word == "minted", said.told
        assert said.at_ms < body["deadline_at_ms"]
        self.known[target] = Known(body, 1, body["deadline_at_ms"], f"alice/{command_id}")

    @rule(number=st.integers(0, 2))
    def mint_again(self, number: int) -> None:
        target = self.targets[number]
        if target not in self.known:
            return
        said = self.say("mint", target, self.known[target].minted, self.desk.alice)
        assert said.word == "already_minted", said.told
        self.known[target] = replace(self.known[target], armed=True)
        self.look(target)

    @rule(
        number=st.integers(0, 2),
        ahead=st.integers(-1, 1),
        in_ms=st.sampled_from(SHORT_MS + LONG_MS),
    )
    def heartbeat(self, number: int, ahead: int, in_ms: int) -> None:
        target = self.targets[number]
        far = {"generation": 1, "deadline_at_ms": self.now_ms() + MINUTE_MS}
        if self.unknown("heartbeat", number, far):
            return
        known = self.known[target]
        generation = max(1, known.generation + ahead)
        body = {"generation": generation, "deadline_at_ms": self.now_ms() + in_ms}
        command_id = new_id()
        said = self.say("heartbeat", target, body, self.desk.bob, command_id)
        match said.word:
            case "extended":
                assert not known.settled
                assert generation == known.generation
                self.allowed_to_be_due(known, said, due=False)
                self.known[target] = replace(
                    known,
                    generation=generation + 1,
                    deadline=body["deadline_at_ms"],
                    cause=f"bob/{command_id}",
                    armed=True,
                )
            case "expired":
                assert known.settled != "resumed"
                self.allowed_to_be_due(known, said, due=True)
                self.settle(target, "expired")
            case "stale-generation":
                assert not known.settled
                assert generation != known.generation
            case "already-resumed":
                assert known.settled == "resumed"
            case "deadline-not-future":
                assert said.done_ms + SLACK_MS >= body["deadline_at_ms"]
                assert not known.settled
            case _:
                raise AssertionError(said.told)
        self.look(target)

    @rule(
        number=st.integers(0, 2),
        mine=st.booleans(),
        answer=st.sampled_from(("", "yes", "no", "other")),
    )
    def resume(self, number: int, mine: bool, answer: str) -> None:
        target = self.targets[number]
        if self.unknown("resume", number, {}):
            return
        known, holder = self.known[target], self.holder(target)
        by = holder if mine else next(s for s in (self.desk.alice, self.desk.bob) if s != holder)
        command_id = new_id()
        said = self.say("resume", target, {"answer": answer} if answer else {}, by, command_id)
        match said.word:
            case "not-the-holder":
                assert by != holder
            case "resumed":
                assert by == holder
                assert not known.settled
                assert answer != "other" or "prompt" not in known.minted
                self.allowed_to_be_due(known, said, due=False)
                self.settle(target, "resumed")
                self.known[target] = replace(
                    self.known[target], cause=f"{by.principal}/{command_id}"
                )
            case "already-resumed":
                assert by == holder
                assert known.settled == "resumed"
            case "expired":
                assert by == holder
                assert known.settled != "resumed"
                self.allowed_to_be_due(known, said, due=True)
                self.settle(target, "expired")
            case "not-a-choice":
                assert by == holder
                assert answer == "other"
                assert "prompt" in known.minted
                assert not known.settled
            case _:
                raise AssertionError(said.told)
        self.look(target)

    @rule(number=st.integers(0, 2))
    def expire(self, number: int) -> None:
        target = self.targets[number]
        if self.unknown("expire", number, {}):
            return
        known = self.known[target]
        said = self.say("expire", target, {}, self.desk.bob)
        match said.word:
            case "not-due":
                assert not known.settled
                self.allowed_to_be_due(known, said, due=False)
            case "expired" | "already_settled":
                if not known.settled:
                    self.allowed_to_be_due(known, said, due=True)
                    self.settle(target, "expired")
                assert said.told["data"]["state"] == self.known[target].settled
            case _:
                raise AssertionError(said.told)
        self.look(target)

    @rule(number=st.integers(0, 2))
    def repair(self, number: int) -> None:
        target = self.targets[number]
        if self.unknown("repair", number, {}):
            return
        known = self.known[target]
        said = self.say("repair", target, {}, self.desk.alice)
        assert said.told["status"] == "ok"
        repairs = set(said.told["data"]["repairs"])
        assert repairs <= {"expired", "rearmed", "timer-cancelled", "fact-published"}
        if "rearmed" in repairs:
            assert not known.armed
        if "expired" in repairs:
            self.allowed_to_be_due(known, said, due=True)
        if not known.settled:
            self.known[target] = replace(known, armed=True)
        self.look(target)

    @rule(number=st.integers(0, 999))
    def say_again(self, number: int) -> None:
        """A client that lost its answer: the same command id, and the same effect at most."""
        if not self.said:
            return
        verb, target, body, by, command_id = self.said[number % len(self.said)]
        known = self.known.get(target)
        if known is None:
            return
        said = self.say(verb, target, body, by, command_id)
        cause = f"{by.principal}/{command_id}"
        if verb == "resume" and known.settled == "resumed" and known.cause == cause:
            assert said.word == "resumed", said.told
        if said.word == "resumed" and not known.settled:
            # It was refused or lost to nothing before, and may well win now.
            self.allowed_to_be_due(known, said, due=False)
            assert by == self.holder(target)
            self.known[target] = replace(known, settled="resumed", cause=cause)
        elif verb == "heartbeat" and said.word == "extended":
            assert not known.settled
            if known.cause != cause:
                assert body["generation"] == known.generation
                self.known[target] = replace(
                    known,
                    generation=known.generation + 1,
                    deadline=body["deadline_at_ms"],
                    cause=cause,
                    armed=True,
                )
            else:
                assert body["generation"] == known.generation - 1
                self.known[target] = replace(known, armed=True)
        elif verb == "mint" and said.word in ("minted", "already_minted"):
            assert body == known.minted
            self.known[target] = replace(known, armed=True)
        elif verb == "repair" and not known.settled:
            self.known[target] = replace(known, armed=True)
        self.look(target)

    @rule(number=st.integers(0, 2))
    def lose_the_timer(self, number: int) -> None:
        target = self.targets[number]
        if target not in self.known:
            return
        self.world.run(self.desk.disarm(target))
        self.known[target] = replace(self.known[target], armed=False)

    @rule(number=st.integers(0, 2), forged=st.booleans())
    def a_fire(self, number: int, forged: bool) -> None:
        """Somebody publishes a fire, as the broker would or not quite: it is a hint at most."""
        target = self.targets[number]
        if target not in self.known:
            return
        known = self.known[target]
        scheduler = self.desk.timer_subject(target, "armed")
        body = {
            "v": 1,
            "timerId": target.token,
            "generation": known.generation,
            "deadline": known.deadline,
        }
        headers = {
            "Nats-Scheduler": scheduler.replace(".0.", ".1.") if forged else scheduler,
            "Nats-Schedule-Next": "purge",
        }
        subject = self.desk.timer_subject(target, "fire")
        # As the broker's own, it takes the timer with it.
        self.world.run(self.desk.js.publish(subject, json.dumps(body).encode(), headers=headers))
        self.known[target] = replace(known, armed=False)
        self.look(target)

    @rule(number=st.integers(0, 2))
    def wait_for_a_deadline(self, number: int) -> None:
        """What is due soon and has a timer, or a wheel that knows of it, expires by itself."""
        target = self.targets[number]
        if target not in self.known:
            return
        known = self.known[target]
        if known.settled or known.deadline > self.now_ms() + 1_000:
            return
        if not known.armed:
            self.say("repair", target, {}, self.desk.alice)
        self.world.run(self.desk.settled(target))
        self.look(target)
        assert self.known[target].settled == "expired"

    @rule()
    def sweep(self) -> None:
        self.world.run(self.world.replica.swept())

    @rule()
    def lose_the_durable(self) -> None:
        names = self.desk.names
        self.world.run(self.desk.js.consumer_delete(names.cmd_stream, names.cp_durable))
        self.say("expire", a_target(), {}, self.desk.alice)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    def unknown(self, verb: str, number: int, body: Json) -> bool:
        """Whether there is no such checkpoint, in which case the command says so."""
        target = self.targets[number]
        if target in self.known:
            return False
        said = self.say(verb, target, body, self.desk.alice)
        assert said.word == "unknown-checkpoint", said.told
        return True

    def teardown(self) -> None:
        """In the end everything that settled agrees, and everything that waits can go on."""
        for target in sorted(self.known, key=lambda one: one.token):
            self.look(target)
            known = self.known[target]
            if not known.settled:
                said = self.say("resume", target, {}, self.holder(target))
                assert said.word in ("resumed", "expired"), said.told
                self.allowed_to_be_due(known, said, due=said.word == "expired")
                self.settle(target, said.word)
            status = self.world.run(self.desk.agree(target))
            known = self.known[target]
            assert (status["state"], status["deadlineGeneration"], status["deadline"]) == (
                known.settled,
                known.generation,
                known.deadline,
            )


@pytest.fixture
def world(bare_space: Space) -> Iterator[World]:
    one = World(QuickSpace(bare_space.server, bare_space.names, bare_space.data_dir))
    one.open()
    yield one
    one.close()


def play(world: World, **how: Any) -> None:
    machine = type("Machine", (Checkpoints,), {"world": world})
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            database=None,
            **how,
        ),
    )


def test_random_operations_agree_with_the_oracle(world: World) -> None:
    """The same examples each time; the broker's clock alone differs."""
    play(
        world,
        max_examples=25,
        stateful_step_count=20,
        derandomize=True,
        phases=[Phase.generate],
    )


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_many_random_operations_agree_with_the_oracle(world: World) -> None:
    play(world, max_examples=400, stateful_step_count=50)
