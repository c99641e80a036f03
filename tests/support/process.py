"""Real processes of ours: a worker, and any command of the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.server import WORKER_PASSWORD
from tests.support.space import Space
from worker.bus import conf

READY_S = 20.0
INSTALLED = Path(sys.executable).with_name("tidegate")
"""The command as it was installed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**settings: object) -> dict[str, str]:
    """This process's environment without its TIDEGATE variables, and with those given."""
    outer = {k: v for k, v in os.environ.items() if not k.upper().startswith("TIDEGATE_")}
    given = {f"TIDEGATE_{name.upper()}": str(value) for name, value in settings.items()}
    return {**outer, **given}


def space_environment(space: Space, **settings: object) -> dict[str, str]:
    """The environment of a worker that serves one space."""
    return environment(
        **{
            "nats_url": space.server.url,
            "nats_user": conf.WORKER_USER,
            "nats_password": WORKER_PASSWORD,
            "root": space.names.root,
            "spaces": space.names.space,
            "data_dir": space.data_dir,
            **settings,
        }
    )


def command(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: str | None = None,
    timeout_s: float = 30,
) -> subprocess.CompletedProcess[str]:
    """Run ``tidegate …`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "worker.cli.main", *arguments],
        env=dict(env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def data_of(printed: str) -> dict[str, Any]:
    """What ``--json`` says inside its envelope, which is the same for every command."""
    document: dict[str, Any] = json.loads(printed)
    assert document["v"] == 1
    assert isinstance(document["status"], str)
    assert isinstance(document["outcome"], str)
    data: dict[str, Any] = document["data"]
    return data


class WorkerProcess:
    """``tidegate run`` as a process of its own, with its health port on.

    Attributes:
        health: Base URL of its health server.
        log_path: Where its log goes.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        log_path: Path,
        arguments: Sequence[str] = (),
        *,
        redirect: str | None = None,
        before: str = "",
    ) -> None:
        """Start it; with ``redirect`` by a shell that does this with its standard files.

        ``before`` is what the shell does first.
        """
        port = free_port()
        self.health = f"http://127.0.0.1:{port}"
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.cli.main", "run", *arguments]
                if redirect is None
                else ["sh", "-c", f'{before} exec "$0" run {redirect}', str(INSTALLED)],
                env={**env, "TIDEGATE_HEALTH_PORT": str(port), "TIDEGATE_LOG_FORMAT": "json"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def readiness(self) -> list[str] | None:
        """Reasons of not being ready, empty when ready, ``None`` if health does not answer."""
        return self._ask("/readyz")

    def liveness(self) -> list[str] | None:
        """Reasons of not being alive."""
        return self._ask("/livez")

    def _ask(self, path: str) -> list[str] | None:
        try:
            with urllib.request.urlopen(self.health + path, timeout=2) as answer:
                return list(json.load(answer)["reasons"])
        except urllib.error.HTTPError as answer:
            with answer:
                return list(json.load(answer)["reasons"])
        except OSError:
            return None

    def wait_ready(self, limit_s: float = READY_S) -> "WorkerProcess":
        self.wait_for(lambda reasons: reasons == [], limit_s)
        return self

    def wait_for(self, wanted: Any, limit_s: float = READY_S) -> list[str] | None:
        """Wait until readiness satisfies ``wanted``."""
        until = time.monotonic() + limit_s
        reasons: list[str] | None = None
        while time.monotonic() < until:
            reasons = self.readiness()
            if wanted(reasons):
                return reasons
            if self.exit_code is not None:
                raise AssertionError(f"it ended with {self.exit_code}: {self.log()[-3000:]}")
            time.sleep(0.05)
        raise AssertionError(f"readiness stayed {reasons}: {self.log()[-3000:]}")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        """Its log, one event a line."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def send(self, signum: int) -> None:
        self._process.send_signal(signum)

    def wait(self, limit_s: float) -> int:
        return self._process.wait(limit_s)

    def terminate(self, limit_s: float = 12) -> int:
        """SIGTERM, and its exit code."""
        if self.exit_code is None:
            self.send(signal.SIGTERM)
        return self.wait(limit_s)

    def kill(self) -> None:
        """SIGKILL."""
        if self.exit_code is None:
            self._process.kill()
        self._process.wait(5)
