"""What commands print fits a terminal, and is whole in a pipe."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import command, environment
from worker.showing.columns import fitted

WIDTH = 80


def on_a_terminal(arguments: list[str], env: dict[str, str]) -> list[str]:
    """What the interpreter prints on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**env, "COLUMNS": str(WIDTH)},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    seen = b""
    try:
        while block := os.read(ours, 65_536):
            seen += block
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
        process.communicate(timeout=30)
    return seen.decode().splitlines()


def test_findings_are_wrapped_beside_their_column_but_no_command_is() -> None:
    env = environment(data_dir=Path("/none/tidegate"), nats_url="nats://127.0.0.1:9")
    lines = on_a_terminal(["-m", "worker.cli.main", "doctor"], env)
    fixes = [line for line in lines if " fix: " in line]
    assert max(len(line) for line in lines if line not in fixes) <= WIDTH
    piped = command(["doctor"], env).stdout
    assert set(fixes) <= set(piped.splitlines())
    words = piped.split()
    assert "".join(lines).replace(" ", "") == "".join(words)
    assert len(lines) > len(piped.splitlines())


SENTENCE = "settled       1,398 /s, a fifth of raw compare-and-set on the same broker, all synced"
FITS = f"""
from worker.showing.columns import fitted
print("\\n".join(fitted(["{SENTENCE}", "    short"])))
"""


def test_a_sentence_goes_on_beside_its_label() -> None:
    lines = on_a_terminal(["-c", FITS], dict(os.environ))
    assert lines == [
        "settled       1,398 /s, a fifth of raw compare-and-set on the same broker, all",
        "              synced",
        "    short",
    ]
    assert fitted([SENTENCE]) == [SENTENCE], "a pipe gets it whole"


ROWS = """
from worker.showing.columns import table
rows = [("runs.nightly", "t" * TOKEN, "waiting", "maria"), ("runs", "b", "", "mallory")]
print("\\n".join(table(("ENDPOINT", "TOKEN", "STATE", "HOLDER"), rows)))
"""


def test_a_table_that_fits_stands_side_by_side() -> None:
    lines = on_a_terminal(["-c", ROWS.replace("* TOKEN", "* 40")], dict(os.environ))
    assert [line.split() for line in lines] == [
        ["ENDPOINT", "TOKEN", "STATE", "HOLDER"],
        ["runs.nightly", "t" * 40, "waiting", "maria"],
        ["runs", "b", "mallory"],
    ]


def test_a_table_that_does_not_fit_stands_one_below_the_other() -> None:
    lines = on_a_terminal(["-c", ROWS.replace("* TOKEN", "* 60")], dict(os.environ))
    assert lines == [
        "endpoint  runs.nightly",
        f"token     {'t' * 60}",
        "state     waiting",
        "holder    maria",
        "",
        "endpoint  runs",
        "token     b",
        "holder    mallory",
    ]


LONG_VALUE = """
from worker.showing.columns import columns
rows = [("ledger settings snapshot commands", "1"), ("ledger chain", "0" * 64)]
print("\\n".join(columns(rows)))
"""


def test_a_word_that_has_no_room_beside_its_label_stands_whole_below_it() -> None:
    assert on_a_terminal(["-c", LONG_VALUE], dict(os.environ)) == [
        "ledger settings snapshot commands  1",
        "ledger chain",
        "    " + "0" * 64,
    ]


TOLD = """
from worker.cli.demo import _Teller
from worker.demo.show import STORY
from worker.demo.story import Ending, Played
_Teller().scene_ended(Played(STORY[0], Ending(STORY[0].must, "It went on, at once. " * 8)))
"""


def test_a_scene_of_the_demo_fits_a_terminal() -> None:
    first, *others = on_a_terminal(["-c", TOLD], {**os.environ, "NO_COLOR": "1", "TERM": "dumb"})
    assert first.startswith("   ✓ It went on")
    assert others
    assert all(line.startswith("     ") and line[5] != " " for line in others)
    assert max(map(len, (first, *others))) <= WIDTH


TOP = """
from worker.top.plain import _section
from worker.top.tables import Row, Section
row = Row(("14m56s", "a " * 100))
print("\\n".join(_section(Section("CHECKPOINTS", "1 waiting", ("DUE", "TITLE"), (row,)))))
"""


def test_a_long_title_fits_a_terminal() -> None:
    title, head, *rows = on_a_terminal(["-c", TOP], dict(os.environ))
    assert (title, head) == ("CHECKPOINTS  1 waiting", "  DUE     TITLE")
    assert len(rows) > 2
    assert WIDTH - 5 < max(map(len, rows)) <= WIDTH


def shell(line: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A shell's redirection of the command line's output."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m worker.cli.main {line}', sys.executable],
        env=environment(data_dir=tmp_path),
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("command_line", ["identity init ann", "config show", "identity show"])
def test_output_that_cannot_be_written_is_said_in_one_line(
    command_line: str, tmp_path: Path
) -> None:
    if command_line == "identity show":
        assert shell("identity init ann", tmp_path).returncode == 0
    full = shell(f"{command_line} > /dev/full", tmp_path)
    assert full.returncode == 1
    assert full.stderr.splitlines()[-1].startswith("tidegate: standard output cannot be written: ")
    assert "Traceback" not in full.stderr


def test_a_closed_output_is_no_fault(tmp_path: Path) -> None:
    closed = shell("doctor --nats nats://127.0.0.1:9 >&-", tmp_path)
    assert closed.returncode == 1
    assert closed.stderr == ""
