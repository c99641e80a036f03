"""The configuration that ``tidegate setup --print-conf`` ships, on a real broker."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from schemas.names import Names
from schemas.subjects import Speaker
from tests.support import odd_bytes
from tests.support.process import WorkerProcess, command, environment
from tests.support.server import Server
from tests.support.stranger import Stranger
from worker import identity
from worker.bus.options import ConnectOptions
from worker.client import Client

NAMES = Names("tidegate", "main")
PRINCIPALS = {"operator": "_op", "witness-host-1": "_witness-host-1"}
"""Users whose principal is not their name."""


def printed_conf(persons: Sequence[str] = ("alice",)) -> str:
    """The configuration, as it is printed."""
    given = [argument for person in persons for argument in ("--person", person)]
    printed = command(["setup", "--print-conf", *given], environment())
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


class Shipped:
    """A broker with the shipped configuration, and workers that are started and killed at will.

    Only the address, the passwords and the store's place are put in.

    Attributes:
        server: The broker.
        grants: What each user may publish to, but for the worker's.
    """

    def __init__(self, directory: Path, persons: Sequence[str] = ("alice",)) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        conf = printed_conf(persons)
        self.grants = odd_bytes.granted(conf)
        self._store = directory / "store"
        self.server = Server(directory, self._put_in(conf)).start()
        self.workers: list[WorkerProcess] = []

    def _put_in(self, conf: str) -> str:
        conf = re.sub(r"^listen: .*$", 'listen: "127.0.0.1:-1"', conf, flags=re.MULTILINE)
        conf = re.sub(r"^http: .*$", "", conf, flags=re.MULTILINE)
        conf = conf.replace("$NATS_STORE_DIR", f'"{self._store}"')
        for user in ("worker", *self.grants):
            variable = f"$NATS_{user.upper().replace('-', '_')}_PASSWORD"
            conf = conf.replace(variable, f'"{self.password(user)}"')
        return conf

    @staticmethod
    def password(user: str) -> str:
        return f"p-{user}-12e4"

    def environment(self, data: str = "data", **settings: object) -> dict[str, str]:
        """The worker's own."""
        return environment(
            **{
                "nats_url": self.server.url,
                "nats_user": "worker",
                "nats_password": self.password("worker"),
                "data_dir": self._directory / data,
                **settings,
            }
        )

    def set_up(self) -> None:
        done = command(["setup", "--new"], self.environment())
        assert done.returncode == 0, done.stderr

    def start_worker(self, data: str = "data", **settings: object) -> WorkerProcess:
        """Start a worker; it is not waited for."""
        log = self._directory / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess(self.environment(data, **settings), log)
        self.workers.append(worker)
        return worker

    def tidegate(self, *arguments: str, user: str = "operator", limit_s: float = 120) -> str:
        """Run a command that has to succeed, as a user; what it printed."""
        env = self.environment(nats_user=user, nats_password=self.password(user))
        done = command(arguments, env, timeout_s=limit_s)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def options(self, user: str) -> ConnectOptions:
        return ConnectOptions(
            (self.server.url,),
            user=user,
            password=self.password(user),
            inbox_prefix=f"_INBOX_{user}",
        )

    def client(self, user: str, **options: object) -> Client:
        """Our own client with a user's login, as a new life."""
        who = Speaker(PRINCIPALS.get(user, user), identity.new_uid())
        return Client(self.options(user), who, NAMES.space, root=NAMES.root, **options)  # type: ignore[arg-type]  # as Client's

    def stranger(self, user: str) -> Stranger:
        return Stranger(self.server.port, user, self.password(user))

    def keep_store(self) -> None:
        """Copy the stopped broker's store."""
        assert not self.server.running
        shutil.copytree(self._store, self._directory / "kept")

    def bring_back_store(self) -> None:
        """Put the copy in the place of the stopped broker's store."""
        assert not self.server.running
        shutil.rmtree(self._store)
        shutil.copytree(self._directory / "kept", self._store)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.server.kill()


@contextmanager
def shipped(directory: Path, persons: Sequence[str] = ("alice",)) -> Iterator[Shipped]:
    """A set up space on a broker with the shipped configuration, and no worker yet."""
    one = Shipped(directory, persons)
    try:
        one.set_up()
        yield one
    finally:
        one.stop()
