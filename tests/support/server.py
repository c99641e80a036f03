"""A real nats-server for tests, with the two accounts, driven without an event loop."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from worker.bus import conf, embedded
from worker.bus.options import ConnectOptions

WORKER_PASSWORD = "worker-password"
START_LIMIT_S = 90.0
RELOADED = "Reloaded server configuration"


def spaces_of(root: str, names: Sequence[str]) -> list[conf.Space]:
    """Spaces whose subjects cross the accounts' border."""
    return [conf.Space(root, name) for name in names]


class Server:
    """One nats-server process on loopback; it keeps its port and its store over restarts.

    Attributes:
        directory: Its configuration, store and log.
        port: Where it listens; known after ``start``.
    """

    def __init__(self, directory: Path, conf_text: str) -> None:
        self.directory = directory
        self.port = 0
        self._conf = directory / "server.conf"
        self._conf.write_text(conf_text)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def two_accounts(cls, directory: Path, spaces: Sequence[conf.Space]) -> "Server":
        """A server as a worker would start it: anonymous clients in account C."""
        directory.mkdir(parents=True, exist_ok=True)
        text = conf.embedded(spaces, store_dir=directory / "store", worker_password=WORKER_PASSWORD)
        return cls(directory, text)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def worker_options(self) -> ConnectOptions:
        return ConnectOptions((self.url,), user=conf.WORKER_USER, password=WORKER_PASSWORD)

    def client_options(self) -> ConnectOptions:
        return ConnectOptions((self.url,))

    def rewrite(self, conf_text: str) -> None:
        """Change the configuration; takes effect at the next start, or by ``reload``."""
        self._conf.write_text(conf_text)

    def start(self) -> "Server":
        for stale in self.directory.glob("*.ports"):
            stale.unlink()
        arguments = [str(embedded.find_binary()), "-c", str(self._conf)]
        arguments += ["--ports_file_dir", str(self.directory)]
        if self.port:
            arguments += ["-a", "127.0.0.1", "-p", str(self.port)]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise AssertionError((self.directory / "server.log").read_text()[-2000:])
            if (port := self._read_port()) is not None:
                self.port = port
                return self
            time.sleep(0.01)
        raise AssertionError("the server did not start in time")

    def _read_port(self) -> int | None:
        for path in self.directory.glob("*.ports"):
            try:
                return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
            except (OSError, ValueError, LookupError):
                return None
        return None

    def send(self, signum: int) -> None:
        """Send it a signal: SIGSTOP, SIGCONT, SIGHUP (reload)."""
        os.kill(self.pid, signum)

    def reload(self) -> None:
        """Have it read its configuration again; returns once that is in force."""
        log = self.directory / "server.log"
        before = log.read_text().count(RELOADED)
        self.send(signal.SIGHUP)
        until = time.monotonic() + START_LIMIT_S
        while log.read_text().count(RELOADED) == before:
            assert time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(0.01)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, signum: int) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signum)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process = None
