"""What all commands share: options, exit codes, output and the way to a client.

Data goes to standard output, words for people to standard error.
"""

import asyncio
import json
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from schemas.codes import BadInput, Code
from schemas.roles import OPERATOR_PREFIX
from schemas.strict_json import JsonObject
from schemas.subjects import Speaker
from worker.cli.instants import parse_duration, parse_instant, show_duration
from worker.errors import StartRefused, TidegateError

if TYPE_CHECKING:
    from worker.bus.connection import Connection
    from worker.client import Client
    from worker.settings import Loaded, Settings

T = TypeVar("T")

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
TIMEOUT: Final = 124
INTERRUPTED: Final = 130

NARROWEST: Final = 24
"""Columns of a terminal below which text is not wrapped: a word a line reads worse."""

EXIT_CODES: Final = (
    "Exit codes: 0 ok, 3 refused, 1 failed, 2 wrong usage, 124 no answer in time "
    "(the outcome is unknown)."
)


def examples(*lines: str, more: str = "") -> str:
    """The end of a command's help: commands to copy, and words below them."""
    shown = "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
    return f"{shown}\n\n{more}" if more else shown


JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of text.", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file of NAME=value lines; by default TIDEGATE_CONFIG.",
        metavar="FILE",
    ),
]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        help="Broker URLs, comma separated; by default TIDEGATE_NATS_URL, else the broker of the "
        "worker that runs here.",
        metavar="URL",
    ),
]
SpacesOption = Annotated[
    str | None,
    typer.Option(
        "--space",
        "--spaces",
        help="The spaces, comma separated; by default TIDEGATE_SPACES.",
        metavar="SPACES",
    ),
]
SpaceOption = Annotated[
    str | None,
    typer.Option(
        "--space", help="The space; by default the first of TIDEGATE_SPACES.", metavar="SPACE"
    ),
]
AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Who speaks: a principal, with the uid kept here (see identity), or principal.uid; "
        "by default TIDEGATE_PRINCIPAL, else the one the broker user has rights for, else the "
        "identity kept here.",
        metavar="PRINCIPAL",
    ),
]


def _command_id(given: str | None) -> str | None:
    """Refuse here what the worker would refuse, by the option's name."""
    from schemas import tokens

    if given is not None and not tokens.is_command_id(given):
        usage("--command-id", f"must match {tokens.COMMAND_ID_PATTERN}")
    return given


CommandIdOption = Annotated[
    str | None,
    typer.Option(
        "--command-id",
        callback=_command_id,
        help="Id of the intent, 16 to 64 of [A-Za-z0-9_-]; by default a new one. After a timeout "
        "give the same again: it is carried out once.",
        metavar="ID",
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        help="How long to wait for the answer, for example 30s; by default TIDEGATE_TIMEOUT_MS, "
        "10s.",
        metavar="DURATION",
    ),
]


@dataclass(frozen=True, slots=True)
class Session:
    """What a command knows of where and who it is.

    Attributes:
        loaded: The settings.
        space: The space it speaks in.
        speaker: Who speaks; ``None`` leaves it to the broker, which knows its user's rights.
        as_json: Whether ``--json`` was given.
        timeout_ms: How long to wait for a result.
        operates: Whether only an operator may use the command.
    """

    loaded: "Loaded"
    space: str
    speaker: Speaker | None
    as_json: bool
    timeout_ms: int
    operates: bool = False

    @asynccontextmanager
    async def client(self) -> "AsyncIterator[Client]":
        """An open client of this session."""
        from worker import broker
        from worker.client import Client

        settings = self.loaded.settings
        client = Client(
            broker.client_options(settings),
            self.speaker or _one_life(OPERATOR_PREFIX),
            self.space,
            root=settings.root,
            timeout_ms=self.timeout_ms,
            name=f"tidegate-cli-{self.speaker.principal}" if self.speaker else "tidegate-cli",
        )
        async with client:
            if self.speaker is None:
                client.speaker = await self._known_to_broker(client)
            yield client

    async def _known_to_broker(self, client: "Client") -> Speaker:
        """Whom the broker lets this user speak as, in the life that is kept here."""
        from worker.doctor import rights

        settings = self.loaded.settings
        found = await rights.user_info(client.conn)
        may = rights.principals_of(found, client.names) if found else ()
        if self.operates and (OPERATOR_PREFIX in may or not may):
            return _life_of(settings, OPERATOR_PREFIX)
        return _life_of(settings, may[0] if may else _broker_user(settings))


