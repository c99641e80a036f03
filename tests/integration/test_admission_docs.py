"""The example in docs/admission.md does what it says."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.support.running import RunningWorker
from tests.support.space import Space

DOCS = Path(__file__).parents[2] / "docs" / "admission.md"


@pytest.mark.skipif(sys.platform != "linux", reason="process evidence needs Linux")
async def test_the_example_of_the_docs_runs(
    space: Space, worker: RunningWorker, tmp_path: Path
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), space.server.url, space.names.space),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert sorted(said.decode().splitlines()) == ["agent-1: hello, model", "agent-2: hello, model"]
    async with space.client("_op") as operator:
        for request in ("req-1", "req-2"):
            assert (await operator.adm.request(request)).state == "completed"
