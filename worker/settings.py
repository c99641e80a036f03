"""Every setting, with its unit, its default and where its value came from.

Values come from, in falling precedence: command line flags, ``TIDEGATE_…`` environment variables, a
settings file of ``NAME=value`` lines (``--config FILE`` or ``TIDEGATE_CONFIG``), the defaults here.
"""

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from dotenv import dotenv_values
from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    NoDecode,
    SettingsConfigDict,
)

from schemas import tokens
from schemas.codes import Code
from worker.bus.urls import ServerUrl
from worker.errors import TidegateError

PREFIX: Final = "TIDEGATE_"
CONFIG_VARIABLE: Final = "TIDEGATE_CONFIG"
_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,19}")
HIDDEN: Final = "********"
NO_HOME: Final = "this user has no home: neither HOME nor an entry among the users"

Source = Literal["default", "env", "file", "flag"]
Port = Annotated[int, Field(ge=0, le=65_535)]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]


class BadSettings(TidegateError):
    """The settings are not usable; the message names each setting that is wrong."""

    code = Code.BAD_REQUEST
    reason = "bad-settings"


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's state folder: ``$XDG_STATE_HOME/tidegate``, else ``~/.local/state/tidegate``.

    Raises:
        BadSettings: This user has no home.
    """
    if base := environ.get("XDG_STATE_HOME", ""):
        path = Path(base)
        if path.is_absolute():
            return path / "tidegate"
    if sys.platform == "win32":  # pragma: no cover
        return Path(environ.get("LOCALAPPDATA", str(Path.home()))) / "tidegate"
    try:
        home = Path.home()
    except RuntimeError:
        raise BadSettings(f"TIDEGATE_DATA_DIR: must be given, for {NO_HOME}") from None
    return home / ".local" / "state" / "tidegate"


def _expanded(path: Path) -> Path:
    """A path without the ``~`` it may begin with."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"must not begin with ~, for {NO_HOME}") from None


