"""Starting: what is waited for, what is refused in one sentence, what an own broker does."""

import asyncio
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.names import Names, kv_stream
from tests.conftest import POOL
from tests.support.process import WorkerProcess, command, data_of, environment, space_environment
from tests.support.proxy import proxy_to
from tests.support.running import running
from tests.support.server import Server
from tests.support.space import Space
from worker import broker, wiring
from worker.app import Worker
from worker.bus.jetstream import JetStream
from worker.errors import StartRefused
from worker.settings import Settings


async def refusal(settings: Settings) -> str:
    """Why a worker with these settings refuses to start, within five seconds."""
    worker = Worker(settings, wiring.planes_of)
    async with asyncio.timeout(5):
        with pytest.raises(StartRefused) as caught:
            await worker.run()
    sentence = caught.value.message
    assert "\n" not in sentence
    return sentence


async def test_a_worker_serves_and_stops_on_demand(space: Space) -> None:
    async with running(space.settings()) as one:
        assert one.worker.not_ready() == []
        async with space.client() as client:
            status = await client.query("sys", "status", {})
        assert status.data["ready"] is True
        assert status.data["space"] == space.names.space
        assert status.data["broker"]["version"].count(".") == 2
        assert await one.stop() == 0
    assert one.worker.not_ready() == ["the worker is stopping"]


async def test_one_worker_serves_several_spaces(
    server: Server, space: Space, tmp_path: Path
) -> None:
    last = f"t{POOL - 1}"  # no other test gets that far
    other = Space(server, Names("tidegate", last), tmp_path / "other")
    await other.set_up()
    both = space.settings(spaces=f"{space.names.space},{last}")
    async with running(both):
        for one in (space, other):
            async with one.client() as client:
                status = await client.query("sys", "status", {})
                assert status.data["space"] == one.names.space
                assert set(status.data["worker"]["spaces"]) == set(both.spaces)


async def test_a_space_that_was_never_set_up_is_refused(bare_space: Space) -> None:
    sentence = await refusal(bare_space.settings())
    assert "is not set up" in sentence
    assert "tidegate setup --new" in sentence


async def test_a_missing_stream_is_refused_by_name(space: Space) -> None:
    conn = await space.connect()
    await JetStream(conn).stream_delete(space.names.epf_stream)
    await conn.close()
    assert space.names.epf_stream in await refusal(space.settings())


async def test_a_stream_that_could_lose_data_is_refused_by_name(space: Space) -> None:
    conn = await space.connect()
    js = JetStream(conn)
    stream = kv_stream(space.names.records_bucket)
    config = dict((await js.stream_info(stream)).config)
    await js.stream_update({**config, "max_age": 600_000_000_000})
    await conn.close()
    sentence = await refusal(space.settings())
    assert f"{stream}.max_age" in sentence


async def test_another_space_of_the_same_name_is_refused(space: Space, tmp_path: Path) -> None:
    async with running(space.settings()):
        pass
    conn = await space.connect()
    js = JetStream(conn)
    for name in await js.stream_names():
        if name.endswith(space.names.space):
            await js.stream_delete(name)
    await conn.close()
    gone = await refusal(space.settings())
    assert "are gone" in gone
    await Space(space.server, space.names, tmp_path / "elsewhere").set_up()
    assert "is not the one this data directory knows" in await refusal(space.settings())


async def test_a_login_without_jetstream_is_refused(space: Space) -> None:
    sentence = await refusal(space.settings(nats_user=None, nats_password=None))
    assert "JetStream" in sentence


async def test_a_server_without_jetstream_is_refused(tmp_path: Path, space: Space) -> None:
    (tmp_path / "plain").mkdir()
    plain = Server(tmp_path / "plain", "listen: 127.0.0.1:-1\n").start()
    try:
        settings = space.settings(nats_url=plain.url, nats_user=None, nats_password=None)
        assert "JetStream" in await refusal(settings)
    finally:
        plain.stop()


async def test_a_server_below_the_floor_is_refused(space: Space) -> None:
    def older(data: bytes) -> bytes:
        return data.replace(b'"version":"2.1', b'"version":"1.1') if b"INFO" in data else data

    async with proxy_to(space.server.port, older) as proxy:
        sentence = await refusal(space.settings(nats_url=proxy.url))
    assert "too old" in sentence
    assert "2.14.3" in sentence


async def test_wrong_credentials_are_refused(space: Space) -> None:
    sentence = await refusal(space.settings(nats_password="wrong-sentinel"))
    assert "credentials" in sentence
    assert "sentinel" not in sentence


