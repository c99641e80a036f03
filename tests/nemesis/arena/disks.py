"""Small disks of our own: a tmpfs that can be filled, where this machine lets us mount one."""

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Disk:
    """A folder that may be a small disk of its own.

    Attributes:
        path: Where it lies.
        why_not: Why it cannot be filled; empty if it can.
    """

    path: Path
    why_not: str

    @classmethod
    def mount(cls, path: Path, megabytes: int) -> "Disk":
        """A tmpfs at ``path``, or a plain folder with the reason."""
        path.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        return cls(path, done.stderr.strip() or "mount failed" if done.returncode else "")

    @property
    def _ballast(self) -> Path:
        return self.path / ".ballast"

    def fill(self) -> None:
        """Leave no byte."""
        block = b"\0" * _BLOCK
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                if file.write(block) < _BLOCK:
                    block = block[:4096]

    def empty(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        if not self.why_not:
            subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)


@dataclass
class Slowness:
    """Every sync of a process to its disk takes longer: strace delays the system calls."""

    _process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def why_not() -> str:
        """Why it cannot be had here; empty if it can."""
        probe = subprocess.run(
            ["sh", "-c", "command -v strace && strace -o /dev/null true"],
            capture_output=True,
            check=False,
        )
        return "" if probe.returncode == 0 else "strace is missing or may not trace"

    def begin(self, pid: int, delay_ms: int) -> None:
        calls = "fsync,fdatasync,sync_file_range"
        inject = f"{calls}:delay_enter={delay_ms * 1000}"
        self._process = subprocess.Popen(
            [
                *("strace", "-f", "-qq", "-o", os.devnull, "-p", str(pid)),
                *("-e", f"trace={calls}", "-e", f"inject={inject}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def attached(self) -> bool:
        """Whether strace still holds on to the process."""
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process = None