class Settings(BaseSettings):
    """Settings of the worker and of the commands; each is ``TIDEGATE_<NAME>`` in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="ignore",
        frozen=True,
        validate_default=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    nats_url: str | None = Field(
        None,
        description="Broker URLs, comma separated (nats:// or tls://). "
        "Unset: the worker starts a broker of its own on loopback.",
    )
    nats_user: str | None = Field(None, description="User name at the broker.")
    nats_password: SecretStr | None = Field(None, description="Password of that user.")
    nats_nkey_seed_file: Path | None = Field(None, description="File with an nkey seed.")
    nats_creds_file: Path | None = Field(None, description="Credentials file (JWT and seed).")
    nats_inbox_prefix: str | None = Field(
        None,
        description="Prefix of reply subjects, if the user's permissions ask for one; "
        "by default _INBOX_<user>, or _INBOX without a user.",
    )
    tls_ca: Path | None = Field(None, description="PEM file of the CAs to trust.")
    tls_cert: Path | None = Field(None, description="PEM file of the client certificate.")
    tls_key: Path | None = Field(None, description="PEM file of the client certificate's key.")
    connect_timeout_ms: Milliseconds = Field(
        2_000, description="Longest a connection attempt may take, ms."
    )
    root: str = Field("tidegate", description="First token of every subject.")
    spaces: Annotated[tuple[str, ...], NoDecode] = Field(
        ("main",), description="Spaces this worker serves, comma separated."
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Folder for databases, identities and, embedded, the broker.",
    )
    replicas: int = Field(1, description="Replicas of each stream, 1 or 3; used by setup.")
    health_host: str = Field("127.0.0.1", description="Address of /livez, /readyz and /metrics.")
    health_port: Port = Field(
        0, description="Port of /livez, /readyz and /metrics; 0 turns them off."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="json, console, or auto: console on a terminal."
    )
    arm_budget_ms: Milliseconds = Field(
        5_000, description="Longest a mint or heartbeat waits for its timer to be armed, ms."
    )
    answer_id_in_status: bool = Field(
        True,
        description="A resumed status names its answer; off for a Cotal space whose readers do not "
        "know the field.",
    )
    wheel: bool = Field(True, description="Expire in process too, milliseconds after the deadline.")
    wheel_horizon_ms: Milliseconds = Field(
        120_000, description="How far ahead the wheel holds deadlines, ms."
    )
    sweep_interval_ms: Milliseconds = Field(
        60_000, description="Time between two sweeps over due checkpoints, ms."
    )
    ack_wait_ms: Annotated[int, Field(ge=1_000, le=600_000)] = Field(
        1_500,
        description="When the broker hands out again what nobody is working on, ms.",
    )
    cp_in_flight: Annotated[int, Field(ge=1, le=4_096)] = Field(
        64, description="Checkpoint commands worked on at once, per space."
    )
    host: tokens.Label | None = Field(
        None,
        description="Id of this machine in process evidence; by default its machine id. Every "
        "process on one machine must be given the same, and no two machines may share one.",
    )
    reaper_interval_ms: Annotated[int, Field(ge=100, le=600_000)] = Field(
        2_000, description="Time between two looks at the processes behind turns, ms."
    )
    res_max_age_ms: Annotated[int, Field(ge=60_000, le=2_592_000_000)] = Field(
        3_600_000, description="How long a result can be read back, ms; used by setup."
    )
    snapshot_commands: Annotated[int, Field(ge=100, le=100_000_000)] = Field(
        100_000, description="Commands folded between two snapshots of the ledger."
    )
    snapshot_interval_ms: Annotated[int, Field(ge=1_000, le=604_800_000)] = Field(
        3_600_000, description="Longest time between two snapshots while anything is folded, ms."
    )
    log_keep_ms: Annotated[int, Field(ge=0, le=315_360_000_000)] = Field(
        0, description="How long commands stay in the log below a snapshot, ms; 0 keeps them all."
    )
    principal: str | None = Field(
        None,
        description="Who commands of the command line speak as; by default the one whom the "
        "broker user has rights for, else the identity kept here.",
    )
    timeout_ms: Milliseconds = Field(
        10_000, description="How long commands of the command line wait for a result, ms."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_digits(cls, value: object, info: ValidationInfo) -> object:
        """Not ``1_0``, nor the digits of other scripts, which Python would read as numbers."""
        whole = cls.model_fields[info.field_name or ""].annotation is int
        if whole and isinstance(value, str) and _DIGITS.fullmatch(value.strip()) is None:
            raise ValueError("must be a whole number")
        return value

    @field_validator("spaces", mode="before")
    @classmethod
    def _split_spaces(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("spaces")
    @classmethod
    def _spaces_are_tokens(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("must name at least one space")
        if not all(map(tokens.is_space, value)):
            raise ValueError("must match [A-Za-z0-9_-]{1,64}, comma separated")
        if len(set(value)) != len(value):
            raise ValueError("names a space twice")
        return value

    @field_validator("replicas")
    @classmethod
    def _one_or_three(cls, value: int) -> int:
        if value not in (1, 3):
            raise ValueError("must be 1 or 3")
        return value

    @field_validator("principal")
    @classmethod
    def _principal_is_a_token(cls, value: str | None) -> str | None:
        if value is not None and not tokens.is_principal(value):
            raise ValueError("must match [A-Za-z0-9_-]{1,64}")
        return value

    @field_validator("root")
    @classmethod
    def _root_is_a_token(cls, value: str) -> str:
        if not tokens.is_root(value):
            raise ValueError("must match [A-Za-z0-9_-]{1,32}")
        return value

    @field_validator("nats_url")
    @classmethod
    def _urls_are_broker_urls(cls, value: str | None) -> str | None:
        if value is None or not value.strip():
            return None
        for url in split_urls(value):
            if "//" not in url:
                raise ValueError("must be nats://host:port or tls://host:port, comma separated")
            ServerUrl.parse(url)
        return value

    @field_validator("nats_user", "nats_password", "nats_inbox_prefix", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator(
        "nats_nkey_seed_file", "nats_creds_file", "tls_ca", "tls_cert", "tls_key", mode="before"
    )
    @classmethod
    def _file_exists(cls, value: object) -> object:
        if value in (None, ""):
            return None
        path = _expanded(Path(str(value)))
        if not path.is_file():
            raise ValueError("must name a file that exists")
        return path

    @field_validator("data_dir")
    @classmethod
    def _data_dir_is_absolute(cls, value: Path) -> Path:
        return _expanded(value).absolute()

    @model_validator(mode="after")
    def _one_way_to_sign_in(self) -> "Settings":
        ways = {
            "nats_user": self.nats_user,
            "nats_nkey_seed_file": self.nats_nkey_seed_file,
            "nats_creds_file": self.nats_creds_file,
        }
        used = [name for name, value in ways.items() if value is not None]
        if len(used) > 1:
            words = ", ".join(f"TIDEGATE_{name.upper()}" for name in used)
            raise ValueError(f"use only one of {words}")
        if (self.nats_password is not None) and self.nats_user is None:
            raise ValueError("TIDEGATE_NATS_PASSWORD needs TIDEGATE_NATS_USER")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("TIDEGATE_TLS_CERT and TIDEGATE_TLS_KEY go together")
        return self

    @property
    def servers(self) -> tuple[str, ...]:
        """The broker URLs; empty if the worker starts its own."""
        return split_urls(self.nats_url or "")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and the source of each.

    Attributes:
        settings: The values.
        sources: Source of each setting by its field's name.
        unknown: ``TIDEGATE_…`` variables that name no setting, most likely misspelt.
    """

    settings: Settings
    sources: Mapping[str, Source]
    unknown: tuple[str, ...]


