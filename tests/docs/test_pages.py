"""Every page that shows commands does what it says; the convention is in ``tests.docs``."""

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.docs.session import Session

SKIPPED = {
    "README.md": 1,
    "docs/quickstart.md": 0,
    "docs/recipes.md": 0,
}
"""How many blocks a page leaves out; every one says why in its comment."""

BARE = ("README.md", "docs/quickstart.md")
"""Pages that install first; the others begin with ``tidegate`` on the PATH."""

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
@pytest.mark.timeout(900)  # a page is many processes in a row, each of which a busy machine delays
@pytest.mark.parametrize("page", SKIPPED)
def test_every_block_of_a_page_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    skipped = [block for block in blocks((ROOT / page).read_text()) if block.use == "skip"]
    for block in skipped:
        print(f"not run: {page}:{block.line}: {block.detail}")
    assert len(skipped) == SKIPPED[page]
    run(page, tmp_path)


@pytest.mark.parametrize("page", SKIPPED)
def test_a_file_is_named_where_a_reader_sees_it(page: str) -> None:
    """The comment that makes a block a file is not there once the page is rendered."""
    lines = (ROOT / page).read_text().splitlines()
    for number, line in enumerate(lines):
        if (name := re.fullmatch(r"<!-- docs: file (\S+) -->", line)) is not None:
            assert lines[number - 2 : number] == [f"`{name[1]}`:", ""], f"line {number + 1}"


def run(page: str, folder: Path) -> None:
    """Run a page from its first block to its last."""
    last: Block | None = None
    with Session(folder, installed=page not in BARE) as session:
        for block in blocks((ROOT / page).read_text()):
            match block.use:
                case "run":
                    session.run(block)
                    last = block
                case "file":
                    (session.folder / block.detail).write_text(block.text)
                case "output":
                    assert last is not None, f"line {block.line}: nothing was run before it"
                    session.check(block, block.text)
    assert last is not None, f"{page} shows nothing that could be run"