def session(
    config: Path | None,
    nats: str | None,
    space: str | None,
    as_: str | None,
    as_json: bool,
    timeout: str | None,
    *,
    operates: bool = False,
) -> Session:
    """Read settings and identity.

    Raises:
        BadSettings: If a setting is wrong.
        BadIdentity: If the identity cannot be used.
    """
    from schemas import tokens

    if space is not None and not tokens.is_space(space):
        usage("--space", "a space matches [A-Za-z0-9_-]{1,64}")
    loaded = load_settings({"nats_url": nats}, config)
    settings = loaded.settings
    return Session(
        loaded=loaded,
        space=space or settings.spaces[0],
        speaker=_speaker(settings, as_, operates=operates),
        as_json=as_json,
        timeout_ms=settings.timeout_ms if timeout is None else duration("--timeout", timeout),
        operates=operates,
    )


def operators(
    config: Path | None,
    nats: str | None,
    space: str | None,
    as_: str | None,
    as_json: bool,
    timeout: str | None,
) -> Session:
    """A session of an operator, where nobody else may use the command."""
    return session(config, nats, space, as_, as_json, timeout, operates=True)


def load_settings(flags: dict[str, Any], config: Path | None) -> "Loaded":
    """Load the settings and name variables that are most likely misspelt.

    Raises:
        BadSettings: If a setting is wrong.
    """
    from worker import settings

    loaded = settings.load(flags, config_file=config)
    for name in loaded.unknown:
        say(f"tidegate: {name} is not a setting; see: tidegate config show")
    return loaded


def _speaker(settings: "Settings", as_: str | None, *, operates: bool) -> Speaker | None:
    if as_ is not None:
        principal, dot, uid = as_.partition(".")
        if dot:
            try:
                return Speaker(principal, uid)
            except BadInput as bad:
                misspelt("--as", bad)
        if not principal:
            usage("--as", "names nobody")
        from schemas import tokens

        if not tokens.is_principal(principal):
            usage("--as", f"a principal matches {tokens.NAME_PATTERN}")
        return _life_of(settings, principal)
    if settings.principal:
        return _life_of(settings, settings.principal)
    if _signs_in(settings):
        return None
    return _one_life(OPERATOR_PREFIX) if operates else _life_of(settings, None)


def _life_of(settings: "Settings", principal: str | None) -> Speaker:
    """The life of a principal, or of the default one, that is kept here; a new one is kept.

    A reserved name gets a new one each time: nothing is ever held by it.
    """
    from worker import identity

    kept = identity.find(settings.data_dir, principal)
    if kept is None:
        name = principal or _local_user()
        if name.startswith(identity.RESERVED):
            return _one_life(name)
        kept = identity.init(settings.data_dir, name, identity.new_uid())
        if kept.created:
            say(f"tidegate: made an identity for {kept.speaker.principal} in {kept.path}")
    return kept.speaker


def _one_life(principal: str) -> Speaker:
    """A life for one command."""
    from worker import identity

    try:
        return Speaker(principal, identity.new_uid())
    except BadInput as bad:
        misspelt("--as", bad)


def _signs_in(settings: "Settings") -> bool:
    """Whether the broker knows who we are."""
    from urllib.parse import urlsplit

    return bool(
        settings.nats_user
        or settings.nats_nkey_seed_file
        or settings.nats_creds_file
        or any(urlsplit(url).username for url in settings.servers)
    )


