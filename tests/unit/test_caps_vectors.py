"""Every vector and every row of spec/caps.md, against the fold with given timestamps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import strict_json, tokens
from schemas.caps import FACTS
from schemas.codes import BadInput
from schemas.results import Refusal, Verdict
from schemas.subjects import Speaker
from tests.support.caps_rows import ROWS
from tests.support.caps_steps import (
    DELEGATE,
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
from worker.caps.plane import PLANE
from worker.caps.queries import show
from worker.ledger.plane import View
from worker.ledger.testing import NAMES, UID, FoldDriver, Logged

T0 = 1_800_000_000_000
OTHER_UID = "b" * 26


class Player:
    """Plays steps against the fold over a real file."""

    def __init__(self, path: Path) -> None:
        self.driver = FoldDriver(path, [PLANE])
        self.play(minting(True))

    def play(self, step: Step) -> None:
        match step:
            case Call():
                before = self.tables() if step.writes_nothing else None
                (result,) = self.driver.feed([self.message(step, 1)])
                self.check(step, result)
                assert before is None or self.tables() == before
            case Together():
                messages = [self.message(call, n) for n, call in enumerate(step.calls, start=1)]
                for call, result in zip(step.calls, self.driver.feed(messages), strict=True):
                    self.check(call, result)
            case Show():
                self.ask(step)
            case Damage():
                self.damage(step.sql)

    def message(self, call: Call, nth: int) -> Logged:
        made = self.driver.message(
            call.by,
            "cap",
            call.verb,
            *call.key,
            body=call.body,
            at_ms=T0 + call.at,
            command_id=call.command_id,
            uid=UID if call.by == DELEGATE else OTHER_UID,
        )
        return Logged(made.subject, made.seq + nth - 1, made.time_ms, made.headers, made.data)

    def check(self, call: Call, result: dict[str, object]) -> None:
        error = result.get("error")
        code = error["code"] if isinstance(error, dict) else None
        assert (result["outcome"], code) == (call.wants, call.code), result
        data = result["data"]
        assert isinstance(data, dict)
        check(call.verb, data, call.data)

    def ask(self, step: Show) -> None:
        state = self.driver.fold.state
        view = View(
            self.driver.db,
            NAMES,
            max(state.now_ms, T0 + step.at),
            state.epoch,
            state.watermark,
            state.ruleset,
            Speaker(DELEGATE, UID),
        )
        body = {"user": step.user}
        if step.mint_key is not None:
            body["mint_key"] = step.mint_key
        before = self.tables()
        answer = answered(view, body)
        assert (answer.reason if isinstance(answer, Refusal) else answer.outcome) == step.wants
        check("show", answer.data, step.data)
        assert self.tables() == before

    def damage(self, sql: str) -> None:
        db = self.driver.db
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(sql)
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA ignore_check_constraints = OFF")

    def tables(self) -> dict[str, str]:
        digest = self.driver.digest().tables
        return {name: digest[name] for name in PLANE.tables}


def answered(view: View, body: dict[str, str]) -> Verdict:
    try:
        return show(view, strict_json.dumps(body))
    except BadInput as bad:
        return Refusal.of(bad)


@pytest.fixture
def player(tmp_path: Path) -> Iterator[Player]:
    one = Player(tmp_path / "ledger.db")
    yield one
    one.driver.close()


@pytest.mark.parametrize(
    "story", [pytest.param(one, id=f"{one.number}-{one.name}") for one in VECTORS]
)
def test_vector(story: Story, player: Player, tmp_path: Path) -> None:
    play(story, player, tmp_path)


@pytest.mark.parametrize("story", [pytest.param(one, id=one.name) for one in ROWS])
def test_row(story: Story, player: Player, tmp_path: Path) -> None:
    play(story, player, tmp_path)


def test_every_vector_is_told() -> None:
    assert {one.number for one in VECTORS} == set(range(1, 29))


def play(story: Story, player: Player, folder: Path) -> None:
    steps = list(story.steps(T0))
    for step in steps:
        player.play(step)
    check_facts(player.driver)
    if not any(isinstance(step, Damage) for step in steps):
        replays_to_the_same_state(player.driver, folder)


def check_facts(driver: FoldDriver) -> None:
    for row in driver.said:
        _, _, _, plane, kind, user, fact_id = row.subject.split(".")
        assert (plane, fact_id.partition("-")[0]) == ("cap", "1")
        assert tokens.is_user(user)
        body = FACTS[kind].from_bytes(row.body)
        assert body.to_bytes() == row.body


def replays_to_the_same_state(driver: FoldDriver, folder: Path) -> None:
    """In one batch, in a fresh file, with a restart in the middle: byte for byte the same."""
    replica = FoldDriver(folder / "replica.db", [PLANE])
    half = len(driver.log) // 2
    replica.feed(driver.log[:half])
    replica.reopen()
    replica.feed(driver.log[half:])
    assert replica.digest() == driver.digest()
    assert replica.fold.state.chain == driver.fold.state.chain
    replica.close()
