"""One bash session for one page, shut into a temporary folder."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.docs.pages import ROOT, Block, agrees, commands
from tests.support.process import free_port

BLOCK_LIMIT_S: Final = 240.0
END_LIMIT_S: Final = 60.0
PROGRAMS: Final = ("python", "python3", "tidegate", "pytest", "nats-server")
MARK: Final = "DOCS_SESSION"


class PageFailed(AssertionError):
    """A block did not do what the page says."""


class Session:
    """Runs blocks one after the other; leaving it ends everything that they started.

    Attributes:
        folder: Where the blocks run.
        printed: What the last block that was run printed, errors included.
    """

    def __init__(self, home: Path, *, installed: bool) -> None:
        self._home = home
        self._mark = uuid.uuid4().hex
        self._installed = installed
        self._count = 0
        self.folder = home / "tidegate"
        self.printed = ""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, self.folder)
        shutil.copytree(ROOT / "docs", self.folder / "docs")
        (self._home / "blocks").mkdir()
        with (self._home / "bash.log").open("ab") as log:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-m"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stdin = self._bash.stdin
        assert stdin is not None
        stdin.close()
        self._bash.wait(END_LIMIT_S)
        started = self._processes()
        _ask_to_end(started, "terminate")
        _, left = psutil.wait_procs(started, timeout=END_LIMIT_S)
        _ask_to_end(left, "kill")
        if left and kind is None:
            raise PageFailed(f"did not end on SIGTERM: {left}")

    def run(self, block: Block) -> None:
        """Run a block and check how it ended.

        Raises:
            PageFailed: It ended otherwise, printed something else, or took too long.
        """
        match block.language:
            case "console":
                steps = commands(block.text)
                for number, (command, shown) in enumerate(steps, start=1):
                    is_last = number == len(steps)
                    self._step(block, command, block.exit_code if is_last else 0)
                    self.check(block, shown)
            case "python":
                script = self._home / "blocks" / f"line-{block.line}.py"
                script.write_text(block.text)
                self._step(block, f"python {_quoted(script)}", block.exit_code)
            case _:
                self._step(block, block.text, block.exit_code)

    def check(self, block: Block, shown: str) -> None:
        """Compare what was printed last with what the page shows.

        Raises:
            PageFailed: It differs.
        """
        if not agrees(shown, self.printed):
            raise PageFailed(f"line {block.line}: shown\n{shown}\nbut printed\n{self.printed}")

    def _step(self, block: Block, text: str, exit_code: int) -> None:
        self._count += 1
        place = self._home / "blocks" / f"{self._count:02}"
        script, printed, ended = (place.with_suffix(end) for end in (".sh", ".out", ".rc"))
        # Stops at the first failure, as a reader does, and leaves the session alive.
        script.write_text(f"trap 'return $?' ERR\n{text}\n")
        stdin = self._bash.stdin
        assert stdin is not None
        line = ". {0} >{1} 2>&1 </dev/null; echo $? >{2}.part; trap - ERR; mv {2}.part {2}\n"
        stdin.write(line.format(*map(_quoted, (script, printed, ended))).encode())
        stdin.flush()
        until = time.monotonic() + BLOCK_LIMIT_S
        while not ended.exists():
            if time.monotonic() > until or self._bash.poll() is not None:
                said = printed.read_text() if printed.exists() else ""
                raise PageFailed(f"line {block.line}: did not come to its end:\n{text}\n{said}")
            time.sleep(0.01)
        self.printed = printed.read_text()
        code = int(ended.read_text())
        if code != exit_code:
            raise PageFailed(
                f"line {block.line}: ended with {code}, not {exit_code}:\n{text}\n{self.printed}"
            )

    def _processes(self) -> list[psutil.Process]:
        """Whatever inherited the session's environment, also in sessions of its own."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def _environment(self) -> dict[str, str]:
        installed, programs = self._home / "installed", self._home / "programs"
        _install(installed / "bin")
        _program(programs / "python3", _PYTHON3.format(_quoted(sys.executable), _quoted(installed)))
        (self._home / "tmp").mkdir()
        own = [installed / "bin", programs] if self._installed else [programs]
        outer = [
            folder
            for folder in os.environ["PATH"].split(os.pathsep)
            if not (Path(folder) / "tidegate").exists()
        ]
        return {
            **{name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ},
            MARK: self._mark,
            "PATH": os.pathsep.join([*map(str, own), *outer]),
            "HOME": str(self._home),
            "TMPDIR": str(self._home / "tmp"),
            "XDG_STATE_HOME": str(self._home / "state"),
            "XDG_CONFIG_HOME": str(self._home / "config"),
            "XDG_CACHE_HOME": str(self._home / "cache"),
            "XDG_DATA_HOME": str(self._home / "share"),
            "TIDEGATE_HEALTH_PORT": str(free_port()),
        }


_PYTHON3: Final = """\
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3" && exec cp -R {1}/. "$3"
fi
exec {0} "$@"
"""
_ACTIVATE: Final = """\
VIRTUAL_ENV=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$VIRTUAL_ENV/bin:$PATH
export VIRTUAL_ENV PATH
"""
_PIP: Final = """\
if [ "$1" != install ]; then
    echo "only pip install is answered here" >&2
    exit 2
fi
"""


def _install(folder: Path) -> None:
    """Make what ``python3 -m venv`` and ``pip install`` would leave: programs of this Python."""
    for name in PROGRAMS:
        program = Path(sys.executable).parent / name
        _program(folder / name, f'exec {_quoted(program)} "$@"\n')
    _program(folder / "pip", _PIP)
    (folder / "activate").write_text(_ACTIVATE)


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def _quoted(path: object) -> str:
    return shlex.quote(str(path))


def _ask_to_end(processes: list[psutil.Process], how: str) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(process, how)()