def _broker_user(settings: "Settings") -> str | None:
    """The broker user, if it could be a principal."""
    from schemas import tokens

    user = settings.nats_user
    return user if user and tokens.is_principal(user) else None


def _local_user() -> str:
    import getpass
    import re

    try:
        return re.sub(r"[^A-Za-z0-9-]+", "-", getpass.getuser()).strip("-")[:64] or "me"
    except (KeyError, OSError):
        return "me"


class Ended(Exception):
    """SIGTERM or SIGHUP ended a command, after it had cleaned up.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"ended by signal {number}")


def run_async(work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
    """Run a command's coroutine to its end.

    A signal cancels it, so that it ends what it started: brokers, workers, temporary folders.

    Args:
        work: What to run.
        fast: On the worker's event loop, which takes longer to load.

    Raises:
        Ended: SIGTERM or SIGHUP came.
        KeyboardInterrupt: SIGINT came.
    """
    from worker import logs

    factory = None
    if fast:
        from worker import daemon

        factory = daemon.loop_factory()
    logs.configure("error", "console")
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_until_ended(work))


async def _until_ended(work: Coroutine[Any, Any, T]) -> T:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hangup is ignored, and stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            loop.add_signal_handler(number, end, number)
    try:
        return await work
    except asyncio.CancelledError:
        if came:
            raise Ended(came[0]) from None
        raise


def with_client(session: Session, work: Callable[["Client"], Awaitable[T]]) -> T:
    """Run work with an open client."""

    async def run() -> T:
        async with session.client() as client:
            return await work(client)

    return run_async(run())


@asynccontextmanager
async def workers_account(settings: "Settings", name: str) -> "AsyncIterator[Connection]":
    """A connection with the worker's rights, to a server that was checked.

    Raises:
        Denied: If the login may not ask about streams.
        StartRefused: If the server is too old, or has no JetStream for this account.
    """
    from worker import broker
    from worker.bus.connection import Connection
    from worker.bus.errors import Denied
    from worker.bus.topology import check_server

    conn = await Connection.open(broker.worker_options(settings), name=name)
    try:
        try:
            await check_server(conn)
        except Denied as denied:
            raise Denied(
                "this needs the worker's login, and the one given may not look at streams",
                subject=denied.subject,
            ) from denied
        yield conn
    finally:
        await conn.close()


def say(text: str) -> None:
    """One line for a person."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        return


def emit(value: JsonObject, as_json: bool, text: Sequence[str] | str) -> None:
    """Print data: one JSON document, or lines."""
    if as_json:
        print(json.dumps(value, ensure_ascii=False, indent=None))
    elif isinstance(text, str):
        print(text)
    else:
        print("\n".join(text))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns; the last one is wrapped where a terminal ends."""
    if not rows:
        return []
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for row in rows:
        before = "".join(f"{cell:<{w}}  " for cell, w in zip(row[:-1], widths, strict=True))
        lines += wrapped(before, row[-1])
    return lines


def wrapped(before: str, text: str) -> list[str]:
    """Text behind a first column, wrapped beside it where a terminal ends; whole in a pipe."""
    room = shutil.get_terminal_size().columns - len(before) if sys.stdout.isatty() else 0
    if room < NARROWEST or len(text) <= room:
        return [before + text]
    first, *others = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [before + first, *(" " * len(before) + line for line in others)]


def fitted(lines: Iterable[str]) -> list[str]:
    """Lines that were made for people, wrapped where a terminal ends."""
    fit: list[str] = []
    for line in lines:
        label = re.match(r" *(?:\S+ {2,})?", line)
        cut = label.end() if label else 0
        fit += wrapped(line[:cut], line[cut:])
    return fit


def usage(parameter: str, message: str) -> NoReturn:
    """Refuse a parameter as wrong usage."""
    raise typer.BadParameter(message, param_hint=parameter)


def misspelt(parameter: str, bad: BadInput) -> NoReturn:
    """Refuse a parameter that the contract refuses, and say what it may be."""
    from schemas import tokens

    grammar = {
        "endpoint": "is dotted labels of a-z, 0-9 and -, such as runs.nightly, "
        f"of {tokens.MAX_ENDPOINT_CHARS} characters at most",
        "token": f"matches {tokens.NAME_PATTERN}",
        "principal": f"matches {tokens.NAME_PATTERN}",
        "uid": f"matches {tokens.UID_PATTERN}",
    }.get(bad.field)
    article = "an" if bad.field == "endpoint" else "a"
    usage(parameter, bad.message if grammar is None else f"{article} {bad.field} {grammar}")


def duration(parameter: str, text: str, *, least_ms: int = 1) -> int:
    """Milliseconds of a duration given as an option."""
    try:
        given_ms = parse_duration(text)
    except ValueError as error:
        usage(parameter, str(error))
    if given_ms < least_ms:
        usage(parameter, f"must be {show_duration(least_ms)} at least")
    return given_ms


def instant(parameter: str, text: str) -> int:
    """Milliseconds of an instant given as an option; ``+`` counts from this machine's now."""
    try:
        return parse_instant(text, now_ms())
    except ValueError as error:
        usage(parameter, str(error))


