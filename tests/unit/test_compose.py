"""The compose file against the programs it starts: their settings, files and users."""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from schemas.roles import Role
from tests.support import production
from worker.app import PHASE_ONE_S, PHASE_TWO_S
from worker.bus import users
from worker.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]


class _NoRepeats(yaml.SafeLoader):
    """Refuses a key that stands twice, which plain YAML readers let pass."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        assert len(set(keys)) == len(keys), f"a key stands twice near line {node.start_mark.line}"
        return super().construct_mapping(node, deep=deep)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((ROOT / "docker-compose.yml").read_text(), _NoRepeats)
    return loaded


def test_it_has_a_broker_a_worker_a_witness_and_a_set_up(compose: dict[str, Any]) -> None:
    assert compose.keys() <= {"name", "services", "configs", "volumes", "x-worker"}
    services = compose["services"]
    assert services.keys() == {"nats", "worker", "witness", "setup"}
    assert services["worker"]["command"] == ["run"]
    assert services["witness"]["command"] == ["witness"]
    assert services["setup"]["command"] == ["setup", "--new"]
    assert services["setup"]["profiles"] == ["setup"]
    for service in services.values():
        assert service.get("image")
        assert service["restart"] in ("unless-stopped", "no")


def test_the_broker_runs_our_configuration_with_everything_it_asks_for(
    compose: dict[str, Any],
) -> None:
    broker = compose["services"]["nats"]
    assert "./nats.conf:/etc/nats/nats.conf:ro" in broker["volumes"]
    assert broker["configs"] == [{"source": "broker", "target": "/etc/nats/compose.conf"}]
    assert broker["command"] == ["--config", "/etc/nats/compose.conf"]
    asked = {grant.variable for grant in users.one_of_each([], [])}
    assert broker["environment"].keys() == asked | {users.STORE_DIR.name}
    assert len(asked) == len(Role)
    for variable in asked:
        assert broker["environment"][variable] == f"${{{variable}:?see nats.conf}}"
    store = broker["environment"][users.STORE_DIR.name]
    assert f"nats:{store}" in broker["volumes"]
    assert "nats" in compose["volumes"]
    # The monitoring port that the check asks is the one of the configuration.
    assert ":8222" in compose["configs"]["broker"]["content"]
    assert "http://127.0.0.1:8222/healthz" in " ".join(broker["healthcheck"]["test"])


def test_health_and_monitoring_reach_the_network_of_the_file_and_no_further(
    compose: dict[str, Any], tmp_path: Path
) -> None:
    services = compose["services"]
    assert services["worker"]["environment"]["TIDEGATE_HEALTH_HOST"] == "0.0.0.0"
    assert [services[name]["expose"] for name in ("nats", "worker")] == [["8222"], ["8223"]]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:4222:4222"]
    shutil.copy(ROOT / "nats.conf", tmp_path)
    conf = tmp_path / "compose.conf"
    conf.write_text(compose["configs"]["broker"]["content"])
    broker = subprocess.Popen(
        production.conf_arguments(tmp_path, conf),
        env=production.conf_environment(tmp_path),
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 20
        while not (said := list(tmp_path.glob("*.ports"))) or not said[0].read_text():
            assert broker.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        addresses = json.loads(said[0].read_text())["monitoring"]
        hosts = {urlsplit(address).hostname for address in addresses}
        assert hosts - {"127.0.0.1", "::1"}, "it listens beyond the loopback"
    finally:
        broker.kill()
        broker.wait(5)


@pytest.mark.parametrize("name", ["worker", "setup"])
def test_the_worker_has_only_settings_that_exist(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    environment = service["environment"]
    for variable in environment:
        assert variable.removeprefix(PREFIX).lower() in Settings.model_fields, variable
    assert environment["TIDEGATE_NATS_USER"] == "worker"
    assert environment["TIDEGATE_NATS_PASSWORD"] == "${NATS_WORKER_PASSWORD:?see nats.conf}"
    assert environment["TIDEGATE_NATS_URL"] == "nats://nats:4222"
    assert service["depends_on"] == {"nats": {"condition": "service_healthy"}}


def test_the_witness_sees_the_hosts_processes_and_has_its_hosts_user(
    compose: dict[str, Any],
) -> None:
    witness = compose["services"]["witness"]
    grant = users.witness(users.HOST)
    environment = witness["environment"]
    for variable in environment:
        assert variable.removeprefix(PREFIX).lower() in Settings.model_fields, variable
    assert environment["TIDEGATE_HOST"] == grant.host
    assert environment["TIDEGATE_NATS_USER"] == grant.name
    assert environment["TIDEGATE_NATS_PASSWORD"] == f"${{{grant.variable}:?see nats.conf}}"
    assert witness["pid"] == "host"
    # Without this right another user's process cannot be told from one of another namespace.
    assert (witness["cap_drop"], witness["cap_add"]) == (["ALL"], ["SYS_PTRACE"])
    assert witness["depends_on"] == {"nats": {"condition": "service_healthy"}}
    # The worker is in a namespace of its own and vouches for no host that has a witness.
    assert "TIDEGATE_HOST" not in compose["services"]["worker"]["environment"]


def test_the_worker_keeps_its_data_and_has_time_to_end(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    assert f"worker:{worker['environment']['TIDEGATE_DATA_DIR']}" in worker["volumes"]
    assert "worker" in compose["volumes"]
    port = worker["environment"]["TIDEGATE_HEALTH_PORT"]
    assert f":{port}/readyz" in worker["healthcheck"]["test"][-1]
    grace_s = int(worker["stop_grace_period"].removesuffix("s"))
    assert grace_s > PHASE_ONE_S + 4 * PHASE_TWO_S
    assert grace_s > 10


def test_the_image_is_built_from_what_the_repository_has(compose: dict[str, Any]) -> None:
    build = compose["services"]["worker"]["build"]
    for line in build["dockerfile_inline"].splitlines():
        if line.startswith("COPY"):
            *sources, _ = line.split()[1:]
            assert all((ROOT / build["context"] / source).exists() for source in sources)
    assert 'ENTRYPOINT ["tidegate"]' in build["dockerfile_inline"]


def test_no_secret_stands_in_it() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for line in text.splitlines():
        if "PASSWORD:" in line:
            assert line.split("PASSWORD:", 1)[1].strip().startswith("${")