async def test_tls_that_is_none_is_refused_and_no_password_is_sent(space: Space) -> None:
    async with proxy_to(space.server.port) as proxy:
        settings = space.settings(nats_url=proxy.url.replace("nats://", "tls://"))
        assert "TLS" in await refusal(settings)
    assert b"CONNECT" not in proxy.seen_from_client


async def test_two_workers_never_share_a_data_directory(space: Space) -> None:
    async with running(space.settings()):
        assert "another worker already runs in" in await refusal(space.settings())
    async with running(space.settings()):
        pass


async def test_a_data_directory_that_cannot_be_used_is_named(
    bare_space: Space, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    sentence = await refusal(bare_space.settings(data_dir=tmp_path / "file" / "data"))
    assert str(tmp_path / "file" / "data") in sentence


def test_a_refused_start_exits_with_3_and_one_sentence(bare_space: Space) -> None:
    done = command(["run"], space_environment(bare_space), timeout_s=8)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("tidegate: the space")
    assert "Traceback" not in done.stderr


def test_a_wrong_setting_exits_with_2(tmp_path: Path) -> None:
    done = command(["run"], environment(data_dir=tmp_path, replicas=2), timeout_s=8)
    assert done.returncode == 2
    assert "TIDEGATE_REPLICAS" in done.stderr


class OwnBroker:
    """Workers with a broker of their own, all in one data directory."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self.data_dir = tmp_path / "data"
        self.env = environment(data_dir=self.data_dir)
        self.started: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        one = WorkerProcess(self.env, self._tmp_path / f"own-{len(self.started)}.log")
        self.started.append(one)
        return one.wait_ready()

    def found(self) -> broker.OwnBroker:
        found = broker.read(self.data_dir)
        assert found is not None
        return found


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    one = OwnBroker(tmp_path)
    yield one
    for process in one.started:
        process.kill()
    if (pid := server_pid(one.data_dir)) is not None and alive(pid):
        os.kill(pid, signal.SIGKILL)


def server_pid(data_dir: Path) -> int | None:
    try:
        return int((data_dir / "broker" / "nats.pid").read_text())
    except (OSError, ValueError):
        return None


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_without_a_broker_it_starts_one_and_sets_up_the_space(own_broker: OwnBroker) -> None:
    worker = own_broker.start()
    path = own_broker.data_dir / "broker.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pid = server_pid(own_broker.data_dir)
    assert pid is not None

    minted = command(["cp", "mint", "build", "one", "-d", "+1h", "--json"], own_broker.env)
    assert minted.returncode == 0, minted.stderr
    checked = command(["setup", "--json"], own_broker.env)
    assert data_of(checked.stdout)["spaces"][0]["differences"] == []
    again = command(["setup", "--new"], own_broker.env)
    assert again.returncode == 3
    assert "exists already" in again.stderr

    assert worker.terminate() == 0
    assert not path.exists()
    assert not alive(pid)


def test_what_was_kept_survives_restart_and_kill_on_the_same_port(own_broker: OwnBroker) -> None:
    first = own_broker.start()
    url = own_broker.found().url
    assert command(["cp", "mint", "build", "one", "-d", "+1h"], own_broker.env).returncode == 0
    first.kill()
    left_behind = server_pid(own_broker.data_dir)
    assert left_behind is not None
    assert alive(left_behind)

    second = own_broker.start()
    assert own_broker.found().url == url
    shown = command(["cp", "show", "build", "one", "--json"], own_broker.env)
    assert data_of(shown.stdout)["checkpoint"]["state"] == "waiting"
    assert second.terminate() == 0
    own_broker.start()
    assert own_broker.found().url == url


def test_a_second_worker_with_its_own_broker_is_refused(own_broker: OwnBroker) -> None:
    own_broker.start()
    second = command(["run"], own_broker.env, timeout_s=8)
    assert second.returncode == 3
    assert "another worker" in second.stderr
    assert command(["cp", "list"], own_broker.env).returncode == 0


def test_a_lost_store_is_refused_not_recreated(own_broker: OwnBroker) -> None:
    import shutil

    assert own_broker.start().terminate() == 0
    shutil.rmtree(own_broker.data_dir / "broker" / "store")
    done = command(["run"], own_broker.env, timeout_s=8)
    assert done.returncode == 3
    assert "are gone" in done.stderr


def test_the_worker_ends_when_its_own_broker_dies(own_broker: OwnBroker) -> None:
    worker = own_broker.start()
    pid = server_pid(own_broker.data_dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert worker.wait(10) == 1


def test_commands_without_any_broker_say_what_to_do(tmp_path: Path) -> None:
    done = command(["cp", "list"], environment(data_dir=tmp_path))
    assert done.returncode == 1
    assert "tidegate run" in done.stderr
