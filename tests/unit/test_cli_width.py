"""What commands print fits a terminal, and is whole in a pipe."""

import os
import pty
import subprocess
import sys
from pathlib import Path

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
