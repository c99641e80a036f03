"""The examples, run as they are, to their end."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.adapters.people import LIMIT_S
from tests.support.process import environment
from tests.support.running import running
from tests.support.space import Space

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "langgraph_approval.py": [
        "Maria reads: Deploy 2.4 to production? and answers: approve",
        "2.4: deployed",
        "Maria reads: Deploy 2.5 to production? and answers: deny",
        "2.5: not deployed",
        "2.6: nobody answered, so nothing was deployed",
    ],
    "openai_agents_approval.py": [
        "Maria reads: May janitor call delete_branch? and answers: approve",
        "monday: old-idea is deleted",
        "Maria reads: May janitor call delete_branch? and answers: deny",
        "tuesday: The person who was asked did not approve this call.",
        "wednesday: Nobody answered in time, so this call was not approved.",
    ],
}


@pytest.mark.parametrize(
    "example",
    [pytest.param("langgraph_approval.py", marks=pytest.mark.long), "openai_agents_approval.py"],
)
async def test_with_a_worker_that_is_there(example: str, space: Space, tmp_path: Path) -> None:
    async with running(space.settings()):
        env = environment(
            nats_url=space.server.url, spaces=space.names.space, data_dir=tmp_path / "state"
        )
        assert await _run(example, env, tmp_path) == SAID[example]


@pytest.mark.parametrize(
    "example",
    ["langgraph_approval.py", pytest.param("openai_agents_approval.py", marks=pytest.mark.long)],
)
async def test_with_a_worker_of_its_own(example: str, tmp_path: Path) -> None:
    assert await _run(example, environment(), tmp_path) == SAID[example]


async def _run(example: str, env: dict[str, str], directory: Path) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / example)),
        env=env,
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().splitlines()
