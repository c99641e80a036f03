"""A PostgreSQL of our own in a temporary folder, where the machine has its programs."""

import asyncio
import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from worker.bench.peers.installing import NotInstalled

ROLE: Final = "bench"
START_S: Final = 60
INSTALLED: Final = Path("/usr/lib/postgresql")
"""Where Debian keeps each version's programs, away from the PATH."""

ORDINARY: Final = ("postgres", "nobody")
"""Users to run it as instead of root, which it refuses."""


def programs() -> Path:
    """The folder with ``initdb`` and ``postgres``, the newest of several.

    Raises:
        NotInstalled: There is none.
    """
    found = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    found += sorted(
        (path.parent for path in INSTALLED.glob("*/bin/initdb")),
        key=lambda path: int(path.parent.name) if path.parent.name.isdecimal() else 0,
        reverse=True,
    )
    for folder in found:
        if (folder / "postgres").is_file():
            return folder
    raise NotInstalled("there is no PostgreSQL on this machine (package postgresql)")


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, str]]:
    """Its conninfo and version; it syncs every commit, listens on a socket, and is removed after.

    Raises:
        NotInstalled: It is not there, or cannot be started.
    """
    binaries, user = programs(), _user()
    folder = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
    data, log = folder / "data", folder / "log"
    try:
        if user is not None:
            shutil.chown(folder, user)
        role = ("-U", ROLE, "-A", "trust", "--no-instructions", "-E", "UTF8", "--locale", "C")
        await _run(user, str(binaries / "initdb"), "-D", str(data), *role)
        control = str(binaries / "pg_ctl")
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}'"
        waiting = ("-w", "-t", str(START_S), "-l", str(log), "-o", options)
        await _run(user, control, "-D", str(data), *waiting, "start")
        try:
            version = await _run(user, str(binaries / "postgres"), "--version")
            yield f"host={folder} user={ROLE} dbname=postgres", version.split()[2]
        finally:
            await _run(user, control, "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    """Whom to run it as; ``None`` for ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in ORDINARY:
        if name in known:
            return name
    raise NotInstalled(f"PostgreSQL refuses to run as {getpass.getuser()}, and there is no other")


async def _run(user: str | None, *command: str) -> str:
    """Run one of its programs; uvloop starts none as somebody else, hence the thread."""
    return await asyncio.to_thread(_run_as, user, command)


def _run_as(user: str | None, command: Sequence[str]) -> str:
    group = None if user is None else pwd.getpwnam(user).pw_gid
    with tempfile.TemporaryFile() as out:
        # A pipe would be kept open by the server that pg_ctl leaves behind.
        done = subprocess.run(  # noqa: S603 - its own programs
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd="/",
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            check=False,
        )
        out.seek(0)
        said = out.read().decode(errors="replace").strip()
    if done.returncode:
        last = said.splitlines()[-1][:300] if said else "no reason given"
        raise NotInstalled(f"PostgreSQL cannot be started: {last}")
    return said