def now_ms() -> int:
    """This machine's clock."""
    return time.time_ns() // 1_000_000


def read_json(parameter: str, source: str) -> Any:
    """A JSON value from ``-`` (standard input), ``@file``, or the text itself."""
    try:
        if source == "-":
            raw = sys.stdin.read()
        elif source.startswith("@"):
            raw = Path(source[1:]).read_text(encoding="utf-8")
        else:
            raw = source
    except (OSError, UnicodeDecodeError) as error:
        usage(parameter, f"{source} cannot be read: {getattr(error, 'strerror', None) or error}")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        usage(parameter, "is not JSON")


def exit_code(error: TidegateError | BadInput) -> int:
    """The exit code an error leads to."""
    from worker.client import errors as client_errors

    match error:
        case BadInput():
            return USAGE
        case client_errors.CallTimeout() | client_errors.QueryTimeout():
            return TIMEOUT
        case client_errors.Failed():
            return FAILED
        case client_errors.Refused() | StartRefused():
            return REFUSED
    match error.code:
        case Code.PERMISSION_DENIED | Code.UNAUTHENTICATED:
            return REFUSED
        case Code.BAD_REQUEST:
            return USAGE
        case _:
            return FAILED


_HINTS: Final[Mapping[str, str]] = {
    "permission-denied": "tidegate doctor says which rights this login has, and which it lacks",
    "credentials-refused": "the login is TIDEGATE_NATS_USER and TIDEGATE_NATS_PASSWORD, "
    "or TIDEGATE_NATS_CREDS_FILE",
    "nobody-there": "is --space right (TIDEGATE_SPACES)? tidegate doctor says what is there",
    "minting-paused": "tidegate cap minting on",
}


def hint(error: TidegateError | BadInput) -> str | None:
    """What a person may do about an error, where the error itself cannot know."""
    return _HINTS.get(error.reason)


def error_object(error: TidegateError | BadInput) -> JsonObject:
    """An error as ``--json`` shows it: a result, or what looks like one."""
    from schemas.codes import RETRYABLE
    from worker.client import errors as client_errors

    if isinstance(error, client_errors.Refused) and error.result.id:
        return error.result.to_object()
    is_refusal = exit_code(error) == REFUSED
    shown: JsonObject = {
        "v": 1,
        "status": "refused" if is_refusal else "failed",
        "outcome": error.reason,
        "data": error.result.data if isinstance(error, client_errors.Refused) else {},
        "error": {
            "code": error.code.value,
            "reason": error.reason,
            "message": error.message,
            "retryable": error.code in RETRYABLE,
        },
    }
    if field := getattr(error, "field", None):
        shown["error"]["field"] = field
    if isinstance(error, client_errors.CallTimeout):
        shown["command_id"] = error.command_id
        shown["error"]["retryable"] = True
    return shown
