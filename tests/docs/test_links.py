"""Links between pages lead somewhere, and what pages install exists."""

import re
import tomllib

import pytest

from tests.docs.pages import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
)


def without_blocks(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    """Targets of links; what looks like one within code is none."""
    text = re.sub(r"(?<!\[)`[^`\n]+`", "", without_blocks(text))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(text: str) -> set[str]:
    """What a heading is linked by: lower case, no punctuation, a dash for each blank."""
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in links(path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(found.read_text()), f"{page}: {target}"


def test_the_extras_that_pages_install_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for page in PAGES:
        for named in re.findall(r"(?:'\.|\btidegate)\[([\w,-]+)\]", (ROOT / page).read_text()):
            assert set(named.split(",")) <= extras, f"{page}: [{named}]"
