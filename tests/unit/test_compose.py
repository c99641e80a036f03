"""The compose file against the programs it starts: their settings, files and users."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.roles import Role
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
    assert compose.keys() <= {"name", "services", "volumes", "x-worker"}
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
    assert broker["command"] == ["--config", "/etc/nats/nats.conf"]
    asked = {grant.variable for grant in users.one_of_each([], [])}
    assert broker["environment"].keys() == asked | {users.STORE_DIR.name}
    assert len(asked) == len(Role)
    for variable in asked:
        assert broker["environment"][variable] == f"${{{variable}:?see nats.conf}}"
    store = broker["environment"][users.STORE_DIR.name]
    assert f"nats:{store}" in broker["volumes"]
    assert "nats" in compose["volumes"]
    # The monitoring port that the check asks is the one of nats.conf.
    assert 'http: "127.0.0.1:8222"' in (ROOT / "nats.conf").read_text()
    assert "http://127.0.0.1:8222/healthz" in " ".join(broker["healthcheck"]["test"])


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
