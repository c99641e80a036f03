"""Settings: sources, precedence, and what is never shown."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from worker import broker, settings
from worker.bus.options import ConnectOptions, TlsOptions
from worker.settings import BadSettings, load


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.upper().startswith(settings.PREFIX)]:
        monkeypatch.delenv(name)


def test_flags_beat_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tidegate.env"
    file.write_text("TIDEGATE_REPLICAS=3\nTIDEGATE_ROOT=filed\nTIDEGATE_SPACES=a, b\nOTHER=x\n")
    monkeypatch.setenv("TIDEGATE_ROOT", "env")
    monkeypatch.setenv("TIDEGATE_HEALTH_PORT", "8080")

    loaded = load({"health_port": 9090, "wheel": None}, config_file=file)

    assert loaded.settings.replicas == 3
    assert loaded.settings.spaces == ("a", "b")
    assert loaded.settings.root == "env"
    assert loaded.settings.health_port == 9090
    assert {
        name: loaded.sources[name] for name in ("replicas", "root", "health_port", "wheel")
    } == {"replicas": "file", "root": "env", "health_port": "flag", "wheel": "default"}
    assert loaded.unknown == ()


def test_the_settings_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tidegate.env"
    file.write_text("TIDEGATE_LOG_LEVEL=debug\n")
    monkeypatch.setenv("TIDEGATE_CONFIG", str(file))
    assert load().settings.log_level == "debug"
    monkeypatch.setenv("TIDEGATE_CONFIG", str(tmp_path / "absent"))
    with pytest.raises(BadSettings, match="absent"):
        load()


def test_a_misspelt_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_NAT_URL", "nats://elsewhere")
    file = tmp_path / "tidegate.env"
    file.write_text("TIDEGATE_REPLICA=3\n")
    assert set(load(config_file=file).unknown) == {"TIDEGATE_NAT_URL", "TIDEGATE_REPLICA"}
    assert settings.meant("tidegate_nat_url") == "TIDEGATE_NATS_URL"
    assert settings.meant("TIDEGATE_SOMETHING_ELSE") is None


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_NATS_URL", "")
    monkeypatch.setenv("TIDEGATE_NATS_PASSWORD", "")
    loaded = load()
    assert loaded.settings.nats_url is None
    assert loaded.sources["nats_url"] == "default"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TIDEGATE_SPACES", "a b"),
        ("TIDEGATE_SPACES", "a,a"),
        ("TIDEGATE_SPACES", ","),
        ("TIDEGATE_ROOT", "a.b"),
        ("TIDEGATE_REPLICAS", "2"),
        ("TIDEGATE_HEALTH_PORT", "70000"),
        ("TIDEGATE_ARM_BUDGET_MS", "0"),
        ("TIDEGATE_NATS_URL", "http://broker:4222"),
        ("TIDEGATE_NATS_URL", "nats://"),
        ("TIDEGATE_TLS_CA", "/does/not/exist"),
        ("TIDEGATE_LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_value_is_refused_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings, match=variable) as caught:
        load()
    assert caught.value.reason == "bad-settings"


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("TIDEGATE_HEALTH_PORT", "high", "must be a whole number"),
        ("TIDEGATE_HEALTH_PORT", "1.5", "must be a whole number"),
        ("TIDEGATE_HEALTH_PORT", "70000", "must be at most 65535"),
        ("TIDEGATE_ARM_BUDGET_MS", "0", "must be at least 1"),
        ("TIDEGATE_WHEEL", "maybe", "must be true or false"),
        ("TIDEGATE_LOG_FORMAT", "xml", "must be 'auto', 'json' or 'console'"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence_of_ours(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadSettings) as caught:
        load()
    assert caught.value.message == f"{variable}: {sentence}"


def test_two_ways_to_sign_in_are_refused(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("x")
    with pytest.raises(BadSettings, match="only one of"):
        load({"nats_user": "u", "nats_nkey_seed_file": seed})
    with pytest.raises(BadSettings, match="needs TIDEGATE_NATS_USER"):
        load({"nats_password": "p"})


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_NATS_USER", "u")
    monkeypatch.setenv("TIDEGATE_NATS_PASSWORD", "sentinel-one")
    monkeypatch.setenv("TIDEGATE_NATS_URL", "nats://me:sentinel-two@host:4222,tls://other:1")
    loaded = load()
    shown = {name: settings.shown(loaded.settings, name) for name in settings.Settings.model_fields}
    assert shown["nats_url"] == "nats://********@host:4222,tls://other:1"
    assert shown["nats_password"] == "********"
    assert "sentinel" not in repr(shown) + repr(loaded.settings.nats_password)


def test_a_secret_is_not_quoted_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_NATS_URL", "http://me:sentinel@host")
    with pytest.raises(BadSettings) as caught:
        load()
    assert "sentinel" not in str(caught.value)


def test_every_setting_says_what_it_is_and_durations_their_unit() -> None:
    for name, info in settings.Settings.model_fields.items():
        assert info.description, name
        if name.endswith("_ms"):
            assert ", ms" in info.description, name


def test_every_setting_is_read_by_somebody() -> None:
    """Where the settings are at hand; other things have attributes of the same names."""
    read: set[str] = set()
    for path in Path(settings.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name == "settings.py" or not re.search(
            r"from worker\.settings import|from worker import .*\bsettings\b|load(ed\.|_)settings",
            text,
        ):
            continue
        nodes = ast.walk(ast.parse(text))
        read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    through_a_property = {"nats_url"}
    assert set(settings.Settings.model_fields) - read == through_a_property


def test_each_way_to_sign_in_reaches_the_connection(tmp_path: Path) -> None:
    paths = {}
    for name in ("nats_nkey_seed_file", "nats_creds_file", "tls_ca", "tls_cert", "tls_key"):
        paths[name] = tmp_path / name
        paths[name].write_text("x")
    tls = {name: paths[name] for name in ("tls_ca", "tls_cert", "tls_key")}
    url = "nats://host:1,nats://other:2"

    def options(**given: Any) -> ConnectOptions:
        return broker.options(load({"nats_url": url, **given}).settings)

    seeded = options(nats_nkey_seed_file=paths["nats_nkey_seed_file"], **tls)
    assert seeded.servers == ("nats://host:1", "nats://other:2")
    assert seeded.nkey_seed_file == paths["nats_nkey_seed_file"]
    assert seeded.tls == TlsOptions(paths["tls_ca"], paths["tls_cert"], paths["tls_key"])
    assert options(nats_creds_file=paths["nats_creds_file"]).creds_file == paths["nats_creds_file"]
    named = options(nats_user="me", nats_password="p", connect_timeout_ms=77)
    assert (named.user, named.password, named.connect_timeout_ms) == ("me", "p", 77)
    assert named.inbox_prefix == "_INBOX_me"
    assert options(nats_inbox_prefix="_mine").inbox_prefix == "_mine"


def test_no_person_has_to_read_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HOST", " host-1")
    with pytest.raises(BadSettings) as caught:
        load()
    said = "TIDEGATE_HOST: must have no control characters, and no blanks at its ends"
    assert str(caught.value) == said


@pytest.mark.parametrize("number", ["1_0", "\u0661\u0662", "1e3", "0x10", "1.0", "--1", ""])
def test_a_number_is_digits(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv("TIDEGATE_TIMEOUT_MS", number)
    if not number:
        assert load().settings.timeout_ms == 10_000
        return
    with pytest.raises(BadSettings, match="TIDEGATE_TIMEOUT_MS: must be a whole number"):
        load()


def test_the_data_directory_defaults_to_the_users_state_folder(tmp_path: Path) -> None:
    found = settings.default_data_dir({"XDG_STATE_HOME": str(tmp_path)})
    assert found == tmp_path / "tidegate"
    relative = settings.default_data_dir({"XDG_STATE_HOME": "not/absolute"})
    assert relative == Path.home() / ".local" / "state" / "tidegate"
