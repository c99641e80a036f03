"""Playing the story: every scene in turn, told to a person or reported as JSON."""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final, Protocol

from schemas.strict_json import JsonObject
from worker.demo import admission, caps, checkpoints
from worker.demo.stage import Stage
from worker.demo.story import Played, Scenario
from worker.errors import TidegateError
from worker.version import version

STORY: Final[tuple[Scenario, ...]] = (
    *checkpoints.STORY,
    *admission.STORY,
    *caps.STORY,
)
SCENE_LIMIT_S: Final = 20.0


class Narrator(Protocol):
    """Tells the story while it is played."""

    def begins(self) -> None:
        """The stage is being set."""

    def ready(self, took_ms: float) -> None:
        """The stage is set."""

    def scene(self, scenario: Scenario) -> None:
        """A scene begins."""

    def scene_ended(self, played: Played) -> None:
        """A scene has ended."""

    def ended(self, ok: bool, took_ms: float) -> None:
        """The story has ended."""


async def play(narrator: Narrator, story: tuple[Scenario, ...] = STORY) -> JsonObject:
    """Play the story on a stage of its own, which is removed at the end.

    Returns:
        The report: ``{"v": 1, "ok", "took_ms", "scenarios": [...]}``.

    Raises:
        TidegateError: The stage could not be set.
    """
    began = time.monotonic()
    narrator.begins()
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tidegate-demo-"))
    stage = Stage(folder)
    played: list[Played] = []
    try:
        await stage.set_up()
        narrator.ready(_since(began))
        for scenario in story:
            narrator.scene(scenario)
            played.append(await _play_one(stage, scenario))
            narrator.scene_ended(played[-1])
    finally:
        await stage.tear_down()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    ok = all(one.ok for one in played)
    narrator.ended(ok, _since(began))
    return {
        "v": 1,
        "ok": ok,
        "version": version(),
        "took_ms": _since(began),
        "scenarios": [one.to_object() for one in played],
    }


async def _play_one(stage: Stage, scenario: Scenario) -> Played:
    try:
        async with asyncio.timeout(SCENE_LIMIT_S):
            return Played(scenario, await scenario.play(stage))
    except TidegateError as error:
        return Played(scenario, None, error.message)
    except TimeoutError:
        return Played(scenario, None, "it took too long")


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
