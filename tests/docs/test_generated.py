"""The generated pages are what the contract says now."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from worker import pages

PAGES = pages.render()


@pytest.mark.parametrize("path", PAGES)
def test_a_generated_page_is_up_to_date(path: str) -> None:
    assert (ROOT / "docs" / path).read_text() == PAGES[path], "run: tidegate schema --write docs"


def test_the_command_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "worker.cli.main", "schema", "--write", str(tmp_path)]
    subprocess.run(command, check=True, timeout=30)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert written == set(PAGES)
