"""A virtual environment of its own for each peer, kept in the user's cache."""

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from worker.bench.ground import BenchError

INSTALL_S: Final = 600


class NotInstalled(BenchError):
    """A peer cannot be measured here; the message says why."""

    reason = "peer-not-installed"


def cache_dir() -> Path:
    """Where environments are kept: ``$XDG_CACHE_HOME/tidegate``, else ``~/.cache/tidegate``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tidegate" / "peers"


async def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment that holds these requirements; made if there is none.

    It appears under its name only once it is complete, so an interrupted run leaves no half of one.

    Raises:
        NotInstalled: It cannot be made; nothing is left behind.
    """
    wanted = "\n".join((sys.version, *requirements))
    folder = cache_dir() / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if python.is_file():
        return python
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    except OSError as error:
        raise NotInstalled(f"{folder.parent} cannot be written: {error.strerror}") from error
    try:
        await _run(sys.executable, "-m", "venv", str(making))
        await _run(str(making / "bin" / "python"), "-m", "pip", "install", "-q", *requirements)
        # Scripts name the old folder in their first lines, but only its Python is ever started.
        await asyncio.to_thread(making.rename, folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return python


async def versions(python: Path, names: Sequence[str]) -> dict[str, str]:
    """Versions of the named packages in an environment."""
    code = "import sys, importlib.metadata as m; print(*(m.version(n) for n in sys.argv[1:]))"
    said = await _run(str(python), "-c", code, *names)
    return dict(zip(names, said.split(), strict=True))


async def _run(*command: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(INSTALL_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    except TimeoutError as error:
        raise NotInstalled(f"installing took more than {INSTALL_S} s") from error
    except OSError as error:
        raise NotInstalled(f"{command[0]} cannot be started: {error.strerror}") from error
    text = said.decode(errors="replace").strip()
    if process.returncode:
        errors = [line for line in text.splitlines() if line.startswith("ERROR")]
        last = (errors or text.splitlines() or ["no reason given"])[-1]
        raise NotInstalled(f"it cannot be installed: {last[:300]}")
    return text