def load(flags: Mapping[str, Any] | None = None, *, config_file: Path | None = None) -> Loaded:
    """Merge flags, environment, settings file and defaults.

    Args:
        flags: Values given on the command line by field name; ``None`` counts as not given.
        config_file: The settings file; ``TIDEGATE_CONFIG`` if absent.

    Raises:
        BadSettings: Naming every setting that is wrong, never a value.
    """
    if config_file is None and (named := os.environ.get(CONFIG_VARIABLE)):
        config_file = Path(named)
    if config_file is not None and not config_file.is_file():
        raise BadSettings(f"settings file {config_file} does not exist")
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    layers: dict[Source, Mapping[str, Any]] = {
        "file": DotEnvSettingsSource(Settings, env_file=config_file)(),
        "env": EnvSettingsSource(Settings)(),
        "flag": given,
    }
    sources: dict[str, Source] = dict.fromkeys(Settings.model_fields, "default")
    for source, layer in layers.items():
        sources.update((name, source) for name in layer if name in sources)
    try:
        settings = Settings(**{name: v for layer in layers.values() for name, v in layer.items()})
    except ValidationError as error:
        raise BadSettings(_explain(error)) from None
    variables = [*os.environ, *(dotenv_values(config_file) if config_file else ())]
    return Loaded(settings, sources, tuple(filter(_is_unknown, variables)))


def variable(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


def shown(settings: Settings, field: str) -> str:
    """A setting's value as it may be shown: passwords hidden, also inside URLs."""
    return _shown(field, getattr(settings, field))


def shown_default(field: str) -> str:
    """A setting's default, as ``shown`` would show it."""
    try:
        return _shown(field, Settings.model_fields[field].get_default(call_default_factory=True))
    except BadSettings:
        return ""  # there is none for this user


def _shown(field: str, value: object) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return HIDDEN
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
    if field == "nats_url":
        return ",".join(map(redacted, split_urls(str(value))))
    return str(value)


def split_urls(value: str) -> tuple[str, ...]:
    """The URLs of a comma separated list."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def redacted(url: str) -> str:
    """A URL without what stands before ``@``."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{HIDDEN}@{host}"))


def meant(unknown: str) -> str | None:
    """The setting that a variable's name was most likely to be."""
    names = [variable(field) for field in Settings.model_fields]
    near = difflib.get_close_matches(unknown.upper(), names, n=1, cutoff=0.8)
    return near[0] if near else None


def _is_unknown(name: str) -> bool:
    upper = name.upper()
    return (
        upper.startswith(PREFIX)
        and upper != CONFIG_VARIABLE
        and upper.removeprefix(PREFIX).lower() not in Settings.model_fields
    )


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        name = variable(str(item["loc"][0])) if item["loc"] else "settings"
        lines.append(f"{name}: {_sentence(item)}")
    return "; ".join(lines)


_MUST_BE: Final = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}


_NO_CONTROLS: Final = "must have no control characters, and no blanks at its ends"


def _sentence(item: ErrorDetails) -> str:
    if r"\x00" in item.get("ctx", {}).get("pattern", ""):
        return _NO_CONTROLS  # a person reads no such pattern
    if (shape := _MUST_BE.get(item["type"])) is not None:
        return shape.format(**item.get("ctx", {}))
    return item["msg"].removeprefix("Value error, ")
