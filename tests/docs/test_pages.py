"""Every page that shows commands does what it says; the convention is in ``tests.docs``."""

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
"""How many blocks a page may leave out; every one says why in its comment."""

BARE = ("README.md", "docs/quickstart.md")
"""Pages that install first; the others begin with ``tidegate`` on the PATH."""

PAGES = [page for page in SKIPPED if (ROOT / page).exists()]
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
@pytest.mark.timeout(900)  # a page is many processes in a row, each of which a busy machine delays
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    found = list(blocks((ROOT / page).read_text()))
    skipped = [f"{page}:{block.line}: {block.detail}" for block in found if block.use == "skip"]
    print("\n".join(["not run:", *skipped]))
    assert len(skipped) == SKIPPED[page], skipped
    last: Block | None = None
    with Session(tmp_path, installed=page not in BARE) as session:
        for block in found:
            match block.use:
                case "run":
                    session.run(block)
                    last = block
                case "file":
                    (session.folder / block.detail).write_text(block.text)
                case "output":
                    assert last is not None, f"line {block.line}: nothing was run before it"
                    session.check(block, block.text)
    assert last is not None
