"""The verbs of ``tidegate adm`` that are under a lease's fence, and what all of them share."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas import tokens
from schemas.results import Result
from worker.cli import adm_views, common, repeating, sessions
from worker.cli.common import (
    AsOption,
    CommandIdOption,
    ConfigOption,
    JsonFlag,
    NatsOption,
    SpaceOption,
    TimeoutOption,
)
from worker.cli.sessions import Session

if TYPE_CHECKING:
    from worker.client import Client

Request = Annotated[
    str, typer.Argument(help="The turn's id, [A-Za-z0-9_-]{1,64}.", metavar="REQUEST")
]
Lease = Annotated[
    str | None,
    typer.Option("--lease", help="The lease's id; by default the one in force.", metavar="ID"),
]
GenerationOption = Annotated[
    int | None,
    typer.Option(
        "--generation",
        "-g",
        help="Its generation; by default the one in force.",
        metavar="N",
        parser=common.whole(1),
    ),
]


class Channel(StrEnum):
    """How the provider is reached."""

    STDIN = "stdin"
    PTY = "pty"
    HTTP = "http"
    OTHER = "other"


class Ending(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Abandoned(StrEnum):
    """How a turn ended before anything was written."""

    FAILED = "failed"
    CANCELLED = "cancelled"


class Category(StrEnum):
    """Why a turn failed."""

    PROVIDER_CAPACITY = "provider_capacity"
    QUOTA = "quota"
    AUTH = "auth"
    PERMISSION = "permission"
    TIMEOUT = "timeout"
    TRANSPORT = "transport"
    UNKNOWN = "unknown"


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def start(
        request: Request,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that the turn is being prepared."""
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        _fenced(session, "start", request, (lease, generation), {}, command_id)

    @app.command()
    def intent(
        request: Request,
        connector: Annotated[
            str,
            typer.Option(
                "--connector",
                help="The connector's process: its pid on this machine, or its identity as JSON; "
                "- reads standard input, @FILE a file.",
                metavar="PROCESS",
            ),
        ],
        child: Annotated[
            str | None,
            typer.Option(
                "--child",
                help="The process that talks to the provider, given likewise; none over http.",
                metavar="PROCESS",
            ),
        ] = None,
        channel: Annotated[
            Channel, typer.Option("--channel", help="How the provider is reached.")
        ] = Channel.PTY,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that the turn is about to be written.

        Nothing may be written to the provider before this exits with 0.
        """
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        identity = {"connector": process(session, "--connector", connector)}
        if child is not None:
            identity["child"] = process(session, "--child", child)
        fields = {"identity": identity, "channel": channel.value}
        _fenced(session, "intent", request, (lease, generation), fields, command_id)

    @app.command()
    def active(
        request: Request,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that the provider has the turn.

        Its sealed prompt is destroyed.
        """
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        _fenced(session, "active", request, (lease, generation), {}, command_id)

    @app.command()
    def ambiguous(
        request: Request,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that nobody knows whether it was written.

        The turn becomes a debt that keeps its seat, and its sealed prompt is destroyed.
        """
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        _fenced(session, "ambiguous", request, (lease, generation), {}, command_id)

    @app.command()
    def complete(
        request: Request,
        outcome: Annotated[
            Ending, typer.Option("--outcome", help="How it ended.")
        ] = Ending.COMPLETED,
        category: Annotated[
            Category | None, typer.Option("--failure", help="Why it failed, with --outcome failed.")
        ] = None,
        http_status: Annotated[
            int | None,
            typer.Option(
                "--http-status",
                help="The provider's HTTP status, with --failure.",
                metavar="N",
                parser=common.whole(100, 599),
            ),
        ] = None,
        code: Annotated[
            str | None,
            typer.Option("--code", help="The provider's code, with --failure.", metavar="TEXT"),
        ] = None,
        reason: Annotated[
            str | None,
            typer.Option("--reason", help="Words for people, with --failure.", metavar="TEXT"),
        ] = None,
        retry_after: Annotated[
            str | None,
            typer.Option(
                "--retry-after",
                help="When the provider wants to be asked again; it may lengthen a cooldown.",
                metavar="DURATION",
            ),
        ] = None,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that the turn is over, and how it ended."""
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        detail = {"http_status": http_status, "code": code, "reason": reason}
        told = {name: value for name, value in detail.items() if value is not None}
        fields: dict[str, Any] = {"outcome": outcome.value}
        if category is not None:
            fields["failure"] = {"category": category.value, **told}
        elif told:
            common.usage("--failure", "is needed with --http-status, --code and --reason")
        if retry_after is not None:
            fields["retry_after_ms"] = common.duration("--retry-after", retry_after)
        _fenced(session, "complete", request, (lease, generation), fields, command_id)

    @app.command()
    def abandon(
        request: Request,
        outcome: Annotated[
            Abandoned, typer.Option("--outcome", help="How it ended.")
        ] = Abandoned.CANCELLED,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that nothing was written; it is over.

        The turn is never queued again; a new request id is another turn.
        """
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        _fenced(
            session, "abandon", request, (lease, generation), {"outcome": outcome.value}, command_id
        )

    @app.command()
    def recover(
        request: Request,
        lease: Lease = None,
        generation: GenerationOption = None,
        space: SpaceOption = None,
        as_: AsOption = None,
        command_id: CommandIdOption = None,
        timeout: TimeoutOption = None,
        nats: NatsOption = None,
        config: ConfigOption = None,
        as_json: JsonFlag = False,
    ) -> None:
        """Say that nobody knows how the turn ended.

        The turn becomes a debt that keeps its seat until evidence or an operator frees it.
        """
        session = sessions.session(config, nats, space, as_, as_json, timeout)
        _fenced(session, "recover", request, (lease, generation), {}, command_id)


def request_key(request: str) -> tuple[str]:
    """The key of a request id; anything else is wrong usage."""
    if not tokens.is_name(request):
        common.usage("REQUEST", f"a request id matches {tokens.NAME_PATTERN}")
    return (request,)


def process(session: Session, parameter: str, text: str) -> dict[str, Any]:
    """The identity of a process: of this machine by its id, or of any as JSON."""
    if text.isdecimal():
        from worker.evidence.identity import identify
        from worker.evidence.verdicts import observer_of

        observer = observer_of(session.loaded.settings.host)
        return identify(int(text), host=observer.host, reader=observer.reader).to_object()
    given = text == "-" or text.lstrip().startswith(("{", "@"))
    value = common.read_json(parameter, text) if given else None
    if not isinstance(value, dict):
        common.usage(parameter, "is a process id or an identity as a JSON object")
    return value


async def send(
    client: "Client",
    session: Session,
    verb: str,
    key: tuple[str, ...],
    fields: Mapping[str, Any],
    command_id: str | None,
) -> Result:
    """Send a command; a refusal shows what it knows and is raised.

    Raises:
        Refused: It was refused.
    """
    from worker.client.errors import refusal

    result = await repeating.send(client, "adm", verb, key, fields, command_id)
    if result.status != "ok":
        if result.data and not session.as_json:
            common.emit({}, False, adm_views.result_lines(result, common.now_ms()))
        raise refusal(result)
    return result


def verb(
    session: Session,
    name: str,
    key: tuple[str, ...],
    fields: Mapping[str, Any],
    command_id: str | None,
) -> None:
    """Send a command and show its result."""
    common.judge("adm", name, fields)

    async def work(client: "Client") -> None:
        result = await send(client, session, name, key, fields, command_id)
        lines = adm_views.result_lines(result, common.now_ms())
        common.emit(result.to_object(), session.as_json, lines)

    sessions.with_client(session, work)


def _fenced(
    session: Session,
    name: str,
    request: str,
    fence: tuple[str | None, int | None],
    fields: Mapping[str, Any],
    command_id: str | None,
) -> None:
    key, (lease, generation) = request_key(request), fence
    common.judge("adm", name, {"lease_id": lease or "-", "generation": generation or 1, **fields})

    async def work(client: "Client") -> None:
        lease_id, number = lease, generation
        if lease_id is None or number is None:
            held = (await client.adm.request(request)).lease
            # A turn without a lease is refused by the fold, which says so in one way for all.
            lease_id = lease_id or (held.lease_id if held else "none")
            number = number or (held.generation if held else 1)
            repeating.fix("--lease", lease_id)
            repeating.fix("--generation", str(number))
        body = {"lease_id": lease_id, "generation": number, **fields}
        result = await send(client, session, name, key, body, command_id)
        lines = adm_views.result_lines(result, common.now_ms())
        common.emit(result.to_object(), session.as_json, lines)

    sessions.with_client(session, work)
