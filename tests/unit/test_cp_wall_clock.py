"""No wall clock of the worker's machine decides anything about a checkpoint."""

import ast
from pathlib import Path

import pytest

import schemas
import worker

ROOT = Path(worker.__file__).parent
MODULES = sorted(
    path
    for base in (
        ROOT / "checkpoints",
        ROOT / "timers",
        ROOT / "bus",
        Path(schemas.__file__).parent,
    )
    for path in base.rglob("*.py")
)
WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def calls_of_a_wall_clock(source: str) -> list[int]:
    """Lines on which a wall clock is named, called or only handed on."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if node.attr in WALL.get(name, ()) or node.attr == "CLOCK_REALTIME":
                found.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            wanted = WALL["time"] if node.module == "time" else set()
            found += [node.lineno for alias in node.names if alias.name in wanted]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT.parent).as_posix())
def test_no_module_of_the_plane_reads_the_wall_clock(path: Path) -> None:
    assert calls_of_a_wall_clock(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nx = time.time()",
        "import time\nf = time.time_ns",
        "from time import time",
        "from datetime import datetime\nx = datetime.now()",
        "import datetime\nx = datetime.datetime.utcnow()",
        "import time\nx = time.clock_gettime(time.CLOCK_REALTIME)",
    ],
)
def test_each_way_of_reading_it_would_be_found(source: str) -> None:
    assert calls_of_a_wall_clock(source)


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 40
